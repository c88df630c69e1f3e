"""``holdfast plan`` where only Spark can say what a stateful operator is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.target import load_target
from tests.spark.running import arrive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import holdfast as hf

rides = hf.read.files("in/*.json", schema="city STRING, km DOUBLE", name="rides")
priced = rides | hf.select("*", price="round(2 + km * 1.5, 2)", name="priced")
sums = priced | hf.reduce(by="city", total=hf.sum("price"), name="per_city")
pipeline = hf.Pipeline("trips", sums | hf.write.sqlite("trips.db", table="trips", name="trips"))
"""


def test_a_plan_in_a_process_of_its_own_asks_spark_what_an_expression_gives(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    Path("flows.py").write_text(SCRIPT)
    arrive(tmp_path / "in", "1.json", [{"city": "Ulm", "km": 3.1}])
    load_target("flows.py").run(checkpoint="c", trigger=hf.available_now(), session=spark)
    answer = subprocess.run(
        [sys.executable, "-m", "holdfast", "plan", "flows.py", "--checkpoint", "c", "-v"],
        env={**os.environ, "HOLDFAST_MASTER": "local[1]"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("pipeline 'trips' continues in spark/1, with all its state.\n")
    assert "  kept     stateful operator per_city: keeps its state\n" in answer.stdout
