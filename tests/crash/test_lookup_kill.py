"""The table of a look-up changes between the plan of an epoch and its replay after SIGKILL (design/0030).

Without the log of versions the replay would see the table as it is then.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.crash.lives import MODES, Lives
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FILES = 4
NO_RECORDS = {"HOLDFAST_CONTROLLER_CHECKPOINT_FREQ": "3600000"}
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


def write_orders(work: Path, numbers: range) -> None:
    (work / "orders").mkdir(exist_ok=True)
    for number in numbers:
        row = {"id": number, "product": "tea", "t": number}
        path = work / "orders" / f"{number}.json"
        path.write_text(json.dumps(row) + "\n")
        os.utime(path, (number, number))


@pytest.mark.parametrize(("mode", "state", "point"), CASES)
def test_a_replayed_epoch_sees_the_version_that_it_saw(tmp_path: Path, mode: str, state: str, point: str) -> None:
    write_orders(tmp_path, range(FILES))
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


def test_totals_of_what_was_found_in_a_changing_table_survive_a_kill_and_the_loss_of_sparks_directory(
    tmp_path: Path,
) -> None:
    """No progress record tells of the epochs since the snapshot: the sink does (design/0018, "Recent epochs")."""
    die_after_a_snapshot(lives := Lives(tmp_path, "totals_pipeline", NO_RECORDS))
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    check_totals_go_on(lives)


def die_after_a_snapshot(lives: Lives) -> None:
    """Leave a snapshot of the first epoch, and die twice: when the sink holds two more, and when it holds another."""
    write_orders(lives.work, range(1))
    sqlite3.connect(lives.work / "prices.db").close()
    assert lives.end() == 0, lives.said()
    for last in (3, 4):
        write_orders(lives.work, range(1, last))
        assert lives.end(HOLDFAST_FAULT=f"after-publish:{last}") == -9, lives.said()
        lives.wait_for_survivors()


def check_totals_go_on(lives: Lives) -> None:
    """Run to the end with one more row; each total must be that of the prices in the sink."""
    write_orders(lives.work, range(4, 5))
    assert lives.end() == 0, lives.said()
    rows = sqlite_rows(lives.work / "out.db", "SELECT id, price, total FROM rows ORDER BY id")
    prices = [price for _, price, _ in rows]
    assert [number for number, _, _ in rows] == list(range(5))
    assert len(set(prices)) == 5, "each epoch saw another version"
    assert [total for _, _, total in rows] == [*accumulate(prices)]
