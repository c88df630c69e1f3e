"""Which PostgreSQL type keeps which Arrow type: what a column is created with, and whether one that exists fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.kit import sql
from holdfast.connectors.postgres.copy import is_binary, is_text

_ANY_TEXT = frozenset("SEIU")
"""Categories of pg_type whose values are written as text: string, enum, network address, user-defined (uuid, json)."""


@dataclass(frozen=True)
class TableColumn:
    """One column of the target, as the catalog describes it.

    ``base`` is ``pg_type.typname`` of the type (of a domain's base; ``enum`` for enumerations), ``modifier`` its
    ``atttypmod``, ``declared`` the type as people write it, ``qualified`` as our DDL does: with its schema.
    """

    name: str
    declared: str
    qualified: str
    base: str
    category: str
    modifier: int
    is_required: bool
    is_filled: bool
    is_generated: bool
    collation: str | None


def declared_type(kind: pa.DataType) -> str:
    """Return the type that a column is created with."""
    kind = sql.flat_type(kind)
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    return next((declared for matches, declared in _DECLARED if matches(kind)), "text")


def qualified_type(kind: pa.DataType) -> str:
    """Return it as our DDL writes it: what is not a keyword is looked for in the search path, so it gets its schema."""
    declared = declared_type(kind)
    return f"pg_catalog.{declared}" if declared in _NO_KEYWORDS else declared


_DECLARED: tuple[tuple[Any, str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: kind in (pa.int8(), pa.int16(), pa.uint8()), "smallint"),
    (lambda kind: kind in (pa.int32(), pa.uint16()), "integer"),
    (lambda kind: kind in (pa.int64(), pa.uint32()) or pa.types.is_duration(kind), "bigint"),
    (pa.types.is_uint64, "numeric(20,0)"),
    (lambda kind: kind in (pa.float16(), pa.float32()), "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time without time zone"),
    (is_binary, "bytea"),
    (sql.is_nested, "jsonb"),
)
_NO_KEYWORDS = frozenset({"text", "date", "bytea", "jsonb"})
_INTEGER_BITS = {"int2": 15, "int4": 31, "int8": 63, "float4": 24, "float8": 53}


def fits(kind: pa.DataType, column: TableColumn) -> bool:
    """Return whether the column keeps every value of the type unchanged (texts may still be too long or no uuid)."""
    base = column.base
    if pa.types.is_null(kind):
        return True
    if pa.types.is_boolean(kind):
        return base == "bool"
    if pa.types.is_integer(kind) or pa.types.is_duration(kind):
        bits = kind.bit_width - (0 if pa.types.is_unsigned_integer(kind) else 1)
        return _INTEGER_BITS.get(base, 0) >= bits or (base == "numeric" and _has_digits(column, len(str(2**bits)), 0))
    if pa.types.is_floating(kind):
        return (
            base == "float8"
            or (base == "float4" and kind.bit_width <= 32)
            or (base == "numeric" and column.modifier < 0)
        )
    if pa.types.is_decimal(kind):
        return base == "numeric" and _has_digits(column, kind.precision - kind.scale, kind.scale)
    if pa.types.is_date(kind):
        return base == "date"
    if pa.types.is_timestamp(kind):
        return base == ("timestamptz" if kind.tz else "timestamp") and column.modifier in (-1, 6)
    if pa.types.is_time(kind):
        return base == "time" and column.modifier in (-1, 6)
    if is_binary(kind):
        return base == "bytea"
    if sql.is_nested(kind):
        return base in ("json", "jsonb", "text")
    return is_text(kind) and column.category in _ANY_TEXT and base != "bytea"


def modifier_of(kind: pa.DataType) -> int:
    """Return ``atttypmod`` of a column that is created for decimals, or for the largest integers."""
    precision, scale = (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (20, 0)
    return ((precision << 16) | scale) + 4


def _has_digits(column: TableColumn, before: int, after: int) -> bool:
    """``atttypmod`` of numeric is ((precision << 16) | scale) + 4."""
    if column.modifier < 0:
        return True
    precision, scale = (column.modifier - 4) >> 16, (column.modifier - 4) & 0x7FF
    return precision - scale >= before and scale >= after
