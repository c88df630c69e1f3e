"""Values of columns in the form in which systems of SQL without such types keep them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import sql


def converted(values: pa.Array) -> pa.Array:
    """Return a column in the form in which it is stored."""
    convert = next((convert for matches, convert in _CONVERSIONS if matches(values.type)), None)
    return convert(values) if convert else values


def check_converted(node: str, field: pa.Field, values: pa.Array, system: str) -> None:
    """Raise :class:`~holdfast.errors.BadRow` if a column has a value that :func:`converted` cannot take."""
    if is_text(values.type):
        sql.check_text(node, field.name, values)
    elif sql.is_nested(values.type):
        sql.check_nested(node, field.name, values, system)
    elif pa.types.is_temporal(values.type) or pa.types.is_decimal(values.type):
        try:
            converted(values)
        except (ValueError, OverflowError) as error:
            raise sql.unkept_value(node, field.name, system, error) from error


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values are bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _timestamp_text(values: pa.Array) -> pa.Array:
    kind = values.type
    return _moment_text(pc.cast(values, pa.timestamp("us", "UTC" if kind.tz else None), safe=False))


def _date_text(values: pa.Array) -> pa.Array:
    return _moment_text(pc.cast(values, pa.date32()))


def _moment_text(values: pa.Array) -> pa.Array:
    """Return ISO text; Arrow has none beyond the year 32767, and writes another year or an apology."""
    is_date = pa.types.is_date(values.type)
    numbers = pc.cast(values, pa.int32() if is_date else pa.int64())
    limit = _DAYS_MAX if is_date else _DAYS_MAX * 86_400_000_000
    for edge in pc.min_max(numbers).as_py().values():
        if edge is not None and abs(edge) > limit:
            raise ValueError(f"{edge} {'days' if is_date else 'microseconds'} from 1970: beyond the year 32767")
    return pc.cast(values, pa.string())


_DAYS_MAX = 11_248_737
"""From 1970 to the end of the year 32767."""

_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (sql.is_nested, sql.json_text),
    (pa.types.is_timestamp, _timestamp_text),
    (pa.types.is_date, _date_text),
    (pa.types.is_time, lambda values: pc.cast(pc.cast(values, pa.time64("us"), safe=False), pa.string())),
    (pa.types.is_duration, lambda values: pc.cast(pc.cast(values, pa.duration("us"), safe=False), pa.int64())),
    (pa.types.is_decimal, lambda values: pc.cast(values, pa.string())),
)
