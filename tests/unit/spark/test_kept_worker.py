"""The kept worker calls functions of the user, and the driver outlives what they do (design/0013, section 5)."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException

from holdfast.errors import BadRow, InvalidPipeline, Unavailable
from holdfast.spark.failure import translate
from holdfast.spark.kept_worker import LEAST_TIMES, KeptWorker

pytestmark = pytest.mark.slow


class Obedient:
    """Does what it is told, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, told: str, *rest: Any) -> Any:
        self.calls += 1
        if told == "exit":
            os._exit(3)
        if told == "leave a child and exit":
            if os.fork() == 0:
                Path(rest[0]).read_text()
            os._exit(4)
        if told == "hold the lock":  # of the interpreter: no other thread of the worker runs meanwhile
            return sum(range(10**12))
        if told == "leave a thread":
            threading.Thread(target=threading.Event().wait).start()
        if told == "raise":
            raise rest[0]
        if told == "raise coded":
            raise Coded(7, "of code 7")
        if told == "print":
            sys.stdout.write("a function says so\n")
            sys.stdout.flush()
        return os.getpid(), self.calls


class Coded(Exception):
    """Is pickled, and cannot be made anew from that: as many an error of a library."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Foreign:
    """Cannot be loaded in another process."""

    def __reduce__(self) -> Any:
        return _absent, ()

    def __call__(self) -> None:
        """Never called."""


def _absent() -> None:
    raise ModuleNotFoundError("No module named 'of_the_driver_alone'")


@contextmanager
def kept(target: Callable[..., Any], now_s: Callable[[], float] = time.monotonic) -> Iterator[KeptWorker[Any]]:
    worker = KeptWorker(target, 4, now_s)
    try:
        yield worker
    finally:
        worker.end_worker()


def test_what_is_called_is_sent_once_and_keeps_what_it_holds() -> None:
    with kept(Obedient()) as worker:
        worker.begin_worker()
        (first, one), (second, two) = worker("count"), worker("count")
    assert first == second != os.getpid()
    assert (one, two) == (1, 2)


def test_a_function_that_ends_its_process_fails_that_call_alone() -> None:
    with kept(Obedient()) as worker:
        before, _ = worker("count")
        with pytest.raises(Unavailable, match="has died") as caught:
            worker("exit")
        assert "exit code 3" in caught.value.why
        after, calls = worker("count")
        assert before != after
        assert calls == 1


@pytest.mark.parametrize("is_called", [True, False])
def test_a_process_that_nobody_ended_ends_with_what_called_it(is_called: bool) -> None:
    """An evaluation that goes on when its run has ended is retried, and begins one more."""
    worker = KeptWorker(Obedient())
    worker.begin_worker()
    process = worker._process
    assert process is not None
    popen = process._process
    if is_called:
        worker("count")
    del worker, process
    gc.collect()
    assert popen.returncode is not None


def test_a_process_that_a_function_leaves_behind_holds_nobody_up(tmp_path: Path) -> None:
    """It has the pipe of the answers too, whose end does not come."""
    os.mkfifo(tmp_path / "go")
    with kept(Obedient()) as worker, pytest.raises(Unavailable, match="has died"):
        worker("leave a child and exit", str(tmp_path / "go"))
    (tmp_path / "go").write_text("")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(0), KeyboardInterrupt()], ids=repr)
def test_a_thread_that_a_function_leaves_behind_holds_nobody_up(error: BaseException) -> None:
    """Python waits for it where a process ends by itself."""
    with kept(Obedient()) as worker:
        worker("leave a thread")
        with pytest.raises(Unavailable, match="has died") as caught:
            worker("raise", error)
        assert "exit code 1" in caught.value.why
        assert worker("count")[1] == 1


def test_a_function_that_never_lets_another_thread_run_is_ended_all_the_same() -> None:
    with kept(Obedient()) as worker:
        worker("count")
        threading.Timer(0.1, worker.end_worker).start()
        with pytest.raises(Unavailable, match="has died") as caught:
            worker("hold the lock")
        assert "SIGKILL" in caught.value.why
        assert worker("count")[1] == 1


def test_errors_come_back_as_the_kinds_that_the_workers_of_spark_give() -> None:
    with kept(Obedient()) as worker:
        with pytest.raises(BadRow) as bad:
            worker("raise", BadRow("it is odd.", why="of 7.", participant="sums", epoch=7))
        assert (bad.value.what, bad.value.why, bad.value.participant, bad.value.epoch) == (
            "it is odd.",
            "of 7.",
            "sums",
            7,
        )
        with pytest.raises(PythonException) as raised:
            worker("raise", ZeroDivisionError("of a user"))
        assert isinstance(translate(raised.value, "p", "epoch 1"), InvalidPipeline)
        with pytest.raises(PythonException, match=r"Coded: of code 7"):
            worker("raise coded")
        assert worker("count")[1] == 4, "an error ends no process"
    with kept(Foreign()) as worker:
        for _ in range(2):
            with pytest.raises(PythonException, match="of_the_driver_alone"):
                worker()


def test_what_a_function_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    with kept(Obedient()) as worker:
        assert worker("print")[1] == 1
        assert worker("count")[1] == 2
    assert "a function says so" in capfd.readouterr().err


def test_a_call_that_takes_long_is_left_to_the_executors_until_calls_are_quick_again() -> None:
    """A job costs half a second, and works with every core: functions that take long are worth it."""
    now = iter([0.0, 60.0, 60.0, 62.0, *(each for i in range(5) for each in (62.0 + i / 10, 62.1 + i / 10))])
    with kept(Obedient(), lambda: next(now)) as worker:
        found = [worker("count") and worker.times for _ in range(7)]
    assert found == [1.0, 0.25, 0.5, 1.0, 2.0, 4.0, 4.0], "of a first call the set-up is the most"


def test_what_each_call_costs_does_not_take_all_calls_away() -> None:
    """Fewer rows do not make it less; and quick calls, of which there must be some, are what raises the size again."""
    now = iter(float(each) for each in range(100))
    with kept(Obedient(), lambda: next(now)) as worker:
        found = [worker("count") and worker.times for _ in range(20)]
    assert found[1] == 0.5
    assert found[-1] == LEAST_TIMES
