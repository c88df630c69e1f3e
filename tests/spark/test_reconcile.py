"""A sink is spoilt by somebody else; what differs from the sources is found exactly, and repaired (design/0024)."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.cli.reconcile import lines
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.reconcile.report import Reconciled
from holdfast.starts.rewind import Rewinding
from holdfast.starts.shadows.rebuilding import Rebuilding
from holdfast.starts.shadows.reconciling import Reconciling
from holdfast.store.paths import open_store
from tests.spark.running import arrive

pytestmark = pytest.mark.spark

PER_FILE = 100


def give(work: Path, *numbers: int) -> None:
    for number in numbers:
        rows = [{"id": number * PER_FILE + i, "k": i % 7, "v": float(i), "at": f"2026-01-{number + 1:02}T00:00:00Z"}
                for i in range(PER_FILE)]  # fmt: skip
        arrive(work / "in", f"{number:03}.json", rows, at=number)


def source(work: Path) -> hf.Stream:
    schema = "id BIGINT, k BIGINT, v DOUBLE, at TIMESTAMP"
    rows = hf.read.files(work / "in", format="json", schema=schema, timestamp="at", max_files_per_epoch=1, name="given")
    return rows | hf.filter("id % 10 <> 3", name="kept")


def run(pipeline: hf.Pipeline, work: Path, spark: SparkSession) -> None:
    pipeline.run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark)


def reconciling(pipeline: hf.Pipeline, work: Path, spark: SparkSession, sink: str = "table") -> Reconciling:
    (node,) = (node for node in pipeline.sinks if node.name == sink)
    return Reconciling(pipeline, node, work / "checkpoint", work / f"shadow-{sink}", Settings(), session=spark)


def counts(found: Reconciled) -> tuple[int, int, int]:
    return found.missing_count, found.changed_count, found.extra_count


def test_of_a_table_without_ids_rows_that_lack_and_rows_that_are_too_many_are_found_and_repaired(
    tmp_path: Path, spark: SparkSession, postgres_plain: str
) -> None:
    give(tmp_path, 0, 1, 2)
    identified = source(tmp_path) | hf.row_id("id", name="identified")
    pipeline = hf.Pipeline("compared", identified | hf.write.postgres(postgres_plain, table="compared", name="table"))
    run(pipeline, tmp_path, spark)
    asked = reconciling(pipeline, tmp_path, spark)
    found = asked.look()
    assert (found.is_equal, found.epoch, found.actual_count, found.fetched_count) == (True, 3, 270, 0)
    with psycopg.connect(postgres_plain, autocommit=True) as connection:
        connection.execute("DELETE FROM compared WHERE id IN (7, 108, 209)")
        connection.execute("UPDATE compared SET v = v + 1 WHERE id IN (12, 115)")
        connection.execute("INSERT INTO compared SELECT * FROM compared WHERE id = 44")
    found = asked.look()
    assert counts(found) == (3, 2, 1)
    assert [kind for kind, _, _ in found.examples] == ["changed"] * 2 + ["missing"] * 3 + ["extra"]
    assert asked.repair().repaired_count == 2 * 2 + 3 + 1
    assert asked.look().is_equal
    give(tmp_path, 3)
    run(pipeline, tmp_path, spark)
    found = asked.look()
    assert (found.is_equal, found.epoch, found.actual_count) == (True, 4, 360)


def test_what_comes_out_of_state_is_compared_too_and_the_checkpoint_is_not_needed(
    tmp_path: Path, spark: SparkSession
) -> None:
    give(tmp_path, 0, 1, 2)
    summed = source(tmp_path) | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="sums")
    to_table = hf.write.sqlite(tmp_path / "out.db", table="sums", mode="upsert", key="k", name="table")
    pipeline = hf.Pipeline("summed", summed | to_table)
    run(pipeline, tmp_path, spark)
    shutil.rmtree(tmp_path / "checkpoint")
    with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as connection:
        connection.execute("UPDATE sums SET total = -1 WHERE k = 2")
        connection.execute("DELETE FROM sums WHERE k = 3")
        connection.execute("INSERT INTO sums (k, n, total) VALUES (99, 1, 0)")
    asked = reconciling(pipeline, tmp_path, spark)
    assert counts(asked.look()) == (1, 1, 1)
    assert asked.repair().repaired_count == 1 + 1 + 1
    assert asked.look().is_equal


@pytest.mark.parametrize("kind", ["files", "segments"])
def test_a_directory_is_compared_and_repaired_by_who_does_not_run_it(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    give(tmp_path, 0, 1, 2)
    out = tmp_path / "out"
    rows = source(tmp_path) | hf.select("id", "cast(k AS STRING) AS k", "v", "at", name="texts")
    if kind == "files":
        sink = hf.write.files(out, partition_by="k", name="table")
    else:
        sink = hf.write.segments(out, partition_by="k", seal=[hf.segments.rows(30)], name="table")
    pipeline = hf.Pipeline("listed", rows | sink)
    run(pipeline, tmp_path, spark)
    asked = reconciling(pipeline, tmp_path, spark)
    found = asked.look()
    assert (found.is_equal, found.epoch, found.actual_count) == (True, 3, 270)
    assert "column k: an empty text is null there, and is taken for that on both sides" in lines(found)
    gone, changed = (next((out / f"k={k}").glob("*.parquet")) for k in (1, 2))
    missing_count = pq.read_metadata(gone).num_rows
    gone.unlink()
    rows = pq.ParquetFile(changed).read()
    pq.write_table(pa.concat_tables([rows.slice(1), rows.slice(0, 1), rows.slice(2, 3)]), changed)
    (out / "k=9").mkdir()
    pq.write_table(rows.slice(0, 2), out / "k=9" / "by-hand.parquet")
    assert counts(asked.look()) == (missing_count, 0, 3 + 2)
    assert asked.repair().repaired_count == missing_count + 5
    assert asked.look().is_equal
    give(tmp_path, 3)
    run(pipeline, tmp_path, spark)
    found = asked.look()
    assert (found.is_equal, found.epoch, found.actual_count) == (True, 4, 360)


def test_a_sink_is_compared_while_the_pipeline_runs(tmp_path: Path, spark: SparkSession) -> None:
    """The view is of one moment, and the expected content goes there, wherever that is."""
    give(tmp_path, *range(4))
    pipeline = hf.Pipeline("alive", source(tmp_path) | hf.write.sqlite(tmp_path / "out.db", table="t", name="table"))
    alive = pipeline.start(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.every("0 s"), session=spark)
    try:
        asked = reconciling(pipeline, tmp_path, spark)
        epochs = []
        for number in range(4, 7):
            while alive.status().epoch < number:
                assert alive.is_active
            give(tmp_path, number)
            found = asked.look()
            assert found.is_equal
            epochs.append(found.epoch)
    finally:
        alive.stop()
    assert epochs == sorted(epochs)
    assert epochs[0] >= 4


@pytest.mark.parametrize("loss", ["gone", pytest.param("restored", marks=pytest.mark.nightly)])
def test_a_sink_that_was_lost_is_rebuilt_and_the_pipeline_goes_on(
    tmp_path: Path, spark: SparkSession, loss: str
) -> None:
    give(tmp_path, 0)
    rows = source(tmp_path)
    pipeline = hf.Pipeline(
        "lost",
        rows | hf.write.sqlite(tmp_path / "out.db", table="t", name="table"),
        rows | hf.write.files(tmp_path / "out", name="archive"),
    )
    run(pipeline, tmp_path, spark)
    backup = sqlite3.connect(tmp_path / "backup.db")
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection, closing(backup):
        connection.backup(backup)
    give(tmp_path, 1, 2)
    run(pipeline, tmp_path, spark)
    for file in tmp_path.glob("out.db*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    if loss == "restored":
        (tmp_path / "backup.db").rename(tmp_path / "out.db")
    else:
        with pytest.raises(HoldfastError, match="holds nothing"):
            run(pipeline, tmp_path, spark)
        with pytest.raises(InvalidPipeline, match="--rebuild"):
            reconciling(pipeline, tmp_path, spark).look()
    asked = reconciling(pipeline, tmp_path, spark)
    found = Rebuilding(asked).do()
    assert (found.missing_count, found.extra_count) == (270 if loss == "gone" else 180, 0)
    assert asked.look().is_equal
    give(tmp_path, 3)
    run(pipeline, tmp_path, spark)
    for sink in ("table", "archive"):
        found = reconciling(pipeline, tmp_path, spark, sink).look()
        assert (found.is_equal, found.epoch, found.actual_count) == (True, 4, 360)
    with pytest.raises(InvalidPipeline, match="need not be rebuilt"):
        Rebuilding(asked).do()


def test_a_source_that_was_pruned_is_named(tmp_path: Path, spark: SparkSession) -> None:
    give(tmp_path, 0, 1)
    pipeline = hf.Pipeline("pruned", source(tmp_path) | hf.write.sqlite(tmp_path / "out.db", table="t", name="table"))
    run(pipeline, tmp_path, spark)
    (tmp_path / "in/000.json").unlink()
    with pytest.raises(InvalidPipeline, match="cannot be computed from its sources") as caught:
        reconciling(pipeline, tmp_path, spark).look()
    assert "000.json" in caught.value.why


SUMS = "SELECT k, n, total FROM sums ORDER BY k"


def summed(work: Path) -> hf.Pipeline:
    sums = source(work) | hf.reduce(by="k", n=hf.count(), total=hf.sum("id"), name="sums")
    return hf.Pipeline(
        "summed",
        sums | hf.write.sqlite(work / "out.db", table="sums", mode="upsert", key="k", name="table"),
        sums | hf.write.files(work / "out", name="changes"),
    )


def table(work: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(work / "out.db")) as connection:
        return connection.execute(SUMS).fetchall()


@pytest.mark.parametrize("dies", [pytest.param("", marks=pytest.mark.nightly), "repair-uncommitted"])
def test_a_table_of_upserts_is_taken_back_and_what_dies_on_the_way_is_finished_by_the_next_start(
    tmp_path: Path, spark: SparkSession, dies: str
) -> None:
    pipeline = summed(tmp_path)
    then = []
    for number in range(4):
        give(tmp_path, number)
        run(pipeline, tmp_path, spark)
        then.append(table(tmp_path))
    rewinding = Rewinding(
        pipeline, open_store(str(tmp_path / "checkpoint")), tmp_path / "checkpoint", Settings(), session=spark
    )
    planned = rewinding.plan("2")
    assert (planned.sinks["table"].row_count, planned.sinks["table"].is_recomputed) == (7, True)
    assert table(tmp_path) == then[3]
    if dies == "repair-uncommitted":
        faults.install(lambda point, epoch: _die(point == dies))
        with pytest.raises(RuntimeError):
            rewinding.do("2")
        faults.install(None)
        assert table(tmp_path) == then[3]
        assert rewinding.is_unfinished
    else:
        rewinding.do("2")
        assert table(tmp_path) == then[1]
    run(pipeline, tmp_path, spark)
    assert table(tmp_path) == then[3]
    assert reconciling(pipeline, tmp_path, spark).look().is_equal


def _die(is_time: bool) -> None:
    if is_time:
        raise RuntimeError("killed")


def test_what_segments_hold_is_compared_and_repaired(tmp_path: Path, spark: SparkSession) -> None:
    give(tmp_path, 0, 1)
    pipeline = hf.Pipeline("cut", source(tmp_path) | hf.write.segments(tmp_path / "out", name="table"))
    run(pipeline, tmp_path, spark)
    asked = reconciling(pipeline, tmp_path, spark)
    found = asked.look()
    assert (found.is_equal, found.actual_count) == (True, 180)
    (lost, *_) = sorted((tmp_path / "out").rglob("*.parquet"))
    lost.unlink()
    found = asked.look()
    assert found.missing_count > 0
    assert asked.repair().repaired_count == found.missing_count
    assert asked.look().is_equal
    give(tmp_path, 2)
    run(pipeline, tmp_path, spark)
    assert asked.look().is_equal
