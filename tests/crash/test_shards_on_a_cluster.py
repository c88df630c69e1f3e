"""Shards on a standalone master with two workers: an executor is killed, and others' shards do not notice (0048, 14).

``HOLDFAST_JVM_KILLS`` says how many executors are killed while rows flow (2; 30 in ``make nightly``).
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.dataset
import pytest

from demo.cluster import WORKER_COUNT, Cluster, standalone_cluster
from holdfast.demo.processes import Running, kill_tree, start
from holdfast.shards.progress import ShardsRecord, read_progress
from holdfast.store.paths import open_store
from tests.crash.processes import ROOT, Case
from tests.everyday import seed_of_kills
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

SHARDS = 4
ROWS = 5
"""In each file, which is an epoch of the shard that reads it."""
KILLS = int(os.environ.get("HOLDFAST_JVM_KILLS", "2"))
WAIT_S = 180


class Driver:
    """A driver of all shards, and what is seen of it from outside."""

    def __init__(self, work: Path, cluster: Cluster) -> None:
        self.work = work
        self.cluster = cluster
        self.ids: list[int] = []
        for name in ("calls", "let-go", "in"):
            (work / name).mkdir()
        self._running: Running | None = None

    def begin(self) -> None:
        command = Case(self.work, ()).command("--every", "20ms", "--shards", str(SHARDS), program="held_pipeline.py")
        master = ["--master", self.cluster.url]
        environment = {**Case(self.work, ()).variables, **self.cluster.environment}
        self._running = start([*command, *master], self.work / "driver.log", environment)

    def end(self) -> None:
        """Stop it as a user does; nothing of it is left."""
        assert self._running is not None
        self._running.process.send_signal(signal.SIGTERM)
        try:
            assert self._running.process.wait(WAIT_S) == 0, self._running.log_tail()
        finally:
            kill_tree(self._running)

    def arrive(self, count: int) -> None:
        """Let files arrive, whose names are spread over the segments."""
        for _ in range(count):
            first = len(self.ids)
            new = [*range(first, first + ROWS)]
            arrive(self.work / "in", f"{first:05}.json", [{"id": each} for each in new])
            self.ids += new

    def until(self, holds: object, what: str) -> None:
        assert callable(holds)
        running = self._running
        assert running is not None
        eventually(lambda: holds() or running.has_ended, within_s=WAIT_S, what=what)
        assert not running.has_ended, running.log_tail()

    def calls(self) -> list[tuple[int, int]]:
        """Return of each call of the function the executor, and the number of its file."""
        found = [json.loads(path.read_text()) for path in (self.work / "calls").glob("*.json")]
        return [(executor, ids[0] // ROWS) for executor, ids in found]

    def rows(self) -> list[int]:
        return sqlite_rows(self.work / "table.db") if (self.work / "table.db").exists() else []

    def rows_in_files(self) -> list[int]:
        return sorted(pyarrow.dataset.dataset(self.work / "files", format="parquet").to_table()["id"].to_pylist())

    def record(self) -> ShardsRecord:
        found = read_progress(open_store(str(self.work / "checkpoint")))
        assert found is not None
        return found

    def executors(self) -> list[psutil.Process]:
        """Return the executors, when none is missing."""
        self.until(lambda: len(self.cluster.executors()) == WORKER_COUNT, "both executors")
        return self.cluster.executors()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    with standalone_cluster(tmp_path / "cluster", cores=SHARDS // WORKER_COUNT) as cluster:
        found = Driver(tmp_path, cluster)
        yield found


@pytest.mark.timeout(900)
def test_only_shards_with_tasks_on_an_executor_that_dies_evaluate_rows_again(driver: Driver) -> None:
    """Each shard has one task, all cores are taken; two tasks die with their executor, by SIGKILL of its process."""
    (driver.work / "held").touch()
    driver.arrive(24)
    driver.begin()
    driver.until(lambda: len(driver.calls()) == SHARDS, "a task of each shard")
    held = driver.calls()
    assert Counter(Counter(executor for executor, _ in held).values()) == {SHARDS // WORKER_COUNT: WORKER_COUNT}
    victim, alive = sorted({executor for executor, _ in held})
    lost, kept = ({file for executor, file in held if executor == each} for each in (victim, alive))

    os.kill(victim, signal.SIGKILL)
    driver.until(lambda: len(driver.calls()) == SHARDS + len(lost), "the tasks that were lost, on another executor")
    (driver.work / "let-go" / str(alive)).touch()
    driver.until(lambda: {row // ROWS for row in driver.rows()} > kept, "more than one epoch of the other shards")
    assert lost.isdisjoint(row // ROWS for row in driver.rows()), "they are held"
    (driver.work / "held").unlink()
    driver.until(lambda: driver.rows() == driver.ids, "all rows")
    driver.end()

    assert driver.rows_in_files() == driver.ids
    times = Counter(file for _, file in driver.calls())
    assert times == {file: 2 if file in lost else 1 for file in range(24)}, "no other epoch was evaluated again"
    assert [(each["restarts"], each["generation"]) for each in driver.record().shards] == [(0, 1)] * SHARDS


@pytest.mark.timeout(600 + 60 * KILLS)
def test_every_row_is_there_once_while_executors_die(driver: Driver) -> None:
    chance = random.Random(seed_of_kills(3))
    driver.begin()
    for _ in range(KILLS):
        driver.arrive(24)
        seen = len(driver.rows())
        driver.until(lambda seen=seen: len(driver.rows()) > seen + chance.randrange(60), "some rows")
        os.kill(chance.choice(driver.executors()).pid, signal.SIGKILL)
    driver.arrive(24)
    driver.until(lambda: driver.rows() == driver.ids, "all rows")
    driver.end()
    assert driver.rows_in_files() == driver.ids
    assert [each["error"] for each in driver.record().shards] == [None] * SHARDS
