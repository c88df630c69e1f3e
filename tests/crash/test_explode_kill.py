"""SIGKILL with generators downstream of a fan-out: each of their rows is in its sink once (design/0034)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.crash.lives import MODES, Lives
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

FILES = 3
CASES = [
    pytest.param("staged", "publish-uncommitted:2", id="staged-published-in-part"),
    pytest.param("staged", "after-stage:2", id="staged"),
    pytest.param("carried", "publish-uncommitted:2", id="carried-published-in-part"),
]


@pytest.mark.parametrize(("mode", "point"), CASES)
def test_every_row_that_a_generator_gives_is_there_once(tmp_path: Path, mode: str, point: str) -> None:
    (tmp_path / "orders").mkdir()
    for number in range(FILES):
        rows = [{"id": number * 10 + row, "lines": ["x"] * row} for row in range(3)]
        path = tmp_path / "orders" / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (number, number))
    lives = Lives(tmp_path, "explode_pipeline", MODES[mode])
    assert lives.end(HOLDFAST_FAULT=point) == -9, lives.said()
    lives.wait_for_survivors()
    assert lives.end() == 0, lives.said()
    ids = [number * 10 + row for number in range(FILES) for row in range(3)]
    lines = [(order, place) for order in ids for place in range(order % 10)]
    assert sqlite_rows(tmp_path / "out.db", "SELECT id, i FROM lines ORDER BY id, i") == lines
    both = sorted((order, value) for order in ids for value in (order, -order))
    assert sqlite_rows(tmp_path / "stacked.db", "SELECT id, v FROM stacked ORDER BY id, v") == both
    assert sqlite_rows(tmp_path / "plain.db", "SELECT id FROM orders ORDER BY id") == ids
