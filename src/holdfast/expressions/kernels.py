"""Columns, literals and arithmetic of a columnar expression, computed in Arrow as Spark computes them row by row.

Every node is a frozen value with ``type``, ``nullable`` and ``can_raise``, and ``compute`` returns an Array, or a
Scalar of a literal.  Operands come with the types that the node computes in: :mod:`holdfast.expressions.bind`
chooses them and puts a :class:`Widened` where Spark casts.

Parts of dates and times in a columnar expression: truncated, taken out, or cast, as Spark does in UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

FLOATS = frozenset({pa.float32(), pa.float64()})


class Fault(Exception):
    """A row on which Spark raises; the text is Spark's name of the fault."""


class Expression(Protocol):
    """Part of an expression."""

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values."""
        ...

    @property
    def nullable(self) -> bool:
        """Whether Spark takes the values to be possibly null."""
        ...

    @property
    def can_raise(self) -> bool:
        """Whether a row can be an error."""
        ...

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the values: an Array as long as the batch, or a Scalar.  Raises :class:`Fault`."""
        ...


@dataclass(frozen=True)
class Reference:
    """A column of the batch, by its exact name."""

    name: str
    type: pa.DataType
    nullable: bool
    can_raise: bool = False

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the column as it is."""
        return batch.column(self.name)


@dataclass(frozen=True)
class Member:
    """A field of a struct column; null where the struct is."""

    of: Reference
    name: str
    type: pa.DataType
    nullable: bool
    can_raise: bool = False

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the field's values."""
        return pc.struct_field(self.of.compute(batch), self.of.type.get_field_index(self.name))


@dataclass(frozen=True)
class Constant:
    """A literal, or an expression of literals only; None is a null of the type."""

    value: Any
    type: pa.DataType
    can_raise: bool = False
    is_literal: bool = False
    """Whether it is written as a number: beside a DECIMAL, Spark takes it for as many digits as it has."""
    may_be_null: bool = False
    """Whether Spark declares it nullable, though it has a value."""

    @property
    def nullable(self) -> bool:
        """Whether it is null, or declared so."""
        return self.value is None or self.may_be_null

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the value as a Scalar."""
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True)
class Widened:
    """A number cast to a type that holds it, or to DOUBLE, which rounds a large BIGINT to the nearest as Java does."""

    of: Expression
    type: pa.DataType

    @property
    def nullable(self) -> bool:
        """Whether the number is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """Whether the number can; the cast itself cannot."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the cast values."""
        return pc.cast(self.of.compute(batch), self.type, safe=False)


