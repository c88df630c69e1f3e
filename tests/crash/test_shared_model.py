"""A model that several processes share, while they and it are killed and frozen (design/0046)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.models.place import VARIABLE
from tests.crash.model_caller import ENTERED, HOLD, LOADED, calls, model_of
from tests.crash.processes import ROOT

pytestmark = pytest.mark.crash

WAIT_S = 120


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a directory whose path is short enough for sockets; what still runs there ends."""
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setenv(VARIABLE, f"{base}/models")
        monkeypatch.setenv("CRASH_WORK", base)
        yield Path(base)
        for number in loaded(Path(base)):
            if is_alive(number):
                kill(number)


class Caller:
    """A process that calls."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, f"{ROOT}/tests/crash/model_caller.py", name, json.dumps(arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, **told: int) -> None:
        """Let it call."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def said(self) -> dict[str, Any]:
        """Return how that went."""
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert found["wrong"] == 0
        return found


@contextmanager
def callers(*names: str, **arguments: Any) -> Iterator[list[Caller]]:
    """Yield processes that share a model; they end with the block."""
    made = [Caller(name, arguments) for name in names]
    try:
        yield made
    finally:
        for each in made:
            each.process.kill()
            each.process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    """Wait until something holds."""
    end_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end_s, "that does not happen"
        time.sleep(0.005)
    return found


def loaded(work: Path) -> list[int]:
    """Return the processes that have loaded the model, in their order."""
    place = work / LOADED
    return [int(line) for line in place.read_text().split()] if place.exists() else []


def computing(work: Path) -> int:
    """Return the process of the model, when it computes and is held."""
    return int(until(lambda: (work / ENTERED).exists() and (work / ENTERED).read_text()))


def is_alive(process: int) -> bool:
    """Return whether a process of the model has not ended."""
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(process: int) -> None:
    """Kill the process of a model; return when it is dead."""
    os.kill(process, signal.SIGKILL)
    until(lambda: not is_alive(process))


def test_rows_of_two_processes_are_in_one_batch_and_each_gets_its_own_answers(work: Path):
    arguments = {"max_batch": 2, "max_delay": "60 s"}  # each has one row at a time: a batch is full with both
    with callers("left", "right", **arguments) as both:
        for caller in both:
            caller.tell(count=50)
        assert [caller.said()["answers"] for caller in both] == [50, 50]
        found = model_of(**arguments).stats()
    assert found.batches_by_callers == {2: 50}
    assert (found.row_count, found.rows_per_batch, found.callers_per_batch) == (100, 2, 2)


def test_a_frozen_caller_delays_nobody_and_goes_on_with_its_answer(work: Path):
    arguments = {"max_batch": 1000, "max_delay": "5 ms"}
    model = model_of(**arguments)
    with callers("frozen", "other", **arguments) as (frozen, other):
        (work / HOLD).touch()
        frozen.tell(count=1, rows=4, size=8_000_000)  # more than is on its way between processes
        computing(work)
        frozen.process.send_signal(signal.SIGSTOP)
        other.tell(count=20, rows=3)
        (work / HOLD).unlink()
        assert other.said()["answers"] == 20
        assert calls(model, "notebook", count=20) | {"processes": 0} == {"answers": 20, "wrong": 0, "processes": 0}
        assert model.stats().waiting_row_count == 0
        frozen.process.send_signal(signal.SIGCONT)
        assert frozen.said()["answers"] == 1
    assert len(loaded(work)) == 1


def test_a_caller_that_is_killed_while_its_rows_wait_delays_nobody(work: Path):
    arguments = {"max_batch": 4, "max_delay": "5 ms"}
    model = model_of(**arguments)
    with callers("victim", "other", **arguments) as (victim, other):
        (work / HOLD).touch()
        victim.tell(count=1, rows=4)
        computing(work)
        victim.process.kill()
        victim.process.wait()
        other.tell(count=5)
        (work / HOLD).unlink()
        assert other.said()["answers"] == 5
    assert model.stats().failure_count == 0


