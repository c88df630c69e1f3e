"""Comparisons, three-valued logic, choices and texts of a columnar expression, computed in Arrow as Spark does.

An expression in the form that Arrow evaluates: what workers get of :mod:`holdfast.expressions.compile`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRow
from holdfast.expressions.kernels import FLOATS, Expression, Fault, Member, Reference, references

_PLAIN: dict[str, Callable[..., Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class Comparison:
    """A comparison of two values of one type; NaN equals NaN and is greater than every number."""

    sign: str
    left: Expression
    right: Expression

    @property
    def type(self) -> pa.DataType:
        """BOOLEAN."""
        return pa.bool_()

    @property
    def nullable(self) -> bool:
        """Whether an operand is; ``<=>`` never is."""
        return self.sign != "<=>" and (self.left.nullable or self.right.nullable)

    @property
    def can_raise(self) -> bool:
        """Whether an operand can."""
        return self.left.can_raise or self.right.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the truth values."""
        left, right = self.left.compute(batch), self.right.compute(batch)
        compare = _floats_compared if self.left.type in FLOATS else _compare
        if self.sign != "<=>":
            return compare(self.sign, left, right)
        both_null = pc.and_(pc.is_null(left), pc.is_null(right))
        return pc.or_(pc.fill_null(compare("=", left, right), False), both_null)


def _compare(sign: str, left: Any, right: Any) -> Any:
    return _PLAIN[sign](left, right)


def _floats_compared(sign: str, left: Any, right: Any) -> Any:
    plain = _PLAIN[sign](left, right)
    if isinstance(right, pa.Scalar):  # a literal, thus no NaN: the others are right already
        return pc.or_(plain, pc.is_nan(left)) if sign in {">", ">="} else plain
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    match sign:
        case "=":
            return pc.or_(plain, pc.and_(left_nan, right_nan))
        case "<>":
            return pc.and_not(plain, pc.and_(left_nan, right_nan))
        case "<":
            return pc.or_(plain, pc.and_not(right_nan, left_nan))
        case "<=":
            return pc.or_(plain, right_nan)
        case ">":
            return pc.or_(plain, pc.and_not(left_nan, right_nan))
        case _:
            return pc.or_(plain, left_nan)


@dataclass(frozen=True)
class Logic:
    """AND or OR of two truth values, three-valued.  Neither can raise, so their order does not show."""

    sign: str
    left: Expression
    right: Expression
    can_raise: bool = False

    @property
    def type(self) -> pa.DataType:
        """BOOLEAN."""
        return pa.bool_()

    @property
    def nullable(self) -> bool:
        """Whether an operand is."""
        return self.left.nullable or self.right.nullable

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the truth values."""
        kernel = pc.and_kleene if self.sign == "AND" else pc.or_kleene
        return kernel(self.left.compute(batch), self.right.compute(batch))


@dataclass(frozen=True)
class Negation:
    """NOT: null stays null."""

    of: Expression

    @property
    def type(self) -> pa.DataType:
        """BOOLEAN."""
        return pa.bool_()

    @property
    def nullable(self) -> bool:
        """Whether the operand is."""
        return self.of.nullable

    @property
    def can_raise(self) -> bool:
        """Whether the operand can."""
        return self.of.can_raise

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the truth values."""
        return pc.invert(self.of.compute(batch))


@dataclass(frozen=True)
class IsNull:
    """IS NULL of any value; NaN is a value."""

    of: Expression
    nullable: bool = False
    can_raise: bool = False

    @property
    def type(self) -> pa.DataType:
        """BOOLEAN."""
        return pa.bool_()

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the truth values."""
        return pc.is_null(self.of.compute(batch))


@dataclass(frozen=True)
class Membership:
    """IN a list of literals of the operand's type; without a match, a NULL in the list makes the answer null."""

    of: Expression
    values: tuple[Any, ...]
    has_null: bool
    can_raise: bool = False

    @property
    def type(self) -> pa.DataType:
        """BOOLEAN."""
        return pa.bool_()

    @property
    def nullable(self) -> bool:
        """Whether the operand or the list is."""
        return self.has_null or self.of.nullable

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the truth values."""
        values = self.of.compute(batch)
        found = pc.is_in(values, value_set=pa.array(self.values, self.of.type))
        null = pa.scalar(None, pa.bool_())
        if self.has_null:
            return pc.if_else(found, True, null)
        return pc.if_else(pc.is_valid(values), found, null)


@dataclass(frozen=True)
class CaseWhen:
    """CASE: the value of the first condition that is true, or the one after all conditions.  Nothing can raise.

    A text that is computed is computed of its own rows alone: ``regexp_extract`` in ELSE not of those before it.
    """

    conditions: tuple[Expression, ...]
    values: tuple[Expression, ...]
    """One more than conditions, all of one type."""
    can_raise: bool = False

    @property
    def type(self) -> pa.DataType:
        """The type of all values."""
        return self.values[0].type

    @property
    def nullable(self) -> bool:
        """Whether a value is."""
        return any(value.nullable for value in self.values)

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the chosen values."""
        chosen_by = [pc.fill_null(condition.compute(batch), False) for condition in self.conditions]
        if any(map(_is_computed_text, self.values)):
            return _put_together(batch, chosen_by, self.values)
        return _first_true(chosen_by, [value.compute(batch) for value in self.values])


