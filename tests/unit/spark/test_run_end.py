"""The end of a run: whatever fails in it, every later step is done, and whoever waits learns that it is over."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.spark_log import NOWHERE
from holdfast.commit.busy import Busy
from holdfast.commit.coordinator import Coordinator
from holdfast.errors import Corrupt, Diverged, HoldfastError, InternalError, InvalidPipeline, Unavailable
from holdfast.graph.hooks import Lifecycle, raised
from holdfast.graph.trigger import available_now
from holdfast.plan.epoch_times import EpochTimes
from holdfast.plan.expectations import EpochChecks
from holdfast.plan.report import OperatorReports
from holdfast.spark.epoch_loop import EpochLimits, EpochLoop
from holdfast.spark.private import waits_for_rows
from holdfast.spark.run import Run
from holdfast.testing import SimulatedClock, SimulatedSink, SimulatedStore


class Query:
    """A query that is over at once; it is its own frame and writer too."""

    isActive = False
    lastProgress = None
    status: ClassVar[dict[str, Any]] = {"message": "Terminated", "isDataAvailable": False, "isTriggerActive": False}

    @property
    def writeStream(self) -> Query:
        return self

    def __getattr__(self, name: str) -> Callable[..., Query]:
        return lambda *arguments, **options: self

    def exception(self) -> Exception | None:
        return None


class FailingQuery(Query):
    """A query that fails some times, one start after the other, and is over then."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.starts = 0

    def start(self) -> Query:
        self.starts += 1
        return self

    def exception(self) -> Exception | None:
        return self.errors.pop(0) if self.errors else None


class Bench:
    """A run without Spark, with a real coordinator, and what it did."""

    def __init__(
        self,
        directory: Path,
        *,
        failure: HoldfastError | None = None,
        query: Query | None = None,
        has_waited: bool = False,
        **given: Any,
    ) -> None:
        self.calls: list[str] = []
        self.closed: list[str] = []
        hooks = {name: self.noting(name) for name in ("on_error", "on_finish", "on_teardown")} | given.pop("hooks", {})
        rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
        pipeline = hf.Pipeline("trips", rows | hf.write.memory(name="out"), hooks=hf.Hooks(**hooks))
        store, clock = SimulatedStore(), SimulatedClock()
        sink = SimulatedSink("out")
        sink.close = lambda: self.closed.append("out")  # type: ignore[method-assign]
        coordinator = Coordinator(pipeline="trips", store=store, sinks=[sink], clock=clock)
        coordinator.open()
        lifecycle = Lifecycle(pipeline.hooks, "trips")
        lifecycle.set_up()
        self.stop_directory = directory / "stop"
        self.stop_directory.mkdir()
        parts: dict[str, Any] = {"reports": OperatorReports({}, store, clock, 1)} | given
        self.run = Run(
            pipeline=pipeline,
            sinks={"out": sink},
            coordinator=coordinator,
            stop_directory=self.stop_directory,
            lifecycle=lifecycle,
            sweep_interval_s=60,
            **parts,
        )
        self.waited_for: list[str] = []
        clock.sleep_s = lambda seconds: self.waited_for.append(self.run.status().waits_for)  # type: ignore[method-assign]
        self.loop: Any = SimpleNamespace(
            failure=failure,
            last_epoch=None,
            last_positions=NOWHERE,
            at_work=None,
            checks=EpochChecks(),
            source_rows={},
            source_rejects={},
            source_reasons={},
            source_members={},
            source_rescued={},
            has_waited=has_waited,
            ended_epoch=0,
            doing="",
            times=EpochTimes(),
            held_sources=frozenset(),
            begin_again=lambda: None,
            begin_worker=lambda: None,
            end_worker=lambda: None,
        )
        asked: Any = query or Query()
        self.run.begin(self.loop, asked, available_now(), "nowhere")

    def noting(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append(name)

    def has_ended(self) -> bool:
        """Wait for the end; tell whether everything was tidied up."""
        assert self.run._ended.wait(30), "the run never ends"
        return self.closed == ["out"] and not self.stop_directory.exists() and not self.run.is_active


class Idle(Query):
    """A query of which every source was asked and has nothing to give."""

    status: ClassVar[dict[str, Any]] = {
        "message": "Waiting for data to arrive",
        "isDataAvailable": False,
        "isTriggerActive": False,
    }

    def __init__(self) -> None:
        self.ended = threading.Event()

    @property
    def isActive(self) -> bool:  # type: ignore[override]
        return not self.ended.is_set()

    def awaitTermination(self, timeout: float) -> bool:
        return self.ended.wait(timeout)


def raising(error: BaseException) -> Callable[..., Any]:
    def step(*arguments: Any, **options: Any) -> Any:
        raise error

    return step


def checkpointer(end: Callable[..., Any]) -> Any:
    return SimpleNamespace(start=lambda: None, end=end, status=None)


NO_ROOM = Unavailable("the disk is full.")


class Stoppable(Idle):
    """An idle query that ends when it is told to."""

    def stop(self) -> None:
        self.ended.set()


@pytest.mark.slow
def test_an_idle_run_ends_at_once_when_its_commit_thread_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that went back is noticed in the commit thread; no new rows come that would bring it to light."""
    gone = Diverged("sink 'out' holds epoch 1, and this run had published epoch 2 there.")
    monkeypatch.setattr(Coordinator, "check_published", raising(gone))
    query = Stoppable()
    bench = Bench(tmp_path, query=query)
    assert bench.has_ended()
    assert query.ended.is_set()
    with pytest.raises(Diverged, match="had published epoch 2"):
        bench.run.wait()


def test_a_run_ends_where_no_source_has_more_and_spark_does_not_end_it(tmp_path: Path) -> None:
    """Before 4.2, ``AvailableNow`` would be one epoch: the query goes on, and the run ends it (design/0052)."""
    query = Stoppable()
    bench = Bench(tmp_path, query=query, is_through=lambda asked: waits_for_rows(asked.status))
    assert bench.has_ended()
    assert query.ended.is_set()
    assert bench.run.wait()
    assert bench.calls == ["on_finish", "on_teardown"]


class EvaluatingQuery(Stoppable):
    """A query within an epoch, whose jobs are cancelled when it is stopped; it may not end by then."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error
        self.loop: Any = None

    def stop(self) -> None:
        self.loop.failure = InternalError("epoch 3 failed: its job was cancelled.")
        if self._error is not None:
            raise self._error
        super().stop()


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, TimeoutError("the stream thread did not stop within 60 s")], ids=repr)
def test_what_the_commit_thread_failed_of_is_why_the_run_failed_whatever_became_of_the_epoch_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """To stop the query cancels that epoch; a supervisor would start again because of how it failed."""
    gone = Diverged("sink 'out' holds epoch 1, and this run had published epoch 2 there.")
    began = threading.Event()
    monkeypatch.setattr(Coordinator, "check_published", lambda self: began.wait(30) and raising(gone)())
    query = EvaluatingQuery(error)
    bench = Bench(tmp_path, query=query)
    query.loop = bench.loop
    began.set()
    assert bench.has_ended()
    with pytest.raises(Diverged, match="had published epoch 2"):
        bench.run.wait()


