"""Binding of a parsed Spark SQL expression to a schema: the subset that Arrow evaluates, and the types Spark gives it.

An operand that can raise (an overflow, a division by zero) is taken only where Spark surely evaluates it for every
row: not below AND, OR, CASE, coalesce, IN, BETWEEN, IS NULL or ``<=>``, which short-circuit or are simplified away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from sqlglot import exp

from holdfast.expressions import decimals, functions, kernels, logic
from holdfast.expressions.kernels import Constant, Expression, Fault, Reference, Widened
from holdfast.expressions.literals import (
    LeftToSpark,
    column,
    decimal_type,
    is_compared_with_ascii,
    literal,
    only,
    or_spark,
    require,
)

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_NUMBERS = (*_INTEGERS, pa.float32(), pa.float64())
COMPUTED = frozenset(
    {*_NUMBERS, pa.bool_(), pa.string(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")}
)
"""Types that expressions compute with, beside decimals; columns of others are passed through, and asked for nulls."""

_CASTS = {
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.DOUBLE: pa.float64(),
}


def is_computed(kind: pa.DataType) -> bool:
    """Return whether expressions compute values of a type."""
    return kind in COMPUTED or pa.types.is_decimal128(kind)


def bound(tree: exp.Expression, schema: pa.Schema) -> Expression:
    """Return the node of a tree.

    Raises
    ------
    LeftToSpark
        If it is not in the subset.
    """
    binding = _BINDINGS.get(type(tree))
    if binding is None:
        raise LeftToSpark
    node = binding(tree, schema)
    # What reads no column is folded here, or by Spark: every node but a literal computes arrays.
    require(isinstance(node, Constant) or tree.find(exp.Column) is not None)
    return node


def _negative(tree: exp.Expression, schema: pa.Schema) -> Expression:
    if isinstance(tree.this, exp.Literal) and not tree.this.args.get("is_string"):
        return literal(tree.this, schema, "-")  # the sign belongs to the number: -2147483648 is an INT
    require(isinstance(tree.this, exp.Column | exp.Paren | exp.TryCast | exp.Func))
    of = bound(tree.this, schema)
    require(of.type in _NUMBERS)
    return _fold(kernels.Negative(of), of)


def _fold(node: Expression, *operands: Expression) -> Expression:
    """Return the value of a node of literals; Spark, too, computes it once, and may do so without any row."""
    if not all(isinstance(operand, Constant) for operand in operands):
        return node
    try:
        return Constant(node.compute(None).as_py(), node.type, may_be_null=node.nullable)
    except Fault:
        raise LeftToSpark from None


_TERMS = (exp.Add, exp.Sub)
_FACTORS = (exp.Mul, exp.Div, exp.Mod)
_LOOSE = (
    exp.EQ,
    exp.NEQ,
    exp.NullSafeEQ,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.Is,
    exp.In,
    exp.Between,
    exp.Not,
    exp.And,
    exp.Or,
    exp.Like,
    exp.RegexpLike,
)
"""What must be in parentheses as an operand: Spark has one rank for all comparisons, sqlglot has three."""


def _operand(tree: exp.Expression, schema: pa.Schema, *unlike: type[exp.Expression]) -> Expression:
    require(not isinstance(tree, (*_LOOSE, *unlike)))
    return bound(tree, schema)


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type in which Spark computes with two, in ANSI mode."""
    if left == right:
        require(is_computed(left))
        return left
    kinds = (left, right)
    if all(kind in _INTEGERS for kind in kinds):
        return _INTEGERS[max(map(_INTEGERS.index, kinds))]
    # A decimal literal is not a number of ours except beside FLOAT or DOUBLE, where both become DOUBLE.
    require(all(kind in _NUMBERS or pa.types.is_decimal(kind) for kind in kinds))
    require(any(kind in kernels.FLOATS for kind in kinds))
    return pa.float64()


def _widened(node: Expression, kind: pa.DataType) -> Expression:
    if node.type == kind:
        return node
    # Arrow's nearest DOUBLE of a decimal is not always the nearest.
    require(not pa.types.is_decimal(node.type) or pa.types.is_decimal(kind) or isinstance(node, Constant))
    if isinstance(node, Constant):
        value = node.value if node.value is None or kind not in kernels.FLOATS else float(node.value) + 0.0
        return Constant(value, kind, may_be_null=node.may_be_null)
    return Widened(node, kind)


def _pair(
    tree: exp.Expression, schema: pa.Schema, unlike_left: Any = (), unlike_right: Any = ()
) -> tuple[Expression, Expression]:
    only(tree, "this", "expression", "typed", "safe")
    return _operand(tree.this, schema, *unlike_left), _operand(tree.expression, schema, *unlike_right)


