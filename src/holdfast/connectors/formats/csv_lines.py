"""CSV with or without a header: quotes as in RFC 4180, parsed with Arrow's reader into the declared types.

Which CSV records are surely bad, and why: fields counted, then each column taken as texts and checked as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from holdfast.connectors.formats import blocks, convert
from holdfast.connectors.formats.blocks import SHOWN, Records, Unreadable, cut_short, is_utf8, not_encoded, too_long
from holdfast.connectors.formats.convert import unless_of
from holdfast.connectors.formats.csv_records import Walk
from holdfast.errors import InvalidPipeline
from holdfast.types.conversion import check_range
from holdfast.types.from_text import all_fit, read_csv, trimmed, unfit

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
        if is_multiline and len(data) > self.longest and _longest(data, found.ends) > self.longest:
            raise Unreadable(too_long(self.longest))
        has_return = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
        if has_return and not found.is_clean:
            # For Arrow such a carriage return ends a row after a quote.  Where another quote is misplaced, two lines
            # may become one as well, and the number of rows, which is compared below, would be right with wrong rows.
            raise Unreadable(RETURN)
        ends = found.ends if found.is_clean else self._walked(data)
        count = blocks.record_count(data, ends)  # without lines of carriage returns alone, which Arrow skips
        if count == 0:
            return []
        tables = [self._read(block) for block in _blocks(data, ends)]
        if sum(table.num_rows for table in tables) != count:
            raise Unreadable(RETURN)
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
        return judge(contents, self.columns, self.schema, self.separator, self._texts, self.encoding)

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
        if has_hexadecimal(block):
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
            reasons = of_column(self.schema.field(name), texts[name].combine_chunks(), None, self.encoding)
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


def _longest(data: bytes, ends: blocks.Offsets) -> int:
    """Return the length of the longest record, its line end not counted."""
    return int(blocks.lengths(data, np.append(0, ends), np.append(ends, len(data))).max())


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
    if is_broken(header, separator):
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


RETURN = "the line contains a carriage return (lines that end in it alone are not read: write LF, or CR LF)"
_QUOTE = b'"'
_ZERO, _X, _LOWER = ord("0"), ord("x"), 0x20
_TRUE = pa.array([b"1", b"true", b"TRUE", b"True"], pa.binary())
"""How Arrow's reader takes a text for true."""
_PIECES = re.compile(rb"[^\r\n]+")


def judge(
    contents: Sequence[bytes],
    columns: Sequence[str],
    schema: pa.Schema,
    separator: str,
    read: Callable[[bytes, list[str]], pa.Table],
    encoding: str,
) -> dict[int, str]:
    """Return why records are surely bad, by index; see :class:`~holdfast.connectors.formats.blocks.Parser`.

    Parameters
    ----------
    read : callable
        Reads some columns of records that have as many fields as there are columns, as bytes: null where empty and not
        quoted.
    encoding : str
        What the text was before it became UTF-8.
    """
    some, joined = _left(contents, {})
    reasons = _of_returns(contents, separator) if b"\r" in joined else {}
    if reasons:
        some, joined = _left(contents, reasons)
    if not some:
        return reasons
    is_text = is_utf8(joined)
    # Of a text that may always be null nothing has to be known but whether it is UTF-8.
    is_free = {f.name: f.nullable and unless_of(f) is None and pa.types.is_string(f.type) for f in schema}
    names = [f.name for f in schema if not (is_text and is_free[f.name])]
    table = _read(read, joined, names or list(schema.names[:1]), len(some))
    if table is None:  # some record has too many fields, or too few
        found = _of_counts(contents if not reasons else [contents[at] for at in some], joined, len(columns), separator)
        reasons = {**reasons, **{some[at]: problem for at, problem in found.items()}} if reasons else found
        if not found or len(reasons) == len(contents):
            return reasons
        some, joined = _left(contents, reasons)
        table = _read(read, joined, names, len(some)) if names else None
    if table is None:
        return reasons
    for name in names:
        if len(reasons) == len(contents):
            break
        field = schema.field(name)
        marker = unless_of(field)
        found = of_column(
            field,
            pa.concat_arrays(table[name].chunks),
            None if marker is None else pa.concat_arrays(table[marker].chunks),
            encoding,
        )
        if len(some) < len(contents):
            found = {some[at]: problem for at, problem in found.items()}
        reasons = {**found, **reasons}
    return reasons


def _left(contents: Sequence[bytes], reasons: Mapping[int, str]) -> tuple[Sequence[int], bytes]:
    """Return the records that no reason is known for, and their text."""
    if not reasons:
        return range(len(contents)), b"\n".join(contents) + b"\n"
    some = [at for at in range(len(contents)) if at not in reasons]
    return some, b"\n".join([contents[at] for at in some]) + b"\n"


