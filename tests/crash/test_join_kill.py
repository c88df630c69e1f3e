"""Kill a pipeline of a join at several points: every pair is there once, and so is every row without a partner."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.lives import MODES, Lives
from tests.crash.processes import ROOT
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

EPOCHS = 6
WITHIN = 12
CHAIN = (("carried", "after-decide:2"), ("staged", "publish-uncommitted:4"))
"""How a life stages its rows, and where it dies."""


def rows_of(side: str) -> list[list[dict[str, int]]]:
    """Return the rows of a source, file by file: mostly keys that occur once, within the disorder that is declared."""
    chance, value = random.Random(side), {"left": "v", "right": "w"}[side]
    return [
        [
            {"k": chance.randrange(80), "t": epoch * 20 + number + chance.randint(-2, 2), value: epoch * 100 + number}
            for number in range(20)
        ]
        for epoch in range(EPOCHS)
    ]


def expected() -> Counter[tuple[int, ...]]:
    """Return the rows of the full join, by its definition; -1 is null."""
    lefts, rights = ([row for rows in rows_of(side) for row in rows] for side in ("left", "right"))
    pairs = [(a, b) for a in lefts for b in rights if a["k"] == b["k"] and abs(a["t"] - b["t"]) <= WITHIN]
    found: Counter[tuple[int, ...]] = Counter((a["k"], a["v"], b["w"], max(a["t"], b["t"])) for a, b in pairs)
    found.update((a["k"], a["v"], -1, a["t"]) for a in lefts if all(a is not one for one, _ in pairs))
    found.update((b["k"], -1, b["w"], b["t"]) for b in rights if all(b is not one for _, one in pairs))
    return found


def begun(tmp_path: Path) -> Lives:
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        for number, rows in enumerate(rows_of(side)):
            path = tmp_path / side / f"{number:03}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (number, number))
    return Lives(tmp_path, "join_pipeline", {"CRASH_WITHIN": str(WITHIN)})


def check(lives: Lives) -> None:
    """Run to a good end, and look into the sink."""
    assert lives.end() == 0, lives.said()
    found = sqlite_rows(lives.work / "out.db", "SELECT k, ifnull(v, -1), ifnull(w, -1), at FROM pairs")
    assert Counter(map(tuple, found)) == expected()
    numbers = Counter(sqlite_rows(lives.work / "out.db", "SELECT k, n FROM pairs"))
    assert set(numbers.values()) == {1}, "the state behind it counts every row of a key once"


def test_a_join_is_exact_after_a_chain_of_kills(tmp_path: Path) -> None:
    lives = begun(tmp_path)
    for mode, where in CHAIN:
        lives.environment |= MODES[mode]
        lives.die(where)
    check(lives)


OTHERS = sorted(map(str, ROOT.glob("build/spark-*/.venv/bin/python")))
"""What ``make test-spark`` has made here: the same with other Sparks."""


@pytest.mark.nightly
@pytest.mark.parametrize("other", OTHERS)
def test_a_join_moves_to_another_spark_and_back_killed_in_each(tmp_path: Path, other: str) -> None:
    """Whatever the form of its log is: the next directory begins where sinks and state are (design/0052)."""
    lives = begun(tmp_path)
    for python, (mode, where) in zip((lives.python, other), CHAIN, strict=True):
        lives.environment |= MODES[mode]
        lives.python = python
        lives.die(where)
    lives.python = sys.executable
    check(lives)
