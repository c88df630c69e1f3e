"""What a notebook does with runs: starts them twice, and looks at them (design/0033)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.spark.running import arrive, eventually, numbered, sqlite_rows

pytestmark = pytest.mark.spark


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
