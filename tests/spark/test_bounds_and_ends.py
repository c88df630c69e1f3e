"""Bound rows and the ends of sources on their way through Spark (design/0010, section 4)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from tests.spark.counting import counting
from tests.spark.running import MODES, arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, t BIGINT"
MARKED = "k STRING, t BIGINT, is_bound BOOLEAN"


def lines(*given: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [{"k": k, "t": t, "is_bound": bool(bound) or None} for k, t, *bound in given]


def flat(sets: pa.RecordBatch) -> pa.RecordBatch:
    given = [pc.cast(pc.is_valid(sets.column(name)), pa.int32()) for name in ("x", "y")]
    return pa.RecordBatch.from_arrays([sets.column("k"), sets.column("timestamp"), *given], names=["k", "t", "x", "y"])


def written(stream: hf.Stream, tmp_path: Path, table: str = "sets") -> Any:
    sets = stream | hf.map_batches(flat, schema="k STRING, t BIGINT, x INT, y INT", name=f"{table}_flat")
    return sets | hf.write.sqlite(tmp_path / "out.db", table=table, name=f"{table}_out")


@pytest.mark.parametrize("mode", MODES)
def test_bound_rows_settle_what_waits_and_are_no_rows(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """A bound for a key, then one for all keys; in between a row that breaks the promise."""
    x = hf.read.rows([lines(("a", 1), ("b", 1))], schema=SCHEMA + ", is_bound BOOLEAN", timestamp="t", name="x")
    x = x | hf.select("k", "t", name="x_rows")
    y = hf.read.rows(
        [lines(("a", 5, True), ("a", 2)), [], lines((None, 5, True), ("c", 9))],
        schema=MARKED,
        timestamp="t",
        bounds="is_bound",
        name="y",
    )
    passed = y | hf.filter("t > 1", name="some") | hf.select("t", "k", name="turned")
    both = hf.sync({"x": x, "y": passed}, by="k", name="both")
    db = tmp_path / "out.db"
    late = both.late | hf.select("k", "timestamp AS t", name="late_rows")
    pipeline = hf.Pipeline(
        "bounds",
        written(both, tmp_path),
        late | hf.write.sqlite(db, table="late", name="late_out"),
        y | hf.write.sqlite(db, table="plain", name="plain_out"),
    )
    run = pipeline.run(
        checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=MODES[mode]
    )
    assert sqlite_rows(db, "SELECT k, t FROM plain") == [("a", 2), ("c", 9)]
    assert sqlite_rows(db, "SELECT k, t FROM late") == [("a", 2)]
    assert sqlite_rows(db, "SELECT k, t, x, y FROM sets") == [("a", 1, 1, 0), ("b", 1, 1, 0)]
    assert {source.name: source.rows for source in run.status().sources} == {"x": 2, "y": 2}


def renamed(frame: DataFrame) -> DataFrame:
    return frame.filter("t > 1").withColumnRenamed("t", "at")


def called(frame: DataFrame) -> DataFrame:
    """A Python UDF, and a generator: once more behind each row comes a copy, and it is taken out again."""
    known = frame.withColumnRenamed("t", "at").withColumn("u", F.udf(lambda k: k * 2, "string")("k"))
    return known.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2)))).filter("copy = length(u) - 1 and at > 1")


def computed(frame: DataFrame) -> DataFrame:
    return frame.withColumn("at", frame.t + 0)


def test_bounds_pass_what_only_spark_evaluates_where_its_plan_keeps_the_timestamp(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their source never ends: only its bound rows say that nothing comes.  Where they end, the log says so."""
    x = hf.read.rows([lines(("a", 1), ("b", 1))], schema=SCHEMA + ", is_bound BOOLEAN", timestamp="t", name="x")
    given = [lines(("a", 5, True)), [], lines((None, 5, True), ("c", 9))]
    y = hf.read.rows(given, schema=MARKED, timestamp="t", bounds="is_bound", name="y")
    through = {
        **{fn.__name__: hf.map(fn, timestamp="at", name=fn.__name__) for fn in (renamed, called, computed)},
        "stated": hf.sql("select t as at, k from input where t > 1", name="stated"),
    }
    db = tmp_path / "out.db"
    x = x | hf.select("k", "t", name="x_rows")
    both = {name: hf.sync({"x": x, "y": y | one}, by="k", name=f"{name}_sets") for name, one in through.items()}
    pipeline = hf.Pipeline(
        "bounds",
        *(written(sets, tmp_path, name) for name, sets in both.items()),
        y | hf.write.sqlite(db, table="plain", name="plain_out"),
    )
    run = pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark)
    settled = [("a", 1, 1, 0), ("b", 1, 1, 0)]
    found = {name: sqlite_rows(db, f"SELECT k, t, x, y FROM {name}") for name in through}
    assert found == {"renamed": settled, "called": settled, "computed": [], "stated": settled}
    assert sqlite_rows(db, "SELECT k, t FROM plain") == [("c", 9)]
    assert {source.name: source.rows for source in run.status().sources} == {"x": 2, "y": 1}
    assert re.findall(r"holds downstream of '(\w+)': (.*)", caplog.text) == [("computed", "'at' is computed")]


