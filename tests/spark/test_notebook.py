"""What a notebook does with runs: starts them twice, and looks at them (design/0033)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.spark.running import arrive, eventually, numbered, sqlite_rows

pytestmark = pytest.mark.spark

SRC = Path(hf.__file__).parents[1]


def pipeline_of(work: Path) -> hf.Pipeline:
    rows = hf.read.files(str(work / "in"), schema="id BIGINT, at TIMESTAMP", name="source")
    return hf.Pipeline("trips", rows | hf.write.sqlite(str(work / "out.db"), table="out", name="sink"))


def test_a_second_start_in_one_process_ends_the_first_run_as_fenced(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path / "in", "0.json", numbered(0, 10))
    first = pipeline_of(tmp_path).start(checkpoint=str(tmp_path / "ckpt"), session=spark)
    eventually(lambda: first.status().epoch == 1)
    eventually(lambda: first.status().doing == "waiting for files")
    second = pipeline_of(tmp_path).start(checkpoint=str(tmp_path / "ckpt"), session=spark)
    try:
        with pytest.raises(hf.Fenced) as fenced:
            first.wait(60)
        assert fenced.value.generation == 2
        assert first.status().state == "failed"
        arrive(tmp_path / "in", "1.json", numbered(10, 20))
        eventually(lambda: second.status().epoch == 2)
    finally:
        second.stop()
    assert second.wait(60)
    assert sqlite_rows(tmp_path / "out.db", "SELECT id FROM out") == list(range(20))


def test_a_run_follows_itself_to_its_end_and_draws_its_graph(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrive(tmp_path / "in", "0.json", numbered(0, 10))
    checkpoint = str(tmp_path / "ckpt")
    run = pipeline_of(tmp_path).start(checkpoint=checkpoint, session=spark, trigger=hf.available_now())
    assert run.progress(interval_s=0.05)
    assert capsys.readouterr().out.splitlines()[-1].startswith("trips stopped: epoch 1, 10 rows")
    html = run._repr_html_()
    assert "10 rows, epoch 1" in html
    assert str(tmp_path) not in html
    assert repr(run) == "<run of 'trips': generation 1, stopped>"


PROGRAM = """
import logging, sys
from pyspark.sql import SparkSession
import holdfast as hf
from holdfast.config import Settings

class Kept(logging.Handler):
    texts = []
    def emit(self, record):
        self.texts.append(record.getMessage())

logging.getLogger("holdfast.jvm").addHandler(Kept())
logging.getLogger("holdfast.jvm").setLevel(logging.INFO)
logging.getLogger("holdfast.jvm").propagate = False
settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.master": "local[1]"}
spark = SparkSession.builder.config(map=settings).getOrCreate()
configured = spark._jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getLoggers
before = set(configured().keySet())

def fail(batch):
    raise ValueError("password=hunter2")

rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
failing = rows | hf.map_batches(fail, schema="id BIGINT", name="failing")
pipeline = hf.Pipeline("trips", failing | hf.write.sqlite("out.db", table="t", name="t"))
sys.stderr.write("--- started\\n")
run = pipeline.start(checkpoint="ckpt", session=spark, settings=Settings(carry_max="0 B", prefetch_max="0 B"))
try:
    run.wait()
except hf.InvalidPipeline:
    sys.stderr.write("--- raised\\n")
said = "".join(Kept.texts)
print("TaskSetManager" in said, "Traceback" in said, "hunter2" in said, set(configured().keySet()) == before)
"""


@pytest.mark.slow
def test_in_a_session_of_the_users_our_part_prints_one_message(tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(SRC)}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    printed = answer.stderr.partition("--- started\n")[2].splitlines()
    assert printed == ["pipeline 'trips' failed: map_batches 'failing' raised ValueError.", "--- raised"]
    assert answer.stdout.split() == ["True", "True", "False", "True"]