def _of_returns(contents: Sequence[bytes], separator: str) -> dict[int, str]:
    """Say which records are bad by a carriage return: for Arrow it ends a row.

    Without them each of the others is one row, so that rows are known by their records.
    """
    return {at: RETURN for at, content in enumerate(contents) if b"\r" in content and is_broken(content, separator)}


def is_broken(content: bytes, separator: str) -> bool:
    """Whether a carriage return stands outside of quoted fields and between something, or beside an odd quote."""
    if content.count(b"\r") == content.count(b"\r\n"):
        return False
    bare = _quoted_fields(separator.encode()).sub(rb"\1q", content) if _QUOTE in content else content
    return _QUOTE in bare or len(_PIECES.findall(bare)) > 1


def _read(read: Callable[[bytes, list[str]], pa.Table], joined: bytes, names: list[str], count: int) -> pa.Table | None:
    """Return columns of records; None unless each of them is one row."""
    try:
        table = read(joined, names)
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == count else None


def _of_counts(contents: Sequence[bytes], joined: bytes, wanted: int, separator: str) -> dict[int, str]:
    """Say of which records the number of fields is wrong."""
    sep = separator.encode()
    counts = _counts(contents, joined, sep)
    reasons = {}
    for count in np.unique(counts[counts != wanted]).tolist():
        reason = f"it has {count} fields where {wanted} are expected"
        reasons.update(dict.fromkeys(np.flatnonzero(counts == count).tolist(), reason))
    return reasons


def _counts(contents: Sequence[bytes], joined: bytes, sep: bytes) -> npt.NDArray[np.int64]:
    """Return how many fields each record has."""
    view = np.frombuffer(joined, np.uint8)
    found = np.flatnonzero(view == ord(sep))
    if _QUOTE in joined:
        if not blocks.quotes(joined, sep.decode()).is_clean:  # some are in the middle of fields
            strip = _quoted_fields(sep).sub
            return np.array([strip(rb"\1", content).count(sep) + 1 for content in contents])
        marks = np.flatnonzero(view == ord(_QUOTE))
        found = found[np.searchsorted(marks, found) % 2 == 0]
    ends = np.cumsum(np.fromiter(map(len, contents), np.int64, len(contents)) + 1)
    return np.diff(np.searchsorted(found, ends), prepend=0) + 1


@lru_cache(maxsize=8)
def _quoted_fields(sep: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(\A|" + re.escape(sep) + rb')"(?:[^"]++|"")*+"')


def has_hexadecimal(data: bytes) -> bool:
    """Whether ``0x`` may be in a text: looking for one character takes a fiftieth of looking for two."""
    if b"x" not in data and b"X" not in data:
        return False
    view = blocks.as_bytes(data)
    return bool((view[np.flatnonzero((view | _LOWER) == _X) - 1] == _ZERO).any())


def of_column(field: pa.Field, column: pa.Array, excuses: pa.Array | None, encoding: str) -> dict[int, str]:
    """Return the places of values that do not fit a column, and why; a row with a true excuse need not have one."""
    found: dict[int, str] = {}
    kind = field.type
    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([_decode(value) for value in column.to_pylist()], pa.string())
        problem = f"column {field.name!r} is declared {kind} ({not_encoded(encoding)})"
        found = dict.fromkeys(_differ(texts.is_null(), column.is_null()), problem)
    if column.null_count and (not field.nullable or excuses is not None):
        is_lacking = column.is_null()
        if excuses is not None:
            is_lacking = pc.and_(is_lacking, pc.invert(pc.fill_null(pc.is_in(excuses, _TRUE), False)))
        problem = f"{field.name!r} is declared NOT NULL and is empty"
        found.update(dict.fromkeys(_places(is_lacking), problem))
    texts = trimmed(texts, kind)
    if all_fit(texts, kind):
        return found
    bad = unfit(texts, kind).nonzero()[0]
    begin, end = f"column {field.name!r} is declared {kind} (invalid value '", "')"
    if pa.types.is_timestamp(kind):
        begin = f"column {field.name!r} is declared {kind} (Failed to parse string: '"
        end = f"' as a scalar of type {pa.timestamp('us')})"
    problems = pc.binary_join_element_wise(begin, _cut_short(texts.take(pa.array(bad))), end, "").to_pylist()
    # An empty text is none of these.
    return {**dict(zip(bad.tolist(), problems, strict=True)), **found}


def _cut_short(texts: pa.Array) -> pa.Array:
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= SHOWN:
        return texts
    begin = pc.utf8_slice_codeunits(texts, 0, SHOWN - 3)
    is_long = pc.greater(pc.utf8_length(texts), SHOWN)
    return pc.if_else(is_long, pc.binary_join_element_wise(begin, "...", ""), texts)


def _decode(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _differ(one: pa.Array, other: pa.Array) -> list[int]:
    places: list[int] = np.flatnonzero(
        one.to_numpy(zero_copy_only=False) != other.to_numpy(zero_copy_only=False)
    ).tolist()
    return places


def _places(mask: pa.Array) -> list[int]:
    places: list[int] = np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()
    return places
