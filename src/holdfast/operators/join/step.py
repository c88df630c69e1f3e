"""The step of ``join``: rows settle, find their partners, and stay while more may come."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.operators.join import output
from holdfast.operators.join.bounds import INPUT, INPUTS, SEQ, Rise, known, rise
from holdfast.operators.join.pairs import has_partner, pairs
from holdfast.operators.join.rules import LEFT, RIGHT, JoinRules
from holdfast.operators.join.side import Side
from holdfast.state import checks, keyed, reasons, tables
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
from holdfast.state.timeline import Ints, shifted

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
        counts = reasons.late_counts(np.concatenate([rises[name].below[rises[name].is_late] for name in SIDES]))
        counts["waiting_rows"] = left.held + right.held
        if alone is not None:
            outputs["unmatched"] = alone
            counts |= reasons.counted("unmatched", {reasons.ALONE: alone.num_rows})
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
