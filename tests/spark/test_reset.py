"""Start over, as docs/operations.md says: every row is in every sink once afterwards (design/0042)."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.config import Settings
from holdfast.errors import HoldfastError
from holdfast.starts.shadows.rebuilding import Rebuilding
from holdfast.starts.shadows.reconciling import Reconciling

pytestmark = pytest.mark.spark


def write_files(work: Path) -> None:
    """Write them anew: other times, so another log of files."""
    shutil.rmtree(work / "in", ignore_errors=True)
    (work / "in").mkdir()
    for number in range(3):
        (work / "in" / f"{number}.json").write_text(
            "".join(f"{json.dumps({'id': 10 * number + i})}\n" for i in range(10))
        )


def pipeline_of(work: Path) -> hf.Pipeline:
    rows = hf.read.files(work / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="rows")
    return hf.Pipeline(
        "over",
        rows | hf.write.sqlite(work / "out.db", table="rows", name="table"),
        rows | hf.write.files(work / "out", name="files"),
    )


def run(work: Path, spark: SparkSession) -> None:
    checkpoint = str(work / "checkpoint")
    pipeline_of(work).run(checkpoint=checkpoint, trigger=hf.available_now(), session=spark)


def check(work: Path) -> None:
    with closing(sqlite3.connect(work / "out.db")) as connection:
        ids = sorted(number for (number,) in connection.execute("SELECT id FROM rows"))
    assert ids == list(range(30))
    assert sorted(pyarrow.dataset.dataset(work / "out", format="parquet").to_table()["id"].to_pylist()) == ids


def reset(pipeline: hf.Pipeline, *names: str) -> None:
    for node in pipeline.sinks:
        if node.name in names:
            spec: Any = node.spec
            assert spec.reset(node.name, "over", rows=True, is_dry_run=False).removed


def test_targets_emptied_with_their_ledger_row_and_a_new_checkpoint_start_over(
    tmp_path: Path, spark: SparkSession
) -> None:
    """By hand, and only what the page names: what positions meant stays in the file, and explains nothing."""
    write_files(tmp_path)
    run(tmp_path, spark)
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection, connection:
        connection.execute("DELETE FROM rows")
        connection.execute("DELETE FROM holdfast_ledger")
    shutil.rmtree(tmp_path / "out")
    shutil.rmtree(tmp_path / "checkpoint")
    write_files(tmp_path)
    run(tmp_path, spark)
    check(tmp_path)


def test_after_a_reset_of_all_sinks_a_new_checkpoint_begins_at_the_beginning(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_files(tmp_path)
    run(tmp_path, spark)
    reset(pipeline_of(tmp_path), "table", "files")
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.before-reset-1")
    write_files(tmp_path)
    run(tmp_path, spark)
    check(tmp_path)


def test_after_a_reset_of_one_sink_it_is_rebuilt(tmp_path: Path, spark: SparkSession) -> None:
    write_files(tmp_path)
    run(tmp_path, spark)
    pipeline = pipeline_of(tmp_path)
    reset(pipeline, "table")
    with pytest.raises(HoldfastError, match="--rebuild"):
        run(tmp_path, spark)
    (node,) = (node for node in pipeline.sinks if node.name == "table")
    checkpoint, shadow = tmp_path / "checkpoint", tmp_path / "shadow"
    Rebuilding(Reconciling(pipeline, node, checkpoint, shadow, Settings(), session=spark)).do()
    run(tmp_path, spark)
    check(tmp_path)