FULL = OSError("[STREAM_FAILED] terminated with exception: No space left on device")


def test_a_full_disk_below_the_checkpoint_is_waited_for_and_the_query_goes_on(tmp_path: Path) -> None:
    query = FailingQuery(FULL, OSError("Disk quota exceeded"))
    bench = Bench(tmp_path, query=query)
    assert bench.has_ended()
    assert bench.run.wait()
    assert (query.starts, bench.calls) == (3, ["on_finish", "on_teardown"])
    assert "No space left on device" in bench.waited_for[0], "the display says what is waited for"
    assert "Disk quota exceeded" in bench.waited_for[1]
    assert (bench.run.status().waits_for, bench.run.status().retries) == ("", 2)


def test_a_disk_that_stays_full_ends_the_run_after_the_attempts_that_there_are(tmp_path: Path) -> None:
    query = FailingQuery(*[FULL] * 50)
    bench = Bench(tmp_path, query=query)
    assert bench.has_ended()
    with pytest.raises(Unavailable, match="No space left on device"):
        bench.run.wait()
    assert query.starts == 10


def test_an_epoch_that_ends_in_between_makes_the_patience_new(tmp_path: Path) -> None:
    class Going(FailingQuery):
        def exception(self) -> Exception | None:
            bench.loop.ended_epoch = 1 if len(self.errors) <= 5 else 0
            return super().exception()

    began = threading.Event()
    query = Going(*[FULL] * 12)
    query_exception = query.exception

    def exception() -> Exception | None:
        assert began.wait(30)
        return query_exception()

    query.exception = exception  # type: ignore[method-assign]
    bench = Bench(tmp_path, query=query)
    began.set()
    assert bench.has_ended()
    assert bench.run.wait()
    assert query.starts == 13


@pytest.mark.parametrize(
    ("error", "has_waited"),
    [(FULL, True), (OSError("Read-only file system"), False), (OSError("Connection reset by peer"), False)],
)
def test_what_was_retried_or_does_not_pass_with_more_room_ends_the_run(
    tmp_path: Path, error: Exception, has_waited: bool
) -> None:
    query = FailingQuery(error)
    bench = Bench(tmp_path, query=query, has_waited=has_waited)
    assert bench.has_ended()
    with pytest.raises(Unavailable):
        bench.run.wait()
    assert query.starts == 1


def test_a_run_that_is_to_stop_waits_for_no_disk(tmp_path: Path) -> None:
    class Stopped(FailingQuery):
        def exception(self) -> Exception | None:
            bench.run._is_stopping.set()
            return super().exception()

    began = threading.Event()
    query = Stopped(FULL, FULL)
    query_exception = query.exception

    def exception() -> Exception | None:
        assert began.wait(30)
        return query_exception()

    query.exception = exception  # type: ignore[method-assign]
    bench = Bench(tmp_path, query=query)
    began.set()
    assert bench.has_ended()
    with pytest.raises(Unavailable, match="No space left on device"):
        bench.run.wait()
    assert (query.starts, bench.waited_for) == (1, [])


