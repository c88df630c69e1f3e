"""What Spark may leave out: whether an expression that can raise is evaluated by it for the same rows as in Arrow.

Spark pushes a filter below a projection, so that a value is not computed for a row that is dropped later; it computes
no value that nothing reads; it replaces a column by its expression, and simplifies the whole; and it combines several
filters in a row into one, in which checks for null come first, and conditions that it derived from an equality even
before that.  The Arrow program evaluates each operator for all rows that reach it.  For an expression
that cannot raise none of this shows.  One that can raise is taken into the program only where nothing of this applies::

    read -> filter(n <> 0) -> select(i % n AS r)               taken: a projection stays after the filter before it
    read -> filter(i % n = 1)                                  taken: alone
    read -> select(i % n AS r) -> filter(i > 0)                left: Spark computes no r where i > 0 is false
    read -> select(*, i % n AS r) -> select(i)                 left: nothing reads r
    read -> select(i + 1 AS j) -> select(j + -1 AS k)          left: Spark makes i + 0 of it, which cannot overflow
    read -> filter(n <> 0) -> filter(i % n = 1)                left: one filter, in an order of Spark's own

A read and ``map_batches`` are borders: nothing is pushed through them, and a function reads all columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.expressions.logic import Columnar


@dataclass(frozen=True)
class Evaluations:
    """What has been evaluated since the last border, for the rows of one stream.

    Parameters
    ----------
    unchanged : frozenset of str
        Columns as they came over the border.
    raising : frozenset of str
        Columns whose computation can raise.
    is_filtered : bool
        Whether a filter follows the border.
    filter_raises : bool
        Whether one of these filters can raise.
    """

    unchanged: frozenset[str]
    raising: frozenset[str] = frozenset()
    is_filtered: bool = False
    filter_raises: bool = False


def at_border(columns: Iterable[str]) -> Evaluations:
    """Return what is evaluated of rows that were just read, or came from a user's function: nothing."""
    return Evaluations(frozenset(columns))


def after_filter(before: Evaluations, condition: Columnar | None) -> Evaluations | None:
    """Return what is evaluated after a filter, or None where Spark may raise for other rows.

    Parameters
    ----------
    before : Evaluations
        Of the stream that is filtered.
    condition : Columnar, optional
        None for a filter that cannot raise.
    """
    if before.raising or before.filter_raises:
        return None
    raises = condition is not None and condition.can_raise
    if condition is not None and raises and (before.is_filtered or not condition.reads <= before.unchanged):
        return None
    return replace(before, is_filtered=True, filter_raises=raises)


def after_select(before: Evaluations, items: Sequence[tuple[str, Columnar]]) -> Evaluations | None:
    """Return what is evaluated after a projection, or None where Spark may raise for other rows."""
    passed = {item.reference for _, item in items if item.reference is not None}
    if not before.raising <= passed:
        return None
    unchanged, raising = set(), set()
    for name, item in items:
        if item.reference is not None:
            if item.reference in before.unchanged:
                unchanged.add(name)
            if item.reference in before.raising:
                raising.add(name)
        elif item.reads & before.raising or (item.can_raise and not item.reads <= before.unchanged):
            return None
        elif item.can_raise:
            raising.add(name)
    return replace(before, unchanged=frozenset(unchanged), raising=frozenset(raising))


def after_union(inputs: Sequence[Evaluations]) -> Evaluations:
    """Return what is evaluated of the rows of several streams; Spark pushes through a union as if it were not there."""
    return Evaluations(
        frozenset.intersection(*(each.unchanged for each in inputs)),
        frozenset.union(*(each.raising for each in inputs)),
        any(each.is_filtered for each in inputs),
        any(each.filter_raises for each in inputs),
    )
