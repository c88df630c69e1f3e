"""Aggregates: what an aggregation computes of the rows of a window.

All are frozen values; :mod:`holdfast.operators.aggregate.parts` computes them.  Nulls are treated as in SQL: every
aggregate of a column skips them, and returns null where nothing is left (counts return 0); ``first`` and ``last`` use
them unless set otherwise.  Each result is a function of the rows alone: how they were divided has no effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type

KINDS = (
    "count", "sum", "min", "max", "mean", "variance", "first", "last", "distinct_count", "collect", "quantiles",
    "max_by", "min_by", "approx_count_distinct",
)  # fmt: skip


@dataclass(frozen=True)
class Aggregate:
    """One aggregate over one column.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    column : str, optional
        The column; None only for a count of rows.
    ignore_nulls : bool
        For ``first`` and ``last``.
    is_population : bool
        For ``variance``: divide by n and not by n - 1.
    ranks : tuple of float
        For ``quantiles``.
    error : float
        For ``quantiles`` and ``approx_count_distinct``: relative error.
    is_single : bool
        For ``quantiles``: one value and not a list.
    where : str, optional
        A condition: the aggregate is over the rows for which it is true.
    order : str, optional
        For ``max_by`` and ``min_by``: the column whose highest or lowest value decides.
    """

    kind: str
    column: str | None = None
    ignore_nulls: bool = False
    is_population: bool = False
    ranks: tuple[float, ...] = ()
    error: float = 0.0
    is_single: bool = False
    where: str | None = None
    order: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the values that it is over."""
        return tuple(name for name in (self.column, self.order) if name is not None)

    @property
    def reads(self) -> tuple[str, ...]:
        """Every column that it reads; with that of its condition."""
        return self.columns if self.condition is None else (*self.columns, self.condition)

    @property
    def condition(self) -> str | None:
        """Name of the Boolean column that holds ``where``; None where there is none."""
        return None if self.where is None else f"where_{hashlib.sha256(self.where.encode()).hexdigest()[:8]}"

    def arguments(self) -> dict[str, Any]:
        """Return kind, column and what differs from the default, for display and fingerprint."""
        given = {name: value for name, value in vars(self).items() if value or name == "kind"}
        return given | ({"ranks": list(self.ranks)} if self.ranks else {})


def count(column: str | None = None, *, where: str | None = None) -> Aggregate:
    """Number of rows, or of values that are not null in ``column``.  BIGINT.

    Parameters
    ----------
    column : str, optional
        The column.
    where : str, optional
        A Spark SQL condition on the row, as every aggregate takes one: only rows for which it is true count; for null
        it is not.

    Examples
    --------
    >>> count().kind, count("tailnum").column, count(where="dep_delay > 15").where
    ('count', 'tailnum', 'dep_delay > 15')
    """
    return Aggregate("count", None if column is None else _column(column, "count"), where=_where(where, "count"))


def sum(column: str, *, where: str | None = None) -> Aggregate:
    """Sum of a numeric column, exact.

    Parameters
    ----------
    column : str
        The column.
    where : str, optional
        A condition on the row: see :func:`count`.

    Notes
    -----
    The result of integers is BIGINT, of decimals DECIMAL with ten more digits; a result that does not fit is an error
    when it is emitted, however large the intermediate sums were.  That of floating point is DOUBLE: the sum is kept
    exactly and rounded only when emitted, to within one unit in the last place, so that neither order nor epochs
    matter.

    References
    ----------
    The exact accumulator is Kulisch's ("Very fast and exact accumulation of products", 2011), kept sparse.

    Examples
    --------
    >>> sum("distance").kind
    'sum'
    """
    return Aggregate("sum", _column(column, "sum"), where=_where(where, "sum"))


def min(column: str, *, where: str | None = None) -> Aggregate:
    """Smallest value.  NaN counts as larger than every number, as in Spark.

    Parameters
    ----------
    column : str
        The column.
    where : str, optional
        A condition on the row: see :func:`count`.

    Examples
    --------
    >>> min("dep_delay").kind
    'min'
    """
    return Aggregate("min", _column(column, "min"), where=_where(where, "min"))


def max(column: str, *, where: str | None = None) -> Aggregate:
    """Largest value.  NaN counts as larger than every number, as in Spark.

    Parameters
    ----------
    column : str
        The column.
    where : str, optional
        A condition on the row: see :func:`count`.

    Examples
    --------
    >>> max("dep_delay").kind
    'max'
    """
    return Aggregate("max", _column(column, "max"), where=_where(where, "max"))


def mean(column: str, *, where: str | None = None) -> Aggregate:
    """Mean of a numeric column, DOUBLE: the exact sum by the count.

    Parameters
    ----------
    column : str
        The column.
    where : str, optional
        A condition on the row: see :func:`count`.

    Examples
    --------
    >>> mean("dep_delay").kind
    'mean'
    """
    return Aggregate("mean", _column(column, "mean"), where=_where(where, "mean"))


