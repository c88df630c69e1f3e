"""The step of ``join``: rows settle, find their partners, and stay while more may come."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from holdfast.operators.join import output
from holdfast.operators.join.pairs import pairs
from holdfast.operators.join.rules import LEFT, RIGHT, SIDES, JoinRules
from holdfast.operators.join.side import INPUT, INPUTS, SEQ, Rise, Side, known, rise
from holdfast.state import checks, keyed, tables
from holdfast.state.rows import rows_at
from holdfast.state.step import (
    ABSORBED,
    ALL_KEYS,
    BOUND,
    CLOSED,
    PLACE,
    UNBOUNDED,
    Arrivals,
    Change,
    Result,
    StepTime,
)
from holdfast.state.timeline import Ints, shifted


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
                partial(self.last_of, name),
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
        return Result(outputs, changes, self._bounds(rises, left, right), counts, fates=fates)

    def _released(
        self, left: Side, right: Side, rises: Mapping[str, Rise], settled: int
    ) -> tuple[pa.Table, pa.Table | None]:
        """Return the rows that leave, and the rows without a partner; note which rows stay."""
        ours, theirs = self._pairs(left, right)
        left.matched[ours] = True
        right.matched[theirs] = True
        for side in (left, right):
            side.stays &= ~side.settled | (side.times >= settled) | (side.last >= settled)
        gone = self._alone(left, right, rises)
        left.stays[gone[LEFT]] = right.stays[gone[RIGHT]] = False
        if not self.is_of_pairs:
            left.stays &= ~left.matched
        rows = output.rows(self, left, right, (ours, theirs), gone, rises)
        return rows, output.unmatched(self, left, right, gone, rises) if self.gives_unmatched else None

    def _pairs(self, left: Side, right: Side) -> tuple[Ints, Ints]:
        """Return the pairs whose later row has settled in this epoch."""
        everything = np.concatenate([right.old, right.new])
        found = [self._among(left, left.new, right, everything), self._among(left, left.old, right, right.new)]
        return np.concatenate([one for one, _ in found]), np.concatenate([other for _, other in found])

    def _among(self, left: Side, ours: Ints, right: Side, theirs: Ints) -> tuple[Ints, Ints]:
        """Return the pairs of some rows of both inputs."""
        columns = self.within.columns

        def limits(rows: Ints) -> tuple[Ints, Ints]:
            chosen = ours[rows]
            given = rows_at(left.rows.select(columns), chosen) if columns else left.rows.slice(0, 0)
            return self.within.limits(given, left.times[chosen])

        mine, other = pairs(_take(left.keys, ours), limits, _take(right.keys, theirs), _times(right, theirs))
        return ours[mine], theirs[other]

    def _alone(self, left: Side, right: Side, rises: Mapping[str, Rise]) -> dict[str, Ints]:
        """Return the rows of each input that have no partner and can have none any more."""
        none = np.zeros(0, np.int64)
        found = {LEFT: none, RIGHT: none}
        wanted = {"inner": (), "semi": (), "left": (LEFT,), "anti": (LEFT,), "right": (RIGHT,), "full": SIDES}[self.how]
        if self.gives_unmatched:
            wanted = SIDES if self.is_of_pairs else (LEFT,)
        for name in wanted:
            mine, other = (left, right) if name == LEFT else (right, left)
            bound = rises[RIGHT if name == LEFT else LEFT].after
            rows = mine.unmatched_of(np.flatnonzero(mine.last < bound))
            # Rows that have arrived and are not settled are partners, too: of the other rows none can come.
            waiting = other.kept + np.flatnonzero(~other.settled[other.kept :])
            rows = self._without(name, mine, rows, other, waiting)
            if (unsettled := ~mine.settled[rows]).any():
                alone = self._without(name, mine, rows[unsettled], other, np.arange(len(other.times)))
                rows = np.concatenate([rows[~unsettled], alone])
            found[name] = rows
        return found

    def _without(self, name: str, mine: Side, rows: Ints, other: Side, others: Ints) -> Ints:
        """Return those of some rows of an input that have no partner among some rows of the other one."""
        if name == LEFT:
            with_one = self._among(mine, rows, other, others)[0]
        else:
            with_one = self._among(other, others, mine, rows)[1]
        return np.setdiff1d(rows, with_one) if len(with_one) else rows

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

    def _bounds(self, rises: Mapping[str, Rise], left: Side, right: Side) -> pa.Table | None:
        """Return the bound of the output: no row of it below this follows."""
        bounds = {name: rises[name].after for name in SIDES}
        least = min(bounds.values())
        if self.how == "semi":  # a row leaves at its first partner, which may be far above it, and settle late
            least = min(least, self._bound_of_alone(left, self.within.high, self.within.end, least))
        if self.how in ("left", "full", "anti"):
            least = min(least, self._bound_of_alone(left, self.within.high, self.within.end, bounds[RIGHT]))
        if self.how in ("right", "full"):
            low = None if self.within.low is None else -self.within.low
            least = min(least, self._bound_of_alone(right, low, None, bounds[LEFT]))
        if least <= UNBOUNDED + 1:
            return None
        row = {**dict.fromkeys(self.key.names), ALL_KEYS: True, BOUND: least}
        return pa.Table.from_pylist([row], schema=tables.bounds_schema(self.key))

    @staticmethod
    def _bound_of_alone(side: Side, distance: int | None, column: str | None, bound: int) -> int:
        """Return the time below which no row of an input leaves that has no pair yet.

        Parameters
        ----------
        side : Side
            Its rows.
        distance : int, optional
            How far a partner may be above it; None: any.
        column : str, optional
            The column that says up to where a partner may be.
        bound : int
            The time up to which partners have come.
        """
        if distance is not None:
            return int(shifted(np.array([bound]), -max(distance, 0))[0])
        if column is None:
            return bound if bound == CLOSED else UNBOUNDED
        rows = side.unmatched_of(np.flatnonzero(side.stays & side.settled))
        return int(side.times[rows].min()) if len(rows) else bound


def _take(table: pa.Table, rows: Ints) -> pa.Table:
    if len(rows) == table.num_rows:  # ascending: all of them
        return table
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    return rows_at(table, rows)


def _times(side: Side, rows: Ints) -> Ints:
    """Return the times of ascending rows; not copied where they are all, or a stretch."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return side.times[int(rows[0]) : int(rows[0]) + len(rows)]
    return side.times[rows]


def _inputs_change(
    before: Mapping[str, tuple[int, int]], rises: Mapping[str, Rise], left: Side, right: Side
) -> Change | None:
    rows = []
    for name, side in ((LEFT, left), (RIGHT, right)):
        number = before[name][1] + len(side.places)
        if (rises[name].after, number) != before[name]:
            rows.append({INPUT: name, BOUND: rises[name].after, SEQ: number})
    if not rows:
        return None
    return Change(pa.Table.from_pylist(rows, schema=INPUTS), tables.empty(pa.schema([INPUTS.field(INPUT)])))
