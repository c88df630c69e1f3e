"""Spark SQL expressions that Arrow evaluates exactly as Spark does; all others are left to Spark.

The text is read with sqlglot, which knows more SQL than Spark and binds some operators otherwise.  So a text is taken
only where both read it alike, only with what :mod:`holdfast.expressions.bind` names, and None is the result of
every doubt.  The meaning is that of Spark's defaults: ANSI mode, names without case, and UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from holdfast.expressions import functions
from holdfast.expressions.bind import (
    COMPUTED,
    LeftToSpark,
    bound,
    found,
    is_name,
    raises_as_filter,
    reference,
)
from holdfast.expressions.kernels import Expression, Reference
from holdfast.expressions.logic import Columnar
from holdfast.expressions.text import item_of

_CAST_NAMES = frozenset({"tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "double", "date"})
_KEYWORDS = frozenset({"and", "or", "not", "in", "between", "when", "then", "else", "case", "as"})
_OF_TIMES = frozenset(
    {"date_trunc", "year", "quarter", "month", "day", "dayofmonth", "hour", "minute", "second", "date"}
)
_BY_NAME = functions.NAMES | {"split"}
_FUNCTIONS = (
    _OF_TIMES
    | {"if", "cast", "coalesce", "length", "char_length", "character_length", "len", "concat", "decimal", "dec"}
    | _BY_NAME
)
_BEFORE_PARENTHESIS = _KEYWORDS | _FUNCTIONS
"""Words that may precede ``(``: sqlglot takes functions of other databases for these, which Spark refuses."""

_TEXT = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_CALL = re.compile(r"(\w+)\s*\(")
_CAST = re.compile(r"\bas\s+([^()]*)\)", re.IGNORECASE)
_ALIASED = re.compile(r"\bas\s+(\w+|`.*`)\s*$", re.IGNORECASE)
UNLIKE = re.compile(r"\\|--|/\*|::|\{|!(?!=)")
"""Escapes, comments, ``::``, ``${}`` and a bare ``!``: sqlglot and Spark do not read them alike in every place."""

_DEPTH_MAX = 60


class _ParserByName(SparkParser):
    """Leaves the functions of :mod:`holdfast.expressions.functions` as they are written: no other one's form."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {
        name: build for name, build in SparkParser.FUNCTIONS.items() if name.lower() not in _BY_NAME
    }
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: parser for name, parser in SparkParser.FUNCTION_PARSERS.items() if name.lower() not in _BY_NAME
    }


class _ByName(Spark):
    Parser = _ParserByName


def columnar(expression: str, schema: pa.Schema) -> Columnar | None:
    """Return an expression in the form that Arrow evaluates.

    Parameters
    ----------
    expression : str
        A Spark SQL expression, without an alias: a condition to filter with, or a value.
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
    tree = _parse(expression)
    one = None if tree is None else _columnar(tree, expression, schema)
    if one is None or (one.type == pa.bool_() and not raises_as_filter(one.node)):
        return None
    return one


def columnar_items(items: Sequence[str], schema: pa.Schema) -> list[tuple[str, Columnar]] | None:
    """Return the columns of select items, in their order, with the names that Spark gives them.

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
    tree = _parse(text, stars=True)
    if isinstance(tree, exp.Star):
        return _star(text, schema)
    if isinstance(tree, exp.Alias) and isinstance(name := tree.args.get("alias"), exp.Identifier):
        one = _columnar(tree.this, text, schema) if is_name(name) and _ALIASED.search(text) else None
        return None if one is None else [(name.name, one)]
    if isinstance(tree, exp.Column):  # named as it is written, not as the schema has it
        one = _columnar(tree, text, schema)
        return None if one is None else [(tree.name, one)]
    return None


def _star(text: str, schema: pa.Schema) -> list[tuple[str, Columnar]] | None:
    star = item_of(text)
    if not star.is_star or any(found(name, schema) is None for name in star.reads):
        return None
    kept = [field for field in schema if field.name.lower() not in star.excluded]
    if not kept:
        return None
    return [(field.name, _whole(reference(field), field.name)) for field in kept]


def _columnar(tree: exp.Expression, text: str, schema: pa.Schema) -> Columnar | None:
    try:
        node = bound(tree, schema)
    except LeftToSpark:
        return None
    if not isinstance(node, Reference) and node.type not in COMPUTED:
        return None  # a decimal literal alone
    return _whole(node, text)


def _whole(node: Expression, text: str) -> Columnar:
    return Columnar(node.type, node.nullable, node, text)


def _parse(text: str, *, stars: bool = False) -> exp.Expression | None:
    """Return the tree of one expression whose text sqlglot and Spark read alike, or None."""
    code = _TEXT.sub(lambda found: found.group() if found.group()[0] == "`" else "''", text)
    if UNLIKE.search(text) or not all(kind.strip().lower() in _CAST_NAMES for kind in _CAST.findall(code)):
        return None
    words = {word.lower() for word in _CALL.findall(code)}
    if not words <= (_BEFORE_PARENTHESIS | {"except"} if stars else _BEFORE_PARENTHESIS):
        return None
    try:
        statements = sqlglot.parse(f"SELECT {text}", dialect=_ByName)
    except (SqlglotError, RecursionError):
        return None
    tree = statements[0] if len(statements) == 1 else None
    if not isinstance(tree, exp.Select) or {key for key, value in tree.args.items() if value} != {"expressions"}:
        return None
    if len(tree.expressions) != 1 or max(node.depth for node in tree.walk()) > _DEPTH_MAX:
        return None
    only: exp.Expression = tree.expressions[0]
    return only if _is_as_written(only, text) else None


def _is_as_written(tree: exp.Expression, text: str) -> bool:
    """Return whether the tree has what the text has.

    sqlglot puts parentheses of its own where it guesses the rank of operators (``a IS NULL = b``), takes an OR for the
    AND of BETWEEN, and ignores a surplus comma, and ALL.
    """
    tokens = sqlglot.tokenize(text, read="spark")
    kinds = [token.token_type for token in tokens]
    opened = [index for index, kind in enumerate(kinds) if kind == sqlglot.TokenType.L_PAREN]
    before = [tokens[index - 1].text.lower() if index else "" for index in opened]
    return (
        _count(tree, exp.Paren) == sum(word not in _FUNCTIONS | {"in", "except"} for word in before)
        and _count(tree, exp.And, exp.Between) == kinds.count(sqlglot.TokenType.AND)
        and _count(tree, exp.Or) == kinds.count(sqlglot.TokenType.OR)
        and (sqlglot.TokenType.COMMA, sqlglot.TokenType.R_PAREN) not in pairwise(kinds)
        and sqlglot.TokenType.ALL not in kinds
        # A unit is a text; sqlglot takes a column there for one, too.
        and len(list(tree.find_all(exp.TimestampTrunc))) <= kinds.count(sqlglot.TokenType.STRING) - _texts(tree)
    )


def _texts(tree: exp.Expression) -> int:
    return sum(bool(literal.args.get("is_string")) for literal in tree.find_all(exp.Literal))


def _count(tree: exp.Expression, *kinds: type[exp.Expression]) -> int:
    return len(list(tree.find_all(*kinds)))