def variance(column: str, *, population: bool = False, where: str | None = None) -> Aggregate:
    """Variance of a numeric column, DOUBLE; null for fewer than two values (``population=True``: for none).

    Parameters
    ----------
    column : str
        The column.
    population : bool
        Divide by n and not by n - 1.
    where : str, optional
        A condition on the row: see :func:`count`.

    Notes
    -----
    Sum and sum of squares are kept exactly and combined with 106 bits, so a large mean does not eat a small variance.

    Examples
    --------
    >>> variance("dep_delay", population=True).is_population
    True
    """
    return of_column("variance", column, where, is_population=bool(population))


def first(column: str, *, ignore_nulls: bool = False, where: str | None = None) -> Aggregate:
    """Value of the row with the lowest timestamp; of several, of the one that arrived first.

    Without a timestamp (count windows, timers, totals of streams that have none) arrival alone decides.

    Parameters
    ----------
    column : str
        The column.
    ignore_nulls : bool
        Skip rows where it is null.
    where : str, optional
        A condition on the row: see :func:`count`.

    Examples
    --------
    >>> first("gate").kind
    'first'
    """
    return Aggregate("first", _column(column, "first"), ignore_nulls=bool(ignore_nulls), where=_where(where, "first"))


def last(column: str, *, ignore_nulls: bool = False, where: str | None = None) -> Aggregate:
    """Value of the row with the highest timestamp; of several, of the one that arrived last.

    Parameters
    ----------
    column : str
        The column.
    ignore_nulls : bool
        Skip rows where it is null.
    where : str, optional
        A condition on the row: see :func:`count`.

    Examples
    --------
    >>> last("gate", ignore_nulls=True).ignore_nulls
    True
    """
    return Aggregate("last", _column(column, "last"), ignore_nulls=bool(ignore_nulls), where=_where(where, "last"))


def max_by(column: str, order: str, *, where: str | None = None) -> Aggregate:
    """Value of the row with the highest ``order``.

    Parameters
    ----------
    column : str
        The column whose value is wanted; null is a value.
    order : str
        The column that decides.  Rows where it is null are skipped; NaN is the largest.  Of rows of equal order the one
        with the lowest timestamp counts, of several of these the first to arrive.
    where : str, optional
        A condition on the row: see :func:`count`.

    Raises
    ------
    InvalidPipeline
        If ``column`` or ``order`` names no column, or ``where`` is no condition.

    Examples
    --------
    >>> max_by("flight", "dep_delay").order
    'dep_delay'
    """
    return Aggregate("max_by", _column(column, "max_by"), where=_where(where, "max_by"), order=_column(order, "max_by"))


def min_by(column: str, order: str, *, where: str | None = None) -> Aggregate:
    """Value of the row with the lowest ``order``; of several, as in :func:`max_by`.

    Parameters
    ----------
    column : str
        The column whose value is wanted; null is a value.
    order : str
        The column that decides.
    where : str, optional
        A condition on the row: see :func:`count`.

    Raises
    ------
    InvalidPipeline
        If ``column`` or ``order`` names no column, or ``where`` is no condition.

    Examples
    --------
    >>> min_by("flight", "dep_delay").kind
    'min_by'
    """
    return Aggregate("min_by", _column(column, "min_by"), where=_where(where, "min_by"), order=_column(order, "min_by"))


def distinct_count(column: str, *, where: str | None = None) -> Aggregate:
    """Number of different values, exact: the state keeps each value once per window.

    Parameters
    ----------
    column : str
        The column.
    where : str, optional
        A condition on the row: see :func:`count`.

    Examples
    --------
    >>> distinct_count("tailnum").kind
    'distinct_count'
    """
    return Aggregate("distinct_count", _column(column, "distinct_count"), where=_where(where, "distinct_count"))


def collect(column: str, *, where: str | None = None) -> Aggregate:
    """Array of the values that are not null, ascending by timestamp, then arrival; the state keeps every value.

    Parameters
    ----------
    column : str
        The column.
    where : str, optional
        A condition on the row: see :func:`count`.

    Examples
    --------
    >>> collect("flight").kind
    'collect'
    """
    return Aggregate("collect", _column(column, "collect"), where=_where(where, "collect"))


def quantile(column: str, rank: float, *, error: float = 0.01, where: str | None = None) -> Aggregate:
    """Approximate quantile of a numeric column, DOUBLE.

    Parameters
    ----------
    column : str
        The column.
    rank : float
        From 0 (smallest) to 1 (largest).  The quantile is the smallest value that at least this share of all values
        does not exceed: 0.5 is the median.
    error : float
        Relative error of the value, above 0 and below 1.
    where : str, optional
        A condition on the row: see :func:`count`.

    Notes
    -----
    A histogram with buckets of relative width: it merges exactly, so the result depends on the rows alone.  Its size
    grows with the number of different magnitudes, at most ``1/(2 error)`` buckets for each power of two.

    References
    ----------
    Masson, Rim, Lee, "DDSketch", VLDB 2019, with linear buckets within each power of two.

    Examples
    --------
    >>> quantile("dep_delay", 0.95).ranks
    (0.95,)
    """
    return Aggregate(
        "quantiles", _column(column, "quantile"), ranks=_ranks([rank], "rank"), error=_error(error), is_single=True,
        where=_where(where, "quantile"),
    )  # fmt: skip


