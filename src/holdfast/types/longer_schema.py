"""Columns that are added to the text of a schema file: what it says of others, and its comments, stay as they are.

A text of JSON is written anew, with the same members in the same order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.types import ddl, schema_files
from holdfast.types.schema import is_list


def with_columns(path: str, text: str, columns: Sequence[str]) -> str:
    r"""Return the text of a schema file with some columns more, behind the others; nulls are allowed in them.

    Parameters
    ----------
    path : str
        Ends as the files of :mod:`holdfast.types.schema_files` do.
    text : str
        What it has.
    columns : sequence of str
        In SQL's words, each; one that the file has already is left as it is there.

    Raises
    ------
    InvalidPipeline, ValueError
        If the file is no schema, or would not be one of these columns then.

    Examples
    --------
    >>> with_columns("ride.ddl", "id BIGINT NOT NULL -- of the day", ["tip BIGINT"])
    'id BIGINT NOT NULL, -- of the day\ntip BIGINT\n'
    >>> with_columns("ride.ddl", "id BIGINT", ["id BIGINT"])
    'id BIGINT'
    """
    read = schema_files.reader_of(path)
    present = read(text)
    names = {field.name.lower() for field in present}
    new = {column: field for column in columns for field in ddl.fields(column) if field.name.lower() not in names}
    if not new:
        return text
    longer = _WRITERS[os.path.splitext(path)[1].lower()](text, new)
    if [(field.name, field.type) for field in read(longer)] != [(it.name, it.type) for it in (*present, *new.values())]:
        raise ValueError(f"it could not have {', '.join(new)} behind its columns")
    return longer


def _of_ddl(text: str, new: Mapping[str, pa.Field]) -> str:
    end = schema_files.end_of_columns(text)
    behind = text[end:]
    comment = behind.partition("\n")[0]
    comment = comment if comment.strip().startswith("--") else ""
    return f"{text[:end]},{comment}\n{(',' + chr(10)).join(new)}{behind[len(comment) :] or chr(10)}"


def _of_json_schema(text: str, new: Mapping[str, pa.Field]) -> str:
    schema = json.loads(text)
    properties = schema_files.columns_in(schema)["properties"]
    properties.update({field.name: _json_type(field.type) for field in new.values()})
    return _text_of(schema)


def _json_type(data_type: pa.DataType) -> dict[str, Any]:
    if is_list(data_type):
        return {"type": ["array", "null"], "items": _json_type(data_type.value_type)}
    if pa.types.is_struct(data_type):
        properties = {field.name: _json_type(field.type) for field in data_type}
        return {"type": ["object", "null"], "properties": properties}
    return {"type": [_JSON_TYPES[data_type], "null"]}


def _of_avro(text: str, new: Mapping[str, pa.Field]) -> str:
    record = json.loads(text)
    record["fields"] += [_avro_field(field, field.name) for field in new.values()]
    return _text_of(record)


def _avro_field(field: pa.Field, record: str) -> dict[str, Any]:
    """Return a field that may be left out; its records within have names of their own."""
    return {"name": field.name, "type": ["null", _avro_type(field.type, record)], "default": None}


def _avro_type(data_type: pa.DataType, name: str) -> Any:
    if is_list(data_type):
        return {"type": "array", "items": ["null", _avro_type(data_type.value_type, f"{name}_item")]}
    if pa.types.is_struct(data_type):
        fields = [_avro_field(field, f"{name}_{field.name}") for field in data_type]
        return {"type": "record", "name": f"{name}_value", "fields": fields}
    return _AVRO_TYPES[data_type]


def _text_of(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


_JSON_TYPES = {pa.bool_(): "boolean", pa.int64(): "integer", pa.float64(): "number", pa.string(): "string"}
_AVRO_TYPES = {pa.bool_(): "boolean", pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}

_WRITERS: dict[str, Callable[[str, Mapping[str, pa.Field]], str]] = {
    ".avsc": _of_avro,
    ".json": _of_json_schema,
    ".ddl": _of_ddl,
    ".sql": _of_ddl,
}
