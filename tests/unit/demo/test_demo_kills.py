"""The demo's driver kills the whole tree, at moments that its seed decides, while rows are being written."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from demo.cluster import EPOCH_ROWS_MAX, Cluster, ExecutorKiller
from holdfast.demo import kills
from holdfast.demo.kills import DemoFailed, carry_out
from holdfast.demo.processes import Running, start
from holdfast.demo.watch import SinkWatch, sqlite_rows

STAND_IN = Path(__file__).with_name("demo_stand_in.py")
ROWS = 2000


def experiment(
    work: Path, mode: str, kill_count: int = 3, seed: int = 7, disturb: kills.Disturbance = kills.no_disturbance
) -> tuple[kills.Experiment, list[str]]:
    said: list[str] = []

    def start_run(run: int) -> Running:
        return start([sys.executable, str(STAND_IN), str(work), mode], work / f"run-{run}.log")

    watch = SinkWatch({"flights": sqlite_rows(work / "flights.db", "flights")})
    done = carry_out(
        start_run, watch, rows_expected=ROWS, kill_count=kill_count, seed=seed, say=said.append, disturb=disturb
    )
    return done, said


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.crash
def test_a_writer_that_commits_rows_and_progress_together_ends_complete(tmp_path: Path) -> None:
    done, said = experiment(tmp_path, "exact")
    with sqlite3.connect(tmp_path / "flights.db") as connection:
        numbers = [number for (number,) in connection.execute("SELECT number FROM flights ORDER BY number")]
    connection.close()
    assert numbers == list(range(ROWS))
    assert len(done.kills) == len(said) == 3
    assert all(kill.first_row_s is not None and kill.first_row_s > 0 for kill in done.kills)
    assert all(0 < kill.rows < ROWS for kill in done.kills), "each kill hit real work"


@pytest.mark.crash
def test_the_kills_reach_children_in_sessions_of_their_own(tmp_path: Path) -> None:
    experiment(tmp_path, "exact")
    children = [int(line) for line in (tmp_path / "children").read_text().split()]
    assert len(children) == 4
    assert not [pid for pid in children if is_alive(pid)]


@pytest.mark.crash
def test_a_run_that_ends_before_its_kill_fails_the_demo(tmp_path: Path) -> None:
    with pytest.raises(DemoFailed, match="used up its input before kill 1"):
        experiment(tmp_path, "idle")


@pytest.mark.crash
def test_a_run_is_not_killed_before_it_was_disturbed(tmp_path: Path) -> None:
    def disturb(run: int, new_rows: int) -> bool:
        return run > 0 or new_rows >= ROWS // 2

    done, _ = experiment(tmp_path, "exact", kill_count=2, disturb=disturb)
    assert done.kills[0].rows >= ROWS // 2


def test_the_first_run_lives_until_the_epoch_of_the_killed_executor_is_complete() -> None:
    killer = ExecutorKiller(Cluster("", Path(), ()), seed=7)
    assert not killer(0, 1), "no executor was killed yet"
    killer.rows_at_kill = 100
    assert not killer(0, 100 + EPOCH_ROWS_MAX)
    assert killer(0, 101 + EPOCH_ROWS_MAX)
    assert killer(1, 0), "later runs are not disturbed"


def test_the_seed_alone_decides_the_moments() -> None:
    def draw(seed: int) -> list[int | None]:
        moments = random.Random(seed)
        return [kills._rows_to_wait_for(moments, 1000, left) for left in (3, 2, 1, 0)]

    assert draw(1) == draw(1) != draw(2)
    assert draw(1)[-1] is None, "the last run is not killed"


def test_every_kill_waits_for_a_row_and_leaves_work_for_the_next() -> None:
    moments = random.Random(0)
    for left in (5, 4, 3, 2, 1):
        waits = [kills._rows_to_wait_for(moments, 1000, left) for _ in range(200)]
        assert all(wait is not None and 1 <= wait < 1000 for wait in waits)


STOPPED = """
import os, signal, time
from holdfast.demo.driver import stop_at_signals
stop_at_signals()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)  # as make does, which passes it on
    os.kill(os.getpid(), signal.SIGINT)
    os.write(1, b"ended what was started")
"""


def test_a_second_signal_does_not_disturb_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ended what was started"), done.stderr
