"""Spares: a process that waits ready beside a supervised run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import child, spare
from holdfast.cli.app import app
from holdfast.cli.spare import Spares

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


@pytest.mark.slow
def test_a_spare_is_warmed_up_when_an_epoch_has_ended_and_takes_over_when_the_run_dies(tmp_path, spares, progress):
    first = spares.start()
    try:
        until((tmp_path / f"started-{pid_of(first)}").exists)
        assert not spares.is_ready()  # the run has the machine to itself until it has done something
        progress.epochs += 1
        until(spares.is_ready)
        waiting = pid_of(spares._spare.child)
    finally:
        killed(first)
    second = spares.start()
    try:
        assert pid_of(second) == waiting
        until((tmp_path / f"took-over-{waiting}").exists)
        assert not spares.is_ready()
        progress.epochs += 1
        until(spares.is_ready)
    finally:
        killed(second)


@pytest.mark.slow
def test_a_run_that_dies_before_its_spare_is_ready_is_followed_by_a_new_process(tmp_path, spares):
    first = spares.start()
    killed(first)
    second = spares.start()
    try:
        until((tmp_path / f"started-{pid_of(second)}").exists)
    finally:
        killed(second)


@pytest.mark.slow
def test_a_spare_that_dies_is_no_spare_and_another_one_comes_later(tmp_path, spares, progress, monkeypatch, caplog):
    monkeypatch.setattr(spare, "RETRY_S", 0.5)
    first = spares.start()
    progress.epochs += 1
    try:
        until(spares.is_ready)
        dead = pid_of(spares._spare.child)
        os.kill(dead, signal.SIGKILL)
        until(lambda: "the spare killed by SIGKILL; another one is started in " in caplog.text)
        until(lambda: spares.is_ready() and pid_of(spares._spare.child) != dead)
    finally:
        killed(first)


@pytest.mark.slow
def test_a_spare_that_cannot_live_is_not_started_after_each_epoch(tmp_path, progress, monkeypatch, caplog):
    monkeypatch.setattr(spare, "POLL_S", 0.01)
    dying = Spares([sys.executable, "-c", "raise SystemExit(1)"], tmp_path, progress)
    first = dying.start()
    try:
        for _ in range(100):
            progress.epochs += 1
            time.sleep(0.01)
        until(lambda: "the spare ended with code 1" in caplog.text)
        assert dying._count == 1
    finally:
        first.wait()
        dying.end()


@pytest.mark.slow
def test_why_there_is_no_spare_is_logged_once(tmp_path, progress, monkeypatch, caplog):
    monkeypatch.setattr(spare, "POLL_S", 0.01)
    monkeypatch.setattr(spare, "RETRY_S", 0.01)
    said = json.dumps({"what": "no such file."})
    saying = f"import os; open(os.environ[{child.VARIABLE!r}], 'w').write({said!r}); os._exit(2)"
    failing = Spares([sys.executable, "-c", saying], tmp_path, progress)
    first = failing.start()
    progress.epochs += 1
    try:
        until(lambda: failing._count > 2)
    finally:
        first.wait()
        failing.end()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the spare ended with code 2: no such file; another one is started in 0 s"
    ]


@pytest.mark.slow
def test_a_spare_tells_its_errors_to_the_supervisor_and_writes_none_into_the_output_of_the_run(tmp_path, monkeypatch):
    """Both have one stdout, and whoever reads JSON there would take the error for the run's."""
    (tmp_path / "trips.py").write_text("pipeline = 1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(spare.VARIABLE, str(tmp_path / "ready"))
    monkeypatch.setenv(child.VARIABLE, str(tmp_path / "ended.json"))
    command = ["run", "trips.py:pipeline", "--checkpoint", "ckpt", "--json"]
    answer = CliRunner().invoke(app, command)
    assert (answer.exit_code, answer.output) == (2, "")
    told = json.loads((tmp_path / "ended.json").read_text())
    monkeypatch.delenv(spare.VARIABLE, raising=False)
    error = json.loads(CliRunner().invoke(app, command).stdout)["error"]
    assert told["what"] == error["what"]
    assert "trips.py" in error["what"]


def test_none_is_started_once_a_stop_is_asked_for(tmp_path, progress, monkeypatch):
    monkeypatch.setattr(spare, "POLL_S", 0.01)
    asked: list[int] = []
    stopping = Spares([sys.executable, "-c", CHILD, str(tmp_path)], tmp_path, progress, lambda: bool(asked.append(1)))
    first = stopping.start()
    progress.epochs += 1
    try:
        until(lambda: len(asked) > 3)
        assert stopping._count == 0
    finally:
        killed(first)
        stopping.end()


def test_the_end_of_the_supervisor_ends_the_spare(tmp_path, spares, progress):
    first = spares.start()
    progress.epochs += 1
    try:
        until(spares.is_ready)
        waiting = pid_of(spares._spare.child)
        spares.end()
        with pytest.raises(ProcessLookupError):
            os.kill(waiting, 0)
    finally:
        killed(first)


@pytest.mark.slow
def test_a_supervisor_that_was_killed_leaves_no_spare(tmp_path, spares, progress):
    """The end of its standard input is all that a spare needs to know."""
    first = spares.start()
    progress.epochs += 1
    try:
        until(spares.is_ready)
        process = spares._spare.child._process
        process.stdin.close()
        assert process.wait(60) == 0
        assert (tmp_path / f"dismissed-{process.pid}").exists()
    finally:
        killed(first)


PROGRAM = """
import os, sys
import holdfast as hf, beside
os.environ["FOUND"] = os.environ.get("FOUND", "nothing")  # as load_dotenv() leaves what is there
os.chdir("/")
print(beside.VERSION, os.environ["FOUND"], os.environ.pop("HOLDFAST_SPARE", "no spare"), flush=True)
os.environ["FOUND"] = "what the first version set"
rows = hf.read.rows([{"n": 1}], schema="n BIGINT", name="rows")
pipeline = hf.Pipeline("trips", rows | hf.write.sqlite("/nowhere/t.db", table="t"))
"""

WARM = """
import sys, types
warm_up = sys.modules["holdfast.starts.warm_up"] = types.ModuleType("warm_up")
warm_up.warm_up = lambda pipeline, options: None
warm_up.is_warm = lambda: {is_warm}
import importlib
sys.orig_argv[1:] = ["-c", "import runpy, sys; sys.argv = ['t', *sys.argv[1:]]; from holdfast.cli.target import "
                     "load_target; load_target(sys.argv[1])", sys.argv[1]]
from holdfast.cli.spare import Waiting
from holdfast.cli.target import load_target
waiting = Waiting()
waiting.until_needed(load_target(sys.argv[1]), {{}})
print("goes on as it is", flush=True)
"""


def a_spare(tmp_path: Path, *, is_warm: bool = True) -> subprocess.Popen[str]:
    (tmp_path / "trips.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("VERSION = 1")
    child = subprocess.Popen(
        [sys.executable, "-c", WARM.format(is_warm=is_warm), "trips.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, spare.VARIABLE: str(tmp_path / "ready"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    until(lambda: (tmp_path / "ready").exists() or child.poll() is not None)
    return child


@pytest.mark.slow
def test_a_spare_goes_on_as_it_is(tmp_path: Path) -> None:
    child = a_spare(tmp_path)
    out, _ = child.communicate("go on\n", timeout=60)
    assert out.splitlines() == ["1 nothing no spare", "goes on as it is"]


@pytest.mark.slow
def test_a_spare_whose_files_have_changed_loads_them_again_as_a_new_process_would(tmp_path: Path) -> None:
    child = a_spare(tmp_path)
    (tmp_path / "beside.py").write_text("VERSION = 2")
    out, _ = child.communicate("go on\n", timeout=60)
    assert out.splitlines() == ["1 nothing no spare", "2 nothing no spare"]


@pytest.mark.slow
def test_a_spare_whose_jvm_has_died_is_none(tmp_path: Path) -> None:
    child = a_spare(tmp_path, is_warm=False)
    assert child.wait(60) == 1
    assert not (tmp_path / "ready").exists()
    child.communicate()
