"""Shards and leases: spread over processes as a scheduler spreads them over hosts, and with a replica (0048, 8)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.shards.layout import newest_layout
from holdfast.store.paths import open_store
from tests.crash.processes import ROWS_PER_FILE, Case, kill_tree
from tests.spark.running import eventually, sqlite_rows

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.nightly]

FILES = 12


class Hosts:
    """Processes of one pipeline on one checkpoint."""

    def __init__(self, work: Path) -> None:
        self.case = Case(work, ("sqlite",), environment={"HOLDFAST_PROGRESS_INTERVAL": "100 ms", "CRASH_DRAW": "arrow"})
        self.files = 0
        self.alive: list[subprocess.Popen[str]] = []

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        with self._said_in(name).open("w") as output:
            process = self.case.start("--every", "20 ms", "--lease", "1s", *arguments, output=output)
        self.alive.append(process)
        return process

    def until_said(self, name: str, words: str) -> None:
        self._until(lambda: words in self._said_in(name).read_text(), words, name)

    def _said_in(self, name: str) -> Path:
        return self.case.work / f"{name}.out"

    def arrive(self) -> None:
        """Let files arrive for both shards."""
        self.case.write_input(self.files, self.files + FILES)
        self.files += FILES

    def ids(self) -> list[int]:
        return sqlite_rows(self.case.work / "out.db")

    def until_all_are_there(self, *names: str) -> None:
        expected = range(self.files * ROWS_PER_FILE)
        self._until(lambda: self.ids() == [*expected], "all rows, once", *names)

    def _until(self, holds: Callable[[], bool], what: str, *names: str) -> None:
        try:
            eventually(holds, within_s=180, what=what)
        except AssertionError as error:
            for name in names:
                error.add_note(self._said_in(name).read_text()[-3000:])
            raise


@contextmanager
def ending(hosts: Hosts) -> Iterator[Hosts]:
    try:
        yield hosts
    finally:
        for process in hosts.alive:
            kill_tree(process)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ending(Hosts(tmp_path)) as made:
        yield made


@pytest.mark.timeout(900)
def test_each_shard_has_a_lease_and_who_runs_all_waits_for_those_who_run_one(hosts: Hosts) -> None:
    hosts.arrive()
    first = hosts.case.start("--available-now", "--shards", "2", output=subprocess.DEVNULL)
    assert first.wait(180) == 0
    hosts.until_all_are_there()
    hosts.start("zero", "--only-shard", "0")
    one = hosts.start("one", "--only-shard", "1")
    hosts.arrive()
    hosts.until_all_are_there("zero", "one")

    hosts.start("other", "--only-shard", "1")
    hosts.until_said("other", "holds term 1 with generation")
    hosts.start("all")
    hosts.until_said("all", "replica: ")
    hosts.arrive()
    hosts.until_all_are_there("zero", "one")
    kill_tree(one)
    hosts.until_said("other", "takes over")
    hosts.arrive()
    hosts.until_all_are_there("zero", "other")

    for process in (hosts.alive[0], hosts.alive[2]):
        process.terminate()
        assert process.wait(120) == 0
    hosts.arrive()
    hosts.until_all_are_there("all")
    hosts.case.check_exact(range(hosts.files * ROWS_PER_FILE))


@pytest.mark.timeout(900)
def test_a_replica_on_the_checkpoint_of_its_main_takes_over_all_shards_also_with_another_number(hosts: Hosts) -> None:
    """Each leader is killed; the second replica changes the number, and the third one takes it over from the record."""
    hosts.arrive()
    leader, name = hosts.start("main", "--shards", "2"), "main"
    hosts.until_all_are_there("main")
    for replica, arguments, shards in (("b", (), 2), ("c", ("--shards", "3"), 3), ("d", (), 3)):
        process = hosts.start(replica, "--replica", *arguments)
        hosts.until_said(replica, "replica: main" if name == "main" else "replica: replica")
        hosts.arrive()
        kill_tree(leader)
        hosts.until_all_are_there(replica)
        layout = newest_layout(open_store(str(hosts.case.checkpoint)))
        assert layout is not None
        assert layout.shard_count == shards
        leader, name = process, replica
    leader.terminate()
    assert leader.wait(120) == 0
    hosts.case.check_exact(range(hosts.files * ROWS_PER_FILE))
