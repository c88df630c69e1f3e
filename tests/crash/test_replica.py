"""Main and replica as processes: the main is killed, or frozen and continued; the replica goes on (design/0028)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tests.crash.processes import ROOT, ROWS_PER_FILE, Case

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]


class Pair:
    """A pipeline into PostgreSQL, and processes that run it, each on a checkpoint of its own."""

    def __init__(self, work: Path, dsn: str, program: str = "pipeline.py") -> None:
        self.program = program
        variables = {"CRASH_DRAW": "arrow", "HOLDFAST_PROGRESS_INTERVAL": "100 ms"}
        self.case = Case(work, ("postgres",), dsn, variables)
        self.files = 0
        self.alive: list[subprocess.Popen[str]] = []

    def start(self, name: str, *arguments: str, place: str = "") -> subprocess.Popen[str]:
        with self.said_in(name).open("w") as output:
            options = ("--checkpoint", str(self.case.work / (place or name)), "--every", "20 ms", "--lease", "1s")
            process = self.case.start(*options, *arguments, output=output, program=self.program)
        self.alive.append(process)
        return process

    def said_in(self, name: str) -> Path:
        return self.case.work / f"{name}.out"

    def until_said(self, name: str, *words: str) -> None:
        until(lambda: all(each in self.said_in(name).read_text() for each in words), lambda: self.said(name))

    def said(self, name: str) -> str:
        return self.said_in(name).read_text()[-3000:]

    def until_more_is_there(self, name: str) -> None:
        """Write one more file, and wait until its rows are in the table."""
        self.case.write_input(self.files, self.files + 1)
        self.files += 1
        until(lambda: self.row_count() >= self.files * ROWS_PER_FILE, lambda: self.said(name))

    def row_count(self) -> int:
        with psycopg.connect(self.case.dsn) as connection, suppress(psycopg.errors.UndefinedTable):
            row = connection.execute("SELECT count(*) FROM rows").fetchone()
            assert row is not None
            return int(row[0])
        return 0

    def promote(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        target = f"{ROOT}/tests/crash/{self.program}:pipeline"
        command = [sys.executable, "-m", "holdfast", "promote", target, *arguments]
        return subprocess.run(command, env=self.case.variables, capture_output=True, text=True, check=False)

    def check(self) -> None:
        self.case.check_exact(range(self.files * ROWS_PER_FILE))


def until(holds: Callable[[], bool], said: Callable[[], str]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, said()
        time.sleep(0.02)


def send(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to a process and everything it started."""
    os.killpg(process.pid, number)


@contextmanager
def opened(pair: Pair) -> Iterator[Pair]:
    """Kill what is left of a pair at the end."""
    try:
        yield pair
    finally:
        for process in pair.alive:
            with suppress(ProcessLookupError):
                send(process, signal.SIGKILL)
            process.wait()


@pytest.fixture
def pair(tmp_path: Path, postgres_plain: str) -> Iterator[Pair]:
    with opened(Pair(tmp_path, postgres_plain)) as made:
        yield made


def test_a_frozen_main_is_replaced_and_becomes_the_replica_of_one_that_dies(pair: Pair) -> None:
    first = pair.start("a")
    pair.until_more_is_there("a")
    second = pair.start("b", "--replica")
    pair.until_said("b", "holds term 1 with generation")
    send(first, signal.SIGSTOP)
    pair.until_more_is_there("b")
    send(first, signal.SIGCONT)
    pair.until_said("a", "becomes the replica", "holds term 2 with generation")
    pair.until_more_is_there("b")
    pair.check()
    send(second, signal.SIGKILL)
    pair.until_more_is_there("a")  # its checkpoint is older than the table: it asks the sink
    pair.check()
    assert (pair.case.work / "a" / "set-aside" / "spark").is_dir()
    first.terminate()
    assert first.wait(60) == 0, pair.said("a")
    assert pair.case.leftovers() == []


@pytest.mark.nightly
def test_both_die_and_whichever_starts_asks_the_sink(pair: Pair) -> None:
    first = pair.start("a")
    pair.until_more_is_there("a")
    second = pair.start("b", "--replica")
    pair.until_said("b", "holds term 1 with generation")
    send(first, signal.SIGKILL)
    pair.until_more_is_there("b")
    send(second, signal.SIGKILL)
    again = pair.start("a")
    pair.until_more_is_there("a")
    pair.check()
    send(again, signal.SIGKILL)
    pair.start("c", "--replica")  # a checkpoint that nobody knows
    pair.until_more_is_there("c")
    pair.check()


