"""A start compares its sinks with what they should hold, and mends them, before the pipeline goes on (design/0028)."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.schemas import noted_schema
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.errors import InvalidPipeline
from holdfast.ports import RunIdentity
from holdfast.spark.run import Run
from holdfast.store.paths import open_store
from tests.spark.test_reconcile import PER_FILE, give, source

pytestmark = pytest.mark.spark


def spread(work: Path) -> hf.Pipeline:
    """Return a pipeline whose sinks are of all kinds that can be compared, but one."""
    kept = source(work) | hf.row_id("id", name="identified")
    sums = kept | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="sums")
    return hf.Pipeline(
        "spread",
        kept | hf.write.sqlite(work / "rows.db", table="t", name="rows"),
        sums | hf.write.sqlite(work / "sums.db", table="t", mode="upsert", key="k", name="by_key"),
        kept | hf.write.files(work / "files", name="files"),
        kept | hf.write.segments(work / "segments", seal=[hf.segments.rows(50)], name="segments"),
        kept | hf.write.files(work / "lines", format="json", name="lines"),
    )


def expected_ids(file_count: int) -> list[int]:
    """Return the ids that pass the filter, computed without the pipeline."""
    return [i for i in range(file_count * PER_FILE) if i % 10 != 3]


def expected_sums(file_count: int) -> dict[int, tuple[int, float]]:
    found: dict[int, tuple[int, float]] = {}
    for number in expected_ids(file_count):
        k, v = number % PER_FILE % 7, float(number % PER_FILE)
        n, total = found.get(k, (0, 0.0))
        found[k] = n + 1, total + v
    return found


def asked(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def ids_below(directory: Path) -> Counter[int]:
    files = [path for path in directory.rglob("*.parquet") if "_holdfast" not in path.parts]
    return Counter(number for path in files for number in pq.ParquetFile(path).read(["id"])["id"].to_pylist())


def ids_of_segments(work: Path) -> Counter[int]:
    return Counter(hf.segments.open(work / "segments").to_arrow()["id"].to_pylist())


def spoil(work: Path) -> None:
    """Remove, change and double rows of each sink by hand."""
    asked(work / "rows.db", "DELETE FROM t WHERE id IN (7, 108)")
    asked(work / "rows.db", "UPDATE t SET v = -1 WHERE id IN (12, 115, 199)")
    asked(work / "rows.db", "INSERT INTO t SELECT * FROM t WHERE id = 44")
    asked(work / "sums.db", "UPDATE t SET total = -1 WHERE k = 2")
    asked(work / "sums.db", "DELETE FROM t WHERE k = 3")
    asked(work / "sums.db", "INSERT INTO t (k, n, total) VALUES (99, 1, 0)")
    file = min(path for path in (work / "files").rglob("*.parquet") if "_holdfast" not in path.parts)
    rows = pq.ParquetFile(file).read()
    pq.write_table(rows.slice(5), file)
    pq.write_table(rows.slice(10, 3), work / "files/by-hand.parquet")
    sealed = min(path for path in (work / "segments").rglob("*.parquet") if "_holdfast" not in path.parts)
    sealed.unlink()


def seal(pipeline: hf.Pipeline, work: Path) -> None:
    """Seal what is due in the segments: the thread of a run that has ended may not have come to it."""
    (spec,) = (node.spec for node in pipeline.sinks if isinstance(node.spec, SegmentsSinkSpec))
    schema = noted_schema(open_store(str(work / "checkpoint")), "segments")
    assert schema is not None
    with closing(spec.connected("segments", pipeline.name, schema, is_tended=False)) as sink:
        sink.open(RunIdentity(pipeline.name, 50))
        sink.sealing.tend()


def found(run: Run) -> dict[str, tuple[int, int, int, int]]:
    return {
        each.sink: (each.missing, each.extra, each.changed, each.repaired)
        for each in run.status().compared
        if not each.why_not
    }


def start(pipeline: hf.Pipeline, work: Path, spark: SparkSession, **options: Any) -> Run:
    return pipeline.run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, **options)


def check(work: Path, file_count: int) -> None:
    """See that every sink holds what an independent computation says."""
    ids = Counter(expected_ids(file_count))
    assert Counter(number for (number,) in asked(work / "rows.db", "SELECT id FROM t")) == ids
    assert asked(work / "rows.db", "SELECT count(*) FROM t WHERE v < 0") == [(0,)]
    sums = {k: (n, total) for k, n, total in asked(work / "sums.db", "SELECT k, n, total FROM t")}
    assert sums == expected_sums(file_count)
    assert ids_below(work / "files") == ids
    assert ids_of_segments(work) == ids


def test_what_others_did_to_the_sinks_is_mended_before_the_pipeline_goes_on(
    tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = spread(tmp_path)
    give(tmp_path, 0, 1)
    start(pipeline, tmp_path, spark)
    check(tmp_path, 2)
    spoil(tmp_path)
    give(tmp_path, 2)
    run = start(pipeline, tmp_path, spark, compare_on_start=True)
    check(tmp_path, 3)
    first = expected_ids(1)
    missing = sum(1 for _ in first[:5])
    by_sink = found(run)
    assert by_sink["rows"] == (2, 1, 3, 2 + 1 + 2 * 3)
    assert by_sink["by_key"] == (1, 1, 1, 1 + 1 + 1)
    assert by_sink["files"] == (missing, 3, 0, missing + 3)
    assert by_sink["segments"][0] == by_sink["segments"][3] > 0, "a sealed file is written again"
    told = {each.sink: each.why_not for each in run.status().compared}
    assert [name for name, why in told.items() if why] == ["lines"]
    assert run.status().as_json()["compared"][0]["missing"] == 2
    assert not (tmp_path / "checkpoint-compared").exists()
    run = start(pipeline, tmp_path, spark, compare_on_start=["rows"])
    assert found(run) == {"rows": (0, 0, 0, 0)}


def test_a_comparison_does_not_keep_lost_rows_from_coming_again(tmp_path: Path, spark: SparkSession) -> None:
    kept = source(tmp_path) | hf.row_id("id", name="identified")
    pipeline = hf.Pipeline(
        "spread",
        kept | hf.write.sqlite(tmp_path / "rows.db", table="t", name="rows"),
        kept | hf.write.segments(tmp_path / "segments", seal=[hf.segments.rows(100)], name="segments"),
    )
    give(tmp_path, 0, 1)
    start(pipeline, tmp_path, spark)
    seal(pipeline, tmp_path)
    give(tmp_path, 2)  # too few to be sealed
    start(pipeline, tmp_path, spark)
    journal = [path for path in (tmp_path / "segments").rglob("*.rows") if path.is_file()]
    assert journal
    for path in journal:
        path.unlink()
    asked(tmp_path / "rows.db", "DELETE FROM t WHERE id = 7")
    run = start(pipeline, tmp_path, spark, compare_on_start=True)
    assert found(run) == {"rows": (1, 0, 0, 1)}
    told = {each.sink: each.why_not for each in run.status().compared}
    assert "come again" in told["segments"]
    assert ids_of_segments(tmp_path) == Counter(expected_ids(3))
    run = start(pipeline, tmp_path, spark, compare_on_start=["segments"])
    assert found(run) == {"segments": (0, 0, 0, 0)}


def test_a_sink_that_was_asked_for_and_cannot_be_compared_is_refused_before_anything_is_done(
    tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = spread(tmp_path)
    give(tmp_path, 0)
    start(pipeline, tmp_path, spark)
    generation = asked(tmp_path / "rows.db", "SELECT generation FROM holdfast_ledger")
    with pytest.raises(InvalidPipeline, match="cannot be compared with what it should hold"):
        start(pipeline, tmp_path, spark, compare_on_start=["rows", "lines"])
    (tmp_path / "in/000.json").unlink()
    with pytest.raises(InvalidPipeline, match="cannot be computed from its sources"):
        start(pipeline, tmp_path, spark, compare_on_start=["rows"])
    assert asked(tmp_path / "rows.db", "SELECT generation FROM holdfast_ledger") == generation, "nobody was fenced"
    run = start(pipeline, tmp_path, spark, compare_on_start=True)
    assert found(run) == {}
    told = {each.sink: each.why_not for each in run.status().compared}
    assert "cannot be computed from its sources" in told["rows"], "none was named: the pipeline goes on"


def test_with_digests_alone_the_same_rows_are_found_and_mended(tmp_path: Path, spark: SparkSession) -> None:
    """What is computed first has no rows; then there are those of the buckets that differ."""
    kept = source(tmp_path) | hf.row_id("id", name="identified")
    sums = kept | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="sums")
    pipeline = hf.Pipeline(
        "spread",
        kept | hf.write.sqlite(tmp_path / "rows.db", table="t", name="rows"),
        sums | hf.write.sqlite(tmp_path / "sums.db", table="t", mode="upsert", key="k", name="by_key"),
    )
    give(tmp_path, 0, 1)
    start(pipeline, tmp_path, spark)
    asked(tmp_path / "rows.db", "DELETE FROM t WHERE id IN (7, 108)")
    asked(tmp_path / "rows.db", "INSERT INTO t SELECT * FROM t WHERE id = 44")
    asked(tmp_path / "sums.db", "UPDATE t SET total = -1 WHERE k = 2")
    asked(tmp_path / "sums.db", "DELETE FROM t WHERE k = 3")
    give(tmp_path, 2)
    run = start(pipeline, tmp_path, spark, compare_on_start=True, digests_only=True)
    assert found(run) == {"rows": (2, 1, 0, 3), "by_key": (1, 0, 1, 2)}
    ids = Counter(expected_ids(3))
    assert Counter(number for (number,) in asked(tmp_path / "rows.db", "SELECT id FROM t")) == ids
    by_key = {k: (n, total) for k, n, total in asked(tmp_path / "sums.db", "SELECT k, n, total FROM t")}
    assert by_key == expected_sums(3)
