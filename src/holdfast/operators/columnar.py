"""Spark SQL expressions that Arrow evaluates to the letter as Spark does; all others are left to Spark.

The text is read with sqlglot, which knows more SQL than Spark and binds some operators otherwise.  So only nodes named
here are taken, only where both read the text alike, and None stands for every doubt.

An operand that can raise (an overflow, a division by zero) is taken only where Spark surely evaluates it for every
row: not below AND, OR, CASE, coalesce, IN, BETWEEN, IS NULL or ``<=>``, which short-circuit or are simplified away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from holdfast.errors import BadRow
from holdfast.expressions import item_of
from holdfast.operators import columnar_kernels as kernels
from holdfast.operators.columnar_kernels import Constant, Fault, Node, Reference, Widened

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_NUMBERS = (*_INTEGERS, pa.float32(), pa.float64())
_COMPUTED = frozenset(
    {*_NUMBERS, pa.bool_(), pa.string(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")}
)
_CASTS = {
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.DOUBLE: pa.float64(),
}
_CAST_NAMES = frozenset({"tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "double"})
_KEYWORDS = frozenset({"and", "or", "not", "in", "between", "when", "then", "else", "case", "as"})
_FUNCTIONS = frozenset({"if", "cast", "coalesce", "length", "char_length", "character_length", "len", "concat"})
_BEFORE_PARENTHESIS = _KEYWORDS | _FUNCTIONS
"""Words that may stand before ``(``: sqlglot takes functions of other databases for these, which Spark refuses."""

_CALL = re.compile(r"(\w+)\s*\(")
_CAST = re.compile(r"\bas\s+([^()]*)\)", re.IGNORECASE)
_UNLIKE = re.compile(r"\\|--|/\*|::|!(?!=)|[^\x00-\x7f]`")
"""Escapes, comments, ``::`` and a bare ``!``: sqlglot and Spark do not read them alike in every place."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEPTH_MAX = 60
_DECIMAL_DIGITS_MAX = 15
"""Decimals of up to so many digits become the nearest DOUBLE, by whichever way they are converted."""


@dataclass(frozen=True)
class Columnar:
    """An expression that Arrow evaluates with Spark's result, type and errors (ANSI mode, time zone UTC).

    Parameters
    ----------
    type : pyarrow.DataType
        As PySpark maps the type that Spark gives the expression.
    nullable : bool
        As Spark declares it.
    node : Node
        The bound expression.
    expression : str
        Its text, for errors.

    Notes
    -----
    Survives pickling; runs where the rows are.
    """

    type: pa.DataType
    nullable: bool
    node: Node
    expression: str

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
                do="mend the row, or leave it out with a filter before, or compute in a wider type: CAST(... AS BIGINT)"
                if "OVERFLOW" in str(fault)
                else "mend the row, leave it out with a filter before, or write nullif(divisor, 0).",
            ) from fault
        return pa.repeat(values, batch.num_rows) if isinstance(values, pa.Scalar) else values


def columnar(expression: str, schema: pa.Schema) -> Columnar | None:
    """Return an expression in the form that Arrow evaluates.

    Parameters
    ----------
    expression : str
        A Spark SQL expression, without an alias.
    schema : pyarrow.Schema
        Columns that it may read, with the types that PySpark maps Spark's types to.

    Returns
    -------
    Columnar or None
        None when it is not in the subset: Spark evaluates it, or says what is wrong with it.

    Examples
    --------
    >>> fahrenheit = columnar("celsius * 1.8 + 32", pa.schema([("celsius", pa.float64())]))
    >>> fahrenheit.evaluate(pa.record_batch({"celsius": [100.0, None]})).to_pylist()
    [212.0, None]
    """
    tree = _parsed(expression)
    return None if tree is None else _columnar(tree, expression, schema)


