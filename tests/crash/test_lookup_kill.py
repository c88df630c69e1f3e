"""The table of a look-up changes between the plan of an epoch and its replay after SIGKILL (design/0030).

Without the log of versions the replay would see the table as it is then.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.crash.lives import MODES, Lives
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FILES = 4
CASES = [
    pytest.param("staged", "1", "after-stage:2", id="staged-state"),
    pytest.param("carried", "", "before-stage:2", id="carried", marks=pytest.mark.nightly),
    pytest.param("staged", "", "after-stage:2", id="staged", marks=pytest.mark.nightly),
    pytest.param("carried", "1", "before-state:2", id="carried-state", marks=pytest.mark.nightly),
    pytest.param("carried", "1", "publish-uncommitted:2", id="published-in-part", marks=pytest.mark.nightly),
]


def write_prices(work: Path, price: int) -> None:
    pq.write_table(pa.table({"product": ["tea"], "price": [price]}), work / ".prices.tmp")
    os.replace(work / ".prices.tmp", work / "prices.parquet")


@pytest.mark.parametrize(("mode", "state", "point"), CASES)
def test_a_replayed_epoch_sees_the_version_that_it_saw(tmp_path: Path, mode: str, state: str, point: str) -> None:
    (tmp_path / "orders").mkdir()
    for number in range(FILES):
        row = {"id": number, "product": "tea", "t": number}
        path = tmp_path / "orders" / f"{number}.json"
        path.write_text(json.dumps(row) + "\n")
        os.utime(path, (number, number))
    write_prices(tmp_path, 1)
    lives = Lives(tmp_path, "lookup_pipeline", {**MODES[mode], "CRASH_STATE": state})
    assert lives.end(HOLDFAST_FAULT=point) == -9, lives.said()
    lives.wait_for_survivors()
    write_prices(tmp_path, 2)
    assert lives.end() == 0, lives.said()
    prices = {0: 1, 1: 1, 2: 2, 3: 2}  # epoch 2 was planned before the table changed, and evaluated again after it
    columns = "id, price, again" if state else "id, price"
    wanted = [(number, price, price) if state else (number, price) for number, price in prices.items()]
    assert sqlite_rows(tmp_path / "out.db", f"SELECT {columns} FROM rows ORDER BY id") == wanted
