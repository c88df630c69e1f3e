"""Four shards under SIGKILLs of their driver, and failures of one of them: every row once (design/0048, section 5)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.processes import ROOT
from tests.crash.shard_lives import FILES, Lives
from tests.crash.shards_process import DOWN, SHARDS, Life
from tests.everyday import everyday, seed_of_kills
from tests.kafka_servers import KafkaTopic

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("HOLDFAST_JVM_KILLS", "2"))
"""How often the driver is killed: 30 times in ``make nightly``."""
SEED = seed_of_kills(7)
SINKS = {"two sinks": ("table", "store"), "and a topic": ("table", "store", "topic")}
OTHERS = [shard for shard in range(SHARDS) if shard != DOWN]

DOWN_S = 20
"""So long a shard is down, at least."""
AWAY = ("before-stage", "recovery-resolved before-stage", "table")
"""At which points it fails; or it is the table that does not answer, when the topic has rows that are not published."""


@pytest.fixture
def lives(tmp_path: Path, request: pytest.FixtureRequest) -> Lives:
    sinks = SINKS[request.param]
    bootstrap = ""
    if "topic" in sinks:
        bootstrap = request.getfixturevalue("mortal_kafka").bootstrap
        KafkaTopic(bootstrap, "rows").create()
    return Lives(Life(str(tmp_path), bootstrap, sinks))


@pytest.mark.parametrize("lives", everyday(SINKS, ["two sinks"]), indirect=True)
def test_every_row_is_there_once_after_kills_and_while_a_shard_is_down_others_are_seen(lives: Lives) -> None:
    chance = random.Random(SEED)
    lives.arrive()
    for kill in range(KILLS):
        with lives.driver(seed=SEED + kill, failing=(DOWN + kill) % SHARDS) as driver:
            driver.begin()
            before = lives.table()
            lives.arrive()
            driver.come_true(lambda before=before: lives.table() != before, "rows of this driver")
            time.sleep(chance.uniform(0, 1))  # what is killed may be anywhere
            driver.kill()
    with lives.driver(seed=SEED + KILLS, failing=DOWN) as driver:
        driver.begin()
        driver.come_true(lambda: lives.table() == lives.ids, "all rows, after the kills")
        (lives.work / "down").write_text("before-stage")
        seen = {shard: lives.epoch_of(shard) for shard in range(SHARDS)}
        count = len(lives.ids)
        lives.arrive()
        driver.come_true(lambda: all(lives.epoch_of(each) > seen[each] for each in OTHERS), "rows of the others")
        lives.arrive()
        driver.come_true(lambda: len(lives.table()) > count + 10 * FILES, "more of the others")
        assert lives.epoch_of(DOWN) == seen[DOWN], "shard 2 is down"
        (lives.work / "down").unlink()
        driver.come_true(lambda: lives.table() == lives.ids, "the rows that waited")
    with lives.driver(seed=SEED, count=len(lives.ids)) as driver:
        driver.begin()
        assert driver.end()
    lives.check_exact()


class Reader:
    """What an outside reader has seen."""

    def __init__(self, work: Path) -> None:
        self.path = work / "seen"
        self.counts: dict[str, Counter[int]] = {sink: Counter() for sink in SINKS["and a topic"]}
        self._read = 0

    def look(self) -> dict[str, Counter[int]]:
        """Return sink -> id -> how often it has been seen."""
        if self.path.exists():
            with self.path.open() as lines:
                lines.seek(self._read)
                text = lines.read()
            whole = text[: text.rfind("\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                sink, new = json.loads(line)
                self.counts[sink].update(new)
        return self.counts

    def has_seen(self, ids: list[int]) -> bool:
        """Return whether each sink has shown these rows."""
        return all(counts.keys() >= {*ids} for counts in self.look().values())


@contextmanager
def outside_reader(lives: Lives) -> Iterator[Reader]:
    """Give what another process sees."""
    command = [sys.executable, "-m", "tests.crash.shards_reader", str(lives.work), lives.life.bootstrap]
    process = subprocess.Popen(command, cwd=ROOT, env=lives.variables, stdin=subprocess.PIPE)
    try:
        yield Reader(lives.work)
        assert process.poll() is None, "it reads on, whatever it meets"
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.nightly
@pytest.mark.parametrize("is_staged", [False, True], ids=["carried", "staged"])
@pytest.mark.parametrize("points", AWAY)
@pytest.mark.parametrize("lives", ["and a topic"], indirect=True)
def test_rows_of_the_others_go_on_being_visible_while_a_shard_is_down(
    lives: Lives, points: str, is_staged: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Acceptance 1: an outside reader sees the rows of each other shard in each sink, file after file."""
    if is_staged:
        monkeypatch.setenv("HOLDFAST_CARRY_MAX", "0 B")
    with lives.driver(seed=SEED, failing=DOWN) as driver:
        driver.begin()
        lives.arrive()
        driver.come_true(lambda: lives.table() == lives.ids, "rows of all shards")
        with outside_reader(lives) as reader:
            driver.come_true(lambda: reader.has_seen(lives.ids), "the reader has seen all")
            (lives.work / "down").write_text(points)
            while not (lives.work / "failed").exists():
                lives.arrive(4)
                time.sleep(0.1)
            begun_s, rounds, held_back = time.monotonic(), 0, list[int]()
            while time.monotonic() < begun_s + DOWN_S or rounds < 5:
                first = len(lives.ids)
                while {lives.shard_of(each) for each in lives.ids[first:]} != {*range(SHARDS)}:
                    lives.arrive(1)
                new = lives.ids[first:]
                shown = [each for each in new if lives.shard_of(each) != DOWN]
                held_back += [each for each in new if lives.shard_of(each) == DOWN]
                driver.come_true(lambda shown=shown: reader.has_seen(shown), "rows of the others, of this round")
                rounds += 1
            down_s, counts = time.monotonic() - begun_s, reader.look()
            assert not counts["table"].keys() & {*held_back}, "the shard is down"
            (lives.work / "down").unlink()
            driver.come_true(lambda: reader.has_seen(lives.ids), "the rows that waited")
            for sink, seen in reader.look().items():
                assert seen == Counter(lives.ids), f"{sink}: a row was seen twice"
    with capsys.disabled():
        sys.stdout.write(f"\ndown for {down_s:.0f} s, {rounds} rounds seen, {len(held_back)} rows held back\n")
    with lives.driver(seed=SEED, count=len(lives.ids)) as driver:
        driver.begin()
        assert driver.end()
    lives.check_exact()