def columnar_items(items: Sequence[str], schema: pa.Schema) -> list[tuple[str, Columnar]] | None:
    """Return the columns that select items give, in their order, with the names that Spark gives them.

    Parameters
    ----------
    items : sequence of str
        ``*``, ``* except (a, b)``, a column, or ``expression AS name``.
    schema : pyarrow.Schema
        Columns that they may read.

    Returns
    -------
    list of (str, Columnar), or None
        None when an item is not in the subset, Spark would choose its name, or two columns have one name.

    Examples
    --------
    >>> [name for name, _ in columnar_items(["*", "a + 1 AS b"], pa.schema([("a", pa.int32())]))]
    ['a', 'b']
    """
    given: list[tuple[str, Columnar]] = []
    for item in items:
        columns = _item(item, schema)
        if columns is None:
            return None
        given += columns
    return given if len({name.lower() for name, _ in given}) == len(given) else None


def _item(text: str, schema: pa.Schema) -> list[tuple[str, Columnar]] | None:
    tree = _parsed(text, stars=True)
    if isinstance(tree, exp.Star):
        return _star(text, schema)
    if isinstance(tree, exp.Alias) and isinstance(name := tree.args.get("alias"), exp.Identifier):
        one = _columnar(tree.this, text, schema) if _is_name(name) else None
        return None if one is None else [(name.name, one)]
    if isinstance(tree, exp.Column):  # named as it is written, not as the schema has it
        one = _columnar(tree, text, schema)
        return None if one is None else [(tree.name, one)]
    return None


def _star(text: str, schema: pa.Schema) -> list[tuple[str, Columnar]] | None:
    star = item_of(text)
    if not star.is_star or any(_found(name, schema) is None for name in star.reads):
        return None
    kept = [field for field in schema if field.name.lower() not in star.excluded]
    if not kept:
        return None
    return [(field.name, _whole(_reference(field), field.name)) for field in kept]


def _columnar(tree: exp.Expression, text: str, schema: pa.Schema) -> Columnar | None:
    try:
        node = _bound(tree, schema)
    except _LeftToSpark:
        return None
    if not isinstance(node, Reference) and node.type not in _COMPUTED:
        return None  # a decimal literal alone
    return _whole(node, text)


def _whole(node: Node, text: str) -> Columnar:
    return Columnar(node.type, node.nullable, node, text)


def _parsed(text: str, *, stars: bool = False) -> exp.Expression | None:
    """Return the tree of one expression whose text sqlglot and Spark read alike, or None."""
    if _UNLIKE.search(text) or not all(kind.strip().lower() in _CAST_NAMES for kind in _CAST.findall(text)):
        return None
    words = {word.lower() for word in _CALL.findall(text)}
    if not words <= (_BEFORE_PARENTHESIS | {"except"} if stars else _BEFORE_PARENTHESIS):
        return None
    try:
        statements = sqlglot.parse(f"SELECT {text}", dialect="spark")
    except (SqlglotError, RecursionError):
        return None
    tree = statements[0] if len(statements) == 1 else None
    if not isinstance(tree, exp.Select) or {key for key, value in tree.args.items() if value} != {"expressions"}:
        return None
    if len(tree.expressions) != 1 or max(node.depth for node in tree.walk()) > _DEPTH_MAX:
        return None
    only: exp.Expression = tree.expressions[0]
    return only


class _LeftToSpark(Exception):
    """The expression is not in the subset."""


def _require(is_in_subset: bool) -> None:
    if not is_in_subset:
        raise _LeftToSpark


def _found(name: str, schema: pa.Schema) -> pa.Field | None:
    """Return the one column of this name; upper and lower case are one, as in Spark."""
    found = [field for field in schema if field.name.lower() == name.lower() or field.name.upper() == name.upper()]
    if len(found) != 1 or (found[0].name != name and not (name + found[0].name).isascii()):
        return None
    return found[0]


def _reference(field: pa.Field) -> Reference:
    return Reference(field.name, field.type, field.nullable)


def _is_name(name: exp.Identifier) -> bool:
    return bool(name.args.get("quoted")) or _PLAIN_NAME.fullmatch(name.name) is not None


