"""The step of ``join``: rows settle, find their partners, and stay while more may come.

Pairs of rows of two tables: one key, and times within a range of each other.  Nothing here loops over rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.join import output
from holdfast.operators.join.rules import LEFT, RIGHT, JoinRules
from holdfast.operators.join.side import INPUT, INPUTS, SEQ, Rise, Side, known, rise
from holdfast.state import checks, joins, keyed, tables
from holdfast.state.step import (
    ABSORBED,
    ALL_KEYS,
    BOUND,
    PLACE,
    UNBOUNDED,
    Arrivals,
    Change,
    Result,
    StepTime,
)
from holdfast.state.timeline import Bools, Ints, shifted

SIDES = (LEFT, RIGHT)


@dataclass(frozen=True)
class JoinStep(JoinRules):
    """The rows of two inputs in pairs."""

    def giving(self, outputs: Collection[str]) -> JoinStep:
        """Return the step that gives the rows without a partner where they are read."""
        return replace(self, gives_unmatched="unmatched" in outputs)

    def by_bounds(self, inputs: Collection[str]) -> JoinStep:
        """Return the step for which rows of these inputs promise nothing."""
        promises = {name: one.silent() if name in inputs else one for name, one in self.promises.items()}
        return replace(self, promises=promises)

    def held(self, state: Mapping[str, pa.Table]) -> int:
        """Return how many rows wait: to settle, or for partners."""
        return sum(state[name].num_rows + state[f"waiting_{name}"].num_rows for name in SIDES)

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Take in what arrived, give the pairs that have settled, drop what can have no further partner."""
        before = {name: known(state["inputs"], name) for name in SIDES}
        rises: dict[str, Rise] = {}
        for name in SIDES:
            checks.require_values(arrivals[name].rows, [self.times[name]], name)
            rises[name] = rise(arrivals[name], self.times[name], self.promises[name], before[name][0])
        settled = min(one.after for one in rises.values())
        left, right = (
            Side.of(
                self.sides[name],
                (state[name], state[f"waiting_{name}"], state.get(f"matched_{name}")),
                arrivals[name],
                rises[name],
                self.times[name],
                before[name][1],
                settled,
            )
            for name in SIDES
        )
        came = sum(arrivals[name].rows.num_rows for name in SIDES)
        held_before = left.kept + left.waited + right.kept + right.waited
        rows, alone = self._released(left, right, rises, settled)
        late = self._late(arrivals, rises)
        outputs = {"rows": rows, "late": late}
        changes = {**left.changes(LEFT), **right.changes(RIGHT)}
        if (change := _inputs_change(before, rises, left, right)) is not None:
            changes["inputs"] = change
        counts = keyed.late_counts(np.concatenate([rises[name].below[rises[name].is_late] for name in SIDES]))
        counts["waiting_rows"] = left.held + right.held
        if alone is not None:
            outputs["unmatched"] = alone
            counts |= keyed.counted("unmatched", {keyed.ALONE: alone.num_rows})
        absorbed = came + held_before - late.num_rows - counts["waiting_rows"]
        fates = {ABSORBED: absorbed, "late": late.num_rows}
        return Result(outputs, changes, self._bounds(rises), counts, fates=fates)

    def _released(
        self, left: Side, right: Side, rises: Mapping[str, Rise], settled: int
    ) -> tuple[pa.Table, pa.Table | None]:
        """Return the rows that leave, and the rows without a partner; note which rows stay."""
        ours, theirs = self._pairs(left, right)
        left.matched[ours] = True
        right.matched[theirs] = True
        above, below = max(self.high, 0), max(-self.low, 0)
        left.stays &= ~left.settled | (shifted(left.times, above) >= settled)
        right.stays &= ~right.settled | (shifted(right.times, below) >= settled)
        gone = self._alone(left, right, rises)
        left.stays[gone[LEFT]] = right.stays[gone[RIGHT]] = False
        if not self.is_of_pairs:
            left.stays &= ~left.matched
        rows = output.rows(self, left, right, (ours, theirs), gone, rises)
        return rows, output.unmatched(self, left, right, gone, rises) if self.gives_unmatched else None

    def _pairs(self, left: Side, right: Side) -> tuple[Ints, Ints]:
        """Return the pairs whose later row has settled in this epoch."""
        found = []
        everything = np.concatenate([right.old, right.new])
        for ours, theirs in ((left.new, everything), (left.old, right.new)):
            mine, other = pairs(
                _take(left.keys, ours), left.times[ours],
                _take(right.keys, theirs), right.times[theirs],
                self.low, self.high,
            )  # fmt: skip
            found.append((ours[mine], theirs[other]))
        return np.concatenate([one for one, _ in found]), np.concatenate([other for _, other in found])

    def _alone(self, left: Side, right: Side, rises: Mapping[str, Rise]) -> dict[str, Ints]:
        """Return the rows of each input that have no partner and can have none any more."""
        none = np.zeros(0, np.int64)
        found = {LEFT: none, RIGHT: none}
        wanted = {"inner": (), "semi": (), "left": (LEFT,), "anti": (LEFT,), "right": (RIGHT,), "full": SIDES}[self.how]
        if self.gives_unmatched:
            wanted = SIDES if self.is_of_pairs else (LEFT,)
        for name in wanted:
            mine, other = (left, right) if name == LEFT else (right, left)
            low, high = (self.low, self.high) if name == LEFT else (-self.high, -self.low)
            bound = rises[RIGHT if name == LEFT else LEFT].after
            rows = np.flatnonzero(~mine.matched & (shifted(mine.times, high) < bound))
            # Rows that have arrived and are not settled are partners, too: of the other rows none can come.
            waiting = other.kept + np.flatnonzero(~other.settled[other.kept :])
            has = has_partner(
                _take(mine.keys, rows), mine.times[rows],
                _take(other.keys, waiting), other.times[waiting], low, high,
            )  # fmt: skip
            rows = rows[~has]
            if (unsettled := ~mine.settled[rows]).any():
                at = rows[unsettled]
                has = has_partner(_take(mine.keys, at), mine.times[at], other.keys, other.times, low, high)
                rows = np.concatenate([rows[~unsettled], at[~has]])
            found[name] = rows
        return found

    def _late(self, arrivals: Mapping[str, Arrivals], rises: Mapping[str, Rise]) -> pa.Table:
        """Return the late rows of both inputs in the order of their arrival."""
        parts, places = [], []
        for name in SIDES:
            is_late = rises[name].is_late
            rows = arrivals[name].rows.filter(pa.array(is_late))
            below = rises[name].below[is_late]
            parts.append(keyed.late_rows(self.outputs["late"], name, rows, self.times[name], below, f"of {name}"))
            places.append(keyed.ticks(rows.column(PLACE)))
        return tables.united(parts).take(pa.array(np.argsort(np.concatenate(places))))

    def _bounds(self, rises: Mapping[str, Rise]) -> pa.Table | None:
        """Return the bound of the output: no row of it below this follows."""
        bounds = {name: rises[name].after for name in SIDES}
        least = min(bounds.values())
        if self.how == "semi":  # a row leaves at its first partner, which may be this far above it, and settle late
            least = int(shifted(np.array([least]), -max(self.high, 0))[0])
        if self.how in ("left", "full", "anti"):
            least = min(least, int(shifted(np.array([bounds[RIGHT]]), -max(self.high, 0))[0]))
        if self.how in ("right", "full"):
            least = min(least, int(shifted(np.array([bounds[LEFT]]), -max(-self.low, 0))[0]))
        if least <= UNBOUNDED + 1:
            return None
        row = {**dict.fromkeys(self.key.names), ALL_KEYS: True, BOUND: least}
        return pa.Table.from_pylist([row], schema=tables.bounds_schema(self.key))