def test_a_run_that_ends_well_calls_its_hooks_in_their_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.has_ended()
    assert bench.run.wait()
    assert (bench.calls, bench.run.status().state) == (["on_finish", "on_teardown"], "stopped")


def test_damaged_state_that_cannot_be_noted_for_want_of_room_is_still_what_the_run_failed_of(tmp_path: Path) -> None:
    lost = Corrupt("state cannot be read.", participant="@state")
    bench = Bench(tmp_path, failure=lost, checkpointer=checkpointer(lambda **_: None), give_up=raising(NO_ROOM))
    assert bench.has_ended()
    with pytest.raises(Corrupt, match="state cannot be read"):
        bench.run.wait()
    assert (bench.calls, bench.run.status().state) == (["on_error", "on_teardown"], "failed")


@pytest.mark.parametrize("error", [TypeError("of the report"), SystemExit(0)], ids=repr)
@pytest.mark.parametrize("step", ["reports", "checkpointer"])
def test_what_fails_when_all_is_published_is_told_and_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step: str, error: BaseException
) -> None:
    steps = {
        "reports": SimpleNamespace(keep=raising(error), statuses=lambda: ()),
        "checkpointer": checkpointer(raising(error)),
    }
    with caplog.at_level(logging.ERROR, "holdfast"):
        bench = Bench(tmp_path, **{step: steps[step]})
        assert bench.has_ended()
    assert bench.run.wait()
    assert bench.calls == ["on_finish", "on_teardown"]
    assert "pipeline 'trips' has ended, and could not" in caplog.text


def test_a_reason_that_cannot_be_looked_into_leaves_the_failure_as_it_was(tmp_path: Path) -> None:
    """Whether rows are suspected is read from Spark's log, which may be damaged."""
    suspicion: Any = SimpleNamespace(of=raising(Corrupt("offsets/3 cannot be read.")))
    bench = Bench(tmp_path, failure=Unavailable("the sink is away."), suspicion=suspicion)
    assert bench.has_ended()
    with pytest.raises(Unavailable, match="the sink is away"):
        bench.run.wait()
    assert bench.calls == ["on_error", "on_teardown"]


@pytest.mark.parametrize("name", ["on_finish", "on_teardown"])
def test_a_hook_that_exits_does_not_keep_the_run_from_ending(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path, hooks={name: lambda: sys.exit(0)})
    assert bench.has_ended()
    assert bench.run.wait()


def test_a_last_checkpoint_hook_that_raises_fails_the_run_though_all_is_published(tmp_path: Path) -> None:
    """design/0013, section 2."""
    broken = raised("on_checkpoint", ValueError("no value"), "trips")
    bench = Bench(tmp_path, user_data=SimpleNamespace(end=raising(broken)))
    assert bench.has_ended()
    with pytest.raises(InvalidPipeline, match="on_checkpoint of pipeline 'trips' raised ValueError"):
        bench.run.wait()
    assert bench.calls == ["on_error", "on_teardown"]


def test_a_thread_of_the_run_that_is_told_to_exit_ends_the_run_with_that_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path, user_data=SimpleNamespace(end=raising(SystemExit(3))))
    assert bench.has_ended()
    with pytest.raises(HoldfastError, match="the run of pipeline 'trips'"):
        bench.run.wait()
    assert bench.calls == ["on_error", "on_teardown"]


def test_an_error_whose_text_the_jvm_does_not_tell_any_more_ends_the_run_too(tmp_path: Path) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError("the gateway is gone")

    bench = Bench(tmp_path, user_data=SimpleNamespace(end=raising(MuteError())))
    assert bench.has_ended()
    with pytest.raises(HoldfastError):
        bench.run.wait()


def test_a_function_that_exits_within_an_epoch_fails_the_epoch_and_answers_the_jvm() -> None:
    """Its thread belongs to the JVM, which would wait for an answer for ever."""
    never: Any = None
    loop = EpochLoop(
        pipeline="trips",
        header=DirectoryHeader(1),
        spark_checkpoint=Path("nowhere"),
        evaluation=never,
        sinks={},
        coordinator=cast("Any", SimpleNamespace(busy=Busy(), check_before_epoch=raising(SystemExit(0)))),
        limits=EpochLimits(0),
        due_file="",
        explanations=never,
        timed_sources=(),
        pts=None,
        reports=never,
    )
    with pytest.raises(HoldfastError, match="epoch 1 of pipeline 'trips'"):
        loop(never, 0)
    assert loop.failure is not None


def test_a_source_that_was_asked_and_had_nothing_to_give_has_no_lag(tmp_path: Path) -> None:
    """Nothing has ever come, so no epoch has told of it."""
    query = Idle()
    bench = Bench(tmp_path, query=query)
    (source,) = bench.run.status().sources
    assert (source.positions, source.newest, source.lag) == ({}, None, 0)
    query.ended.set()
    assert bench.has_ended()
    (source,) = bench.run.status().sources
    assert source.lag is None, "nobody knows any more"