@pytest.mark.nightly
def test_ends_of_rows_files_and_a_union_reach_an_operator_behind_sparks_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    arrive(tmp_path / "in", "one.json", [{"k": "a", "t": 1}, {"k": "b", "t": 2}])
    (tmp_path / "nothing").mkdir()
    files = hf.read.files(str(tmp_path / "in"), schema=SCHEMA, bounded=True, name="files")
    nothing = hf.read.files(str(tmp_path / "nothing"), schema=SCHEMA, bounded=True, name="nothing")
    rows = hf.read.rows([[{"k": "a", "t": 3}], [{"k": "b", "t": 4}]], schema=SCHEMA, bounded=True, name="given")
    for number, through in enumerate([hf.filter("t > 0", name="some"), hf.map(lambda frame: frame, name="mapped")]):
        stream = hf.union(files, rows, nothing, name="all") | through
        counted = counting(stream | hf.select("k", "t AS v", name="shaped"), at_end=True)
        sink = counted | hf.write.sqlite(tmp_path / "out.db", table=f"rows_{number}", name="out")
        pipeline = hf.Pipeline(f"ends_{number}", sink)
        for _ in range(2):  # the second start finds nothing to do: the end was heard
            pipeline.run(checkpoint=str(tmp_path / f"ckpt_{number}"), trigger=hf.available_now(), session=spark)
            found = sqlite_rows(tmp_path / "out.db", f"SELECT k, n FROM rows_{number}")
            assert found == [("a", 2), ("b", 2)]


def test_a_feed_is_bounded_by_what_is_said_and_closed_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    options: Any = {"schema": MARKED, "timestamp": "t", "bounds": "is_bound"}
    feeds = {name: hf.read.CallbackFeed(tmp_path / name, **options) for name in ("x", "y")}
    streams = {name: hf.read.callback(feed, name=name) for name, feed in feeds.items()}
    both = hf.sync(streams, by="k", name="both")
    pipeline = hf.Pipeline("feeds", written(both, tmp_path))
    options = {"checkpoint": str(tmp_path / "ckpt"), "trigger": hf.every("50 ms"), "session": spark}

    def sets() -> list[Any]:
        running.wait(timeout_s=0)  # raises what the run failed of
        return sqlite_rows(tmp_path / "out.db", "SELECT k, t, x, y FROM sets")

    running = pipeline.start(**options)
    try:
        feeds["x"].push(lines(("a", 1), ("b", 1), ("a", 7)))
        feeds["y"].bound(5, k="a")
        eventually(lambda: sets() == [("a", 1, 1, 0)], what="the bound of one key")
        feeds["y"].bound(5)
        eventually(lambda: sets() == [("a", 1, 1, 0), ("b", 1, 1, 0)], what="the bound of all keys")
        feeds["y"].close()
    finally:
        running.stop()
    running = pipeline.start(**options)
    try:
        eventually(lambda: len(sets()) == 3, what="the end of one feed")
        feeds["x"].push(lines(("b", 9)))
        eventually(lambda: sets()[-1] == ("b", 9, 1, 0), what="a row after the end of the other feed")
    finally:
        running.stop()
    assert sets() == [("a", 1, 1, 0), ("a", 7, 1, 0), ("b", 1, 1, 0), ("b", 9, 1, 0)]


@pytest.mark.parametrize("by", ["arrow", pytest.param("spark", marks=pytest.mark.nightly)])
def test_files_that_wait_to_be_read_make_no_row_of_theirs_late(spark: SparkSession, tmp_path: Path, by: str) -> None:
    """A catch-up that reads one file after the other, stopped in the middle; the second run knows its bounds again."""
    for host, times in {"a": (1, 12, 23, 34), "b": (2, 13, 21, 35), "c": (5, 11, 24, 31)}.items():
        arrive(tmp_path / "in", f"{host}.json", [{"k": host, "t": t} for t in times])
    source = hf.read.files(
        str(tmp_path / "in"), schema=SCHEMA, timestamp="t", disorder=3, max_files_per_epoch=1, name="logs"
    )
    everyone = source | (hf.select("t", "'all' AS k") if by == "arrow" else hf.map(renamed_back, timestamp="t"))
    counts = everyone | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counts")
    db = tmp_path / "out.db"
    flat = counts | hf.select("window_start AS t", "n", name="flat")
    late = counts.late | hf.select("timestamp AS t", name="late_rows")
    pipeline = hf.Pipeline(
        "files",
        flat | hf.write.sqlite(db, table="counts", name="out"),
        late | hf.write.sqlite(db, table="late", name="late_out"),
    )
    for _ in range(2):
        pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark)
        assert sqlite_rows(db, "SELECT t, n FROM counts") == [(0, 3), (10, 3), (20, 3)]
    arrive(tmp_path / "in", "d.json", [{"k": "d", "t": t} for t in (32, 50)])
    shutil.rmtree(tmp_path / "ckpt/spark")  # bounds come from what the sinks hold
    pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark)
    assert sqlite_rows(db, "SELECT t, n FROM counts") == [(0, 3), (10, 3), (20, 3), (30, 4)]
    assert sqlite_rows(db, "SELECT t FROM late") == []


def renamed_back(frame: DataFrame) -> DataFrame:
    return frame.withColumn("k", F.lit("all"))