def _take(table: pa.Table, rows: Ints) -> pa.Table:
    if len(rows) == table.num_rows:  # ascending: all of them
        return table
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))


def _inputs_change(
    before: Mapping[str, tuple[int, int]], rises: Mapping[str, Rise], left: Side, right: Side
) -> Change | None:
    rows = []
    for name, side in ((LEFT, left), (RIGHT, right)):
        number = before[name][1] + len(side.times) - side.kept - side.waited
        if (rises[name].after, number) != before[name]:
            rows.append({INPUT: name, BOUND: rises[name].after, SEQ: number})
    if not rows:
        return None
    return Change(pa.Table.from_pylist(rows, schema=INPUTS), tables.empty(pa.schema([INPUTS.field(INPUT)])))


_FEW = 8
"""With so many times fewer rows on one side, those of the other are first sought by their keys."""


def pairs(
    left: pa.Table, left_times: Ints, right: pa.Table, right_times: Ints, low: int, high: int
) -> tuple[Ints, Ints]:
    """Return the pairs of two tables.

    Parameters
    ----------
    left, right : pa.Table
        Key columns alone, of the same names and types; a row with a null in one of them is in no pair.
    left_times, right_times : array of int64
        The times of the rows.
    low, high : int
        A pair is one if ``low <= right's time - left's time <= high``.

    Returns
    -------
    (array of int64, array of int64)
        Rows of the left and of the right table, as long as there are pairs; in no particular order.

    Examples
    --------
    >>> orders, payments = pa.table({"k": ["a", "b", None]}), pa.table({"k": ["b", "a", "a", None]})
    >>> found = pairs(orders, np.array([10, 20, 30]), payments, np.array([21, 14, 99, 30]), 0, 5)
    >>> [rows.tolist() for rows in found]
    [[0, 1], [1, 0]]
    """
    ours, theirs = _with_key(left), _with_key(right)
    if not len(ours) or not len(theirs):
        return _none()
    if len(ours) * _FEW < len(theirs):
        theirs = theirs[joins.members(_rows(right, theirs), _rows(left, ours), left.column_names)]
    elif len(theirs) * _FEW < len(ours):
        ours = ours[joins.members(_rows(left, ours), _rows(right, theirs), left.column_names)]
    if not len(ours) or not len(theirs):
        return _none()
    found = _once(left, ours, left_times, right, theirs, right_times, low, high)
    if found is None:
        found = _often(left, ours, left_times, right, theirs, right_times, low, high)
    return ours[found[0]], theirs[found[1]]


