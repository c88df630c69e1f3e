"""Rows that something behind state cannot process are left out there, once, whatever dies (design/0013, section 4).

On the real levels, without Spark: trials are evaluations of the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline, crossing, from_text
from holdfast.plan.chunks import reported
from holdfast.plan.counts import united
from holdfast.plan.cutting import build_stages
from holdfast.plan.levels.host import LevelsHere, levels_of
from holdfast.plan.levels.journal import StateJournal
from holdfast.plan.levels.level import EpochContext
from holdfast.plan.levels.line import Outlets
from holdfast.plan.levels.packing import packings
from holdfast.plan.program_build import as_it_is
from holdfast.plan.stages import Stages
from holdfast.quarantine.dead_letters import DeadLetters, read_letters
from holdfast.quarantine.mask import NOTHING, GivenRows, Passing, digest_of, outlet_of
from holdfast.spark.evaluation import Reader, SourcesHere
from holdfast.spark.quarantine.isolate import Isolating
from holdfast.spark.quarantine.trials import planned
from holdfast.spark.state.here import EvaluationHere
from tests.unit.spark.test_isolate import ORIGIN, DyingStore, Killed, Owner, World

LISTS = [
    [("a", 1), ("a", 2), ("b", 3)],
    [("a", 11), ("b", 12), ("b", 13)],  # what leaves now: a 3, b 3
    [("a", 21), ("b", 22)],  # a 11, b 25
    [("a", 31), ("b", 32)],  # a 21, b 22
]

Bad = dict[str, set[int]]


def stages_of(pipeline: hf.Pipeline, path: Path) -> Stages:
    return build_stages(pipeline, as_it_is, str(path), buckets=2, partitions=2, prefix=lambda part: ())


@dataclass
class StatefulWorld(World):
    """Two levels with state, and behind the source and each level a function that refuses some values."""

    bad_at: Bad = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        lists = [[{"k": k, "t": t} for k, t in each] for each in LISTS]
        given = hf.read.rows(lists, schema="k STRING, t BIGINT", timestamp="t", name="in")
        first = given | hf.map_batches(self._refusing("in", "t"), "k STRING, t BIGINT", timestamp="t", name="first")
        sums = first | hf.aggregate(by="k", window=hf.tumbling(10), v=hf.sum("t"), name="sums")
        second = sums | hf.map_batches(
            lambda rows: self._refusing("sums", "v")(rows.select(["k", "v"])), "k STRING, v BIGINT", name="second"
        )
        counts = second | hf.apply(
            running, by="k", state="n BIGINT", schema="k STRING, v BIGINT, n BIGINT", name="counts"
        )
        third = counts | hf.map_batches(self._refusing("counts", "v"), "k STRING, v BIGINT, n BIGINT", name="third")
        self.pipeline = hf.Pipeline("p", third | hf.write.sqlite(self.path / "out.db", table="t", name="out"))
        self.stages = stages_of(self.pipeline, self.path)

    def _refusing(self, where: str, column: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        def refuse(rows: pa.RecordBatch) -> pa.RecordBatch:
            if self.bad_at.get(where, set()) & set(rows.column(column).to_pylist()):
                raise Killed if self.kills else ValueError("poison")
            return rows

        return refuse

    def live(self, dies_at: int | None = None, is_done: bool = False) -> int:
        """Run until nothing is left; die, or fail, on the way."""
        store: Any = DyingStore(self.store, dies_at, is_done)
        self.generation += 1
        letters = DeadLetters(store, self.generation, isolates=True)
        isolating = Isolating(
            pipeline=self.pipeline,
            store=store,
            opened=lambda node: self.source(NOTHING),
            spark=self.path,
            header=ORIGIN,
            coordinator=Owner({"out"}),
            letters=letters,
            trials=self,
            levels=self.stages.operators,
            now_us=lambda: 5,
            rows_max=self.rows_max,
        )
        isolating.settle(1)
        masks = letters.masks()
        journal = StateJournal(self.store, "spark/1", self.generation)
        while (epoch := planned(self.path, ORIGIN) or self._plan(masks)) is not None:
            rows, changes, _ = self.evaluated(epoch, masks, letters.passing(epoch.epoch), journal)
            journal.write(epoch.batch, changes)
            self.sink += rows
            self._log("commits", epoch.batch, "{}")
        return store.writes

    def make(self, epoch: Any, masks: Any, passing: Passing) -> dict[str, GivenRows]:
        """Be the trials."""
        self.trials += 1
        return self.evaluated(epoch, masks, passing, StateJournal(self.store, "spark/1", 0, is_trial=True))[2]

    def evaluated(self, epoch: Any, masks: Any, passing: Passing, journal: StateJournal) -> tuple[list[Any], Any, Any]:
        """Return the rows of the sink, what changed of state, and what outlets gave."""
        readers = {"in": Reader(self.pipeline.sources[0].source_spec, "in", str(self.path / "in"))}
        levels = LevelsHere(levels_of(self.stages, str(self.path)), self.stages.routing)
        sources, packed = SourcesHere(readers, masks, {}), packings(self.stages, {"in": "t"})
        here = EvaluationHere(sources, packed, levels, 1, journal.reader.piece)
        at = EpochContext(epoch.epoch, epoch.end.batch_us, passing=passing)
        before = journal.begin(epoch.batch)
        chunks, changes = here(epoch.start.positions, epoch.end.positions, before, at)
        table = Outlets.of(self.stages).tables(chunks, {"out"})["out"]
        return [tuple(row.values()) for row in table.to_pylist()], changes, united(reported(chunks)).outlets


def running(key: str, rows: Any, state: hf.KeyState) -> Any:
    """Count the rows of a key."""
    for row in rows:
        state.set(n=state.get("n", 0) + 1)
        yield {"k": key, "v": row["v"], "n": state.get("n")}


BAD: Bad = {"in": {2}, "sums": {25}, "counts": {11}}
LEFT = [("a", 1, 1), ("a", 21, 3), ("b", 3, 1), ("b", 22, 2)]
"""What comes out: of "a" 1 + 2 without 2, and 11 is counted, but left out behind; of "b" 25 is never counted."""


def found(world: StatefulWorld) -> list[tuple[str, int, Any]]:
    """Return the letters: where they were left out, in which epoch, and their value."""
    rows = [(one, one.table.to_pylist()[0]) for one in read_letters(world.store)]
    return [(one.source, one.epoch, row.get("v", row.get("t"))) for one, row in rows]


def lived(world: StatefulWorld, *, dies_at: int | None = None, is_done: bool = False) -> int:
    """Live until the end is reached, once with a death; return how many lives it took."""
    for life in range(100):
        try:
            world.live(dies_at if life == 1 else None, is_done)
        except (Killed, InvalidPipeline):
            continue
        return life + 1
    raise AssertionError("it never ends")


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True])
def test_a_row_is_left_out_where_it_fails_and_no_other_one_that_let_it_go(tmp_path: Path, kills: bool) -> None:
    world = StatefulWorld(tmp_path, kills=kills, bad_at=BAD)
    lived(world)
    assert sorted(world.sink) == LEFT
    assert found(world) == [("in", 1, 2), ("sums", 3, 25), ("counts", 3, 11)]
    assert world.store.keys("poison/") == []


@pytest.mark.slow
@pytest.mark.parametrize("is_done", [False, True])
def test_a_crash_at_every_write_of_a_search_behind_state_leaves_out_no_other_row(tmp_path: Path, is_done: bool) -> None:
    bad: Bad = {"sums": {25}, "counts": {11}}
    for at in range(1, 100):
        world = StatefulWorld(tmp_path / str(at), bad_at=bad)
        lives = lived(world, dies_at=at, is_done=is_done)
        assert sorted(world.sink) == [("a", 3, 1), ("a", 21, 3), ("b", 3, 1), ("b", 22, 2)]
        assert found(world) == [("sums", 3, 25), ("counts", 3, 11)]
        if lives == 2:
            return
    raise AssertionError("the loop never ended")


ROWS = pa.table({"k": ["a", "b", "b"], "v": [1.5, None, float("nan")]})
OUTLET = outlet_of("sums", "rows", 0)


def test_a_row_is_left_out_where_it_equals_its_letter_and_another_one_at_its_place_is_not() -> None:
    """An epoch may be evaluated again with other content, behind a rewind."""
    shown = Passing(level=1, shown=(OUTLET, 2)).report(OUTLET, ROWS)
    assert shown is not None
    assert shown.row is not None
    digest = digest_of(shown.row)
    for at, left in ((2, ["a", "b"]), (1, ["a", "b", "b"]), (7, ["a", "b", "b"])):
        passing = Passing.from_json(Passing({OUTLET: {at: digest}}).to_json())
        assert passing.of(1, OUTLET, ROWS)["k"].to_pylist() == left
    assert Passing({outlet_of("sums", "rows", 1): {2: digest}}).of(1, OUTLET, ROWS) is ROWS


def test_in_a_trial_some_rows_pass_behind_one_level_and_none_behind_later_ones() -> None:
    trial = Passing.from_json(Passing(level=2, until={OUTLET: 2}).to_json())
    assert [trial.of(level, OUTLET, ROWS).num_rows for level in (1, 2, 3)] == [3, 2, 0]
    assert trial.of(2, outlet_of("sums", "late", 0), ROWS).num_rows == 0
    assert trial.report(OUTLET, ROWS) == GivenRows.from_json(GivenRows(3).to_json())
    assert Passing().report(OUTLET, ROWS) is None


class Alarming(StatefulWorld):
    """A timer calls a function that raises: it was set in epoch 1, and the rows of epoch 2 let it fire."""

    def __post_init__(self) -> None:
        World.__post_init__(self)
        lists = [[{"k": k, "t": t} for k, t in each] for each in LISTS]
        given = hf.read.rows(lists, schema="k STRING, t BIGINT", timestamp="t", name="in")
        timers: Any = {"timers": "event", "disorder": 0, "state": "n BIGINT", "schema": "k STRING, v BIGINT"}
        alarms = given | hf.apply(alarm, by="k", name="alarms", **timers)
        self.pipeline = hf.Pipeline("p", alarms | hf.write.sqlite(self.path / "out.db", table="t", name="out"))
        self.stages = stages_of(self.pipeline, self.path)


def alarm(key: str, rows: Any, state: hf.KeyState) -> Any:
    for row in rows:
        if row["t"] == 2:
            state.timer(5)
    if state.fired is not None:
        raise ValueError("an alarm that fails")


def test_a_timer_that_fails_stops_the_start_and_no_row_that_let_it_fire_is_left_out(tmp_path: Path) -> None:
    world = Alarming(tmp_path)
    for reason in ("an alarm that fails", *["No row of epoch 2 is the reason"] * 3):
        with pytest.raises(InvalidPipeline, match="alarms") as caught:
            world.live()
        assert reason in caught.value.why
    assert read_letters(world.store) == ()
    with pytest.raises(InvalidPipeline) as crossed, crossing():
        raise caught.value
    said = from_text(f"holdfast.errors.InvalidPipeline: {crossed.value}")
    assert said is not None
    assert said.is_of_timer, "also when it comes from a worker"
