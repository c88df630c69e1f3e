"""JSON lines: one object a line, parsed with Arrow's reader into the declared types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from holdfast.connectors.formats import blocks, convert, json_members, json_verdicts
from holdfast.connectors.formats.blocks import Records, Unreadable, cut_short, is_utf8, not_encoded
from holdfast.errors import InvalidPipeline
from holdfast.types.conversion import check_range

_OPEN, _CLOSE, _NEWLINE = ord("{"), ord("}"), ord("\n")
# Measured: 1.06 million rows/s with 64 kB, 1.34 with 2 MB, 1.26 with 32 MB (8 columns, one core).
_ARROW_BLOCK = 1 << 21
_PIECE = 1 << 18
_SPACE = b" \t\r\n"
_TURNED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)")
_LARGE = r"[0-9]{39}|[0-9][eE]\+?[0-9]"
"""A number that may be beyond a FLOAT."""
_IN_ROW = re.compile(r"\.? in row \d+$")


@dataclass(frozen=True)
class JsonParser:
    """Parses objects, one a line, into the columns of a schema.

    Parameters
    ----------
    schema : pyarrow.Schema
        Columns wanted.
    encoding : str
        What the text was before it became UTF-8, for reasons.
    ignores_new : bool
        Whether members that are no column are ignored; else an object that has one is a bad row.

    Notes
    -----
    Numbers, booleans, texts, decimals and ISO times are read by Arrow itself; dates are read as texts and converted
    column by column, and so are times that Arrow refuses (digits after the microseconds, numbers of seconds).
    """

    schema: pa.Schema
    encoding: str = "UTF-8"
    ignores_new: bool = True

    def parse(self, data: bytes) -> list[pa.RecordBatch]:
        """Return the rows, one for each line."""
        if not is_utf8(data):
            raise Unreadable(not_encoded(self.encoding))
        count = _checked_line_count(data)
        if count == 0:
            return []
        try:
            return self._parse(data, count, self._direct())
        except Unreadable:
            timed = [field.name for field in self.schema if convert.holds_timestamp(field.type)]
            if not timed:
                raise
        return self._parse_loosely(data, count, timed)

    def joins(self, data: bytes) -> bool:
        """Whether the text may be parsed together with others: always, for no object spans lines."""
        return True

    def head(self, data: bytes, size: int) -> bytes:
        """Return the lines that end within the first bytes."""
        return data[: data.rfind(b"\n", 0, size) + 1]

    def records(self, data: bytes) -> Records:
        """Take the text apart into lines."""
        starts, ends = blocks.lines(data)
        view = blocks.as_bytes(data)
        is_object = (view[starts] == _OPEN) & (view[ends - 1] == _CLOSE) if len(starts) else starts
        if is_object.all():
            return Records(starts, ends, {})
        is_record = np.ones(len(starts), np.bool_)
        problems: dict[int, str] = {}
        odd = np.flatnonzero(~is_object)
        for at, start, end in zip(odd.tolist(), starts[odd].tolist(), ends[odd].tolist(), strict=True):
            line = data[start:end]
            content = line.strip(_SPACE)
            if content != line:
                starts[at] = start + len(line) - len(line.lstrip(_SPACE))
                ends[at] = starts[at] + len(content)
                is_record[at] = bool(content)
            if content and not (content.startswith(b"{") and content.endswith(b"}")):
                problems[at] = _shape_problem(content)
        if not is_record.all():
            numbers = np.cumsum(is_record) - 1
            problems = {int(numbers[at]): problem for at, problem in problems.items()}
        return Records(starts[is_record], ends[is_record], problems)

    def judge(self, contents: Sequence[bytes], error: Unreadable | None = None) -> dict[int, str]:
        """Return why lines are surely bad, by index."""
        reasons = json_verdicts.judge(contents, self.schema, error, encoding=self.encoding)
        if not self.ignores_new:
            for at, content in enumerate(contents):
                if at not in reasons and (new := json_members.refusal(content, self.schema)):
                    reasons[at] = new
        return reasons

    def reason(self, record: bytes, error: Unreadable) -> str:
        """Say why a line cannot be read, naming the column where one is the cause."""
        if not is_utf8(record):
            return not_encoded(self.encoding)
        try:
            _read(record, pa.schema([]), len(record) + 1, ignores_new=True)
        except pa.ArrowInvalid as of_text:  # no column is the cause
            return json_verdicts.too_large(record) or _plain(str(of_text))
        for field in self.schema:
            try:
                replace(self, schema=pa.schema([field]), ignores_new=True).parse(record)
            except Unreadable as one:
                try:
                    held = json_verdicts.loads(record)[field.name]
                except (ValueError, KeyError, TypeError, RecursionError):
                    break
                text = json_verdicts.shown(held)
                return f"column {field.name!r} is declared {field.type} and holds {text} ({_plain(str(one))})"
        return _plain(str(error))

    def _direct(self) -> pa.Schema:
        read = [(f.name, convert.read_type(f.type, timestamps=None, dates=pa.string())) for f in self.schema]
        return pa.schema(read)

    def _parse_loosely(self, data: bytes, count: int, timed: list[str]) -> list[pa.RecordBatch]:
        """Parse with times as texts, or as numbers in the columns where Arrow finds those."""
        numeric: set[str] = set()
        while True:
            fields = []
            for field in self._direct():
                if field.name in timed:
                    held = pa.float64() if field.name in numeric else pa.string()
                    field = field.with_type(convert.read_type(field.type, timestamps=held, dates=None))
                fields.append(field)
            try:
                return self._parse(data, count, pa.schema(fields))
            except Unreadable as error:
                turned = _TURNED.search(str(error))
                if turned is None:
                    raise
                column = next((n for n in timed if turned[1] == n or turned[1].startswith(f"{n}/")), None)
                if column in numeric and turned[3] == "string":
                    return self._parse_by_kind(data, timed, error)
                if column is None or column in numeric or turned[3] != "number":
                    raise
                numeric.add(column)

    def _parse_by_kind(self, data: bytes, timed: list[str], error: Unreadable) -> list[pa.RecordBatch]:
        """Parse lines whose times are texts, and those where they are numbers, each for themselves: Arrow takes one.

        Raises
        ------
        Unreadable
            If they are all of one kind, or some cannot be read.
        """
        starts, ends = blocks.lines(data)
        lines = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        of_kind: dict[tuple[bool, ...], list[int]] = {}
        for at, kind in enumerate(json_verdicts.kinds_of_times(lines, [self.schema.field(name) for name in timed])):
            of_kind.setdefault(kind, []).append(at)
        if len(of_kind) < 2:
            raise error
        batches = [
            batch
            for places in of_kind.values()
            for batch in self.parse(b"\n".join([lines[at] for at in places]) + b"\n")
        ]
        order = np.argsort(np.concatenate(list(of_kind.values())))
        table = pa.Table.from_batches(batches, self.schema).combine_chunks()
        return list(table.take(pa.array(order)).combine_chunks().to_batches())

    def _parse(self, data: bytes, count: int, schema: pa.Schema) -> list[pa.RecordBatch]:
        try:
            table = _read(data, schema, _ARROW_BLOCK, ignores_new=self.ignores_new)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise Unreadable(str(error)) from error
            try:
                table = _read(data, schema, len(data) + 1, ignores_new=self.ignores_new)
            except pa.ArrowInvalid as again:
                raise Unreadable(str(again)) from again
        if table.num_rows != count:
            raise Unreadable(json_verdicts.SEVERAL)
        _check_infinite(table, data)
        return [self._declared(batch) for batch in table.to_batches()]

    def _declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, column in zip(self.schema, batch.columns, strict=True):
            try:
                column = convert.to_declared(column, field.type)
                check_range(column)
            except pa.ArrowInvalid as error:
                raise Unreadable(str(error)) from error
            if path := convert.forbidden_null(column, field):
                raise Unreadable(f"{path!r} is declared NOT NULL and is null or missing")
            columns.append(column)
        if name := convert.lacking(columns, self.schema):
            raise Unreadable(f"{name!r} is declared NOT NULL and is null or missing")
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def check_types(schema: pa.Schema, argument: str = "schema") -> None:
    """Check that JSON can hold every column.

    Raises
    ------
    InvalidPipeline
        If a type has no form in JSON that is read here.
    """
    for field in schema:
        if (odd := _odd_type(field.type)) is not None:
            raise InvalidPipeline(
                f"column {field.name!r} of {argument} is {field.type}, and JSON lines cannot hold {odd}.",
                why="a text or an object would have to be guessed apart.",
                do="declare STRING and convert it after the source (BINARY: unbase64), or a STRUCT instead of a MAP.",
            )


def _odd_type(data_type: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(data_type):
        return next((odd for member in data_type if (odd := _odd_type(member.type)) is not None), None)
    if pa.types.is_list(data_type):
        return _odd_type(data_type.value_type)
    kinds = pa.types
    plain = (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_string, kinds.is_decimal128)
    times = (kinds.is_date32, kinds.is_timestamp)
    return None if any(test(data_type) for test in (*plain, *times)) else data_type


def _read(data: bytes, schema: pa.Schema, block_size: int, *, ignores_new: bool) -> pa.Table:
    new = "ignore" if ignores_new else "error"
    return arrow_json.read_json(
        pa.BufferReader(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=block_size),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=new),
    )


def _check_infinite(table: pa.Table, data: bytes) -> None:
    """Check that what is infinite is so in the text: Arrow's reader makes it of what is beyond a FLOAT or DOUBLE.

    Raises
    ------
    Unreadable
        If some number is.
    """
    rows = {field.name: convert.infinite_rows(table[field.name].combine_chunks()) for field in table.schema}
    names = [name for name, found in rows.items() if len(found)]
    if names:
        some = np.unique(np.concatenate([rows[name] for name in names]))
        starts, ends = (places[some].tolist() for places in blocks.lines(data))
        lines = pa.array([data[start:end] for start, end in zip(starts, ends, strict=True)], pa.binary())
        lines = lines.filter(pc.match_substring_regex(lines, _LARGE))
        schema = pa.schema([table.schema.field(name) for name in names])
        reasons = json_verdicts.judge(lines.to_pylist(), schema, Unreadable(json_verdicts.TOO_LARGE))
        if reasons:
            raise Unreadable(f"{json_verdicts.TOO_LARGE}: {reasons[min(reasons)]}")


def _checked_line_count(data: bytes) -> int:
    """Return the number of lines that are not empty, each of which looks like one object; the text is UTF-8.

    Arrow's reader crashes on a first line ``null``, takes a later one for a row, joins an object that spans lines, and
    takes bytes that are not UTF-8.  A line that begins with ``{`` and ends with ``}`` leaves it no such freedom: then
    as many rows as lines means one row a line.

    Raises
    ------
    Unreadable
        If some line does not look like an object.
    """
    if not data:
        return 0
    view = blocks.as_bytes(data)
    body = view[:-1] if view[-1] == _NEWLINE else view
    if len(body) == 0 or body[0] != _OPEN or body[-1] != _CLOSE:
        return _count_unusual_lines(data)
    count = 1
    for at in range(0, len(body), _PIECE):
        ends = np.flatnonzero(body[at : at + _PIECE] == _NEWLINE) + at
        if not ((view[ends - 1] == _CLOSE) & (view[ends + 1] == _OPEN)).all():
            return _count_unusual_lines(data)
        count += len(ends)
    return count


def _count_unusual_lines(data: bytes) -> int:
    """Count where lines are empty or end in CR LF."""
    view = blocks.as_bytes(data)
    starts, ends = blocks.lines(data)
    if not bool((view[starts] == _OPEN).all() and (view[ends - 1] == _CLOSE).all()):
        raise Unreadable("a line is not an object")
    return len(starts)


def _shape_problem(content: bytes) -> str:
    if content.startswith(b"{"):
        return json_verdicts.INCOMPLETE
    if content.startswith(b"["):
        return "it is an array, and each line must be one object"
    return "it is not a JSON object"


def _plain(message: str) -> str:
    message = message.replace("decimal256", "decimal128")  # read with more bits than are declared
    message = _IN_ROW.sub("", message.removeprefix("JSON parse error: ")).strip().rstrip(".")
    turned = _TURNED.search(message)
    return f"a {turned[3]} where a {turned[2]} belongs" if turned else cut_short(message)
