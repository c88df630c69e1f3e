"""Between kills shards go back, have another graph, or are more or fewer: every row is in each sink once at the end.

A driver is killed with rows on their way, or while it starts, and so is a rewind: whatever the next start is asked for,
it carries through what was decided.  A start that cannot be yet is refused, and the one of before goes on.
``HOLDFAST_JVM_KILLS`` says how many kills (30 in ``make nightly``), ``HOLDFAST_SEED`` which.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.crash.processes import ROOT
from tests.crash.shard_lives import Driver, Lives
from tests.crash.shards_process import DOWN, FAILED, SHARDS, Life
from tests.everyday import everyday, seed_of_kills
from tests.kafka_servers import KafkaTopic

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("HOLDFAST_JVM_KILLS", "0"))
SEED = seed_of_kills(3)

REWINDS = ("to a time", "of one shard")
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sinks that go back": (("table", "files"), ("graph", "shards", *REWINDS)),
    "and others": (("table", "store", "topic"), ("graph", "shards")),
}
EVERYDAY = ("graph", "shards")
"""What is changed with every ``make test``, before one kill each."""

REFUSALS = ("has changed, and is to have another number of shards", "evaluates epochs again that some of its sinks")
"""What a start says that cannot be yet: a shard has not begun with the graph of before, or is not done with it."""


@dataclass
class Changing:
    """A pipeline that is changed between the lives of its drivers.

    Parameters
    ----------
    lives : Lives
        The pipeline.
    chance : random.Random
        Says when something is killed.
    counts : Counter
        What was done, and refused, how often.
    """

    lives: Lives
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    _targets: dict[str, list[str]] = field(default_factory=dict)

    def live(self, change: str) -> None:
        """Change something, and let a driver live for a while."""
        before, changes = self.lives.life, dict[str, object]()
        if change == "graph":
            changes["version"] = (before.version + self.chance.choice([1, 2])) % 3
        elif change == "shards":
            changes["shards"] = 3 if before.shards == SHARDS else SHARDS
        else:
            self._rewind(change)
        self._targets = {}
        with self.lives.driver(**changes, seed=self.chance.randrange(1000)) as driver:
            if KILLS and self.chance.random() < 0.3:
                time.sleep(self.chance.uniform(1, 12))
                driver.kill()
                self.counts[f"{change}: killed while it starts"] += 1
                return
            line = driver.line()
            if line.startswith(FAILED):
                self.counts[f"{change}: {FAILED}"] += 1
                return
            if line != "begun":
                assert any(refusal in line for refusal in REFUSALS), line
                self.counts[f"{change}: refused"] += 1
                self.lives.life = before
                return
            self._run(driver)
            driver.kill()
            self.counts[change] += 1

    def _run(self, driver: Driver) -> None:
        """Let rows take effect, and note what can be gone back to meanwhile."""
        before = self._epochs()
        at = self._arrived(driver)
        epochs = self._epochs()
        self._arrived(driver)
        time.sleep(self.chance.uniform(0, 1))  # what is killed may be anywhere
        self._targets = {REWINDS[0]: ["--to", at]}
        # An epoch by which a shard went back, or was handed over, has no end of its own to go back to.
        if with_rows := [shard for shard, epoch in epochs.items() if epoch > before[shard]]:
            shard = self.chance.choice(with_rows)
            self._targets[REWINDS[1]] = ["--shard", f"{shard}", "--to", f"{epochs[shard]}"]

    def _epochs(self) -> dict[int, int]:
        return {shard: self.lives.epoch_of(shard) for shard in range(self.lives.life.shards)}

    @property
    def wanted(self) -> tuple[str, ...]:
        """What this pipeline can be changed by."""
        return next(changes for sinks, changes in CASES.values() if sinks == self.lives.life.sinks)

    def _arrived(self, driver: Driver) -> str:
        before = self.lives.table()
        self.lives.arrive()
        driver.come_true(lambda: self.lives.table() != before, "rows of this driver")
        return dt.datetime.now(dt.UTC).isoformat()

    def _rewind(self, change: str) -> None:
        """Go back, if it is known where to; perhaps it is killed."""
        if change not in self._targets:
            self.counts[f"{change}: nowhere"] += 1
            return
        target = f"{ROOT}/tests/crash/shards_process.py:pipeline"
        command = [sys.executable, "-m", "holdfast", "rewind", target, "--checkpoint", f"{self.lives.work}/checkpoint"]
        process = subprocess.Popen(
            [*command, "--force", *self._targets[change]],
            cwd=ROOT,
            env=self.lives.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = process.communicate(timeout=self.chance.uniform(1, 4) if self.chance.random() < 0.5 else 300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.counts[f"{change}: the rewind killed"] += 1
        else:
            assert process.returncode == 0, said
            self.counts[f"{change}: the rewind"] += 1


@pytest.fixture
def changing(tmp_path: Path, request: pytest.FixtureRequest) -> Changing:
    sinks, _ = CASES[request.param]
    bootstrap = ""
    if "topic" in sinks:
        bootstrap = request.getfixturevalue("mortal_kafka").bootstrap
        KafkaTopic(bootstrap, "rows").create()
    return Changing(Lives(Life(str(tmp_path), bootstrap, sinks)), random.Random(SEED))


@pytest.mark.parametrize("changing", everyday(CASES, ["sinks that go back"]), indirect=True)
def test_every_row_is_there_once_whatever_is_changed_between_kills(
    changing: Changing, capsys: pytest.CaptureFixture[str]
) -> None:
    lives, changes = changing.lives, list(EVERYDAY)
    lives.arrive()
    if KILLS:
        changes = [changing.wanted[number % len(changing.wanted)] for number in range(KILLS)]
        changing.chance.shuffle(changes)
    for change in changes:
        changing.live(change)
    has_ended = False
    while not has_ended:
        with lives.driver(failing=DOWN, count=len(lives.ids), seed=changing.chance.randrange(1000)) as driver:
            line = driver.line()
            if not line.startswith(FAILED):
                assert line == "begun", line
                has_ended = driver.end()
    lives.check_exact()
    with capsys.disabled():
        sys.stdout.write(f"\n{len(lives.ids)} rows; {dict(changing.counts)}\n")
    done = {change for change in changing.wanted if changing.counts[change]}
    assert done >= {*changing.wanted} if KILLS else {*EVERYDAY}
