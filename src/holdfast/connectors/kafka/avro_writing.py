"""Rows as Avro values, with the id of their schema before them.

No library writes values of Avro by columns and says where each ends, so rows are handed to one that writes them one by
one, in C.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fastavro
import pyarrow as pa

from holdfast.connectors.kafka.avro_registry import MAGIC
from holdfast.connectors.kafka.avro_schemas import misfit
from holdfast.types.avro_columns import columns_of, parsed


class Unwritable(ValueError):
    """A row cannot be written with the schema; the message says why."""


@dataclass(frozen=True)
class AvroEncoder:
    """Writes rows with one schema.  Picklable: tasks write rows.

    Parameters
    ----------
    schema : str
        As JSON.
    number : int
        Its id in the registry.
    """

    schema: str
    number: int

    @cached_property
    def _types(self) -> Mapping[str, pa.DataType | None]:
        return columns_of(parsed(self.schema))

    @cached_property
    def _writer(self) -> Any:
        return fastavro.parse_schema(json.loads(self.schema))

    def __reduce__(self) -> tuple[Any, ...]:
        return (AvroEncoder, (self.schema, self.number))

    def values(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the value of each row.

        Raises
        ------
        Unwritable
            If one has a null, or a value, that the schema does not take.
        """
        names = [name for name in rows.schema.names if name in self._types]
        columns = [_plain(rows.column(name), self._types[name]) for name in names]
        prefix = MAGIC + self.number.to_bytes(4, "big")
        write, writer, stream = fastavro.schemaless_writer, self._writer, io.BytesIO()
        found = []
        for row in zip(*columns, strict=True):
            stream.seek(0)
            stream.truncate()
            stream.write(prefix)
            try:
                write(stream, writer, dict(zip(names, row, strict=True)))
            except Exception as error:  # of many kinds: what of the library met the value first
                raise Unwritable(f"{type(error).__name__}: {error}") from error
            found.append(stream.getvalue())
        return pa.array(found, pa.large_binary())


def unfit(schema: str, columns: pa.Schema) -> str | None:
    """Return why rows with these columns cannot be written with a schema; None where they can.

    Examples
    --------
    >>> schema = '{"type": "record", "name": "R", "fields": [{"name": "km", "type": "int"}]}'
    >>> unfit(schema, pa.schema([("km", pa.int64())]))
    "the column 'km' is int64, and the schema has int32"
    """
    try:
        record = parsed(schema)
        fastavro.parse_schema(json.loads(schema))
        types = columns_of(record)
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        return f"it is no schema of a record: {error}"
    return next(_problems(record, types, columns), None)


def _problems(record: Mapping[str, Any], types: Mapping[str, pa.DataType | None], columns: pa.Schema) -> Iterator[str]:
    for column in columns:
        if column.name not in types:
            yield f"the column {column.name!r} is no field of the schema, and would be lost"
            continue
        kind = types[column.name]
        if kind is None or misfit(column.type, kind):
            has = "a union of several types" if kind is None else str(kind)
            yield f"the column {column.name!r} is {column.type}, and the schema has {has}"
    for field in record["fields"]:
        if field["name"] not in columns.names and "default" not in field:
            yield f"the schema has the field {field['name']!r} without a default, and there is no such column"


def _plain(column: pa.Array, kind: pa.DataType | None) -> list[Any]:
    """Return values as the library takes them: times as the numbers that are written, which costs a tenth."""
    assert kind is not None
    if pa.types.is_timestamp(kind):
        return list(column.cast(pa.timestamp(kind.unit, kind.tz), safe=False).cast(pa.int64()).to_pylist())
    if pa.types.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_map(kind):
        return [None if each is None else dict(each) for each in column.to_pylist()]
    return list(column.to_pylist())
