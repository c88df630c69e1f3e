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