_EXACT: dict[str, Callable[..., Any]] = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_FLOATING: dict[str, Callable[..., Any]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


@dataclass(frozen=True)
class Arithmetic:
    """``+``, ``-`` or ``*`` of two numbers of one type; the result has that type, and integers must not overflow."""

    sign: str
    left: Expression
    right: Expression

    @property
    def type(self) -> pa.DataType:
        """The operands' type."""
        return self.left.type

    @property
    def nullable(self) -> bool:
        """Whether an operand is."""
        return self.left.nullable or self.right.nullable

    @property
    def can_raise(self) -> bool:
        """True of integers, which may overflow."""
        return self.type not in FLOATS or self.left.can_raise or self.right.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the result; an overflow is a fault."""
        left, right = self.left.compute(batch), self.right.compute(batch)
        if self.type in FLOATS:
            return _FLOATING[self.sign](left, right)
        try:
            return _EXACT[self.sign](left, right)
        except pa.ArrowInvalid as error:
            raise Fault(overflow(self.type)) from error


@dataclass(frozen=True)
class Negative:
    """``-`` of one number; the smallest integer has no counterpart."""

    of: Expression

    @property
    def type(self) -> pa.DataType:
        """The operand's type."""
        return self.of.type

    @property
    def nullable(self) -> bool:
        """Whether the operand is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """True of integers."""
        return self.type not in FLOATS or self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the result; an overflow is a fault."""
        values = self.of.compute(batch)
        if self.type in FLOATS:
            return pc.negate(values)
        try:
            return pc.negate_checked(values)
        except pa.ArrowInvalid as error:
            raise Fault("ARITHMETIC_OVERFLOW") from error


@dataclass(frozen=True)
class Quotient:
    """``/`` of two DOUBLE, or ``%`` of two integers of one type, with the dividend's sign."""

    sign: str
    left: Expression
    right: Expression

    @property
    def type(self) -> pa.DataType:
        """The operands' type."""
        return self.left.type

    @property
    def nullable(self) -> bool:
        """Always true: Spark declares it, whatever the operands."""
        return True

    @property
    def can_raise(self) -> bool:
        """Whether the divisor may be zero: a literal divisor is not, or the expression was left to Spark."""
        return self.left.can_raise or not isinstance(self.right, Constant)

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the result; a zero below a value (not below a null) is a fault."""
        left, right = self.left.compute(batch), self.right.compute(batch)
        if not isinstance(self.right, Constant):
            zero = pc.and_(pc.equal(right, pa.scalar(0, self.type)), pc.is_valid(left))
            if pc.any(zero).as_py():
                raise Fault("REMAINDER_BY_ZERO" if self.sign == "%" else "DIVIDE_BY_ZERO")
        if self.sign == "/":
            return pc.divide(left, right)
        # A zero is left only below a null.  -1 and 1 leave the same remainder, and the smallest integer / -1 overflows.
        one = pa.scalar(1, self.type)
        harmless = pc.or_(pc.equal(right, pa.scalar(0, self.type)), pc.equal(right, pa.scalar(-1, self.type)))
        divisor = pc.if_else(harmless, one, right)
        return pc.subtract(left, pc.multiply(pc.divide(left, divisor), divisor))


def overflow(kind: pa.DataType) -> str:
    """Return Spark's name of an overflow in this type."""
    return "BINARY_ARITHMETIC_OVERFLOW" if kind in {pa.int8(), pa.int16()} else "ARITHMETIC_OVERFLOW"


def references(node: Any) -> frozenset[str]:
    """Return the columns that a node and its operands read."""
    if isinstance(node, Reference):
        return frozenset({node.name})
    if isinstance(node, tuple):
        return frozenset[str]().union(*map(references, node))
    if is_dataclass(node):
        return frozenset[str]().union(*(references(getattr(node, field.name)) for field in fields(node)))
    return frozenset()


TIMESTAMP = pa.timestamp("us", tz="UTC")
_INT, _DATE, _BIGINT = pa.int32(), pa.date32(), pa.int64()

UNITS = {
    "MICROSECOND": "microsecond",
    "MILLISECOND": "millisecond",
    "SECOND": "second",
    "MINUTE": "minute",
    "HOUR": "hour",
    **dict.fromkeys(("DAY", "DD"), "day"),
    "WEEK": "week",
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    "QUARTER": "quarter",
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
}
"""How Spark names a unit of ``date_trunc``, in capitals -> how Arrow does."""

PARTS: dict[str, Callable[[Any], Any]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
}
"""What can be taken out of a time; the first four of a date, too."""


@dataclass(frozen=True)
class Truncated:
    """``date_trunc(unit, timestamp)``."""

    unit: str
    of: Expression
    type: pa.DataType = TIMESTAMP
    nullable: bool = True
    """Spark declares it, whatever the timestamp."""

    @property
    def can_raise(self) -> bool:
        """Whether the timestamp can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the beginnings of the units, weeks from Monday on."""
        return pc.floor_temporal(self.of.compute(batch), unit=self.unit)


@dataclass(frozen=True)
class PartOfTime:
    """``hour(timestamp)`` and its like."""

    part: str
    of: Expression
    type: pa.DataType = _INT

    @property
    def nullable(self) -> bool:
        """Whether the time is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """Whether the time can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the numbers."""
        return pc.cast(PARTS[self.part](self.of.compute(batch)), pa.int32())


@dataclass(frozen=True)
class DayOf:
    """``CAST(timestamp AS DATE)``."""

    of: Expression
    type: pa.DataType = _DATE

    @property
    def nullable(self) -> bool:
        """Whether the timestamp is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """Whether the timestamp can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the days."""
        return pc.cast(pc.floor_temporal(self.of.compute(batch), unit="day"), pa.date32())


@dataclass(frozen=True)
class SecondsOf:
    """``CAST(timestamp AS BIGINT)``: whole seconds since 1970, rounded down."""

    of: Expression
    type: pa.DataType = _BIGINT

    @property
    def nullable(self) -> bool:
        """Whether the timestamp is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """Whether the timestamp can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the seconds."""
        whole = pc.floor_temporal(self.of.compute(batch), unit="second")
        return pc.divide(pc.cast(whole, pa.int64()), pa.scalar(1_000_000, pa.int64()))
