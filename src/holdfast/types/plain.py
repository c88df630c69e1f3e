"""Arrow values without their encoding, and nested ones as JSON text: what systems without Arrow's types store."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def is_nested(kind: pa.DataType) -> bool:
    """Return whether values of this type are stored as JSON."""
    return bool(pa.types.is_nested(kind))


def json_text(values: pa.Array) -> pa.Array:
    """Return nested values as JSON text, one per row.

    Notes
    -----
    Python per row: Arrow has no kernel for it.  Maps become objects, bytes base64, decimals and times text; JSON has
    no word for NaN and infinities: they become the texts that PostgreSQL itself uses, ``"NaN"``, ``"Infinity"``
    and ``"-Infinity"``, which it also casts back.

    Examples
    --------
    >>> json_text(pa.array([{"a": [1, None]}, None])).to_pylist()
    ['{"a": [1, null]}', None]
    >>> json_text(pa.array([[float("nan"), float("-inf"), -0.0]])).to_pylist()
    ['["NaN", "-Infinity", -0.0]']
    """
    return pa.array(
        [
            None if value is None else json.dumps(_plain(value), ensure_ascii=False)
            for value in values.to_pylist(maps_as_pydicts="lossy")
        ],
        pa.string(),
    )


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _not_finite(value)
        case Mapping():
            return {_word(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return _word(value)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _word(value: Any) -> str:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return str(value // dt.timedelta(microseconds=1))
        case Decimal():
            return format(value, "f")
    return str(value)


def flat(values: pa.Array) -> pa.Array:
    """Return values with their encoding taken off: dictionaries and extension types become their plain values.

    A database knows nothing of Arrow's encodings; both sinks write plain values.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return flat(values.storage)
    if pa.types.is_dictionary(kind):
        return flat(values.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return flat(pc.run_end_decode(values))
    return values


def flat_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of :func:`flat` values."""
    if isinstance(kind, pa.BaseExtensionType):
        return flat_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return flat_type(kind.value_type)
    return kind


def from_json_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return nested values from JSON text of :func:`json_text`; null where it is none of the type.

    Examples
    --------
    >>> kind = pa.struct([("a", pa.list_(pa.float64())), ("b", pa.binary())])
    >>> values = pa.array([{"a": [1.5, float("inf")], "b": b"x"}, None], kind)
    >>> from_json_text(json_text(values), kind).equals(values)
    True
    """
    return pa.array([None if text is None else _typed_or_null(text, kind) for text in texts.to_pylist()], kind)


def _typed_or_null(text: str, kind: pa.DataType) -> Any:
    try:
        value = _typed(json.loads(text), kind)
        pa.scalar(value, kind)
    except (ValueError, TypeError, ArithmeticError, AttributeError, pa.ArrowException, RecursionError):
        return None
    return value


def _typed(value: Any, kind: pa.DataType) -> Any:
    """Return a value of :func:`_plain` as it was."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _typed(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_typed(name, kind.key_type), _typed(item, kind.item_type)) for name, item in value.items()]
    if pa.types.is_nested(kind):
        return [_typed(item, kind.value_type) for item in value]
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return json.loads(value) if isinstance(value, str) else value  # a map's key is text
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat(value)
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(value)
    if pa.types.is_time(kind):
        return dt.time.fromisoformat(value)
    if pa.types.is_duration(kind):
        return dt.timedelta(microseconds=int(value))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return base64.b64decode(value)
    return value
