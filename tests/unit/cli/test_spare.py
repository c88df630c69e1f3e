"""Spares: a process that waits ready beside a supervised run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli import spare
from holdfast.cli.spare import SpareChild, Spares

# What a child does, without Spark: one with a spare's variable says that it is ready, and waits.
CHILD = """
import os, pathlib, sys, time
place = pathlib.Path(sys.argv[1])
if "HOLDFAST_SPARE" in os.environ:
    pathlib.Path(os.environ["HOLDFAST_SPARE"]).touch()
    if not sys.stdin.buffer.readline():
        (place / f"dismissed-{os.getpid()}").touch()
        sys.exit(0)
    (place / f"took-over-{os.getpid()}").touch()
else:
    (place / f"started-{os.getpid()}").touch()
time.sleep(600)
"""


class Progress:
    """Epochs that a run has finished."""

    def __init__(self) -> None:
        self.epochs = 0

    def __call__(self) -> int:
        return self.epochs


def until(holds) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def pid_of(child: object) -> int:
    return child._process.pid  # type: ignore[attr-defined]


@pytest.fixture
def progress() -> Progress:
    return Progress()


@pytest.fixture
def spares(tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spare, "POLL_S", 0.01)
    made = Spares([sys.executable, "-c", CHILD, str(tmp_path)], tmp_path, progress)
    yield made
    made.end()


def killed(child) -> None:
    child.signal(signal.SIGKILL)
    child.wait()


def test_a_spare_is_warmed_up_when_an_epoch_has_ended_and_takes_over_when_the_run_dies(tmp_path, spares, progress):
    first = spares.start()
    try:
        until((tmp_path / f"started-{pid_of(first)}").exists)
        assert not spares.is_ready()  # the run has the machine to itself until it has done something
        progress.epochs += 1
        until(spares.is_ready)
    finally:
        killed(first)
    second = spares.start()
    try:
        assert isinstance(second, SpareChild)
        until((tmp_path / f"took-over-{pid_of(second)}").exists)
        assert not spares.is_ready()
        progress.epochs += 1
        until(spares.is_ready)
    finally:
        killed(second)


def test_a_run_that_dies_before_its_spare_is_ready_is_followed_by_a_new_process(tmp_path, spares):
    first = spares.start()
    killed(first)
    second = spares.start()
    try:
        until((tmp_path / f"started-{pid_of(second)}").exists)
    finally:
        killed(second)


def test_a_spare_that_dies_is_no_spare_and_another_one_comes_later(tmp_path, spares, progress, monkeypatch, caplog):
    monkeypatch.setattr(spare, "WARM_UP_AFTER_S", 0.1)
    first = spares.start()
    try:
        until(spares.is_ready)
        dead = pid_of(spares._spare)
        os.kill(dead, signal.SIGKILL)
        until(lambda: "the spare has ended" in caplog.text)
        until(lambda: spares.is_ready() and pid_of(spares._spare) != dead)
    finally:
        killed(first)


def test_the_end_of_the_supervisor_ends_the_spare(tmp_path, spares, progress):
    first = spares.start()
    progress.epochs += 1
    try:
        until(spares.is_ready)
        waiting = pid_of(spares._spare)
        spares.end()
        with pytest.raises(ProcessLookupError):
            os.kill(waiting, 0)
    finally:
        killed(first)


def test_a_supervisor_that_was_killed_leaves_no_spare(tmp_path, spares, progress):
    """The end of its standard input is all that a spare needs to know."""
    first = spares.start()
    progress.epochs += 1
    try:
        until(spares.is_ready)
        child = spares._spare
        child._process.stdin.close()
        assert child._process.wait(60) == 0
        assert (tmp_path / f"dismissed-{child._process.pid}").exists()
    finally:
        killed(first)


def test_files_that_a_pipeline_was_loaded_from_are_known_with_the_time_of_their_change(tmp_path, monkeypatch):
    from holdfast.cli.target import load_target

    program = tmp_path / "trips.py"
    program.write_text(
        "import holdfast as hf, beside\n"
        "rows = hf.read.rows([{'n': 1}], schema='n BIGINT', name='rows')\n"
        f"pipeline = hf.Pipeline('trips', rows | hf.write.sqlite({str(tmp_path / 't.db')!r}, table='t'))\n"
    )
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path])
    load_target(str(program))
    before = spare._loaded_files()
    assert {str(program), str(tmp_path / "beside.py")} <= before.keys()
    assert spare._loaded_files(before) == before
    os.utime(tmp_path / "beside.py", ns=(1, 1))
    assert spare._loaded_files(before) != before
