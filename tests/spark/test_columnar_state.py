"""State in Spark (design/0010): what a stateful operator of any kind is promised by its host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.state.labels import label
from tests.spark.counting import counting
from tests.spark.running import MODES, arrive, reach, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, v BIGINT"


def epochs(*given: str) -> list[list[dict[str, Any]]]:
    """Return rows: one epoch for each text, one row for each letter; a capital letter is too late."""
    return [[{"k": letter.lower(), "v": -1 if letter.isupper() else 1} for letter in text] for text in given]


def run(pipeline: hf.Pipeline, tmp_path: Path, spark: SparkSession, settings: Any = None) -> Any:
    return pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=settings)


@pytest.mark.parametrize("mode", MODES)
def test_state_lives_from_epoch_to_epoch(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    stream = hf.read.rows(epochs("aab", "bc", "a"), schema=SCHEMA, name="given")
    counted = counting(stream)
    pipeline = hf.Pipeline("counts", counted | hf.write.sqlite(tmp_path / "out.db", table="rows", name="out"))
    run(pipeline, tmp_path, spark, MODES[mode])
    found = sqlite_rows(tmp_path / "out.db", "SELECT epoch, k, n FROM rows")
    assert found == [(1, "a", 2), (1, "b", 1), (2, "b", 2), (2, "c", 1), (3, "a", 3)]


def test_one_operator_with_late_rows_and_a_fan_out_has_one_state(spark: SparkSession, tmp_path: Path) -> None:
    given = hf.read.rows(epochs("aaB", "bA"), schema=SCHEMA, name="given")
    counted = counting(given)
    db = tmp_path / "out.db"
    pipeline = hf.Pipeline(
        "branches",
        counted | hf.write.sqlite(db, table="every", name="every"),
        counted | hf.filter("n > 1") | hf.select("k", "n", "epoch") | hf.write.sqlite(db, table="many", name="many"),
        counted.late | hf.write.sqlite(db, table="late", name="late"),
        given | hf.filter("v < 0") | hf.write.sqlite(db, table="plain", name="plain"),
    )
    run(pipeline, tmp_path, spark)
    assert sqlite_rows(db, "SELECT epoch, k, n FROM every") == [(1, "a", 2), (2, "b", 1)]
    assert sqlite_rows(db, "SELECT k, n, epoch FROM many") == [("a", 2, 1)]
    assert sqlite_rows(db, "SELECT k, v, input FROM late") == [("a", -1, "rows"), ("b", -1, "rows")]
    assert sqlite_rows(db, "SELECT k, v FROM plain") == [("a", -1), ("b", -1)]


def test_two_operators_in_sequence_and_two_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    left = hf.read.rows(epochs("ab", "a", "c"), schema=SCHEMA, name="left")
    right = hf.read.rows(epochs("b", "ac"), schema=SCHEMA, name="right")
    first = counting(left, right, name="first")
    second = counting(first | hf.filter("n > 1"), right, name="second")
    beside = counting(hf.union(left, right, name="both"), name="beside")
    db = tmp_path / "out.db"
    pipeline = hf.Pipeline(
        "sequence",
        first | hf.write.sqlite(db, table="first", name="first_table"),
        second | hf.write.sqlite(db, table="second", name="second_table"),
        beside | hf.write.sqlite(db, table="beside", name="beside_table"),
    )
    run(pipeline, tmp_path, spark, MODES["staged"])
    assert sqlite_rows(db, "SELECT epoch, k, n, inputs FROM first") == [
        (1, "a", 1, "left"),
        (1, "b", 2, "leftright"),
        (2, "a", 3, "leftright"),
        (2, "c", 1, "right"),
        (3, "c", 2, "left"),
    ]
    assert sqlite_rows(db, "SELECT epoch, k, n FROM second") == [
        (1, "b", 2),
        (2, "a", 2),
        (2, "c", 1),
        (3, "c", 2),
    ]
    assert sqlite_rows(db, "SELECT epoch, k, n FROM beside") == [
        (1, "a", 1),
        (1, "b", 2),
        (2, "a", 3),
        (2, "c", 1),
        (3, "c", 2),
    ]


def test_an_operator_that_only_spark_evaluates_may_stand_before_the_state(spark: SparkSession, tmp_path: Path) -> None:
    given = hf.read.rows(epochs("aab", "b"), schema=SCHEMA, name="given", timestamp="v")
    upper = given | hf.map(lambda rows: rows.withColumn("k", rows.k.substr(1, 1)), name="mapped")
    counted = counting(upper)
    db = tmp_path / "out.db"
    pipeline = hf.Pipeline(
        "mapped",
        counted | hf.write.sqlite(db, table="rows", name="out"),
        upper | hf.write.sqlite(db, table="plain", name="plain"),
    )
    status = run(pipeline, tmp_path, spark).status()
    assert sqlite_rows(db, "SELECT epoch, k, n FROM rows") == [(1, "a", 2), (1, "b", 1), (2, "b", 2)]
    assert sqlite_rows(db, "SELECT k FROM plain") == ["a", "a", "b", "b"]
    assert status.sources[0].rows == 4


def test_the_end_of_bounded_sources_reaches_every_bucket_and_the_operator_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    streams = []
    for name, letters in (("left", "ab"), ("right", "bcc")):
        rows = [{"k": letter, "v": 1} for letter in letters]
        arrive(tmp_path / name, "one.json", rows)
        streams.append(hf.read.files(tmp_path / name, format="json", schema=SCHEMA, bounded=True, name=name))
    counted = counting(*streams, name="first", at_end=True)
    again = counting(counted | hf.filter("n > 1", name="many"), name="again", at_end=True)
    db = tmp_path / "out.db"
    pipeline = hf.Pipeline(
        "ends",
        counted | hf.write.sqlite(db, table="first", name="first_table"),
        again | hf.write.sqlite(db, table="again", name="again_table"),
    )
    assert run(pipeline, tmp_path, spark).status().epoch == 1, "the end comes with the last rows"
    assert sqlite_rows(db, "SELECT k, n FROM first") == [("a", 1), ("b", 2), ("c", 2)]
    assert sqlite_rows(db, "SELECT k, n FROM again") == [("b", 1), ("c", 1)]


def test_a_step_that_fails_is_named_with_its_bucket_its_epoch_and_the_first_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = hf.read.rows(epochs("aa", "b"), schema=SCHEMA, name="given")
    sink = counting(given, fails_at="b") | hf.write.sqlite(tmp_path / "out.db", table="rows", name="out")
    with pytest.raises(InvalidPipeline) as caught:
        run(hf.Pipeline("fails", sink), tmp_path, spark)
    said = str(caught.value)
    for part in ("'counted'", "bucket", "epoch 2", "ValueError", "no b here", "k='b'"):
        assert part in said


def test_a_task_that_is_tried_again_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    given = hf.read.rows(epochs("abc", "abc", "abc"), schema=SCHEMA, name="given")
    counted = counting(given, fails_once=str(tmp_path / "failed"))
    pipeline = hf.Pipeline("again", counted | hf.write.sqlite(tmp_path / "out.db", table="rows", name="out"))
    run(pipeline, tmp_path, spark, MODES["staged"])
    assert (tmp_path / "failed").exists()
    found = sqlite_rows(tmp_path / "out.db", "SELECT epoch, k, n FROM rows")
    assert found == [(epoch, letter, epoch) for epoch in (1, 2, 3) for letter in "abc"]


def test_an_operator_that_watches_the_clock_has_epochs_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    given = hf.read.rows(epochs("ab"), schema=SCHEMA, name="given")
    counted = counting(given, wakes=True)
    pipeline = hf.Pipeline("clock", counted | hf.write.sqlite(tmp_path / "out.db", table="rows", name="out"))
    running = pipeline.start(checkpoint=str(tmp_path / "ckpt"), trigger=hf.every("50 ms"), session=spark)
    try:
        reach(running, 3)
    finally:
        running.stop()
    assert sqlite_rows(tmp_path / "out.db", "SELECT epoch, k, n FROM rows") == [(1, "a", 1), (1, "b", 1)]


def test_labels_spread_buckets_evenly_over_sparks_partitions(spark: SparkSession) -> None:
    pairs = [(name, label(name, b, 6, 4), b % 4) for name in ("", "counted", "späte_Züge") for b in range(6)]
    frame = spark.createDataFrame(pairs, "operator string, label int, wanted int")
    found = frame.select(F.expr("pmod(hash(operator, label), 4) = wanted").alias("same"), "label").collect()
    assert all(row.same for row in found)
