"""Kill a pipeline of a join at several points: every pair is there once, and so is every row without a partner."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.lives import MODES, Lives
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


def test_a_join_is_exact_after_a_chain_of_kills(tmp_path: Path) -> None:
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        for number, rows in enumerate(rows_of(side)):
            path = tmp_path / side / f"{number:03}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (number, number))
    lives = Lives(tmp_path, "join_pipeline", {"CRASH_WITHIN": str(WITHIN)})
    for mode, where in CHAIN:
        lives.environment |= MODES[mode]
        lives.die(where)
    assert lives.end() == 0, lives.said()
    found = sqlite_rows(tmp_path / "out.db", "SELECT k, ifnull(v, -1), ifnull(w, -1), at FROM pairs")
    assert Counter(map(tuple, found)) == expected()
    numbers = Counter(sqlite_rows(tmp_path / "out.db", "SELECT k, n FROM pairs"))
    assert set(numbers.values()) == {1}, "the state behind it counts every row of a key once"