def _bound(tree: exp.Expression, schema: pa.Schema) -> Node:
    binding = _BINDINGS.get(type(tree))
    if binding is None:
        raise _LeftToSpark
    return binding(tree, schema)


def _only(tree: exp.Expression, *keys: str) -> None:
    """Require that the tree has no other arguments: one that is not known here may mean anything."""
    _require(all(key in keys for key, value in tree.args.items() if value))


def _column(tree: exp.Expression, schema: pa.Schema) -> Node:
    _only(tree, "this")
    _require(isinstance(tree.this, exp.Identifier) and _is_name(tree.this))
    field = _found(tree.name, schema)
    if field is None:
        raise _LeftToSpark
    return _reference(field)


def _literal(tree: exp.Expression, schema: pa.Schema, minus: str = "") -> Node:
    if tree.args.get("is_string"):
        return Constant(tree.this, pa.string())
    text = minus + tree.this
    if re.fullmatch(r"-?\d+", text):
        value = int(text)
        _require(-(2**63) <= value < 2**63)
        return Constant(value, pa.int32() if -(2**31) <= value < 2**31 else pa.int64())
    if re.fullmatch(r"-?\d+\.\d+", text):
        digits = len(text.strip("-")) - 1
        _require(digits <= _DECIMAL_DIGITS_MAX)
        return Constant(Decimal(text), pa.decimal128(digits, len(text.partition(".")[2])))
    _require(re.fullmatch(r"-?\d+(\.\d+)?[eE][+-]?\d+", text) is not None)
    number = float(text)
    _require(1e-300 < abs(number) < 1e300)  # what is larger or smaller, Spark may refuse
    return Constant(number, pa.float64())


def _negative(tree: exp.Expression, schema: pa.Schema) -> Node:
    if isinstance(tree.this, exp.Literal) and not tree.this.args.get("is_string"):
        return _literal(tree.this, schema, "-")  # the sign belongs to the number: -2147483648 is an INT
    _require(isinstance(tree.this, exp.Column | exp.Paren | exp.TryCast | exp.Func))
    of = _bound(tree.this, schema)
    _require(of.type in _NUMBERS)
    return _folded(kernels.Negative(of), of)


def _folded(node: Node, *operands: Node) -> Node:
    """Return what a node of literals gives; Spark, too, computes it once, and may do so without any row."""
    if not all(isinstance(operand, Constant) for operand in operands):
        return node
    try:
        return Constant(node.compute(None).as_py(), node.type)
    except Fault:
        raise _LeftToSpark from None


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
)
"""What must stand in parentheses as an operand: Spark has one rank for all comparisons, sqlglot has three."""


