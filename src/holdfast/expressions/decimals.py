"""DECIMAL in a columnar expression: exact sums, differences and products, and casts, with Spark's digits and errors.

Only what needs no more than 38 digits is here: Spark gives up decimals of a longer result, and rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.kernels import Constant, Expression, Fault, Widened

DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
"""Digits of the decimal that Spark takes an integer for beside another decimal; the order is that of widening."""
DIGITS_MAX = 38
SCALE_LEAST = 6


def shape_of_result(sign: str, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    """Return digits and scale of a result before Spark fits them into 38 digits: its ``resultDecimalType``."""
    (digits, scale), (other_digits, other_scale) = left, right
    whole = digits - scale, other_digits - other_scale
    longest = max(scale, other_scale)
    match sign:
        case "+" | "-":
            return max(whole) + longest + 1, longest
        case "*":
            return digits + other_digits + 1, scale + other_scale
        case "/":
            places = max(SCALE_LEAST, scale + other_digits + 1)
            return whole[0] + other_scale + places, places
    return min(whole) + longest, longest


def as_decimal(node: Expression) -> Expression | None:
    """Return a number as the decimal that Spark takes it for beside another one; None where that is not known."""
    if pa.types.is_decimal(node.type):
        return node
    if not isinstance(node, Constant):
        return Widened(node, pa.decimal128(DIGITS[node.type], 0)) if node.type in DIGITS else None
    if not node.is_literal or node.type not in DIGITS:
        return None  # 1 + 1 and CAST(2 AS BIGINT) have the digits of their types
    kind = pa.decimal128(len(str(abs(node.value))), 0)
    return Constant(Decimal(node.value), kind, may_be_null=may_become_null(node.type, kind))


def may_become_null(kind: pa.DataType, to: pa.DataType) -> bool:
    """Return whether Spark declares a number nullable that is cast to DECIMAL: ``canNullSafeCastToDecimal``."""
    if not pa.types.is_decimal(kind):
        return bool(to.precision - to.scale < DIGITS.get(kind, DIGITS_MAX + 1))
    whole, more = kind.precision - kind.scale, to.precision - to.scale
    return more < whole or (more == whole and bool(to.scale < kind.scale))


def common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the decimal that holds both, in which they are compared; None where it needs too many digits."""
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale) + scale
    return pa.decimal128(digits, scale) if digits <= DIGITS_MAX else None


_EXACT: dict[str, Callable[..., Any]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


@dataclass(frozen=True)
class DecimalArithmetic:
    """``+``, ``-`` or ``*`` of two decimals, whose result has at most 38 digits: it is exact, and fits."""

    sign: str
    left: Expression
    right: Expression

    @property
    def type(self) -> pa.DataType:
        """The decimal of Spark's rule, which is Arrow's, too."""
        left, right = self.left.type, self.right.type
        shape = shape_of_result(self.sign, (left.precision, left.scale), (right.precision, right.scale))
        return pa.decimal128(*shape)

    @property
    def nullable(self) -> bool:
        """Whether an operand is."""
        return self.left.nullable or self.right.nullable

    @property
    def can_raise(self) -> bool:
        """Whether an operand can."""
        return self.left.can_raise or self.right.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the results."""
        return _EXACT[self.sign](self.left.compute(batch), self.right.compute(batch))


def arithmetic(sign: str, left: Expression, right: Expression) -> DecimalArithmetic | None:
    """Return the node of two decimals; None where Spark rounds its result."""
    shape = shape_of_result(sign, *((side.type.precision, side.type.scale) for side in (left, right)))
    return DecimalArithmetic(sign, left, right) if shape[0] <= DIGITS_MAX else None


_OF_INTEGERS = DIGITS | {pa.int64(): 19}
"""Digits that an integer can really have."""


@dataclass(frozen=True)
class DecimalCast:
    """An integer or a decimal cast to DECIMAL: halves are rounded away from zero, and what does not fit is a fault."""

    of: Expression
    type: pa.DataType

    @property
    def nullable(self) -> bool:
        """Whether the number is, or Spark is not sure that it fits."""
        return self.of.nullable or may_become_null(self.of.type, self.type)

    @property
    def can_raise(self) -> bool:
        """Whether a number may not fit."""
        digits, scale = _shape(self.of.type)
        carry = self.type.scale < scale
        return self.of.can_raise or self.type.precision - self.type.scale < digits - scale + carry

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the decimals; one too long is a fault."""
        digits, scale = _shape(self.of.type)
        values = self.of.compute(batch)
        if not pa.types.is_decimal(values.type):
            values = pc.cast(values, pa.decimal128(19, 0))
        if self.type.scale < scale:
            values = pc.cast(values, pa.decimal128(digits + 1, scale))
            values = pc.round(values, self.type.scale, round_mode="half_towards_infinity")
        try:
            return pc.cast(values, self.type)
        except pa.ArrowInvalid as error:
            raise Fault("NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION") from error


def _shape(kind: pa.DataType) -> tuple[int, int]:
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (_OF_INTEGERS[kind], 0)


def cast(of: Expression, kind: pa.DataType) -> DecimalCast | None:
    """Return the node of a cast to DECIMAL; None where the value is rounded by another rule, or has no room for it."""
    if not pa.types.is_decimal(of.type) and of.type not in DIGITS:
        return None  # Java rounds the shortest text of a DOUBLE, Arrow its bits
    digits, scale = _shape(of.type)
    return None if kind.scale < scale and digits == DIGITS_MAX else DecimalCast(of, kind)
