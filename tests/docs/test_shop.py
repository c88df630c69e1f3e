"""The shop: killed amid an epoch and started again, it holds exactly what arrived; and who looks, notices."""

import runpy
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

import holdfast as hf
from examples.shop.generate import deliveries, write
from examples.shop.verify import EXPECTED, verify
from tests.docs.pages import ROOT, environment

PIPELINE = ROOT / "examples" / "shop" / "pipeline.py"


def killed(work):
    """Run the shop in a process of its own, until it is killed; return how that ended."""
    command = [sys.executable, "-m", "holdfast", "run", str(PIPELINE), "--checkpoint", str(work / "checkpoint")]
    dies = {
        "SHOP_WORK": str(work),
        "HOLDFAST_FAULT": "after-publish:4",
    }  # one sink has epoch 4, and the others have not
    ended = subprocess.run([*command, "--available-now"], env=environment() | dies, capture_output=True, check=False)
    return ended.returncode


@pytest.mark.spark
def test_a_shop_that_was_killed_holds_what_arrived(tmp_path, spark, monkeypatch):
    day = deliveries(seed=3, order_count=400, hours=1)
    for tick in range(len(day["orders"])):
        write(day, tmp_path / "in", tick)
    assert killed(tmp_path) == -signal.SIGKILL
    assert not all(verdict.is_exact for verdict in verify(tmp_path))
    monkeypatch.setenv("SHOP_WORK", str(tmp_path))
    shop = runpy.run_path(str(PIPELINE))["pipeline"]
    shop.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now())
    verdicts = verify(tmp_path)
    assert [verdict.name for verdict in verdicts] == list(EXPECTED)
    assert all(verdict.is_exact and verdict.held for verdict in verdicts), verdicts

    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("INSERT INTO sales SELECT * FROM sales LIMIT 1")
        database.execute("DELETE FROM open_orders WHERE order_id = (SELECT min(order_id) FROM open_orders)")
        database.execute("UPDATE revenue SET cents = cents + 1 WHERE country = 'DE'")
    found = {verdict.name: verdict for verdict in verify(tmp_path)}
    assert (found["sales"].duplicates, found["open_orders"].lost) == (1, 1)
    assert found["revenue"].differences > 1
    assert found["bad_rows"].is_exact


def test_the_same_seed_delivers_the_same_files():
    assert deliveries(seed=5, order_count=50) == deliveries(seed=5, order_count=50)
    assert deliveries(seed=5, order_count=50) != deliveries(seed=6, order_count=50)
