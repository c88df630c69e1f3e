"""CSV with or without a header: quotes as in RFC 4180, parsed with Arrow's reader into the declared types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from holdfast.connectors.formats import blocks, convert, csv_verdicts
from holdfast.connectors.formats.csv_records import Walk
from holdfast.connectors.formats.lines import Records, Unreadable, cut_short, is_utf8, too_long
from holdfast.errors import InvalidPipeline
from holdfast.types.conversion import check_range
from holdfast.types.csv_text import read_csv

_ARROW_BLOCK = 1 << 21
_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?(?:CSV conversion error to [^:]*: )?(.*)", re.DOTALL)
_COUNT = re.compile(r"Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True)
class CsvParser:
    """Parses records into the columns of a schema.  An empty field is null, a quoted empty one an empty text.

    Parameters
    ----------
    schema : pyarrow.Schema
        Columns wanted.
    columns : tuple of str
        Columns of the file, in its order.
    separator : str
        One ASCII character.
    problem : str
        What is wrong with the file's header: then no record can be read.
    longest : int
        Bytes that a record may have.
    encoding : str
        What the text was before it became UTF-8, for reasons.

    Notes
    -----
    Times are read as texts and converted column by column: Arrow's reader takes them either with zones or without.
    So are decimals, and integers where hexadecimal digits may be, which it may make another number of.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    separator: str
    problem: str = ""
    longest: int = 1 << 62
    encoding: str = "UTF-8"

    def parse(self, data: bytes) -> list[pa.RecordBatch]:
        """Return the rows, one for each record."""
        if self.problem and data:
            raise Unreadable(self.problem)
        found = blocks.quotes(data, self.separator)
        is_multiline = found.is_multiline or not found.is_clean
        if is_multiline and len(data) > self.longest and blocks.longest(found.ends, len(data)) > self.longest:
            raise Unreadable(too_long(self.longest))  # or as long as that with its line end: the exact way decides
        has_return = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
        if has_return and not found.is_clean:
            # For Arrow such a carriage return ends a row after a quote.  Where another quote is misplaced, two lines
            # may become one as well, and the number of rows, which is compared below, would be right with wrong rows.
            raise Unreadable(csv_verdicts.RETURN)
        ends = found.ends if found.is_clean else self._walked(data)
        count = blocks.record_count(data, ends)  # without lines of carriage returns alone, which Arrow skips
        if count == 0:
            return []
        tables = [self._read(block) for block in _blocks(data, ends)]
        if sum(table.num_rows for table in tables) != count:
            raise Unreadable(csv_verdicts.RETURN)
        return [self._declared(batch) for table in tables for batch in table.to_batches()]

    def joins(self, data: bytes) -> bool:
        """Whether the text may be parsed together with others: a quote left open would reach into the next file."""
        return b'"' not in data

    def head(self, data: bytes, size: int) -> bytes:
        """Return the records that end within the first bytes, unless some quote there is misplaced."""
        found = blocks.quotes(data[:size], self.separator, to_last_end=True)
        return data[: found.ends[-1]] if found.is_clean and len(found.ends) else b""

    def records(self, data: bytes) -> Records:
        """Take the text apart into records; one may span lines where quotes say so."""
        if len(data) <= self.longest and (quotes := blocks.quotes(data, self.separator)).is_clean:
            starts, ends = blocks.lines(data, quotes.ends)
            return Records(starts, ends, dict.fromkeys(range(len(starts)), self.problem) if self.problem else {})
        found: list[blocks.Offsets] = []
        problems: dict[int, str] = {}
        count = 0
        for batch, faults in self._walk(data):
            problems.update(faults if not count else {count + at: problem for at, problem in faults.items()})
            count += len(batch)
            found.append(batch)
        places = np.concatenate(([0], *found))
        starts, ends, is_record = blocks.contents(data, places[:-1], places[1:])
        if len(starts) < count:
            numbers = np.cumsum(is_record) - 1
            problems = {int(numbers[at]): problem for at, problem in problems.items() if is_record[at]}
        return Records(starts, ends, dict.fromkeys(range(len(starts)), self.problem) if self.problem else problems)

    def judge(self, contents: Sequence[bytes], error: Unreadable | None = None) -> dict[int, str]:
        """Return why records are surely bad, by index."""
        return csv_verdicts.judge(contents, self.columns, self.schema, self.separator, self._texts, self.encoding)

    def reason(self, record: bytes, error: Unreadable) -> str:
        """Say why a record cannot be read, naming the column where one is the cause."""
        message = str(error)
        if (counts := _COUNT.search(message)) is not None:
            return f"it has {counts[2]} fields where {counts[1]} are expected"
        if (column := _COLUMN.match(message)) is not None:
            field = self.schema.field(self.columns[int(column[1])])
            return f"column {field.name!r} is declared {field.type} ({cut_short(column[2])})"
        return cut_short(message)

    def _walked(self, data: bytes) -> blocks.Offsets:
        """Return where records end, one by one: quotes are in the middle of fields."""
        walked: list[blocks.Offsets] = []
        for ends, problems in self._walk(data):
            if problems:
                raise Unreadable(problems[min(problems)])
            walked.append(ends)
        return np.concatenate(walked)

    def _walk(self, data: bytes) -> Iterator[tuple[blocks.Offsets, dict[int, str]]]:
        return Walk(data, self.separator, longest=self.longest).batches()

    def _read(self, block: bytes) -> pa.Table:
        kinds = pa.types
        tests = [kinds.is_timestamp, kinds.is_decimal]
        if csv_verdicts.has_hexadecimal(block):
            tests.append(kinds.is_integer)
        is_text = {f.name: any(test(f.type) for test in tests) for f in self.schema}
        types = {f.name: pa.string() if is_text[f.name] else f.type for f in self.schema}
        try:
            table = self._read_as(types, block)
        except pa.ArrowInvalid as error:
            raise Unreadable(str(error)) from error
        # What is beyond a FLOAT or DOUBLE is infinite for Arrow.
        infinite = [f.name for f in table.schema if len(convert.infinite_rows(table[f.name].combine_chunks()))]
        texts = self._texts(block, infinite) if infinite else None
        for name in infinite:
            assert texts is not None
            reasons = csv_verdicts.of_column(self.schema.field(name), texts[name].combine_chunks(), None, self.encoding)
            if reasons:
                raise Unreadable(reasons[min(reasons)])
        return table

    def _texts(self, data: bytes, names: list[str]) -> pa.Table:
        return self._read_as(dict.fromkeys(names, pa.binary()), data)

    def _read_as(self, types: dict[str, pa.DataType], data: bytes) -> pa.Table:
        return read_csv(data, self.columns, types, separator=self.separator)

    def _declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, column in zip(self.schema, batch.columns, strict=True):
            try:
                column = convert.to_declared(column, field.type)
                check_range(column)
            except pa.ArrowInvalid as error:
                raise Unreadable(f"column {field.name!r} is declared {field.type} ({error})") from error
            if path := convert.forbidden_null(column, field):
                raise Unreadable(f"{path!r} is declared NOT NULL and is empty")
            columns.append(column)
        if name := convert.lacking(columns, self.schema):
            raise Unreadable(f"{name!r} is declared NOT NULL and is empty")
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _blocks(data: bytes, ends: blocks.Offsets) -> Iterator[bytes]:
    """Cut a text into blocks of whole records."""
    at, size = 0, len(data)
    while at < size:
        following = ends[np.searchsorted(ends, at + _ARROW_BLOCK) :]
        end = int(following[0]) if len(following) else size
        yield data[at:end]
        at = end


