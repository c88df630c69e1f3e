"""What a Spark SQL expression reads and yields, found in its text alone; no JVM.

The checks based on this may let something pass that Spark refuses later, and never refuse what Spark accepts: what
cannot be read here is unknown (None), and an unknown is not checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

# It warns of syntax that it does not know; for us that is not an event, only an unknown.
logging.getLogger("sqlglot").addHandler(logging.NullHandler())
logging.getLogger("sqlglot").propagate = False

_BARE_FUNCTIONS = frozenset(
    {
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "grouping__id",
        "localtimestamp",
        "session_user",
        "user",
    }
)
"""Functions that Spark allows without parentheses: in the text they look like columns."""

_HIDDEN = "_metadata"
"""Column that Spark's own file sources have without showing it."""

_VARYING = frozenset(
    {
        "rand",
        "random",
        "randn",
        "uuid",
        "shuffle",
        "randstr",
        "uniform",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "reflect",
        "try_reflect",
        "java_method",
    }
)
"""Functions that need not return the same value when the same row is computed again."""

_CLOCKED = frozenset({"now", "current_timestamp", "current_date", "curdate", "current_time", "localtimestamp"})
"""Functions that give the time of the batch."""

_AGGREGATES = frozenset(
    {
        "any",
        "bool_and",
        "bool_or",
        "every",
        "some",
        "try_sum",
        "try_avg",
        "count_if",
        "first",
        "last",
        "percentile",
        "mean",
        "std",
        "stddev",
        "product",
        "collect_set",
        "collect_list",
        "count_min_sketch",
        "histogram_numeric",
        "regr_count",
        "grouping",
        "grouping_id",
        "session_window",
    }
)
"""Aggregates, and what groups rows, that sqlglot knows as ordinary functions."""


_GENERATORS = frozenset(
    {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "variant_explode"}
)
"""Functions that give any number of rows for one."""


@dataclass(frozen=True)
class Item:
    """One item of a ``select``.

    Parameters
    ----------
    names : tuple of str, optional
        Columns that it yields; None when Spark chooses the name, or the item cannot be read.
    reads : frozenset of str
        Columns that it reads, as written.
    source : str, optional
        The column that it passes on unchanged, perhaps under another name.
    is_star : bool
        Whether it means all columns but those in ``excluded``.
    excluded : frozenset of str
        Columns that ``* except (...)`` leaves out, in lower case.
    """

    names: tuple[str, ...] | None
    reads: frozenset[str] = frozenset()
    source: str | None = None
    is_star: bool = False
    excluded: frozenset[str] = frozenset()


def columns_of(expression: str) -> frozenset[str] | None:
    """Return the names of the columns that an expression reads, as written.

    Of ``s.x`` the name is ``s``, its first part.

    Returns
    -------
    frozenset of str or None
        None when the expression cannot be read here, or holds a subquery.

    Examples
    --------
    >>> sorted(columns_of("dep_delay > 15 and lower(origin) = 'jfk'"))
    ['dep_delay', 'origin']
    >>> columns_of("dep_delay >") is None
    True
    """
    tree = _parse(expression)
    return None if tree is None else _reads(tree)


def item_of(text: str) -> Item:
    """Return what one item of a ``select`` reads and yields.

    Examples
    --------
    >>> item_of("b + 1 as c").names, item_of("a").source, item_of("* except (a)").excluded
    (('c',), 'a', frozenset({'a'}))
    """
    tree = _parse(text)
    return Item(None) if tree is None else _item(tree)


@dataclass(frozen=True)
class Query:
    """A ``select`` statement: what is known of it.

    Parameters
    ----------
    tables : tuple of str
        Tables that it reads, in lower case, each as often as it reads it.
    items : tuple of Item, optional
        Its select list, where its clauses are simple enough that nothing else adds columns.
    reads : frozenset of str, optional
        Columns of ``input`` that it reads; None when unknown.
    """

    tables: tuple[str, ...]
    items: tuple[Item, ...] | None
    reads: frozenset[str] | None


def query_of(text: str) -> Query | None:
    """Return what is known of a ``select`` statement; None when the text cannot be read here."""
    tree = _statement(text)
    if tree is None or isinstance(tree, exp.Command):
        return None
    if not isinstance(tree, exp.Query):
        return Query((), None, None)
    named = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    tables = tuple(name for table in tree.find_all(exp.Table) if (name := table.name.lower()) not in named)
    plain = isinstance(tree, exp.Select) and {key for key, value in tree.args.items() if value} <= {
        "expressions",
        "from_",
        "from",
        "where",
        "hint",
    }
    if not plain or len(list(tree.find_all(exp.Query))) > 1 or len(list(tree.find_all(exp.Table))) != 1:
        return Query(tables, None, None)
    table = next(tree.find_all(exp.Table)).alias_or_name.lower()
    items = tuple(_item(item, table) for item in tree.expressions)
    where = tree.args.get("where")
    return Query(tables, items, _reads(where, table) if where is not None else frozenset())


def across_rows(text: str, *, is_query: bool = False) -> str | None:
    """Return the part of an expression or query that processes several rows together, or None.

    Examples
    --------
    >>> across_rows("count(*)"), across_rows("a + 1"), across_rows("row_number() over (order by a)")
    ('COUNT(*)', None, 'ROW_NUMBER() OVER (ORDER BY a)')
    """
    tree = _statement(text) if is_query else _parse(text)
    if tree is None:
        return None
    for node in tree.walk():
        if isinstance(node, exp.Window | exp.AggFunc) or _function_name(node) in _AGGREGATES:
            return node.sql(dialect="spark")
        if isinstance(node, exp.Group):
            return "GROUP BY"
        if isinstance(node, exp.Distinct) and isinstance(node.parent, exp.Select):
            return "DISTINCT"
        if isinstance(node, exp.Order | exp.Sort | exp.Cluster) and isinstance(node.parent, exp.Query):
            return "ORDER BY"
        if isinstance(node, exp.Limit | exp.Offset | exp.Fetch):
            return "LIMIT"
        if isinstance(node, exp.Join):
            return "JOIN"
        if isinstance(node, exp.SetOperation) and not (isinstance(node, exp.Union) and not node.args.get("distinct")):
            return node.key.upper()
    return None


