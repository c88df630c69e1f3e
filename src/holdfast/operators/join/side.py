"""One input of a join within an epoch: the rows that it has, where they come from, and what becomes of them.

Bounds of a join's inputs over one epoch: for all keys, with the places at which they rise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from holdfast.state import joins, keyed, tables
from holdfast.state.rows import rows_at
from holdfast.state.step import ALL_KEYS, BOUND, PLACE, Arrivals, Change, StateTable
from holdfast.state.timeline import UNBOUNDED, Bools, Ints, Promise

LastOf = Callable[[pa.Table, Ints], Ints]
"""Rows and their times -> the last time that a partner of each may have."""

_FEW = 8
"""Rows so many times fewer than those that had a partner are first looked for among these."""


@dataclass(frozen=True)
class Tables:
    """The state tables of one input.

    Parameters
    ----------
    kept, waiting : StateTable
        Settled rows, and rows that are not.
    matched : StateTable, optional
        Numbers of settled rows that have a partner; None where a row leaves with its first one.
    """

    kept: StateTable
    waiting: StateTable
    matched: StateTable | None


@dataclass
class Side:
    """All rows of one input: first those that were settled before the epoch, then those that waited, then new ones.

    Parameters
    ----------
    declared : Tables
        Its state.
    rows : pa.Table
        Its rows, with their numbers.
    keys : pa.Table
        Their key columns.
    times : array of int64
        Of each row.
    places : array of int64
        Where each of the new rows arrived in this epoch.
    kept, waited : int
        How many rows were settled before, and how many waited.
    settled : array of bool
        Which rows are settled now.
    last : array of int64
        The last time that a partner of each row may have.
    known : pa.Table, optional
        Key and number of the rows that had a pair which was settled before the epoch; None where such rows have left.
    matched : array of bool
        Which rows have a pair that has settled in the epoch.
    stays : array of bool
        Which rows are needed in later epochs.
    """

    declared: Tables
    rows: pa.Table
    keys: pa.Table
    times: Ints
    places: Ints
    kept: int
    waited: int
    settled: Bools
    last: Ints
    known: pa.Table | None
    matched: Bools = field(init=False)
    stays: Bools = field(init=False)

    def __post_init__(self) -> None:
        self.matched = np.zeros(len(self.times), bool)
        self.stays = np.ones(len(self.times), bool)

    @staticmethod
    def of(
        declared: Tables,
        held: tuple[pa.Table, pa.Table, pa.Table | None],
        given: Arrivals,
        rise: Rise,
        time: str,
        number: int,
        settled_before: int,
        last_of: LastOf,
    ) -> Side:
        """Return an input's rows.

        Parameters
        ----------
        declared : Tables
            Its state.
        held : tuple of pa.Table
            What it has: settled rows, waiting ones, and the numbers of those that have a partner.
        given, rise
            What arrives, and how the bound rises.
        time : str
            Its timestamp column.
        number : int
            Of its next row.
        settled_before : int
            The time below which both inputs are settled now.
        last_of : callable
            Returns the last time that a partner of each row may have.
        """
        kept, waiting, known = held
        fresh = given.rows if not rise.is_late.any() else given.rows.filter(pa.array(~rise.is_late))
        places = keyed.ticks(fresh.column(PLACE))
        fresh = fresh.drop_columns([PLACE])
        numbers = np.arange(number, number + fresh.num_rows, dtype=np.int64)
        fresh = fresh.append_column(declared.kept.schema.field(SEQ), pa.array(numbers))
        rows = tables.united([kept, waiting, fresh], kept.schema)
        times = keyed.ticks(rows.column(time))
        settled = times < settled_before
        settled[: kept.num_rows] = True
        return Side(
            declared,
            rows,
            rows.select([name for name in declared.kept.key if name != SEQ]),
            times,
            places,
            kept.num_rows,
            waiting.num_rows,
            settled,
            last_of(rows, times),
            known,
        )

    @property
    def new(self) -> Ints:
        """The rows that have settled in this epoch."""
        return self.kept + np.flatnonzero(self.settled[self.kept :])

    @property
    def old(self) -> Ints:
        """The rows that were settled before."""
        return np.arange(self.kept)

    def numbers_of(self, rows: Ints) -> Ints:
        """Return the numbers of some rows in the order of arrival."""
        return keyed.ticks(rows_at(self.rows.select([SEQ]), rows).column(SEQ))

    def places_of(self, rows: Ints) -> Ints:
        """Return where some rows arrived in this epoch; BEFORE for those of the state."""
        fresh = rows - (self.kept + self.waited)
        found = np.full(len(rows), BEFORE, np.int64)
        found[fresh >= 0] = self.places[fresh[fresh >= 0]]
        return found

    @property
    def held(self) -> int:
        """How many rows are in the state after the epoch."""
        return int(self.stays.sum())

    def unmatched_of(self, rows: Ints) -> Ints:
        """Return those of some rows that have no pair which has settled, in this epoch or before."""
        rows = rows[~self.matched[rows]]
        return rows[~self._had(rows)]

    def _had(self, rows: Ints) -> Bools:
        """Return which rows had a pair that was settled before the epoch."""
        had = np.zeros(len(rows), bool)
        if self.known is None or not self.known.num_rows or not len(rows):
            return had
        key = list(self.declared.kept.key)
        was_kept = np.flatnonzero(rows < self.kept)
        wanted = rows_at(self.rows.select(key), rows[was_kept])
        among = self.known
        if wanted.num_rows * _FEW < among.num_rows:
            among = joins.semi_join(among, wanted, key)
        had[was_kept] = joins.index_in(wanted, among, key) >= 0
        return had

    def changes(self, name: str) -> dict[str, Change]:
        """Return what changes in the tables of the input of this name."""
        kept, old = self.kept, self.kept + self.waited
        settled, stays = self.settled, self.stays
        comes, goes = kept + np.flatnonzero(stays[kept:] & settled[kept:]), np.flatnonzero(~stays[:kept])
        waits, has_waited = ~settled[old:] & stays[old:], settled[kept:old] | ~stays[kept:old]
        found = {
            name: self._change(comes, goes),
            f"waiting_{name}": self._change(old + np.flatnonzero(waits), kept + np.flatnonzero(has_waited)),
        }
        if (declared := self.declared.matched) is not None:
            more = np.flatnonzero(self.matched)
            more = more[stays[more] & settled[more]]
            keys = self.rows.select(list(declared.key))
            more, goes = more[~self._had(more)], goes[self._had(goes)]
            found[f"matched_{name}"] = Change(rows_at(keys, more), rows_at(keys, goes))
        return {name: change for name, change in found.items() if change.upserts.num_rows or change.deletes.num_rows}

    def _change(self, comes: Ints, goes: Ints) -> Change:
        return Change(rows_at(self.rows, comes), rows_at(self.rows.select(list(self.declared.kept.key)), goes))


BEFORE = -1
"""The place of what was so when the epoch began."""

NEVER = 2**62
"""The place of what has not happened at its end."""


@dataclass(frozen=True)
class Rise:
    """How the bound of an input rises over an epoch.

    Parameters
    ----------
    before, after : int
        The bound for all keys when it begins and when it ends.
    places, bounds : array of int64
        The places at which something is said, ascending, and the bound after each.
    times : array of int64
        Timestamps of its rows.
    below : array of int64
        For each row the bound when it arrived.
    """

    before: int
    after: int
    places: Ints
    bounds: Ints
    times: Ints
    below: Ints

    @property
    def is_late(self) -> Bools:
        """Which rows are below the bound that was known when they arrived."""
        return self.times < self.below

    def passed(self, times: Ints) -> Ints:
        """Return for each time the place at which the bound is above it; NEVER where it is not in this epoch."""
        at = np.searchsorted(self.bounds, times, side="right")
        places = np.append(self.places, NEVER)[at]
        return np.where(times < self.before, BEFORE, places)


def rise(given: Arrivals, time: str, promise: Promise, before: int) -> Rise:
    """Return how an input's bound rises.

    Parameters
    ----------
    given : Arrivals
        What arrives on it.
    time : str
        Its timestamp column.
    promise : Promise
        What its rows promise, whatever their keys.
    before : int
        The bound so far.
    """
    of_all = given.bounds.filter(given.bounds.column(ALL_KEYS))
    times = keyed.ticks(given.rows.column(time))
    row_places = keyed.ticks(given.rows.column(PLACE))
    says = promise.bounds_after(times)
    places = row_places
    if of_all.num_rows:
        places = np.concatenate([row_places, keyed.ticks(of_all.column(PLACE))])
        says = np.concatenate([says, keyed.ticks(of_all.column(BOUND))])
        order = np.argsort(places, kind="stable")
        places, says = places[order], says[order]
    bounds = np.maximum.accumulate(np.concatenate([np.array([before], np.int64), says]))
    below = bounds[np.searchsorted(places, row_places, side="left")]
    return Rise(before, int(bounds[-1]), places, bounds[1:], times, below)


INPUT = "__input__"
SEQ = "__seq__"
"""Number of a row in the order of its input's arrival."""

INPUTS = pa.schema([(INPUT, pa.string()), (BOUND, pa.int64()), (SEQ, pa.int64())])


def known(table: pa.Table, name: str) -> tuple[int, int]:
    """Return the bound of an input as it is in the state, and the number of its next row."""
    for row in table.to_pylist():
        if row[INPUT] == name:
            return int(row[BOUND]), int(row[SEQ])
    return UNBOUNDED, 0
