"""Rows as they pass the nodes of a run are shown to who asks, at most so many, and to nobody else (design/0049, 5)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.controller import sampling
from holdfast.controller.sampling import sample, tap_of
from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.pipeline import Pipeline
from holdfast.plan.chunks import reported
from holdfast.plan.counts import EpochReport, united
from holdfast.plan.cutting import build_stages
from holdfast.plan.levels import taps
from holdfast.plan.levels.host import LevelsHere, levels_of
from holdfast.plan.levels.journal import NOTHING
from holdfast.plan.levels.level import EpochContext
from holdfast.plan.levels.packing import packings
from holdfast.plan.levels.taps import Taps, Wish
from holdfast.plan.program_build import as_it_is, build_program
from holdfast.ports import Carried
from holdfast.spark.evaluation import ProgramHere
from holdfast.spark.sampling import SampleCall, Sampling
from holdfast.steer.protocol import CallerGone, SteerRequest

SCHEMA = "k STRING, t BIGINT, v BIGINT"


def rows_from(first: int, count: int = 6) -> pa.RecordBatch:
    made = [{"k": "ab"[number % 2], "t": number, "v": number} for number in range(first, first + count)]
    return pa.RecordBatch.from_pylist(
        made, schema=pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
    )


def source(name: str) -> hf.Stream:
    return hf.read.rows([], schema=SCHEMA, timestamp="t", name=name)


# --- without state ---------------------------------------------------------------------------------------------------


class Sources:
    """Sources of two batches, in the place of those of a run."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def spans(self, start: Any, end: Any, parallelism: int) -> Iterator[tuple[str, str]]:
        return ((name, name) for name in self._names)

    def source(self, name: str, *, wish: Wish | None = None) -> Any:
        return self

    def read(self, span: str) -> Iterator[pa.RecordBatch]:
        yield from (rows_from(0), rows_from(6))


def stateless() -> Pipeline:
    some = source("rows") | hf.filter("v > 2", name="some") | hf.select("k", "v * 10 AS tens", name="tens")
    both = hf.union(some, source("more") | hf.select("k", "v AS tens", name="as_tens"), name="both")
    return hf.Pipeline("p", both | hf.write.memory(name="a"), some | hf.write.memory(name="b"))


def seen(wish: Wish) -> EpochReport:
    program = build_program(stateless(), as_it_is, "t")
    assert program is not None
    sources: Any = Sources(["rows", "more"])
    _, report = ProgramHere(program, sources, {"rows": "t", "more": "t"})({}, {}, frozenset("ab"), wish)
    return report


def test_each_node_of_a_program_shows_the_rows_that_leave_it() -> None:
    found = seen(dict.fromkeys(("rows", "more", "some", "tens", "both"), 2)).samples
    first = [{"k": "a", "t": 0, "v": 0}, {"k": "b", "t": 1, "v": 1}]
    assert found == {
        "rows": first,
        "more": first,
        "some": [{"k": "b", "t": 3, "v": 3}, {"k": "a", "t": 4, "v": 4}],
        "tens": [{"k": "b", "tens": 30}, {"k": "a", "tens": 40}],
        "both": [{"k": "b", "tens": 30}, {"k": "a", "tens": 40}],
    }


def test_more_rows_than_a_batch_has_are_taken_from_the_next() -> None:
    assert [row["v"] for row in seen({"some": 7}).samples["some"]] == [3, 4, 5, 6, 7, 8, 9]
    assert [row["v"] for row in seen({"some": 100}).samples["some"]] == [*range(3, 12)]


def test_where_nobody_asks_no_row_becomes_a_value_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> Any:
        raise AssertionError("a row is looked at")

    monkeypatch.setattr(taps, "rows_of", refused)
    assert seen({}).samples == seen({"other": 5}).samples == {}
    assert through_levels({})[1].samples == {}
    with pytest.raises(AssertionError, match="a row is looked at"):
        seen({"rows": 1})


def test_a_report_with_rows_travels_as_text() -> None:
    report = seen({"some": 1})
    assert EpochReport.from_json(report.to_json()).samples == {"some": [{"k": "b", "t": 3, "v": 3}]}
    both = united([report, EpochReport(), report])
    assert len(both.samples["some"]) == 2


# --- with state ------------------------------------------------------------------------------------------------------


def passed(key: str, rows: Any, state: hf.KeyState) -> Any:
    for row in rows:
        yield {"k": key, "t": row["t"], "v": -row["v"]}


