"""The types that Spark gives to expressions, of their text and the types of columns alone: no JVM (design/0031).

Wider than :mod:`holdfast.expressions.compile`, whose expressions Arrow evaluates: of these here only the type is known.
Every doubt is :class:`Unknown`, and Spark is asked; ``tests/spark/test_derived_types.py`` asks it about all that is
here.  The meaning is that of Spark's defaults: ANSI mode, names without case, and UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
from sqlglot import exp

from holdfast.errors import InvalidPipeline
from holdfast.expressions.bind import found, is_name
from holdfast.expressions.compile import UNLIKE
from holdfast.expressions.text import item_of, plain_tree
from holdfast.types import ddl

_STRING, _BOOL, _DATE = pa.string(), pa.bool_(), pa.date32()
_INT, _BIGINT, _DOUBLE = pa.int32(), pa.int64(), pa.float64()
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
"""Digits of the decimal that Spark takes an integer for beside another decimal; the order is that of widening."""
_FLOATS = (pa.float32(), pa.float64())
_DIGITS_MAX, _SCALE_LEAST = 38, 6


class Unknown(Exception):
    """The type does not follow from what is here."""


class Derived(NamedTuple):
    """What is known of a value: its type, and whether it may be null (None: not known)."""

    type: pa.DataType
    nullable: bool | None
    literal: str = ""
    """A literal integer as it is written, with its sign."""


def derived_items(items: Sequence[str], schema: pa.Schema) -> pa.Schema | None:
    """Return the columns of select items, with the types and names that Spark gives them; None where one is unknown.

    Examples
    --------
    >>> derived_items(["cast(a as decimal(9,2)) as a", "upper(a) as c"], pa.schema({"a": pa.string()}))
    a: decimal128(9, 2)
    c: string
    """
    fields: list[pa.Field] = []
    for text in items:
        item = item_of(text)
        if item.is_star:
            if any(found(name, schema) is None for name in item.reads):
                return None
            fields += [field for field in schema if field.name.lower() not in item.excluded]
            continue
        one = derived(text, schema)
        if one is None or one.nullable is None or item.names is None or len(item.names) != 1:
            return None
        fields.append(pa.field(item.names[0], one.type, one.nullable))
    return pa.schema(fields) if len({field.name.lower() for field in fields}) == len(fields) else None


def derived(text: str, schema: pa.Schema) -> Derived | None:
    """Return what is known of an expression's value, or of a select item's; None where its type is not known."""
    tree = None if UNLIKE.search(text) else plain_tree(text)
    if tree is None:
        return None
    try:
        return of_tree(tree.this if isinstance(tree, exp.Alias) else tree, schema)
    except (Unknown, RecursionError):
        return None


def of_tree(tree: exp.Expr, schema: pa.Schema) -> Derived:
    """Return what is known of a tree's value.

    Raises
    ------
    Unknown
        If its type is not known.
    """
    if isinstance(tree, exp.Paren):
        return of_tree(tree.this, schema)
    if isinstance(tree, exp.Column):
        return _column(tree, schema)
    if isinstance(tree, exp.Literal):
        return _literal(tree)
    if isinstance(tree, exp.Boolean):
        return Derived(_BOOL, False)
    if isinstance(tree, exp.Anonymous):
        return _call(tree, schema)
    if isinstance(tree, exp.Cast):
        return _cast(tree, schema)
    if isinstance(tree, exp.Case):
        return _case(tree, schema)
    if isinstance(tree, exp.If):
        of_tree(tree.this, schema)
        return _one_of([tree.args["true"], tree.args.get("false")], schema)
    if isinstance(tree, exp.DPipe):
        values = [of_tree(tree.this, schema), of_tree(tree.expression, schema)]
        return Derived(_texts(values), _any_null(values))
    if isinstance(tree, exp.Bracket):
        return _item(tree, schema)
    if isinstance(tree, exp.Is):
        of_tree(tree.this, schema)
        return Derived(_BOOL, False)
    if isinstance(tree, _TRUTHS):
        children = [child for child in tree.iter_expressions() if not isinstance(child, exp.Null)]
        return Derived(_BOOL, _any_null([of_tree(child, schema) for child in children], len(children)))
    if isinstance(tree, exp.Neg):
        return _negative(tree.this, of_tree(tree.this, schema))
    if type(tree) in _SIGNS:
        return _arithmetic(_SIGNS[type(tree)], of_tree(tree.this, schema), of_tree(tree.expression, schema))
    return _unknown()


_TRUTHS = (
    exp.EQ,
    exp.NEQ,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.And,
    exp.Or,
    exp.Not,
    exp.In,
    exp.Between,
    exp.Like,
    exp.RegexpLike,
)
_SIGNS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}


def _unknown() -> Derived:
    raise Unknown


def _any_null(values: Sequence[Derived], count: int | None = None) -> bool | None:
    """Return whether a value is null where one of others is; None where none may be: it may be null itself."""
    if count is not None and count > len(values):
        return True
    return True if any(value.nullable for value in values) else None


def _column(tree: exp.Column, schema: pa.Schema) -> Derived:
    if not all(isinstance(part, exp.Identifier) and is_name(part) for part in tree.parts):
        raise Unknown
    first, *members = (part.name for part in tree.parts)
    field = found(first, schema)
    for name in members:
        if field is None or not pa.types.is_struct(field.type):
            raise Unknown
        member = found(name, pa.schema(list(field.type)))
        field = None if member is None else member.with_nullable(field.nullable or member.nullable)
    if field is None:
        raise Unknown
    return Derived(field.type, field.nullable)


def _literal(tree: exp.Literal) -> Derived:
    text = tree.this
    if tree.args.get("is_string"):
        return Derived(_STRING, False)
    if text.isdigit() and int(text) < 2**63:
        return Derived(_INT if int(text) < 2**31 else _BIGINT, False, text)
    whole, point, part = text.partition(".")
    if point and whole.isdigit() and part.isdigit():
        digits = len(whole.lstrip("0") + part)
        return Derived(pa.decimal128(max(digits, len(part)), len(part)), False)
    if whole.replace("e", "").replace("E", "").isdigit() and "e" in text.lower():
        return Derived(_DOUBLE, False)
    return _unknown()


def _negative(tree: exp.Expr, of: Derived) -> Derived:
    if not of.literal:
        return of if _is_number(of.type) else _unknown()
    if not isinstance(tree, exp.Literal):  # to Spark -2 is a literal; -(2) is not, and has ten digits
        raise Unknown
    return Derived(_INT if int(of.literal) <= 2**31 else _BIGINT, False, f"-{of.literal}")


def _is_number(kind: pa.DataType) -> bool:
    return kind in _DIGITS or kind in _FLOATS or pa.types.is_decimal(kind)


def _as_decimal(value: Derived) -> tuple[int, int]:
    if pa.types.is_decimal(value.type):
        return value.type.precision, value.type.scale
    return (len(value.literal.lstrip("-0")) or 1 if value.literal else _DIGITS[value.type]), 0


def _bound(digits: int, scale: int) -> pa.DataType:
    """Return the decimal with that many digits, or what Spark keeps of it: ``DecimalType.adjustPrecisionScale``."""
    if digits <= _DIGITS_MAX:
        return pa.decimal128(digits, scale)
    return pa.decimal128(_DIGITS_MAX, max(_DIGITS_MAX - (digits - scale), min(scale, _SCALE_LEAST)))


def _arithmetic(sign: str, left: Derived, right: Derived) -> Derived:
    if not (_is_number(left.type) and _is_number(right.type)):
        raise Unknown
    nullable = _any_null([left, right])
    if left.type in _FLOATS or right.type in _FLOATS:
        both_single = left.type == right.type == pa.float32()
        return Derived(pa.float32() if both_single and sign != "/" else _DOUBLE, nullable)
    if left.type in _DIGITS and right.type in _DIGITS:
        return Derived(_DOUBLE if sign == "/" else _widest([left, right]), nullable)
    (digits, scale), (other_digits, other_scale) = _as_decimal(left), _as_decimal(right)
    whole = digits - scale, other_digits - other_scale
    if sign in "+-":
        longest = max(scale, other_scale)
        return Derived(_bound(max(whole) + longest + 1, longest), nullable)
    if sign == "*":
        return Derived(_bound(digits + other_digits + 1, scale + other_scale), nullable)
    if sign == "/":
        given = max(_SCALE_LEAST, scale + other_digits + 1)
        return Derived(_bound(whole[0] + other_scale + given, given), nullable)
    return Derived(_bound(min(whole) + max(scale, other_scale), max(scale, other_scale)), nullable)


def _widest(values: Sequence[Derived]) -> pa.DataType:
    """Return the type of values of which one is chosen."""
    kinds = {value.type for value in values}
    if len(kinds) == 1:
        return kinds.pop()
    if kinds <= _DIGITS.keys():
        return max(kinds, key=_DIGITS.__getitem__)
    if kinds <= {*_DIGITS, *_FLOATS} and _DOUBLE in kinds:
        return _DOUBLE
    raise Unknown


def type_named(name: str) -> pa.DataType | None:
    """Return the type of a name in Spark's DDL; None where it is none."""
    try:
        return ddl.fields(f"c {name}")[0].type
    except InvalidPipeline:
        return None