def quantiles(column: str, ranks: Sequence[float], *, error: float = 0.01, where: str | None = None) -> Aggregate:
    """Several quantiles of one column from one histogram, as an array in the order of ``ranks``; see :func:`quantile`.

    Parameters
    ----------
    column : str
        The column.
    ranks : sequence of float
        From 0 (smallest) to 1 (largest).
    error : float
        Relative error of a value, above 0 and below 1.
    where : str, optional
        A condition on the row: see :func:`count`.

    Examples
    --------
    >>> quantiles("dep_delay", [0.5, 0.95]).ranks
    (0.5, 0.95)
    """
    return Aggregate(
        "quantiles", _column(column, "quantiles"), ranks=_ranks(ranks, "ranks"), error=_error(error),
        where=_where(where, "quantiles"),
    )  # fmt: skip


def of_column(kind: str, column: str, where: str | None, **given: Any) -> Aggregate:
    """Return an aggregate whose column and condition are checked."""
    return Aggregate(kind, _column(column, kind), where=_where(where, kind), **given)


_MORE = {"max_by": ', "time_hour"', "min_by": ', "time_hour"', "quantile": ", 0.95", "quantiles": ", [0.5, 0.95]"}


def _column(column: str, kind: str) -> str:
    if not isinstance(column, str) or not column:
        raise InvalidPipeline(
            f"hf.{kind} was given {column!r} and no column.",
            why="an aggregate takes the name of a column; an expression becomes a column before.",
            do=f'write hf.{kind}("dep_delay"{_MORE.get(kind, "")}); for an expression first '
            'stream | hf.select("*", x="a + b")',
        )
    return column


def _where(where: str | None, kind: str) -> str | None:
    if where is None:
        return None
    if not isinstance(where, str) or not where.strip():
        raise InvalidPipeline(
            f"where={where!r} of hf.{kind} is no condition.",
            why=f"a Spark SQL condition on the row is expected, and {a_type(where)} was given."
            if not isinstance(where, str)
            else "it is empty.",
            do='write where="dep_delay > 15", or leave it out.',
        )
    return where.strip()


def _ranks(ranks: Sequence[float], argument: str) -> tuple[float, ...]:
    given = tuple(ranks) if isinstance(ranks, list | tuple) else ()
    if not given or not all(isinstance(rank, int | float) and 0 <= rank <= 1 for rank in given):
        raise InvalidPipeline(
            f"{argument}={ranks!r} are not ranks." if argument == "ranks" else f"rank={ranks[0]!r} is not a rank.",
            why="a rank is between 0 (the smallest value) and 1 (the largest).",
            do='write for instance hf.quantile("dep_delay", 0.95) or hf.quantiles("dep_delay", [0.5, 0.95]).',
        )
    return tuple(float(rank) for rank in given)


def _error(error: float) -> float:
    if not isinstance(error, int | float) or not 0 < error < 1:
        raise InvalidPipeline(
            f"error={error!r} is not a relative error.",
            why="it is a share of the value, above 0 and below 1.",
            do="write for instance error=0.01 for one per cent.",
        )
    return float(error)


_KEPT = ("by", "name", "renamed_from", "migrate")
_WINDOWED = ("forget_after", "window", "emit", "timestamp", "timestamps", "disorder", "idle_after", "max_waiting_rows")
_ARGUMENTS = {"accumulate": _KEPT, "reduce": (*_KEPT, "forget_after"), "aggregate": (*_KEPT, *_WINDOWED)}
_ARGUMENTS |= {"over": (*_KEPT, "rows", "order", "timestamp", "timestamps", "disorder", "max_waiting_rows")}


def no_aggregate(name: str, given: Any, called: str) -> InvalidPipeline:
    """Return the error of what is neither an aggregate nor an argument that an operator has.

    Parameters
    ----------
    name : str
        The argument, which would be a column of the output.
    given : object
        What it was given.
    called : str
        The operator: ``aggregate``, ``reduce`` or ``accumulate``.
    """
    if name in _WINDOWED:
        return InvalidPipeline(
            f"hf.{called} has no argument {name}=.",
            why="it goes over all rows of a key, whatever their time; any other name is a column of its output.",
            do=f"leave it out; or write hf.aggregate(..., {name}=...), with a window of event time.",
        )
    near = get_close_matches(name, _ARGUMENTS[called], n=1)
    return InvalidPipeline(
        f"{name}= was given {a_type(given)} and no aggregate.",
        why=f"hf.{called} has no argument of this name, so it would be a column of its output.",
        do=f"write {near[0]}=, if that was meant." if near else f"write for instance {name}=hf.count()",
    )