def stateful() -> Pipeline:
    """Return a graph with a step before state, a side output, what bypasses a level, and what is behind it."""
    early = source("rows") | hf.filter("v > 0", name="early")
    negative = early | hf.apply(passed, by="k", state="n BIGINT", schema=SCHEMA, timestamp="t", name="negative")
    behind = negative | hf.filter("v < -2", name="behind")
    joined = hf.join(early, source("more"), on="k", within=0, name="joined")
    return hf.Pipeline("p", behind | hf.write.memory(name="a"), joined | hf.write.memory(name="b"),
                       joined.late | hf.write.memory(name="c"))  # fmt: skip


def through_levels(wish: Wish) -> tuple[EpochReport, EpochReport]:
    """Return what the tasks that read report, and those of levels: in one process, two buckets."""
    stages = build_stages(stateful(), as_it_is, "t", buckets=2, partitions=1, prefix=lambda part: ())
    packed = packings(stages, {"rows": "t", "more": "t"})
    chunks = [
        chunk
        for number, name in enumerate(packed)
        for chunk in packed[name].rows(number, iter([rows_from(0)]), taps=Taps(wish))
    ]
    levels = LevelsHere(levels_of(stages, "t"), stages.routing)
    came, _ = levels.run(chunks, NOTHING, lambda piece: b"", EpochContext(1, 5, wish=wish))
    return united(reported(chunks)), united(reported(came))


def test_operators_with_state_show_their_output_and_so_does_what_is_before_and_behind_them() -> None:
    names = ("rows", "more", "early", "negative", "behind", "joined", "joined.late")
    pipeline = stateful()
    places = {name: tap_of(pipeline, name) for name in names}
    read, found = through_levels(dict.fromkeys(places.values(), 3))
    together = {**read.samples, **found.samples}
    shown = {name: [row.get("v") for row in together.get(place, [])] for name, place in places.items()}
    assert (shown["rows"], shown["more"], shown["early"]) == ([0, 1, 2], [0, 1, 2], [1, 2, 3])
    assert len(shown["negative"]) == 3, "of both buckets together: they are one task"
    assert set(shown["negative"]) < {-1, -2, -3, -4, -5}
    assert len(shown["behind"]) == 3
    assert set(shown["behind"]) == {-3, -4, -5}
    assert shown["joined.late"] == []


def test_an_epoch_that_failed_leaves_no_row_to_the_next() -> None:
    mine = Taps({"a": 3})
    mine.see("a", [rows_from(0, 1)])
    mine.begin({"b": 1})
    mine.see("a", [rows_from(0, 1)])
    assert mine.take() == {}


# --- who asks --------------------------------------------------------------------------------------------------------


class LiveRun:
    """A run whose epochs the test makes."""

    def __init__(self, pipeline: Pipeline, in_spark: Sequence[str] = ()) -> None:
        self.pipeline = pipeline
        self.steering = self
        self.in_spark = in_spark
        self.sampling = Sampling()
        self.is_active = True
        self._stop_file = "no/such/directory/stop"

    def sample(self, call: SampleCall) -> None:
        self.sampling.ask(call, self._stop_file)

    def end_sample(self, call: SampleCall) -> None:
        self.sampling.forget(call, self._stop_file)

    def epoch(self, rows: Mapping[str, int], parts: Mapping[str, Any] | None = None) -> Wish:
        """Run an epoch in which so many rows pass; return what was wanted of it."""
        self.sampling.begin()
        mine = Taps(self.sampling.wish)
        for tap, count in rows.items():
            mine.see(tap, [rows_from(0, count)])
        self.sampling.note(mine.take(), parts or {})
        return self.sampling.wish


class Caller:
    """Asks a run in a thread, and notes what it is told."""

    def __init__(self, runs: Mapping[str, LiveRun | None], node: str, gone: bool = False, **words: Any) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.answer: Mapping[str, Any] = {}
        self.error: BaseException | None = None
        self.has_told = threading.Event()
        self._gone = gone
        self._runs = runs
        self._request = SteerRequest("1", "sample", {"node": node, "n": 3, "timeout_s": 60, **words})
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        given: Any = self._runs
        alive = [run for run in self._runs.values() if run is not None]
        try:
            self.answer = sample(
                alive[0].pipeline, lambda: given, lambda: all(run.is_active for run in alive), self._request, self._tell
            )
        except (HoldfastError, CallerGone) as error:
            self.error = error

    def _tell(self, said: Mapping[str, Any]) -> None:
        self.has_told.set()
        if self._gone:
            raise CallerGone
        self.rows += said["rows"]

    def wait(self) -> Caller:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self


def wanted(run: LiveRun, count: int = 1) -> None:
    """Wait until so many have asked."""
    for _ in range(6000):
        run.sampling.begin()
        if len(run.sampling._heard) == count:
            return
        time.sleep(0.01)
    raise AssertionError("nobody asks")


