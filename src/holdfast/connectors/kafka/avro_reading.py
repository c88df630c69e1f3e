"""Avro values as columns: many at a time, each checked to end where its message ends.

A library decodes files of Avro by columns, twenty times as fast as value by value.  So values become the one block of
such a file, and behind each stands a mark, a field more of its record: where a value is longer or shorter than its
schema says, the mark behind it is not where it is read.  Then, and for types that the library does not know, values
are decoded one by one, which also finds the ones that are wrong.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import polars
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kafka.avro_schemas import conformed, misfit, plainer
from holdfast.types.avro_columns import columns_of, parsed
from holdfast.types.conversion import check_range

_MARK = "holdfast_mark"
_MARK_BYTES = 16
_SYNC = bytes(16)
_NO_COLUMN = (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeDecodeError, OverflowError)
_PANIC = "PanicException"
"""What the library raises where it had better said that a value is wrong; it is no ``Exception``."""


class NotForColumns(ValueError):
    """A writer's schema cannot be read into the columns; the message says why."""


class AvroDecoder:
    """Reads values that were written with one schema.

    Parameters
    ----------
    schema : str
        The writer's, as JSON.
    wanted : pyarrow.Schema
        Columns; those that the writer does not have are null, and what only the writer has is left out.

    Raises
    ------
    NotForColumns
        If it is no record, or one of its fields does not have the type of the column.
    """

    def __init__(self, schema: str, wanted: pa.Schema) -> None:
        try:
            record = plainer(parsed(schema))
            self._writer = fastavro.parse_schema(record)
            self._found = columns_of(record)
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise NotForColumns(f"the schema is not one of a record: {error}") from error
        for field in wanted:
            found = self._found.get(field.name, field.type)
            if found is None or misfit(found, field.type):
                is_what = "a union of several types" if found is None else found
                raise NotForColumns(f"{field.name!r} is {is_what} there, and the column is {field.type}")
        self._wanted = wanted
        self._head = _file_head(record)
        self._by_columns = not any(
            each is None or _has_map(each) or pa.types.is_time(each) for each in self._found.values()
        )

    @property
    def fields(self) -> Mapping[str, pa.DataType | None]:
        """What the writer's records have; None where Arrow has no type for it."""
        return self._found

    def columns(self, values: Sequence[bytes]) -> list[pa.Array] | None:
        """Return the columns of values; None if some value cannot be read, or not by columns."""
        table = self._together(values) if self._by_columns and values else None
        if table is None:
            return None
        try:
            return [self._column(table, field, len(values)) for field in self._wanted]
        except pa.ArrowInvalid:  # bytes that are no text, in a column that is text
            return None

    def columns_apart(self, values: Sequence[bytes]) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the columns of the values that can be read, and by index what is wrong with the others."""
        rows: list[Mapping[str, Any]] = []
        at_row: list[int] = []
        problems: dict[int, str] = {}
        for at, value in enumerate(values):
            stream = io.BytesIO(value)
            try:
                row: Any = fastavro.schemaless_reader(stream, self._writer, None)
            except Exception as error:  # of many kinds: what of the library met the bytes first
                problems[at] = f"it is not of its schema ({type(error).__name__}: {error})"
                continue
            if stream.tell() == len(value):
                rows.append(row)
                at_row.append(at)
            else:
                problems[at] = f"it is not of its schema (it goes on for {len(value) - stream.tell()} bytes)"
        try:
            return self._columns_of(rows), problems
        except _NO_COLUMN:
            good = []
            for at, row in zip(at_row, rows, strict=True):
                try:
                    self._columns_of([row])
                    good.append(row)
                except _NO_COLUMN as error:
                    problems[at] = f"it has no such columns ({error})"
            return self._columns_of(good), problems

    def _columns_of(self, rows: Sequence[Mapping[str, Any]]) -> list[pa.Array]:
        found = []
        for field in self._wanted:
            natural = self._found.get(field.name)
            if natural is None:
                found.append(pa.nulls(len(rows), field.type))
            else:
                found.append(_check(pa.array([row[field.name] for row in rows], natural), field))
        return found

    def _together(self, values: Sequence[bytes]) -> pa.Table | None:
        mark = os.urandom(_MARK_BYTES)
        body = mark.join([*values, b""])
        block = b"".join((_varint(len(values)), _varint(len(body)), body, _SYNC))
        try:
            frame = polars.read_avro(io.BytesIO(self._head + block))
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == _PANIC:
                return None
            raise
        table = frame.to_arrow(compat_level=polars.CompatLevel.oldest())
        marks = table.column(_MARK)
        if len(marks) != len(values) or not pc.all(pc.equal(marks, pa.scalar(mark, marks.type))).as_py():
            return None
        return table

    def _column(self, table: pa.Table, field: pa.Field, count: int) -> pa.Array:
        if field.name not in self._found:
            return pa.nulls(count, field.type)
        found = table.column(field.name).combine_chunks()
        return _check(found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks), field)


def _check(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values as those of a column, once each is one of Spark's: Avro counts days and times of any year."""
    column = conformed(values, field.type)
    check_range(column)
    return column


def _file_head(record: Mapping[str, Any]) -> bytes:
    """Return the head of a file of records with a mark behind each."""
    mark = {"name": _MARK, "type": {"type": "fixed", "name": f"{_MARK}_type", "size": _MARK_BYTES}}
    schema = json.dumps({**record, "fields": [*record["fields"], mark]}).encode()
    key = b"avro.schema"
    return b"".join((b"Obj\x01", _varint(1), _varint(len(key)), key, _varint(len(schema)), schema, _varint(0), _SYNC))


def _varint(number: int) -> bytes:
    """Return a number that is not negative as Avro writes it."""
    rest, found = number << 1, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _has_map(of: pa.DataType) -> bool:
    """Whether there is a map in a type: the library has none."""
    if pa.types.is_map(of):
        return True
    if pa.types.is_list(of):
        return _has_map(of.value_type)
    return pa.types.is_struct(of) and any(_has_map(field.type) for field in of)
