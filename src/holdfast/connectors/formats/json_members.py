"""Members of JSON objects that a schema has no column for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

from holdfast.types.schema import is_list


def refusal(content: bytes, schema: pa.Schema) -> str:
    """Say which member of an object is no column; empty if each is one, or the text is none of JSON.

    Names are compared as they are written: ``Tip`` is no ``tip``.  Null is a value like any other.

    Examples
    --------
    >>> refusal(b'{"id": 1, "tip": null}', pa.schema([("id", pa.int64())]))
    "it has the member 'tip', which is no column of schema="
    >>> refusal(b'{"id": 1}', pa.schema([("id", pa.int64()), ("tip", pa.int64())]))
    ''
    """
    try:
        path = _unknown(from_json(content), schema, "")
    except ValueError:
        return ""
    return f"it has the member {path!r}, which is no column of schema=" if path is not None else ""


def _unknown(value: Any, fields: Iterable[pa.Field], path: str) -> str | None:
    """Return the path of the first member that is no field; None if there is none, or it is no object."""
    if not isinstance(value, dict):
        return None
    types = {field.name: field.type for field in fields}
    for name, member in value.items():
        if name not in types:
            return f"{path}{name}"
        if (found := _within(member, types[name], f"{path}{name}.")) is not None:
            return found
    return None


def _within(value: Any, data_type: pa.DataType, path: str) -> str | None:
    if pa.types.is_struct(data_type):
        return _unknown(value, data_type, path)
    if is_list(data_type) and isinstance(value, list):
        found = (_within(each, data_type.value_type, path) for each in value)
        return next((one for one in found if one is not None), None)
    return None