def test_a_caller_is_told_rows_as_epochs_bring_them_and_no_more_than_it_wants() -> None:
    run = LiveRun(stateless())
    caller = Caller({"p": run}, "some")
    wanted(run)
    assert run.epoch({"some": 2, "rows": 9}) == {"some": 3}
    assert caller.has_told.wait(60)
    assert run.epoch({"some": 0}) == {"some": 1}
    assert run.epoch({"some": 5}) == {"some": 1}
    caller.wait()
    assert [row["v"] for row in caller.rows] == [0, 1, 0]
    assert caller.answer == {"node": "some", "count": 3, "epochs": 3}
    assert run.epoch({"some": 5}) == {}, "nobody asks any more"


def test_two_callers_at_once_are_told_the_same_rows() -> None:
    run = LiveRun(stateless())
    callers = [Caller({"p": run}, "some"), Caller({"p": run}, "some", n=1), Caller({"p": run}, "a")]
    wanted(run, 3)
    table = pa.Table.from_batches([rows_from(20, 4)])
    assert run.epoch({"some": 4}, {"a": (Carried(table),), "b": (Carried(table),)}) == {"some": 3, "a": 3}
    found = [[row["v"] for row in caller.wait().rows] for caller in callers]
    assert found == [[0, 1, 2], [0], [20, 21, 22]], "of what is carried to a sink no task has taken rows"


class Hand:
    """The clock of the calls, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def test_who_is_told_nothing_in_time_learns_how_many_epochs_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hand()
    monkeypatch.setattr(sampling, "time", clock)
    run = LiveRun(stateless())
    caller = Caller({"p": run}, "some", timeout_s=5)
    wanted(run)
    run.epoch({"rows": 5})
    run.epoch({})
    clock.now_s += 5
    assert caller.wait().answer == {"node": "some", "count": 0, "epochs": 2}
    assert run.epoch({"some": 1}) == {}


def test_a_run_that_ends_meanwhile_is_said_to_have_ended() -> None:
    run = LiveRun(stateless())
    caller = Caller({"p": run}, "some")
    wanted(run)
    run.epoch({"some": 1})
    run.is_active = False
    error = caller.wait().error
    assert isinstance(error, Unavailable)
    assert "has ended, with 1 of 3 rows seen" in error.what
    assert len(caller.rows) == 1


def test_a_caller_that_has_gone_is_forgotten() -> None:
    run = LiveRun(stateless())
    caller = Caller({"p": run}, "some", gone=True)
    wanted(run)
    run.epoch({"some": 1})
    assert isinstance(caller.wait().error, CallerGone)
    assert run.epoch({"some": 1}) == {}


def test_a_node_that_is_not_there_is_refused_with_those_that_are() -> None:
    error = Caller({"p": LiveRun(stateless())}, "nowhere").wait().error
    assert isinstance(error, InvalidPipeline)
    assert error.why == "it has rows, some, tens, more, as_tens, both, a, b."


def test_what_sparks_plan_evaluates_is_refused_with_what_takes_its_rows() -> None:
    run = LiveRun(stateless(), ["rows", "some", "tens"])
    error = Caller({"p": run}, "rows").wait().error
    assert isinstance(error, InvalidPipeline)
    assert "evaluates it" in error.why
    assert error.do == "sample what takes them: both, b."


@pytest.mark.parametrize("words", [{"n": 0}, {"n": 1001}, {"timeout_s": 0}, {"timeout_s": "1"}, {"n": True}])
def test_words_that_are_none_are_refused(words: Mapping[str, Any]) -> None:
    assert isinstance(Caller({"p": LiveRun(stateless())}, "some", **words).wait().error, InvalidPipeline)


def test_shards_are_asked_together_or_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_LOOK_S", 0.01)
    pipeline = stateless()
    runs: dict[str, LiveRun | None] = {"p": LiveRun(pipeline), "p-1": LiveRun(pipeline)}
    first, other = (run for run in runs.values() if run is not None)
    everyone, alone = Caller(runs, "some", n=4), Caller(runs, "some", shard=1)
    wanted(first)
    wanted(other, 2)
    first.epoch({"some": 3})
    other.epoch({"some": 3})
    assert len(everyone.wait().rows) == 4
    assert len(alone.wait().rows) == 3
    assert alone.answer["epochs"] == 1
    error = Caller(runs, "some", shard=2).wait().error
    assert isinstance(error, InvalidPipeline)
    assert error.do == "name one from 0 to 1; or none, for all of them."


def test_a_shard_that_is_started_again_is_asked_again() -> None:
    pipeline = stateless()
    runs: dict[str, LiveRun | None] = {"p": LiveRun(pipeline), "p-1": None}
    caller = Caller(runs, "some", shard=None)
    first = runs["p"]
    assert first is not None
    wanted(first)
    began = runs["p-1"] = LiveRun(pipeline)
    wanted(began)
    began.epoch({"some": 3})
    assert caller.wait().answer["count"] == 3