def has_partner(left: pa.Table, left_times: Ints, right: pa.Table, right_times: Ints, low: int, high: int) -> Bools:
    """Return for each left row whether there is a right one; the parameters are those of :func:`pairs`."""
    found = np.zeros(left.num_rows, bool)
    found[pairs(left, left_times, right, right_times, low, high)[0]] = True
    return found


def _none() -> tuple[Ints, Ints]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _with_key(table: pa.Table) -> Ints:
    """Return the rows without a null."""
    valid = np.ones(table.num_rows, bool)
    for column in table.columns:
        if column.null_count:
            valid &= np.asarray(pc.is_valid(column))
    return np.flatnonzero(valid)


def _rows(table: pa.Table, rows: Ints) -> pa.Table:
    return table if len(rows) == table.num_rows else table.take(pa.array(rows))


def _once(
    left: pa.Table, ours: Ints, left_times: Ints, right: pa.Table, theirs: Ints, right_times: Ints, low: int, high: int
) -> tuple[Ints, Ints] | None:
    """Return the pairs where each right key occurs once: no sorting.  None where one occurs more often."""
    keys, names = _rows(right, theirs), right.column_names
    if len(names) == 1 and pc.count_distinct(keys.column(0)).as_py() < keys.num_rows:
        return None
    if len(names) > 1 and int(joins.key_codes(keys, names).max()) + 1 < keys.num_rows:
        return None
    at = joins.index_in(_rows(left, ours), keys, names)
    mine = np.flatnonzero(at >= 0)
    at = at[mine]
    times = left_times[ours[mine]]
    there = right_times[theirs[at]]
    near = (there >= shifted(times, low)) & (there <= shifted(times, high))
    return (mine, at) if near.all() else (mine[near], at[near])


def _often(
    left: pa.Table, ours: Ints, left_times: Ints, right: pa.Table, theirs: Ints, right_times: Ints, low: int, high: int
) -> tuple[Ints, Ints]:
    """Return the pairs where keys occur several times: right rows by key and time, and a span of them for each left."""
    names = left.column_names
    both = tables.united([_rows(right, theirs), _rows(left, ours)])
    codes = joins.key_codes(both, names)
    of_right, of_left = codes[: len(theirs)], codes[len(theirs) :]
    there, times = right_times[theirs], left_times[ours]
    ranks = np.unique(there)
    width = len(ranks) + 1
    line = of_right * width + np.searchsorted(ranks, there)
    order = np.argsort(line, kind="stable")
    line = line[order]
    first = np.searchsorted(line, of_left * width + np.searchsorted(ranks, shifted(times, low), side="left"))
    # One below the first rank that is too high; of a range that ends before all of them, the end of the key before.
    end = np.searchsorted(line, of_left * width + np.searchsorted(ranks, shifted(times, high), side="right"))
    counts = np.maximum(end - first, 0)
    mine = np.repeat(np.arange(len(ours)), counts)
    within = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
    return mine, order[np.repeat(first, counts) + within]