def test_calls_are_repeated_when_the_process_is_killed_while_it_computes(work: Path):
    arguments = {"max_batch": 8, "max_delay": "5 ms"}
    kills = 3
    with callers("left", "right", **arguments) as both:
        for number in range(kills):
            (work / ENTERED).unlink(missing_ok=True)
            (work / HOLD).touch()
            for caller in both:
                caller.tell(count=10, rows=3)
            process = computing(work)
            kill(process)
            (work / HOLD).unlink()
            answers = [caller.said() for caller in both]
            assert [each["answers"] for each in answers] == [10, 10]
            assert all(process not in each["processes"] for each in answers)
            assert len(loaded(work)) == number + 2
        assert model_of(**arguments).stats().restart_count == kills


def test_of_many_that_start_a_process_one_does(work: Path):
    with callers(*"abcde", max_batch=2) as many:
        for caller in many:
            caller.tell(count=3)
        processes = {tuple(caller.said()["processes"]) for caller in many}
    assert processes == {tuple(loaded(work))}
    assert len(loaded(work)) == 1


def test_the_process_outlives_who_has_started_it_until_it_is_stopped(work: Path):
    with callers("first", max_batch=8) as (first,):
        first.tell(count=1)
        (process,) = first.said()["processes"]
    model = model_of(max_batch=8)
    assert model.stats().process_id == process
    model.stop()
    until(lambda: not is_alive(process))
    assert model.stats().process_id == 0
    assert calls(model, "notebook", count=1)["processes"] != [process]
    assert model.stats().restart_count == 0


def test_the_process_ends_when_nobody_calls_and_the_next_call_starts_another(work: Path):
    model = model_of(idle="100 ms")
    for number in range(2):
        (process,) = calls(model, "notebook", count=1)["processes"]
        until(lambda process=process: not is_alive(process))
        assert len(loaded(work)) == number + 1
    assert not list((work / "models").glob("*.sock"))


def test_what_the_process_that_died_has_printed_is_kept(work: Path):
    def deadly(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not (work / ENTERED).exists():
            (work / ENTERED).touch()
            os.write(2, b"last words\n")
            os.abort()
        return batch

    model = hf.shared(deadly, "n BIGINT", name="deadly")
    assert model.row(n=1) == {"n": 1}
    assert model.stats().restart_count == 1
    (before,) = (work / "models").glob("*.before")
    assert "last words" in before.read_text()
    assert "Aborted" in before.read_text()
    model.stop()


def test_a_model_that_cannot_be_loaded_says_why(work: Path):
    def load() -> None:
        raise OSError("weights.bin is not there")

    with pytest.raises(hf.InvalidPipeline) as raised:
        hf.shared(lambda batch, loaded: batch, "n BIGINT", setup=load, name="weightless").row(n=1)
    assert raised.value.what == "Model 'weightless' cannot be loaded: OSError: weights.bin is not there"
    with pytest.raises(hf.InvalidPipeline, match="'object' cannot be called"):
        hf.shared(object, "n BIGINT").row(n=1)


def test_a_process_that_dies_while_it_loads_is_an_error_with_its_last_words(work: Path):
    def load() -> None:
        os.write(2, b"out of memory\n")
        os._exit(1)

    with pytest.raises(hf.Unavailable, match="ended before it could be called") as raised:
        hf.shared(lambda batch, loaded: batch, "n BIGINT", setup=load, name="large").row(n=1)
    assert "out of memory" in raised.value.why


def test_processes_that_a_model_forks_do_not_count_as_it(work: Path):
    """Workers of a data loader, say: they live on when it is killed, and must not hold its lock and its callers."""
    forked = work / "forked"

    def fork() -> None:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        with forked.open("a") as file:
            file.write(f"{child}\n")

    def forking(batch: pa.RecordBatch, loaded: None) -> pa.RecordBatch:
        fork()
        return batch

    model = hf.shared(forking, "n BIGINT", setup=fork, name="forking", timeout="20 s")
    try:
        for number in range(2):
            assert model.row(n=number) == {"n": number}
            kill(model.stats().process_id)
        assert model.row(n=7) == {"n": 7}
        model.stop()
    finally:
        for child in map(int, forked.read_text().split()):
            kill(child)
