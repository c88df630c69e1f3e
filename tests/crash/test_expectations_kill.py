"""Kill a pipeline with expectations wherever it may be: its counts are exact right after each kill (design/0049, 9).

``HOLDFAST_JVM_KILLS`` says how many kills (2; 30 in ``make nightly``), ``HOLDFAST_SEED`` which.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from holdfast.commit.ledger import Standing, survey
from holdfast.store.local import LocalStore
from tests.crash.lives import MODES, Lives
from tests.everyday import everyday, seed_of_kills
from tests.spark.running import parquet_rows, sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

KILLS = int(os.environ.get("HOLDFAST_JVM_KILLS", "2"))
SEED = seed_of_kills(11)

ROWS_EACH = 12
AHEAD = 4
"""So many epochs of input are ahead of each life, at least."""
PLACES = (
    "after-decide:{}",
    "jvm:1",
    "after-publish:{}",
    "after-stage:{}",
    "moment:1",
    "before-forget:{}",
    "publish-begun:{}",
)
"""Where lives end, one after the other; the number is that of an epoch that this life is the first to evaluate."""

WAYS = {**MODES, "in Spark": {**MODES["carried"], "HOLDFAST_COLUMNAR": "false"}}

Rows = list[tuple[int, int | None]]
Counts = dict[str, tuple[int, int, int, int]]


def rows_of(epoch: int) -> Rows:
    """Return the rows of an epoch; more and less of them fail, and in some none."""
    chance = random.Random(f"expected {epoch}")
    speeds = [None, -5, 40, 80, 119, 130, 990, 2000] if epoch % 4 else [40, 80]
    return [(epoch * ROWS_EACH + number, chance.choice(speeds)) for number in range(ROWS_EACH)]


def write_input(work: Path, epochs: range) -> None:
    (work / "in").mkdir(exist_ok=True)
    for epoch in epochs:
        path = work / "in" / f"{epoch:03}.json"
        path.write_text("".join(json.dumps({"id": id_, "speed": speed}) + "\n" for id_, speed in rows_of(epoch)))
        os.utime(path, (epoch, epoch))


class Oracle:
    """What ledger and sinks must have after so many epochs, from a loop over rows."""

    def __init__(self, epochs: int) -> None:
        self.counts: list[Counts] = []
        self.good: list[list[int]] = [[]]
        self.bad: list[list[int]] = [[]]
        totals = dict.fromkeys(("known", "held", "valid", "kept"), (0, 0))
        for epoch in range(1, epochs + 1):
            rows = rows_of(epoch)
            valid = [id_ for id_, speed in rows if speed is not None and speed <= 120]
            good = [id_ for id_ in valid if id_ % 5]
            failed = {
                "known": (len(rows), sum(speed is None or speed < 0 for _, speed in rows)),
                "held": (len(rows), sum(speed is None or speed >= 1000 for _, speed in rows)),
                "valid": (len(rows), len(rows) - len(valid)),
                "kept": (len(valid), len(valid) - len(good)),
            }
            totals = {name: (totals[name][0] + of[0], totals[name][1] + of[1]) for name, of in failed.items()}
            self.counts.append({name: (*of, *totals[name]) for name, of in failed.items()})
            self.good.append([*self.good[-1], *good])
            self.bad.append([*self.bad[-1], *(id_ for id_, _ in rows if id_ not in valid)])


def counted(work: Path) -> dict[int, Counts]:
    """Return what the ledger has of each epoch that it has decided."""
    entries = survey(LocalStore(str(work / "checkpoint")))
    return {
        each.key.epoch: {name: tuple(of) for name, of in each.content.record.expected.items()}
        for each in entries
        if each.content is not None and each.standing is not Standing.VOID
    }


def check_whole_epochs(work: Path) -> int:
    """Assert that each decided epoch is counted once, and that each sink has whole ones; return the last decided."""
    found = counted(work)
    last = max(found, default=0)
    oracle = Oracle(last)
    assert found == {epoch: oracle.counts[epoch - 1] for epoch in found}
    assert sqlite_rows(work / "good.db") in oracle.good
    assert sqlite_rows(work / "bad.db") in oracle.bad
    return last


def check_all(work: Path, epochs: int) -> None:
    assert check_whole_epochs(work) == epochs
    oracle = Oracle(epochs)
    assert sqlite_rows(work / "good.db") == parquet_rows(work / "files") == oracle.good[-1]
    assert sqlite_rows(work / "bad.db") == oracle.bad[-1]


def test_the_input_tries_what_it_should() -> None:
    counts = Oracle(8).counts
    assert all(0 < counts[-1][name][3] < counts[-1][name][2] for name in ("known", "held", "valid", "kept"))
    assert {of["valid"][1] > 0.25 * of["valid"][0] for of in counts} == {True, False}, "broken, and met again"


@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize("way", everyday(WAYS, ["carried"]))
def test_counts_are_exact_right_after_each_kill(tmp_path: Path, way: str) -> None:
    lives = Lives(tmp_path, "expected_pipeline", WAYS[way])
    lives.chance = random.Random(f"{SEED} {way}")
    epochs, last = 0, 0
    for kill in range(KILLS):
        first, epochs = epochs + 1, max(epochs, lives.committed() + AHEAD)
        write_input(tmp_path, range(first, epochs + 1))
        lives.die(PLACES[kill % len(PLACES)].format(max(last, lives.committed()) + 1))
        lives.wait_for_survivors()
        last = max(last, check_whole_epochs(tmp_path))
    assert lives.end() == 0, lives.said()
    check_all(tmp_path, epochs)


def test_one_that_stops_is_held_to_by_every_life_and_leaves_nothing_of_its_epoch(tmp_path: Path) -> None:
    """The epoch that breaks it is staged by a life that is killed, and evaluated by one that is not."""
    broken = next(epoch for epoch in range(2, 9) if Oracle(epoch).counts[-1]["held"][1] > 0.2 * ROWS_EACH)
    write_input(tmp_path, range(1, broken + 2))
    lives = Lives(tmp_path, "expected_pipeline", {**MODES["staged"], "CRASH_STOPS_AT": "0.2"})
    assert lives.end(HOLDFAST_FAULT=f"after-stage:{broken}") == -9, lives.said()
    lives.wait_for_survivors()
    assert check_whole_epochs(tmp_path) == broken - 1
    assert lives.end() not in (0, -9)
    assert f"expectation 'held' of pipeline 'expected' is broken in epoch {broken}" in lives.said(10_000)
    check_all(tmp_path, broken - 1)
    assert lives.end(CRASH_STOPS_AT="1") == 0, lives.said()
    check_all(tmp_path, broken + 1)