def varying(expression: str) -> str | None:
    """Return the first function in an expression or query that need not return the same value again, or None.

    Examples
    --------
    >>> varying("rand() > 0.5"), varying("a > 0.5")
    ('rand', None)
    """
    tree = _parse(expression) or _statement(expression)
    if tree is None:
        return None
    return next((name for node in tree.walk() if (name := _function_name(node)) in _VARYING), None)


def clocked(text: str) -> str | None:
    """Return the first function in an expression or a query that gives the time of the batch, or None.

    Examples
    --------
    >>> clocked("now() > t"), clocked("select current_date as d from input"), clocked("a > date'2026-01-01'")
    ('now', 'current_date', None)
    """
    tree = _parse(text) or _statement(text)
    if tree is None:
        return None
    return next((name for node in tree.walk() if (name := _function_name(node)) in _CLOCKED), None)


def generates(text: str) -> bool:
    """Return whether a select item or a query can give several rows for one; True where it cannot be read.

    Examples
    --------
    >>> generates("a + 1"), generates("explode(xs) as x"), generates("select a, inline(b) from input")
    (False, True, True)
    """
    tree = _parse(text) or _statement(text)
    if tree is None:
        return True
    return any(isinstance(node, exp.Lateral) or _function_name(node) in _GENERATORS for node in tree.walk())


class _ParserAsWritten(SparkParser):
    """Knows the syntax of ``cast``, and of no other function."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: parser for name, parser in SparkParser.FUNCTION_PARSERS.items() if name in ("CAST", "TRY_CAST")
    }


class _AsWritten(Spark):
    """Spark's syntax, with functions under the names that they are written with: none is taken for another one."""

    Parser = _ParserAsWritten


@lru_cache(maxsize=512)
def plain_tree(text: str) -> exp.Expr | None:
    """Return the tree of one expression or select item, its functions under the names in the text; None where unread.

    Examples
    --------
    >>> [call.name for call in plain_tree("roud(upper(a))").find_all(exp.Anonymous)]
    ['roud', 'upper']
    """
    try:
        trees = sqlglot.parse(f"SELECT {text}", dialect=_AsWritten)
    except (SqlglotError, RecursionError):
        return None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1:
        return None
    if {key for key, value in tree.args.items() if value} != {"expressions"}:
        return None
    only: exp.Expr = tree.expressions[0]
    return None if only.find(exp.Query, exp.Command) is not None else only


def quoted(column: str) -> str:
    """Return a column's name as Spark SQL reads it, whatever characters it has."""
    return "`" + column.replace("`", "``") + "`"


@lru_cache(maxsize=512)
def _statement(text: str) -> exp.Expr | None:
    try:
        trees = sqlglot.parse(text, dialect="spark")
    except (SqlglotError, RecursionError):
        return None
    return trees[0] if len(trees) == 1 else None  # several statements are none


def _parse(text: str) -> exp.Expr | None:
    """Return the tree of a single expression without a subquery; None when it cannot be read."""
    tree = _statement(f"SELECT {text}")
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1:
        return None
    if {key for key, value in tree.args.items() if value} != {"expressions"}:
        return None
    only: exp.Expr = tree.expressions[0]
    return None if only.find(exp.Query, exp.Command) is not None else only


def _columns(tree: exp.Expr) -> Iterator[exp.Column]:
    for column in tree.find_all(exp.Column):
        if isinstance(column.this, exp.Star):
            continue
        bare = len(column.parts) == 1 and not column.this.args.get("quoted")
        if bare and column.name.lower() in _BARE_FUNCTIONS:
            continue
        if column.parts[0].name.lower() != _HIDDEN:
            yield column


def _reads(tree: exp.Expr, table: str = "") -> frozenset[str]:
    return frozenset(_root(column, table) for column in _columns(tree))


def _root(column: exp.Column, table: str) -> str:
    parts = [part.name for part in column.parts]
    return parts[1] if table and len(parts) > 1 and parts[0].lower() == table else parts[0]


def _item(tree: exp.Expr, table: str = "") -> Item:
    reads = _reads(tree, table)
    if isinstance(tree, exp.Star):
        if tree.args.get("replace") or tree.args.get("rename"):
            return Item(None, reads)
        return Item((), reads, is_star=True, excluded=frozenset(name.lower() for name in reads))
    if isinstance(tree, exp.Alias):
        return Item((tree.alias,), reads, _passed_on(tree.this, table))
    if isinstance(tree, exp.Aliases):
        return Item(tuple(name.name for name in tree.args["expressions"]), reads)
    if isinstance(tree, exp.Column) and not isinstance(tree.this, exp.Star):
        if not reads:
            return Item(None)
        return Item((tree.name,), reads, _passed_on(tree, table))
    return Item(None, reads)


def _passed_on(tree: exp.Expr, table: str) -> str | None:
    if not isinstance(tree, exp.Column) or isinstance(tree.this, exp.Star):
        return None
    parts = [part.name for part in tree.parts]
    if table and len(parts) == 2 and parts[0].lower() == table:
        return parts[1]
    return parts[0] if len(parts) == 1 else None


def _function_name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    return str(node.sql_name()).lower() if isinstance(node, exp.Func) else ""
