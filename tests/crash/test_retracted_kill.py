"""Kill a pipeline of changes at several points: tables hold the rows that hold, and their aggregates (design/0059)."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.crash.lives import MODES, Lives
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

EPOCHS = 8
LEAST = 300
CHAIN = (("carried", "after-decide:2"), ("staged", "publish-uncommitted:4"), ("carried", "after-publish:6"))
"""How a life stages its rows, and where it dies."""


def rows_of(epoch: int) -> list[dict[str, object]]:
    """Return the rows of a file: keys move from group to group, and below the least value and above it."""
    chance = random.Random(f"retracted {epoch}")
    return [
        {"k": chance.randrange(12), "t": epoch * 100 + number, "c": chance.choice("pqrs"), "v": chance.randrange(600)}
        for number in range(10)
    ]


def test_tables_behind_changes_are_exact_after_a_chain_of_kills(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    now: dict[object, tuple[str, int]] = {}
    seen = set()
    for epoch in range(EPOCHS):
        path = tmp_path / "in" / f"{epoch:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(epoch)))
        os.utime(path, (epoch, epoch))
        now |= {row["k"]: (str(row["c"]), int(str(row["v"]))) for row in rows_of(epoch)}
        seen |= {(key, *of) for key, of in now.items() if of[1] >= LEAST}
    lives = Lives(tmp_path, "retracted_pipeline", {})
    for mode, where in CHAIN:
        lives.environment |= MODES[mode]
        lives.die(where)
    assert lives.end() == 0, lives.said()
    large = sorted((key, *of) for key, of in now.items() if of[1] >= LEAST)
    assert len(large) < len({key for key, *_ in seen}), "no row leaves"
    assert sorted(sqlite_rows(tmp_path / "large.db", "SELECT k, c, v FROM large")) == large
    found = {group: [v for _, c, v in large if c == group] for group in {c for _, c, _ in large}}
    wanted = sorted((c, len(v), sum(v), min(v), max(v), len({*v})) for c, v in found.items())
    columns = "c, n, total, least, most, different"
    assert sorted(sqlite_rows(tmp_path / "groups.db", f"SELECT {columns} FROM groups")) == wanted
