"""Rows as JSON values for people: secrets masked, binary values by their size, long texts and lists cut.

A value is looked at where it is, and never copied as a whole: a frame of a camera has megabytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, time
from typing import Any

import pyarrow as pa

from holdfast.masking import masked_json

TEXT_MAX = 200
"""Characters of a text that are shown."""

ITEMS_MAX = 20
"""Items of a list or a map that are shown."""

_READ_MAX = 2**14
"""Bytes of a text that are looked at: it is masked before it is cut, for half a secret is not known as one."""

ShownRow = Mapping[str, Any]
"""Column -> its value, as JSON has it."""


def rows_of(batch: pa.RecordBatch, count: int) -> list[dict[str, Any]]:
    """Return the first rows of a batch, so many at most.

    Examples
    --------
    >>> batch = pa.RecordBatch.from_pydict({"id": [1, 2], "image": [b"12345", None], "token": ["hunter2", "x"]})
    >>> rows_of(batch, 1)
    [{'id': 1, 'image': '<5 bytes>', 'token': '***'}]
    """
    named = list(zip(batch.schema.names, batch.columns, strict=True))
    rows = ({name: _value(column[at]) for name, column in named} for at in range(min(count, batch.num_rows)))
    return [_brief(masked_json(row)) for row in rows]


def row_line(row: ShownRow) -> str:
    r"""Return a row on one line of plain text, with nothing in it that a terminal would obey.

    Examples
    --------
    >>> row_line({"id": 1, "text": "a \x1b[2J\u202e b", "none": None})
    'id=1, text="a \\u001b[2J\\u202e b", none=null'
    """
    said = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in row.items())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in said)


def _value(scalar: pa.Scalar) -> Any:
    """Return a value as JSON has it; texts not cut yet, but for the longest."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _value(scalar[at]) for at, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return _map(scalar.values)
    if _is_list(kind):
        return _list(scalar.values)
    if _is_text(kind):
        return bytes(scalar.as_buffer()[:_READ_MAX]).decode(errors="ignore")
    if _is_binary(kind):
        return f"<{scalar.as_buffer().size:,} bytes>"
    if pa.types.is_dictionary(kind):
        return _value(scalar.value)
    return _plain(scalar)


def _list(values: pa.Array) -> list[Any]:
    found = [_value(values[at]) for at in range(min(len(values), ITEMS_MAX))]
    return [*found, f"<{len(values) - ITEMS_MAX:,} more>"] if len(values) > ITEMS_MAX else found


def _map(entries: pa.Array) -> Any:
    """Return the entries of a map: by key where that is a text, so that the name of a secret is known as one."""
    keys, items = entries.field(0), entries.field(1)
    if not _is_text(keys.type):
        return _list(entries)
    found = {_value(keys[at]): _value(items[at]) for at in range(min(len(entries), ITEMS_MAX))}
    return {**found, "...": f"<{len(entries) - ITEMS_MAX:,} more>"} if len(entries) > ITEMS_MAX else found


def _plain(scalar: pa.Scalar) -> Any:
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # a time that Python cannot say: its ticks
        return f"{scalar.type} {scalar.value}"
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value.isoformat() if isinstance(value, date | time) else str(value)  # of datetime, too


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    is_long = pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(is_long or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _brief(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}..."
    if isinstance(value, dict):
        return {_brief(key): _brief(inner) for key, inner in value.items()}
    return [_brief(inner) for inner in value] if isinstance(value, list) else value