@pytest.mark.nightly
def test_a_promotion_makes_the_main_the_replica(pair: Pair) -> None:
    pair.start("a")
    pair.until_more_is_there("a")
    pair.start("b", "--replica")
    pair.until_said("b", "holds term 1 with generation")
    asked = pair.promote()
    assert asked.returncode == 0, asked.stdout
    assert "now: replica" in asked.stdout
    assert "holds term 2" in asked.stdout
    pair.until_said("a", "becomes the replica", "holds term 2 with generation")
    pair.until_more_is_there("b")
    pair.check()


@pytest.mark.nightly
@pytest.mark.parametrize("keeps_state", [False, True], ids=["no state", "state"])
@pytest.mark.parametrize("more", [(), ("--digests-only",)], ids=["rows", "digests"])
def test_a_replica_mends_what_was_done_to_the_table_before_it_goes_on(
    tmp_path: Path, postgres_plain: str, more: tuple[str, ...], keeps_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASH_STATE", str(int(keeps_state)))
    with opened(Pair(tmp_path, postgres_plain, "replica_pipeline.py")) as pair:
        first = pair.start("a")
        pair.until_more_is_there("a")
        pair.start("b", "--replica", "--compare-on-start", *more)
        pair.until_said("b", "holds term 1 with generation", "shadow at epoch")
        pair.until_more_is_there("a")
        send(first, signal.SIGKILL)
        with psycopg.connect(postgres_plain, autocommit=True) as connection:
            before = connection.execute("SELECT * FROM rows ORDER BY id").fetchall()
            connection.execute("DELETE FROM rows WHERE id % 50 = 1")
            connection.execute("INSERT INTO rows SELECT * FROM rows WHERE id % 50 = 3")
        pair.until_more_is_there("b")
        with psycopg.connect(postgres_plain) as connection:
            after = connection.execute("SELECT * FROM rows ORDER BY id").fetchall()
        assert after[: len(before)] == before, "each row as it was, and once"
        assert [row[0] for row in after] == [*range(pair.files * ROWS_PER_FILE)]
        count = len(before) // 50
        pair.until_said("b", f"{count} missing, {count} extra, 0 changed; {2 * count} repaired")


@pytest.mark.nightly
def test_a_promotion_that_asks_for_it_lets_any_replica_compare(
    tmp_path: Path, postgres_plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASH_STATE", "0")
    with opened(Pair(tmp_path, postgres_plain, "replica_pipeline.py")) as pair:
        pair.start("a")
        pair.until_more_is_there("a")
        pair.start("b", "--replica")
        pair.until_said("b", "holds term 1 with generation")
        with psycopg.connect(postgres_plain, autocommit=True) as connection:
            connection.execute("DELETE FROM rows WHERE id % 50 = 1")
        asked = pair.promote("--compare", "--wait", "120s")
        assert asked.returncode == 0, asked.stdout
        assert pair.row_count() == pair.files * ROWS_PER_FILE, "it has compared before its run begins"
        pair.until_said("b", "8 missing, 0 extra, 0 changed; 8 repaired")
        pair.until_more_is_there("b")


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["", "a"], ids=["own checkpoint", "shared checkpoint"])
def test_state_goes_on_in_the_replica(tmp_path: Path, postgres_plain: str, place: str) -> None:
    with opened(Pair(tmp_path, postgres_plain, "replica_pipeline.py")) as pair:
        first = pair.start("a")
        pair.until_more_is_there("a")
        second = pair.start("b", "--replica", place=place)
        pair.until_said("b", "holds term 1 with generation", *([] if place else ["shadow at epoch"]))
        pair.until_more_is_there("a")
        send(first, signal.SIGKILL)
        pair.until_more_is_there("b")
        send(second, signal.SIGKILL)
        third = pair.start("a")  # in the first case its state is old
        pair.until_more_is_there("a")
        third.terminate()
        assert third.wait(120) == 0, pair.said("a")
        ids = range(pair.files * ROWS_PER_FILE)
        numbers = [(id % 7, int(number)) for id, number in pair.case.rows()["postgres"]]
        counts = Counter(id % 7 for id in ids)
        assert sorted(numbers) == sorted((k, n) for k, count in counts.items() for n in range(1, count + 1))