def header_columns(header: bytes, separator: str, schema: pa.Schema) -> tuple[tuple[str, ...], str]:
    """Return the columns that a header line names, and what is wrong with them or an empty text."""
    header = header.rstrip(b"\r\n")
    if not is_utf8(header):
        return (), "the header is not text in the encoding that is read: write encoding= where the source is built"
    if csv_verdicts.is_broken(header, separator):
        return (), "the header contains a carriage return (lines that end in it alone are not read: write LF, or CR LF)"
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(header + b"\n"),
            parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        )
        columns = tuple(table.column_names)
    except pa.ArrowInvalid:
        columns = ()
    for name in schema.names:
        if columns.count(name) != 1:
            what = "names it twice" if name in columns else "does not name it"
            named = ", ".join(map(repr, columns)) or "nothing"
            return columns, f"the file has no column {name!r}: its header {what}; it names {cut_short(named, 500)}"
    return columns, ""


def check_types(schema: pa.Schema, argument: str = "schema") -> None:
    """Check that a CSV field can hold every column.

    Raises
    ------
    InvalidPipeline
        If a type has no form in CSV that is read here.
    """
    kinds = pa.types
    allowed = (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_string, kinds.is_decimal128)
    times = (kinds.is_date32, kinds.is_timestamp)
    for field in schema:
        if not any(test(field.type) for test in (*allowed, *times)):
            raise InvalidPipeline(
                f"column {field.name!r} of {argument} is {field.type}, and a CSV field cannot hold that.",
                do="declare STRING and convert it after the source (BINARY: unbase64, nested values: from_json).",
            )