def _arithmetic(sign: str) -> Callable[[exp.Expression, pa.Schema], Expression]:
    unlike = ((), _TERMS) if sign in "+-" else (_TERMS, (*_TERMS, *_FACTORS))

    def bind(tree: exp.Expression, schema: pa.Schema) -> Expression:
        left, right = _pair(tree, schema, *unlike)
        if _are_decimals(left, right):
            _require_order(left, right)
            left, right = _as_decimals(left, right)
            return _fold(or_spark(decimals.arithmetic(sign, left, right)), left, right)
        kind = _common(left.type, right.type)
        require(kind in _NUMBERS)
        _require_order(left, right)
        left, right = _widened(left, kind), _widened(right, kind)
        node = _fold(kernels.Arithmetic(sign, left, right), left, right)
        # Spark computes the literals of such a chain first, and n + 1 + (-1) overflows no more.
        literals = sum(isinstance(part, Constant) for part in _chain(node, sign))
        require(kind in kernels.FLOATS or sign == "-" or literals <= 1)
        return node

    return bind


def _are_decimals(left: Expression, right: Expression) -> bool:
    kinds = (left.type, right.type)
    return any(map(pa.types.is_decimal, kinds)) and not any(kind in kernels.FLOATS for kind in kinds)


def _as_decimals(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    return or_spark(decimals.as_decimal(left)), or_spark(decimals.as_decimal(right))


def _require_order(first: Expression, second: Expression) -> None:
    """Require that Spark evaluates both: where the first is null it does not evaluate the second."""
    require(not second.can_raise or not first.nullable)


def raises_as_filter(node: Expression) -> bool:
    """Return whether a condition raises for the same rows when it filters.

    A filter drops the rows first in which a column is null that the condition needs: ``i + 1 > j`` raises for no row
    without ``j``, though ``i + 1`` is evaluated before it elsewhere.
    """
    match node:
        case kernels.Arithmetic() | kernels.Quotient() | logic.Comparison() | decimals.DecimalArithmetic():
            sides = ((node.left, node.right), (node.right, node.left))
            return all((not one.can_raise or not other.nullable) and raises_as_filter(one) for one, other in sides)
        case kernels.Widened() | kernels.Negative() | logic.Negation() | decimals.DecimalCast():
            return raises_as_filter(node.of)
    return True


def _chain(node: Expression, sign: str) -> Iterator[Expression]:
    """Yield the operands of ``a + b + ...``, in whatever parentheses."""
    if isinstance(node, kernels.Arithmetic) and node.sign == sign:
        yield from _chain(node.left, sign)
        yield from _chain(node.right, sign)
    else:
        yield node


def _quotient(sign: str) -> Callable[[exp.Expression, pa.Schema], Expression]:
    def bind(tree: exp.Expression, schema: pa.Schema) -> Expression:
        left, right = _pair(tree, schema, _TERMS, (*_TERMS, *_FACTORS))
        kind = _common(left.type, right.type)
        require(kind in (_INTEGERS if sign == "%" else _NUMBERS))
        _require_order(right, left)  # a divisor is evaluated before its dividend
        if sign == "/":
            kind = pa.float64()
        left, right = _widened(left, kind), _widened(right, kind)
        require(not isinstance(left, Constant) or not isinstance(right, Constant))
        require(not isinstance(right, Constant) or right.value != 0)
        return kernels.Quotient(sign, left, right)

    return bind


_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<=>": "<=>"}


def _compare(sign: str, left: Expression, right: Expression) -> Expression:
    if _are_decimals(left, right):
        left, right = _as_decimals(left, right)
        kind = or_spark(decimals.common_decimal(left.type, right.type))
    else:
        kind = _common(left.type, right.type)
    constant = isinstance(left, Constant) or isinstance(right, Constant)
    # Spark drops what it can prove: equal sides, and a small type that is compared with a large literal.
    require(not (left.can_raise and right.can_raise))
    for operand in (left, right):
        require(not operand.can_raise or (sign != "<=>" and not (constant and operand.type != kind)))
    _require_order(left, right)
    left, right = _widened(left, kind), _widened(right, kind)
    if isinstance(left, Constant):
        left, right, sign = right, left, _MIRRORED[sign]
    return _fold(logic.Comparison(sign, left, right), left, right)


def _comparison(sign: str) -> Callable[[exp.Expression, pa.Schema], Expression]:
    return lambda tree, schema: _compare(sign, *_pair(tree, schema))


def _boolean(tree: exp.Expression, schema: pa.Schema) -> Expression:
    node = bound(tree, schema)
    require(node.type == pa.bool_())
    return node


def _safe(*nodes: Expression) -> None:
    """Require that no node can raise: Spark may not evaluate it, and Arrow would."""
    require(not any(node.can_raise for node in nodes))


def _logic(sign: str) -> Callable[[exp.Expression, pa.Schema], Expression]:
    def bind(tree: exp.Expression, schema: pa.Schema) -> Expression:
        left, right = _boolean(tree.this, schema), _boolean(tree.expression, schema)
        _safe(left, right)
        return logic.Logic(sign, left, right)

    return bind


def _not(tree: exp.Expression, schema: pa.Schema) -> Expression:
    return logic.Negation(_boolean(tree.this, schema))


def _is(tree: exp.Expression, schema: pa.Schema) -> Expression:
    require(isinstance(tree.expression, exp.Null))
    of = _operand(tree.this, schema)
    _safe(of)
    require(of.type in COMPUTED or isinstance(of, Reference | kernels.Member))
    return logic.IsNull(of)


def _in(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "this", "expressions")
    of = _operand(tree.this, schema)
    _safe(of)
    listed = [bound(item, schema) for item in tree.expressions if not isinstance(item, exp.Null)]
    require(bool(listed) and all(isinstance(item, Constant) for item in listed))
    kind = reduce(_common, (item.type for item in listed), of.type)
    require(kind in COMPUTED and kind not in kernels.FLOATS)  # a long list compares -0.0 and NaN otherwise
    values = tuple(item.value for item in listed if isinstance(item, Constant))
    return logic.Membership(_widened(of, kind), values, len(listed) < len(tree.expressions))


def _between(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "this", "low", "high")
    of, low, high = (_operand(tree.args[key], schema) for key in ("this", "low", "high"))
    _safe(of, low, high)
    if not (_are_decimals(of, low) and _are_decimals(of, high)):
        require(_common(of.type, low.type) == _common(of.type, high.type))
    return logic.Logic("AND", _compare(">=", of, low), _compare("<=", of, high))


def _one_type(trees: Sequence[exp.Expression], schema: pa.Schema) -> list[Expression]:
    """Return values converted to one type; NULL takes the type of the others."""
    known = {index: bound(tree, schema) for index, tree in enumerate(trees) if not isinstance(tree, exp.Null)}
    require(bool(known))
    _safe(*known.values())
    kind = reduce(_common, (node.type for node in known.values()))
    require(is_computed(kind))
    return [_widened(known[index], kind) if index in known else Constant(None, kind) for index in range(len(trees))]


def _coalesce(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "this", "expressions")
    return logic.Coalesce(tuple(_one_type([tree.this, *tree.expressions], schema)))


def _condition(tree: exp.Expression, schema: pa.Schema) -> Expression:
    node = _boolean(tree, schema)
    _safe(node)
    require(not isinstance(node, Constant))  # Spark ignores what it never evaluates, and its nulls
    return node


def _case(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "ifs", "default")
    branches = tree.args["ifs"]
    default = tree.args.get("default") or exp.Null()
    values = _one_type([*(branch.args["true"] for branch in branches), default], schema)
    for branch in branches:
        only(branch, "this", "true")
    return logic.CaseWhen(tuple(_condition(branch.this, schema) for branch in branches), tuple(values))


def _if(tree: exp.Expression, schema: pa.Schema) -> Expression:
    require(tree.args.get("false") is not None)
    condition = _condition(tree.this, schema)
    values = _one_type([tree.args["true"], tree.args["false"]], schema)
    return logic.CaseWhen((condition,), tuple(values))


def _cast(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "this", "to", "_type")
    kind = _CASTS.get(tree.args["to"].this)
    of = bound(tree.this, schema)
    if tree.args["to"].this is exp.DataType.Type.DATE:
        require(of.type in _TIMES)
        return kernels.DayOf(of)
    if tree.args["to"].this is exp.DataType.Type.DECIMAL:
        return _fold(or_spark(decimals.cast(of, decimal_type(tree.args["to"]))), of)
    require(kind is not None)
    if of.type == kernels.TIMESTAMP and kind == pa.int64():
        return kernels.SecondsOf(of)
    if isinstance(of, Constant) and of.type in _INTEGERS and kind in _INTEGERS:  # 5S and CAST(5 AS SMALLINT)
        bits = kind.bit_width - 1
        require(-(2**bits) <= of.value < 2**bits)
        return Constant(of.value, kind)
    is_decimal = isinstance(of, Constant) and pa.types.is_decimal(of.type) and kind == pa.float64()  # 1.8D
    require(is_decimal or (of.type in _NUMBERS and _common(of.type, kind) == kind))
    return _widened(of, kind)


_TIMES = (kernels.TIMESTAMP, pa.timestamp("us"))


def _truncated(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "this", "unit")
    unit = tree.args["unit"]
    require(isinstance(unit, exp.Var) and unit.name in kernels.UNITS)
    of = bound(tree.this, schema)
    require(of.type == kernels.TIMESTAMP)
    return kernels.Truncated(kernels.UNITS[unit.name], of)


def _part(part: str, *kinds: pa.DataType) -> Callable[[exp.Expression, pa.Schema], Expression]:
    def bind(tree: exp.Expression, schema: pa.Schema) -> Expression:
        only(tree, "this")
        this = tree.this
        if isinstance(this, exp.TsOrDsToDate):  # of sqlglot's making
            only(this, "this")
            this = this.this
        of = bound(this, schema)
        require(of.type in kinds and not isinstance(of, Constant))
        return kernels.PartOfTime(part, of)

    return bind


def _length(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "this")
    of = bound(tree.this, schema)
    _safe(of)
    require(of.type == pa.string())
    return logic.Length(of)


def _concat(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "expressions", "safe")
    items = tuple(bound(item, schema) for item in tree.expressions)
    _safe(*items)
    require(all(item.type == pa.string() for item in items))
    require(not all(isinstance(item, Constant) for item in items))  # may be 'a' 'b' or 'a''b'
    return logic.Joined(items)


def _call(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "this", "expressions")
    name = str(tree.this).lower()
    require(name in functions.NAMES)
    require(name not in functions.COMPARED_ONLY or is_compared_with_ascii(tree))
    return or_spark(functions.call_by_name(name, [bound(one, schema) for one in tree.expressions]))


def _item_of_split(tree: exp.Expression, schema: pa.Schema) -> Expression:
    only(tree, "this", "expressions")
    call, items = tree.this, tree.expressions
    require(isinstance(call, exp.Anonymous) and str(call.this).lower() == "split" and len(call.expressions) == 2)
    require(len(items) == 1 and all(isinstance(one, exp.Literal) for one in (items[0], call.expressions[1])))
    literals = tuple(
        one.value for one in (bound(call.expressions[1], schema), bound(items[0], schema)) if isinstance(one, Constant)
    )
    return or_spark(functions.call_of("item of split", bound(call.expressions[0], schema), literals))


def _match(function: str) -> Callable[[exp.Expression, pa.Schema], Expression]:
    def bind(tree: exp.Expression, schema: pa.Schema) -> Expression:
        only(tree, "this", "expression", "negate")
        of, pattern = _operand(tree.this, schema), tree.expression
        require(isinstance(pattern, exp.Literal) and not isinstance(of, Constant))
        call = or_spark(functions.call_of(function, of, (literal(pattern, schema).value,)))
        return logic.Negation(call) if tree.args.get("negate") else call

    return bind


_BINDINGS: dict[type[exp.Expression], Callable[[Any, pa.Schema], Expression]] = {
    exp.Column: column,
    exp.Literal: literal,
    exp.Boolean: lambda tree, schema: Constant(bool(tree.this), pa.bool_()),
    exp.Paren: lambda tree, schema: bound(tree.this, schema),
    exp.Neg: _negative,
    exp.Add: _arithmetic("+"),
    exp.Sub: _arithmetic("-"),
    exp.Mul: _arithmetic("*"),
    exp.Div: _quotient("/"),
    exp.Mod: _quotient("%"),
    exp.EQ: _comparison("="),
    exp.NEQ: _comparison("<>"),
    exp.NullSafeEQ: _comparison("<=>"),
    exp.LT: _comparison("<"),
    exp.LTE: _comparison("<="),
    exp.GT: _comparison(">"),
    exp.GTE: _comparison(">="),
    exp.And: _logic("AND"),
    exp.Or: _logic("OR"),
    exp.Not: _not,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Coalesce: _coalesce,
    exp.Case: _case,
    exp.If: _if,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.TimestampTrunc: _truncated,
    exp.Year: _part("year", pa.date32(), *_TIMES),
    exp.Quarter: _part("quarter", pa.date32(), *_TIMES),
    exp.Month: _part("month", pa.date32(), *_TIMES),
    exp.Day: _part("day", pa.date32(), *_TIMES),
    exp.DayOfMonth: _part("day", pa.date32(), *_TIMES),
    exp.Hour: _part("hour", *_TIMES),
    exp.Minute: _part("minute", *_TIMES),
    exp.Second: _part("second", *_TIMES),
    exp.Length: _length,
    exp.Concat: _concat,
    exp.Anonymous: _call,
    exp.Bracket: _item_of_split,
    exp.Like: _match("like"),
    exp.RegexpLike: _match("rlike"),
}
"""What is in the subset, and how it is bound to the schema."""
