"""Names and literals, which are bound by themselves, and the way out where one is not in the subset."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TypeVar

import pyarrow as pa
from sqlglot import exp

from holdfast.expressions import decimals
from holdfast.expressions.kernels import Constant, Expression, Member, Reference

DECIMAL_DIGITS_MAX = 15
"""Decimals of up to this many digits become the nearest DOUBLE, by whichever way they are converted."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_Known = TypeVar("_Known")


class LeftToSpark(Exception):
    """The expression is not in the subset."""


def require(is_in_subset: bool) -> None:
    """Leave to Spark what is not in the subset."""
    if not is_in_subset:
        raise LeftToSpark


def or_spark(one: _Known | None) -> _Known:
    """Return what is known; None is left to Spark."""
    if one is None:
        raise LeftToSpark
    return one


def only(tree: exp.Expression, *keys: str) -> None:
    """Require that the tree has no other arguments: one that is not known here may mean anything."""
    require(all(key in keys for key, value in tree.args.items() if value))


def literal(tree: exp.Expression, schema: pa.Schema, minus: str = "") -> Constant:
    """Return the node of a literal, perhaps with a sign before it."""
    if tree.args.get("is_string"):
        return Constant(tree.this, pa.string())
    text = minus + tree.this
    if re.fullmatch(r"-?\d+", text):
        value = int(text)
        require(-(2**63) <= value < 2**63)
        return Constant(value, pa.int32() if -(2**31) <= value < 2**31 else pa.int64(), is_literal=True)
    if re.fullmatch(r"-?\d+\.\d+", text):
        whole, _, part = text.strip("-").partition(".")
        require(len(whole + part) <= DECIMAL_DIGITS_MAX)
        return Constant(Decimal(text), pa.decimal128(len(whole.lstrip("0") + part), len(part)))
    require(re.fullmatch(r"-?\d+(\.\d+)?[eE][+-]?\d+", text) is not None)
    number = float(text)
    require(1e-300 < abs(number) < 1e300)  # what is larger or smaller, Spark may refuse
    return Constant(number, pa.float64())


def is_compared_with_ascii(tree: exp.Expression) -> bool:
    """Return whether a value is nothing but compared with literals of ASCII."""
    while isinstance(tree.parent, exp.Paren):
        tree = tree.parent
    match tree.parent:
        case exp.EQ() | exp.NEQ() | exp.NullSafeEQ() as pair:
            others = [pair.expression if pair.this is tree else pair.this]
        case exp.In() as membership if membership.this is tree:
            others = [one for one in membership.expressions if not isinstance(one, exp.Null)]
        case _:
            return False
    others = [one.unnest() for one in others]
    texts = [one.this for one in others if isinstance(one, exp.Literal) and one.args.get("is_string")]
    return len(texts) == len(others) and all(text.isascii() for text in texts)


def decimal_type(tree: exp.Expression) -> pa.DataType:
    """Return the type of ``DECIMAL(p, s)``."""
    numbers = [one.this for one in tree.expressions]
    require(1 <= len(numbers) <= 2 and all(isinstance(one, exp.Literal) and one.this.isdigit() for one in numbers))
    digits, scale = int(numbers[0].this), int(numbers[1].this) if len(numbers) == 2 else 0
    require(1 <= digits <= decimals.DIGITS_MAX and scale <= digits)
    return pa.decimal128(digits, scale)


def found(name: str, schema: pa.Schema) -> pa.Field | None:
    """Return the one column of this name; upper and lower case are one, as in Spark."""
    same = [field for field in schema if field.name.lower() == name.lower() or field.name.upper() == name.upper()]
    if len(same) != 1 or (same[0].name != name and not (name + same[0].name).isascii()):
        return None
    return same[0]


def reference(field: pa.Field) -> Reference:
    """Return the column as a node."""
    return Reference(field.name, field.type, field.nullable)


def is_name(name: exp.Identifier) -> bool:
    """Return whether Spark reads this as a name, too."""
    return bool(name.args.get("quoted")) or _PLAIN_NAME.fullmatch(name.name) is not None


def column(tree: exp.Expression, schema: pa.Schema) -> Expression:
    """Return the column, or the field of a struct column, of a name."""
    only(tree, "this", "table")
    require(isinstance(tree.this, exp.Identifier) and is_name(tree.this))
    if "table" in tree.args and tree.args["table"] is not None:
        return _member(tree, schema)
    field = found(tree.name, schema)
    if field is None:
        raise LeftToSpark
    return reference(field)


def _member(tree: exp.Expression, schema: pa.Schema) -> Expression:
    """Return a field of a struct column: there are no tables here that the first name could mean."""
    name = tree.args["table"]
    require(isinstance(name, exp.Identifier) and is_name(name))
    field = found(name.name, schema)
    if field is None or not pa.types.is_struct(field.type):
        raise LeftToSpark
    member = found(tree.name, pa.schema(list(field.type)))
    if member is None:
        raise LeftToSpark
    return Member(reference(field), member.name, member.type, field.nullable or member.nullable)