def _item(tree: exp.Bracket, schema: pa.Schema) -> Derived:
    call, items = tree.this, tree.expressions
    if not isinstance(call, exp.Anonymous) or str(call.this).lower() != "split" or len(call.expressions) != 2:
        raise Unknown
    if len(items) != 1 or not of_tree(items[0], schema).literal:
        raise Unknown
    return Derived(_texts([of_tree(one, schema) for one in call.expressions]), True)


def _cast(tree: exp.Cast, schema: pa.Schema) -> Derived:
    kind = type_named(tree.args["to"].sql(dialect="spark"))
    if kind is None or {key for key, value in tree.args.items() if value} - {"this", "to", "safe", "_type"}:
        raise Unknown
    if isinstance(tree.this, exp.Null):
        return Derived(kind, True)
    if kind in _DIGITS and isinstance(tree.this, exp.Literal) and not tree.this.args.get("is_string"):
        raise Unknown  # 2L is read as this cast, but has one digit beside a decimal, and cast(2 as bigint) has twenty
    of = of_tree(tree.this, schema)
    return Derived(kind, _any_null([of]))  # a try_cast of what is never null may be null: not known here which it is


def _case(tree: exp.Case, schema: pa.Schema) -> Derived:
    for branch in tree.args["ifs"]:
        of_tree(branch.this, schema)
    return _one_of([*(branch.args["true"] for branch in tree.args["ifs"]), tree.args.get("default")], schema)