def _operand(tree: exp.Expression, schema: pa.Schema, *unlike: type[exp.Expression]) -> Node:
    _require(not isinstance(tree, (*_LOOSE, *unlike)))
    return _bound(tree, schema)


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type in which Spark computes with two, in ANSI mode."""
    if left == right:
        _require(left in _COMPUTED)
        return left
    kinds = (left, right)
    if all(kind in _INTEGERS for kind in kinds):
        return _INTEGERS[max(map(_INTEGERS.index, kinds))]
    # A decimal literal is no number of ours except beside FLOAT or DOUBLE, where both become DOUBLE.
    _require(all(kind in _NUMBERS or pa.types.is_decimal(kind) for kind in kinds))
    _require(any(kind in kernels.FLOATS for kind in kinds))
    return pa.float64()


def _widened(node: Node, kind: pa.DataType) -> Node:
    if node.type == kind:
        return node
    if isinstance(node, Constant):
        value = node.value if node.value is None or kind not in kernels.FLOATS else float(node.value) + 0.0
        return Constant(value, kind)
    return Widened(node, kind)


def _pair(tree: exp.Expression, schema: pa.Schema, unlike_left: Any = (), unlike_right: Any = ()) -> tuple[Node, Node]:
    _only(tree, "this", "expression", "typed", "safe")
    return _operand(tree.this, schema, *unlike_left), _operand(tree.expression, schema, *unlike_right)


def _arithmetic(sign: str) -> Callable[[exp.Expression, pa.Schema], Node]:
    unlike = ((), _TERMS) if sign in "+-" else (_TERMS, (*_TERMS, *_FACTORS))

    def bind(tree: exp.Expression, schema: pa.Schema) -> Node:
        left, right = _pair(tree, schema, *unlike)
        kind = _common(left.type, right.type)
        _require(kind in _NUMBERS)
        left, right = _widened(left, kind), _widened(right, kind)
        return _folded(kernels.Arithmetic(sign, left, right), left, right)

    return bind


def _quotient(sign: str) -> Callable[[exp.Expression, pa.Schema], Node]:
    def bind(tree: exp.Expression, schema: pa.Schema) -> Node:
        left, right = _pair(tree, schema, _TERMS, (*_TERMS, *_FACTORS))
        kind = _common(left.type, right.type)
        _require(kind in (_INTEGERS if sign == "%" else _NUMBERS))
        if sign == "/":
            kind = pa.float64()
        left, right = _widened(left, kind), _widened(right, kind)
        _require(not isinstance(left, Constant) or not isinstance(right, Constant))
        _require(not isinstance(right, Constant) or right.value != 0)
        return kernels.Quotient(sign, left, right)

    return bind


_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<=>": "<=>"}


def _compared(sign: str, left: Node, right: Node) -> Node:
    kind = _common(left.type, right.type)
    constant = isinstance(left, Constant) or isinstance(right, Constant)
    # Spark drops what it can prove: equal sides, and a small type that is compared with a large literal.
    _require(not (left.can_raise and right.can_raise))
    for operand in (left, right):
        _require(not operand.can_raise or (sign != "<=>" and not (constant and operand.type != kind)))
    left, right = _widened(left, kind), _widened(right, kind)
    if isinstance(left, Constant):
        left, right, sign = right, left, _MIRRORED[sign]
    return _folded(kernels.Comparison(sign, left, right), left, right)


def _comparison(sign: str) -> Callable[[exp.Expression, pa.Schema], Node]:
    return lambda tree, schema: _compared(sign, *_pair(tree, schema))


def _boolean(tree: exp.Expression, schema: pa.Schema) -> Node:
    node = _bound(tree, schema)
    _require(node.type == pa.bool_())
    return node


def _safe(*nodes: Node) -> None:
    """Require that no node can raise: Spark may not evaluate it, and Arrow would."""
    _require(not any(node.can_raise for node in nodes))


def _logic(sign: str) -> Callable[[exp.Expression, pa.Schema], Node]:
    def bind(tree: exp.Expression, schema: pa.Schema) -> Node:
        left, right = _boolean(tree.this, schema), _boolean(tree.expression, schema)
        _safe(left, right)
        return kernels.Logic(sign, left, right)

    return bind


def _not(tree: exp.Expression, schema: pa.Schema) -> Node:
    return kernels.Negation(_boolean(tree.this, schema))


def _is(tree: exp.Expression, schema: pa.Schema) -> Node:
    _require(isinstance(tree.expression, exp.Null))
    of = _operand(tree.this, schema)
    _safe(of)
    _require(of.type in _COMPUTED)
    return kernels.IsNull(of)


def _in(tree: exp.Expression, schema: pa.Schema) -> Node:
    _only(tree, "this", "expressions")
    of = _operand(tree.this, schema)
    _safe(of)
    listed = [_bound(item, schema) for item in tree.expressions if not isinstance(item, exp.Null)]
    _require(bool(listed) and all(isinstance(item, Constant) for item in listed))
    kind = reduce(_common, (item.type for item in listed), of.type)
    _require(kind in _COMPUTED and kind not in kernels.FLOATS)  # a long list compares -0.0 and NaN otherwise
    values = tuple(item.value for item in listed if isinstance(item, Constant))
    return kernels.Membership(_widened(of, kind), values, len(listed) < len(tree.expressions))


def _between(tree: exp.Expression, schema: pa.Schema) -> Node:
    _only(tree, "this", "low", "high")
    of, low, high = (_operand(tree.args[key], schema) for key in ("this", "low", "high"))
    _safe(of, low, high)
    _require(_common(of.type, low.type) == _common(of.type, high.type))
    return kernels.Logic("AND", _compared(">=", of, low), _compared("<=", of, high))


def _one_type(trees: Sequence[exp.Expression], schema: pa.Schema) -> list[Node]:
    """Return values brought to one type; NULL takes the type of the others."""
    known = {index: _bound(tree, schema) for index, tree in enumerate(trees) if not isinstance(tree, exp.Null)}
    _require(bool(known))
    _safe(*known.values())
    kind = reduce(_common, (node.type for node in known.values()))
    _require(kind in _COMPUTED)
    return [_widened(known[index], kind) if index in known else Constant(None, kind) for index in range(len(trees))]


def _coalesce(tree: exp.Expression, schema: pa.Schema) -> Node:
    _only(tree, "this", "expressions")
    return kernels.Coalesce(tuple(_one_type([tree.this, *tree.expressions], schema)))


def _case(tree: exp.Expression, schema: pa.Schema) -> Node:
    _only(tree, "ifs", "default")
    branches = tree.args["ifs"]
    default = tree.args.get("default") or exp.Null()
    *thens, chosen = _one_type([*(branch.args["true"] for branch in branches), default], schema)
    for branch, then in zip(reversed(branches), reversed(thens), strict=True):
        _only(branch, "this", "true")
        condition = _boolean(branch.this, schema)
        _safe(condition)
        chosen = kernels.Choice(condition, then, chosen)
    return chosen


def _if(tree: exp.Expression, schema: pa.Schema) -> Node:
    _require(tree.args.get("false") is not None)
    condition = _boolean(tree.this, schema)
    _safe(condition)
    then, otherwise = _one_type([tree.args["true"], tree.args["false"]], schema)
    return kernels.Choice(condition, then, otherwise)


def _cast(tree: exp.Expression, schema: pa.Schema) -> Node:
    _only(tree, "this", "to", "_type")
    kind = _CASTS.get(tree.args["to"].this)
    of = _bound(tree.this, schema)
    _require(kind is not None)
    if isinstance(of, Constant) and of.type in _INTEGERS and kind in _INTEGERS:  # 5S and CAST(5 AS SMALLINT)
        bits = kind.bit_width - 1
        _require(-(2**bits) <= of.value < 2**bits)
        return Constant(of.value, kind)
    is_decimal = isinstance(of, Constant) and pa.types.is_decimal(of.type) and kind == pa.float64()  # 1.8D
    _require(is_decimal or (of.type in _NUMBERS and _common(of.type, kind) == kind))
    return _widened(of, kind)


def _length(tree: exp.Expression, schema: pa.Schema) -> Node:
    _only(tree, "this")
    of = _bound(tree.this, schema)
    _safe(of)
    _require(of.type == pa.string())
    return kernels.Length(of)


def _concat(tree: exp.Expression, schema: pa.Schema) -> Node:
    _only(tree, "expressions", "safe")
    items = tuple(_bound(item, schema) for item in tree.expressions)
    _safe(*items)
    _require(all(item.type == pa.string() for item in items))
    _require(not all(isinstance(item, Constant) for item in items))  # may be 'a' 'b' or 'a''b'
    return kernels.Joined(items)


_BINDINGS: dict[type[exp.Expression], Callable[[Any, pa.Schema], Node]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda tree, schema: Constant(bool(tree.this), pa.bool_()),
    exp.Paren: lambda tree, schema: _bound(tree.this, schema),
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
    exp.Length: _length,
    exp.Concat: _concat,
}
"""What is in the subset, and how it is bound to the schema."""