def _is_computed_text(value: Expression) -> bool:
    return value.type == pa.string() and not isinstance(value, Reference | Member) and bool(references(value))


def _first_true(conditions: Sequence[Any], values: Sequence[Any]) -> Any:
    *thens, chosen = values
    for condition, then in zip(reversed(conditions), reversed(thens), strict=True):
        chosen = pc.if_else(condition, then, chosen)
    return chosen


def _put_together(batch: pa.RecordBatch, conditions: Sequence[Any], values: Sequence[Expression]) -> Any:
    """Return chosen values, each computed of the rows that it is chosen for."""
    pieces: list[pa.Array] = []
    places: list[Any] = []
    """Of each row's value in the pieces, where it is that value."""
    start, rest = 0, pa.repeat(pa.scalar(True), batch.num_rows)
    for own, value in zip([*conditions, rest], values, strict=True):
        if names := sorted(references(value)):
            chosen = pc.and_(rest, own)
            pieces.append(value.compute(batch.select(names).filter(chosen)))
            places.append(pc.add(pc.cumulative_sum(chosen.cast(pa.int32())), pa.scalar(start - 1, pa.int32())))
        else:
            pieces.append(pa.repeat(value.compute(batch), 1))
            places.append(pa.scalar(start, pa.int32()))
        start += len(pieces[-1])
        rest = pc.and_not(rest, own)
    return pa.concat_arrays(pieces).take(_first_true(conditions, places))


@dataclass(frozen=True)
class Coalesce:
    """The first value of one type that is not null.  Nothing can raise."""

    items: tuple[Expression, ...]
    can_raise: bool = False

    @property
    def type(self) -> pa.DataType:
        """The type of all values."""
        return self.items[0].type

    @property
    def nullable(self) -> bool:
        """Whether all values are."""
        return all(item.nullable for item in self.items)

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the values."""
        return pc.coalesce(*[item.compute(batch) for item in self.items])


@dataclass(frozen=True)
class Length:
    """Count of code points of a STRING."""

    of: Expression
    can_raise: bool = False

    @property
    def type(self) -> pa.DataType:
        """INT."""
        return pa.int32()

    @property
    def nullable(self) -> bool:
        """Whether the text is."""
        return self.of.nullable

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the counts."""
        return pc.utf8_length(self.of.compute(batch))


@dataclass(frozen=True)
class Joined:
    """``concat`` of STRING values: null when one of them is."""

    items: tuple[Expression, ...]
    can_raise: bool = False

    @property
    def type(self) -> pa.DataType:
        """STRING."""
        return pa.string()

    @property
    def nullable(self) -> bool:
        """Whether a text is."""
        return any(item.nullable for item in self.items)

    def compute(self, batch: pa.RecordBatch) -> Any:
        """Return the texts."""
        return pc.binary_join_element_wise(*[item.compute(batch) for item in self.items], "")


@dataclass(frozen=True)
class Columnar:
    """An expression that Arrow evaluates with Spark's result, type and errors (ANSI mode, time zone UTC).

    Parameters
    ----------
    type : pyarrow.DataType
        As PySpark maps the type that Spark assigns to the expression.
    nullable : bool
        As Spark declares it.
    node : Expression
        The bound expression.
    expression : str
        Its text, for errors.

    Notes
    -----
    Survives pickling; runs where the rows are.
    """

    type: pa.DataType
    nullable: bool
    node: Expression
    expression: str

    @property
    def can_raise(self) -> bool:
        """Whether a row can be an error; Spark leaves it out where nothing reads the value, this does not."""
        return self.node.can_raise

    @property
    def reads(self) -> frozenset[str]:
        """Columns that it reads, by their names in the schema."""
        return references(self.node)

    @property
    def reference(self) -> str | None:
        """The column that it passes on as it is; None where it computes."""
        return self.node.name if isinstance(self.node, Reference) else None

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the expression's values, one for each row of the batch.

        Raises
        ------
        BadRow
            Where Spark would raise: an integer overflows, or a divisor is zero.
        """
        try:
            values = self.node.compute(batch)
        except Fault as fault:
            raise BadRow(
                f"the expression {self.expression!r} has no value for a row: {fault}.",
                why="Spark's ANSI mode makes this an error instead of a wrong or missing value.",
                do=f"leave such rows out with a filter before, or {_cure(str(fault))}.",
            ) from fault
        return pa.repeat(values, batch.num_rows) if isinstance(values, pa.Scalar) else values


def _cure(fault: str) -> str:
    if "OVERFLOW" in fault:
        return "compute in a wider type: CAST(... AS BIGINT)"
    if "ARRAY" in fault:
        return "write split_part(text, separator, number), which is empty where there is no such part"
    if "RANGE" in fault:
        return "cast to a DECIMAL of more digits"
    return "write nullif(divisor, 0)"
