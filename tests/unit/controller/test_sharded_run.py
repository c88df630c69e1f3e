"""The controller: a shard that fails is started again, and leaves the others alone (design/0048, section 5)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import holdfast as hf
from holdfast.commit.owner import this_process
from holdfast.controller.controller import ShardedRun
from holdfast.controller.kept_shard import KeptShard, ShardRun, ShardWays
from holdfast.controller.rivals import Rivals
from holdfast.errors import (
    KINDS,
    Corrupt,
    Fenced,
    HoldfastError,
    InDoubt,
    InternalError,
    InvalidPipeline,
    Unavailable,
)
from holdfast.retry import RetryPolicy
from holdfast.shards.ends import Reaction, reaction
from holdfast.shards.progress import PROGRESS, read_progress, write_progress
from holdfast.status import ShardStatus, SinkStatus, SourceStatus, Status
from holdfast.steer.controls import Controls
from holdfast.testing.store import SimulatedStore
from tests.spark.running import eventually

pytestmark = pytest.mark.slow


class ScriptedRun:
    """A run that ends when the test says so."""

    def __init__(self, shard: int, epoch: int = 0) -> None:
        self.shard = shard
        self.epoch = epoch
        self.error: HoldfastError | None = None
        self.controls: list[Controls] = []
        self.ended = threading.Event()

    @property
    def is_active(self) -> bool:
        return not self.ended.is_set()

    def end(self, error: HoldfastError | None = None) -> None:
        self.error = error
        self.ended.set()

    def status(self) -> Status:
        source = SourceStatus(
            "rides", {f"s{self.shard}": self.epoch}, {f"s{self.shard}": self.epoch + 1}, lag=1, rows=2
        )
        sink = SinkStatus("table", "sqlite", "exactly-once", epoch=self.epoch, rows=3)
        return Status("trips", 1, "running", self.epoch, rows_total=3, rows_per_s=1.5, sources=(source,), sinks=(sink,))

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self.ended.wait(timeout_s):
            return False
        if self.error is not None:
            raise self.error
        return True

    def stop(self, timeout_s: float | None = None) -> bool:
        self.end()
        return True

    def checkpoint_now(self, name: str | None = None) -> int:
        return self.epoch

    def hold(self, controls: Controls) -> None:
        self.controls.append(controls)


@dataclass
class Field:
    """Shards whose starts are counted, and may fail."""

    runs: dict[int, list[ScriptedRun]] = field(default_factory=dict)
    refusals: dict[int, list[HoldfastError]] = field(default_factory=dict)
    taken_over: list[int] = field(default_factory=list)
    rival: HoldfastError | None = None
    torn_down: list[str] = field(default_factory=list)
    named: list[tuple[str, int]] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    epoch: int = 0
    has_jvm: bool = True

    def put_name(self, name: str, runs: Sequence[ShardRun]) -> int:
        self.named.append((name, len(runs)))
        return 41

    def started(self, shard: int) -> ScriptedRun:
        refusals = self.refusals.get(shard)
        if refusals:
            raise refusals.pop(0)
        run = ScriptedRun(shard, self.epoch)
        self.runs.setdefault(shard, []).append(run)
        return run

    def check(self) -> None:
        if self.rival is not None:
            raise self.rival

    def shard(self, number: int, retry: RetryPolicy) -> KeptShard:
        ways = ShardWays(
            start=lambda: self.started(number),
            take_over=lambda: self.taken_over.append(number),
            translate=lambda error: error if isinstance(error, HoldfastError) else InternalError(str(error)),
            has_jvm=lambda: self.has_jvm,
            check=self.check,
        )
        return KeptShard(number, f"trips-{number}", ways, retry)


QUICK = RetryPolicy(4, 0.001, 0.002)


@contextmanager
def running(field: Field, shards: int = 3, retry: RetryPolicy = QUICK) -> Iterator[ShardedRun]:
    pipeline = hf.Pipeline("trips", hf.read.rate(rows_per_second=1, name="rides") | hf.write.memory(name="table"))
    run = ShardedRun(
        pipeline,
        [field.shard(number, retry) for number in range(shards)],
        record=lambda each: field.records.append([*each]),
        record_every_s=0.01,
        put_name=field.put_name,
        tear_down=lambda: field.torn_down.append("torn down"),
    )
    try:
        run.begin()
        yield run
    finally:
        run.stop()


@pytest.fixture
def shards() -> Field:
    return Field()


AWAY = Unavailable("the table does not answer", why="it is away.", do="wait.")


def test_a_shard_that_fails_is_started_again_and_the_others_are_left_alone(shards: Field) -> None:
    with running(shards) as run:
        shards.runs[1][0].end(AWAY)
        eventually(lambda: len(shards.runs[1]) == 2)
        eventually(lambda: run.status().shards[1].state == "running")
        assert [len(shards.runs[number]) for number in range(3)] == [1, 2, 1]
        status = run.status()
        assert [each.restarts for each in status.shards] == [0, 1, 0]
        assert status.shards[1].error is not None
    assert run.wait()
    assert shards.torn_down == ["torn down"]


def test_a_shard_that_fails_in_a_row_is_taken_over_before_it_waits(shards: Field) -> None:
    slow = RetryPolicy(4, 0.2, 0.2)
    with running(shards, retry=slow):
        shards.refusals[1] = [AWAY]
        shards.runs[1][0].end(AWAY)
        eventually(lambda: shards.taken_over == [1])
        assert len(shards.runs[1]) == 1, "it waits"
        eventually(lambda: len(shards.runs[1]) == 2)
    assert shards.taken_over == [1]


def test_what_is_away_is_tried_for_ever(shards: Field) -> None:
    with running(shards) as run:
        shards.refusals[2] = [AWAY] * 20
        shards.runs[2][0].end(AWAY)
        eventually(lambda: len(shards.runs[2]) == 2)
        assert run.status().shards[2].restarts == 21


def test_another_failure_is_tried_a_number_of_times_unless_an_epoch_is_published(shards: Field) -> None:
    broken = InternalError("it is broken")
    with running(shards) as run:
        for epoch in range(1, 7):  # each run publishes one more
            shards.epoch = epoch
            shards.runs[1][-1].epoch = epoch
            shards.runs[1][-1].end(broken)
            eventually(lambda runs=epoch + 1: len(shards.runs[1]) == runs)
        shards.refusals[1] = [broken] * 9
        shards.runs[1][-1].end(broken)
        eventually(lambda: run.status().shards[1].state == "failed")
        assert len(shards.refusals[1]) == 9 - 2, "the run that published nothing is the first of the row"
        assert run.is_active
        assert [each.state for each in run.status().shards] == ["running", "failed", "running"]
        eventually(lambda: shards.taken_over[-1:] == [1])
    with pytest.raises(InternalError, match="broken"):
        run.wait()


@pytest.mark.parametrize("error", [InvalidPipeline("wrong"), Corrupt("damaged")])
def test_a_shard_whose_error_stays_is_down_and_the_others_go_on(shards: Field, error: HoldfastError) -> None:
    with running(shards) as run:
        shards.runs[1][0].end(error)
        eventually(lambda: run.status().shards[1].state == "failed")
        assert run.status().shards[1].error == error.message
        assert run.is_active
        eventually(lambda: shards.taken_over == [1], what="what it has left open is swept")
        assert len(shards.runs[1]) == 1
        for number in (0, 2):
            shards.runs[number][0].end()
        with pytest.raises(type(error)):
            run.wait(60)


def test_another_controller_stops_all_shards(shards: Field) -> None:
    with running(shards) as run:
        shards.runs[2][0].end(Fenced("generation 3 may not write"))
        with pytest.raises(Fenced):
            run.wait(60)
        assert all(not each.is_active for several in shards.runs.values() for each in several)


def test_a_shard_that_waits_is_neither_started_nor_taken_over_beside_another_controller(shards: Field) -> None:
    """Else that one, whose shard would be fenced, stops with all its shards."""
    with running(shards, retry=RetryPolicy(4, 0.2, 0.2)) as run:
        shards.refusals[1] = [AWAY]
        shards.runs[1][0].end(AWAY)
        eventually(lambda: shards.taken_over == [1])
        shards.rival = Fenced("shard 0 was taken over")
        with pytest.raises(Fenced, match="shard 0"):
            run.wait(60)
    assert (len(shards.runs[1]), shards.taken_over) == (1, [1])


def test_a_process_that_takes_a_shard_over_beside_this_one_is_a_rival() -> None:
    stores = [SimulatedStore(), SimulatedStore()]
    at = "generations/{:08d}.json".format
    elsewhere = json.dumps({"host": "elsewhere", "pid": 7}).encode()
    stores[0].put(at(3), elsewhere)  # the controller before
    rivals = Rivals("trips", stores)
    for store in stores:
        store.put(at(4), this_process(1))
    rivals.check()
    stores[1].put(at(5), elsewhere)
    with pytest.raises(Fenced, match="shard 1 of pipeline 'trips' was taken over by process 7 of host 'elsewhere'"):
        rivals.check()


def test_the_end_of_the_jvm_ends_all_shards(shards: Field) -> None:
    with running(shards) as run:
        shards.has_jvm = False
        shards.runs[0][0].end(AWAY)
        with pytest.raises(Unavailable):
            run.wait(60)
        assert [len(several) for several in shards.runs.values()] == [1, 1, 1]


def test_it_ends_when_all_shards_have(shards: Field) -> None:
    with running(shards) as run:
        for number in range(3):
            assert run.is_active
            shards.runs[number][0].end()
        assert run.wait(60)
    assert run.status().state == "stopped"


def test_a_start_with_a_mistake_is_refused_and_leaves_no_shard_running(shards: Field) -> None:
    shards.refusals[1] = [InvalidPipeline("wrong")]
    with pytest.raises(InvalidPipeline), running(shards):
        pass
    assert all(not each.is_active for several in shards.runs.values() for each in several)


def test_a_start_of_which_one_shard_fails_goes_on_with_the_others(shards: Field) -> None:
    shards.refusals[1] = [AWAY, AWAY]
    with running(shards) as run:
        eventually(lambda: run.status().shards[1].state == "running")
        assert [len(shards.runs[number]) for number in (0, 2)] == [1, 1]


def test_a_start_of_which_no_shard_begins_fails(shards: Field) -> None:
    shards.refusals |= {number: [AWAY] * 99 for number in range(3)}
    with pytest.raises(Unavailable), running(shards):
        pass


def test_a_stop_does_not_wait_for_a_shard_that_is_down(shards: Field) -> None:
    with running(shards, retry=RetryPolicy(4, 3600, 3600)) as run:
        shards.refusals[1] = [AWAY]
        shards.runs[1][0].end(AWAY)
        eventually(lambda: run.status().shards[1].state == "waiting")
        assert run.stop(60)
    with pytest.raises(Unavailable):
        run.wait()


def test_the_status_adds_what_shards_have_done(shards: Field) -> None:
    shards.epoch = 7
    with running(shards) as run:
        status = run.status()
        assert (status.rows_total, status.rows_per_s, status.epoch) == (9, 4.5, 0)
        assert [(each.shard, each.epoch, each.lag) for each in status.shards] == [(0, 7, 1), (1, 7, 1), (2, 7, 1)]
        (source,) = status.sources
        assert source.positions == {"s0": 7, "s1": 7, "s2": 7}
        assert (source.lag, source.rows) == (3, 6)
        assert status.doing == "3 shards, 3 running"
        assert json.loads(json.dumps(status.as_json()))["shards"][2]["state"] == "running"


def test_what_shards_have_done_is_recorded_on_a_frequency_of_its_own(shards: Field) -> None:
    with running(shards):
        eventually(lambda: len(shards.records) > 2)
    (status, positions) = shards.records[-1][2]
    assert status.state == "stopped"
    assert positions == {"rides": {"s2": 0}}


def test_the_record_says_what_it_was_given_and_is_nothing_where_it_is_damaged() -> None:
    store = SimulatedStore()
    assert read_progress(store) is None
    write_progress(store, 3, [(ShardStatus(1, "waiting", error="away"), {"rides": {"s": 1}})], 17)
    found = read_progress(store)
    assert found is not None
    assert (found.at_us, found.layout, found.shards[0]["error"]) == (17, 3, "away")
    assert found.shards[0]["positions"] == {"rides": {"s": 1}}
    store.damage(PROGRESS, keep=9)
    assert read_progress(store) is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_error_has_a_reaction(kind: str) -> None:
    found = reaction(KINDS[kind]("it"), has_jvm=True)
    again = {"Unavailable": Reaction.AGAIN, "Fenced": Reaction.ALL_STOP}
    few = issubclass(KINDS[kind], InDoubt | InternalError) or KINDS[kind] is HoldfastError
    expected = again.get(kind, Reaction.FEW_TIMES if few else Reaction.DOWN)
    assert found is expected, found
    assert reaction(KINDS[kind]("it"), has_jvm=False) in (Reaction.ALL_END, Reaction.ALL_STOP)


def test_a_checkpoint_of_all_is_refused_while_one_is_down(shards: Field) -> None:
    with running(shards, retry=RetryPolicy(4, 3600, 3600)) as run:
        assert run.checkpoint_now() == 0
        assert (run.checkpoint_now("before"), shards.named) == (41, [("before", 3)])
        shards.refusals[1] = [AWAY]
        shards.runs[1][0].end(AWAY)
        eventually(lambda: run.status().shards[1].state == "waiting")
        with pytest.raises(InvalidPipeline, match="shard 1"):
            run.checkpoint_now()