def _one_of(trees: Sequence[exp.Expr | None], schema: pa.Schema) -> Derived:
    values = [of_tree(one, schema) for one in trees if one is not None and not isinstance(one, exp.Null)]
    if not values:
        raise Unknown
    has_null = len(values) < len(trees)
    flags = [value.nullable for value in values]
    return Derived(_widest(values), True if has_null or True in flags else None if None in flags else False)


# --- functions: what each gives, of what it is given ----------------------------------------------------------------

Rule = Callable[[Sequence[Derived]], pa.DataType]


def _gives(kind: pa.DataType) -> Rule:
    return lambda values: kind


def _text(values: Sequence[Derived]) -> pa.DataType:
    """Give text for text; what takes binaries or arrays too gives these."""
    if values[0].type != _STRING:
        raise Unknown
    return _STRING


def _texts(values: Sequence[Derived]) -> pa.DataType:
    if any(value.type != _STRING for value in values):
        raise Unknown
    return _STRING


def _same(values: Sequence[Derived]) -> pa.DataType:
    if not _is_number(values[0].type):
        raise Unknown
    return values[0].type


def _rounded(values: Sequence[Derived]) -> pa.DataType:
    kind = _same(values)
    if not pa.types.is_decimal(kind):
        return kind
    if len(values) > 1 and not values[1].literal:
        raise Unknown
    places = int(values[1].literal) if len(values) > 1 else 0
    # Seen in 4.3: RoundBase.dataType; one digit more for the carry.
    if places < 0:
        raise Unknown
    kept = min(places, kind.scale)
    return pa.decimal128(min(kind.precision - kind.scale + kept + 1, _DIGITS_MAX), kept)


def _whole(values: Sequence[Derived]) -> pa.DataType:
    if len(values) != 1 or values[0].type not in (*_DIGITS, *_FLOATS):
        raise Unknown
    return _BIGINT


def _widest_rule(values: Sequence[Derived]) -> pa.DataType:
    return _widest(values)


_RULES: dict[Rule, str] = {
    _text: "upper lower ucase lcase trim ltrim rtrim substring substr replace regexp_replace initcap lpad rpad "
    "regexp_extract split_part translate repeat left right",
    _texts: "concat",
    _gives(_STRING): "md5 sha sha1 sha2 date_format hex base64 get_json_object",
    _gives(_INT): "length char_length character_length instr locate ascii year month day dayofmonth hour minute "
    "quarter weekofyear dayofweek dayofyear datediff date_diff second",
    _gives(_BIGINT): "unix_timestamp unix_seconds unix_millis unix_micros crc32",
    _gives(_DATE): "to_date date_add date_sub last_day next_day trunc",
    _gives(_TIMESTAMP): "to_timestamp date_trunc timestamp_seconds timestamp_millis timestamp_micros",
    _gives(_DOUBLE): "sqrt exp ln log10 log2 pow power sin cos tan asin acos atan degrees radians",
    _gives(_BOOL): "startswith endswith contains",
    _same: "abs",
    _rounded: "round bround",
    _whole: "floor ceil ceiling",
    _widest_rule: "nullif",
}
"""What gives a type, and the functions that it is for; each is null where an argument is, and may be null besides."""

_BY_UNIT = frozenset({"date_add", "datediff", "date_diff"})
"""What gives another type with three arguments: a unit, and then its own."""

_FUNCTIONS: dict[str, Rule] = {name: rule for rule, names in _RULES.items() for name in names.split()}


def _call(tree: exp.Anonymous, schema: pa.Schema) -> Derived:
    name = str(tree.this).lower()
    if name in ("isnull", "isnotnull") and len(tree.expressions) == 1:
        of_tree(tree.expressions[0], schema)
        return Derived(_BOOL, False)
    if name in ("coalesce", "nvl", "ifnull") and tree.expressions:
        values = [of_tree(one, schema) for one in tree.expressions]
        flags = [value.nullable for value in values]
        return Derived(_widest(values), False if False in flags else None if None in flags else True)
    values = [of_tree(one, schema) for one in tree.expressions]
    rule = _FUNCTIONS.get(name)
    if rule is None or not values:
        raise Unknown
    if name in _BY_UNIT and len(values) != 2:  # the first is a unit then, even where a column is called `day`
        raise Unknown
    if name == "nullif":
        return Derived(values[0].type, True) if len(values) == 2 else _unknown()
    return Derived(rule(values), True if name in ("get_json_object", "split_part") else _any_null(values))
