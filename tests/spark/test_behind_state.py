"""What only Spark evaluates, behind state and between two operators with state (design/0010, section 7)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.operators.sql import Sql
from tests.everyday import everyday
from tests.spark.counting import counting
from tests.spark.running import MODES, arrive, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, v BIGINT"


def epochs(*given: str) -> list[list[dict[str, Any]]]:
    """Return rows: one epoch for each text, one row for each letter; a capital letter is too late."""
    return [[{"k": letter.lower(), "v": -1 if letter.isupper() else 1} for letter in text] for text in given]


def run(pipeline: hf.Pipeline, tmp_path: Path, spark: SparkSession, settings: Any = None) -> Any:
    return pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=settings)


@pytest.mark.parametrize("mode", everyday(MODES, ["staged"]))
def test_what_only_spark_evaluates_stands_behind_state_and_between_two_operators_with_state(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Side by side, each branch's functions and generators touch that branch's rows only; one branch is Arrow's."""

    def add_one(n):  # Spark looks at annotations
        if n is None:
            raise ValueError("a row of another branch")
        return n + 1

    first = counting(hf.read.rows(epochs("aab", "bcB", "aaac"), schema=SCHEMA, name="given"), name="first")
    branches = {
        "mapped": first | hf.map(lambda df: df.select("k", F.udf(add_one, "bigint")("n").alias("n")), name="mapped"),
        "exploded": first
        | hf.sql("select k, n + i as n from input lateral view posexplode(array(n, n)) as i, x", name="exploded"),
        "chosen": first | hf.filter("n > 0", name="some") | hf.select("k", n="bround(n / 3, 0) + n", name="chosen"),
        "late": first.late | hf.sql("select lower(k) as k, v as n from input where v < 0", name="of_late"),
        "stated": first | hf.sql("select k, n * 2 as n from input where n > 1", name="stated"),
        "looked_up": first
        | hf.map(
            lambda df: df.join(df.sparkSession.range(3).withColumnRenamed("id", "n"), "n").select("k", "n"),
            name="looked_up",
        ),
        "plain": first | hf.select("k", "n", name="plain"),
    }
    db = tmp_path / "out.db"
    sinks = [stream | hf.write.sqlite(db, table=name, name=f"{name}_out") for name, stream in branches.items()]
    read = [branches[name] for name in ("exploded", "looked_up", "mapped", "plain")]
    second = counting(*read, name="second")
    sinks.append(second | hf.write.sqlite(db, table="second", name="second_out"))
    run(hf.Pipeline("all", *sinks), tmp_path, spark, MODES[mode])
    counts = [("a", 2), ("a", 5), ("b", 1), ("b", 2), ("c", 1), ("c", 2)]
    wanted = {
        "mapped": [(k, n + 1) for k, n in counts],
        "exploded": [(k, n + i) for k, n in counts for i in (0, 1)],
        "chosen": [(k, n + round(n / 3)) for k, n in counts],
        "looked_up": [(k, n) for k, n in counts if n < 3],
        "late": [("b", -1)],
        "stated": [(k, n * 2) for k, n in counts if n > 1],
        "plain": counts,
    }
    assert {name: sqlite_rows(db, f"SELECT k, n FROM {name}") for name in wanted} == {
        name: sorted(rows) for name, rows in wanted.items()
    }
    names, without = "explodedlooked_upmappedplain", "explodedmappedplain"
    assert sqlite_rows(db, "SELECT epoch, k, n, inputs FROM second") == [
        (1, "a", 5, names), (1, "b", 5, names), (2, "b", 10, names), (2, "c", 5, names), (3, "a", 9, without),
        (3, "c", 10, names),
    ]  # fmt: skip


def test_bounds_pass_what_only_spark_evaluates_before_and_behind_a_merge(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No source ends.  That no merged row will come at 5, only the bounds of the merge's inputs say."""

    def source(name: str, *epochs: tuple[str, int]) -> hf.Stream:
        rows = [[{"k": "a", "t": t, "is_bound": what == "bound"}] for what, t in epochs]
        schema = "k STRING, t BIGINT, is_bound BOOLEAN"
        return hf.read.rows(rows, schema=schema, timestamp="t", bounds="is_bound", name=name)

    def called(rows: Any) -> Any:
        return rows.withColumn("k2", F.udf(lambda k: k * 2, "string")("k"))

    main = source("main", ("row", 1), ("bound", 10)) | hf.map(called, timestamp="t", name="main_called")
    slow = source("slow", ("row", 1), ("bound", 10)) | hf.sql("select t, k from input", name="slow_stated")
    merged = hf.merge(main, {"slow": slow}, by="k", name="merged")
    third = source("third", ("row", 5), ("row", 12))
    branches = {
        "called": hf.map(lambda rows: called(rows).withColumnRenamed("t", "at"), timestamp="at", name="called"),
        "stated": hf.sql("select k, t as at, bround(t / 3, 0) as third from input", name="stated"),
        "computed": hf.map(lambda rows: rows.withColumn("t", rows.t + 0), timestamp="t", name="computed"),
    }
    db = tmp_path / "out.db"
    sinks = []
    for name, through in branches.items():
        sets = hf.sync({"merged": merged | through, "third": third}, by="k", name=f"{name}_sets")
        told = sets | hf.select("timestamp", has_merged="merged IS NOT NULL", has_third="third IS NOT NULL")
        sinks.append(told | hf.write.sqlite(db, table=name, name=f"{name}_out"))
    run(hf.Pipeline("bounds", *sinks), tmp_path, spark)
    settled = [(1, 1, 0), (5, 0, 1)]
    found = {name: sqlite_rows(db, f"SELECT * FROM {name}") for name in branches}
    assert found == {"called": settled, "stated": settled, "computed": settled[:1]}
    assert re.findall(r"holds downstream of '(\w+)': (.*)", caplog.text) == [("computed", "'t' is computed")]


def test_columns_that_an_expression_leaves_do_not_go_through_the_jvm_and_stand_beside_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of one branch, row for row; the condition and its own division are not asked for what is no row."""
    halves = hf.sql(
        "select k as name, bround(6 / n, 0) + coalesce(nullif(n, 1), 0) as m, n, epoch from input", name="halves"
    )
    odd = hf.map(lambda df: df.filter(12 / F.col("n") != 6).withColumn("m", F.col("n") * 10), name="odd")
    db = tmp_path / "out.db"
    for number, between in enumerate([halves, odd]):
        first = counting(hf.read.rows(epochs("aab", "bcb", "aaac"), schema=SCHEMA, name="given"), name="first")
        sink = first | between | hf.write.sqlite(db, table=f"t{number}", name="out")
        run(hf.Pipeline(f"left{number}", sink), tmp_path / f"{number}", spark)
    assert sqlite_rows(db, "SELECT name, m, n, epoch FROM t0") == [
        ("a", 5, 2, 1), ("a", 6, 5, 3), ("b", 5, 3, 2), ("b", 6, 1, 1), ("c", 5, 2, 3), ("c", 6, 1, 2)
    ]  # fmt: skip
    assert sqlite_rows(db, "SELECT k, n, m FROM t1") == [("a", 5, 50), ("b", 1, 10), ("b", 3, 30), ("c", 1, 10)]


def test_a_function_that_raises_is_named_with_its_operator_and_line(spark: SparkSession, tmp_path: Path) -> None:
    def inverse(n):
        return 1 / (n - 2)

    counted = counting(hf.read.rows(epochs("aab"), schema=SCHEMA, name="given"))
    mapped = counted | hf.map(lambda rows: rows.withColumn("i", F.udf(inverse, "double")("n")), name="inverted")
    with pytest.raises(InvalidPipeline) as caught:
        run(hf.Pipeline("fails", mapped | hf.write.console(name="out")), tmp_path, spark)
    for part in ("the Python UDF inverse of map 'inverted'", "ZeroDivisionError", "test_behind_state.py:"):
        assert part in str(caught.value)


def test_a_statement_that_goes_another_way_than_in_the_last_run_keeps_the_state_around_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which way it goes is no part of the graph: NOT NULL columns show it to nobody."""
    caplog.set_level("INFO", "holdfast.run")
    db = tmp_path / "out.db"

    def sums() -> list[Any]:
        given = hf.read.files(
            str(tmp_path / "in"), format="json", schema="k STRING NOT NULL, v BIGINT NOT NULL", name="given"
        )
        first = given | hf.accumulate(by="k", total=hf.sum("v"), name="first")
        between = first | hf.sql("select k, total * 10 as v from input where total > 0", name="between")
        second = between | hf.accumulate(by="k", n=hf.count(), of=hf.sum("v"), name="second")
        run(hf.Pipeline("sums", second | hf.write.sqlite(db, table="sums", name="out")), tmp_path, spark)
        return sqlite_rows(db, "SELECT k, n, of FROM sums")

    found = []
    for number, is_sparks in enumerate((True, False, True)):
        arrive(tmp_path / "in", f"{number}.json", [{"k": "a", "v": 1}, {"k": "b", "v": number}])
        caplog.clear()
        with monkeypatch.context() as patch:
            if is_sparks:
                patch.setattr(Sql, "statement", None)
            found = sums()
        assert ("Spark's plan evaluates 'between'" in caplog.text) == is_sparks
    assert found == [("a", 1, 10), ("a", 2, 30), ("a", 3, 60), ("b", 1, 10), ("b", 2, 40)]
    assert [path.name for path in (tmp_path / "ckpt" / "spark").iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda rows: counting(rows) | hf.map(lambda frame: frame.union(frame), name="mixed"),
            r"map 'mixed' is between two operators with state .*it adds Union",
        ),
        (
            lambda rows: counting(rows | hf.map(lambda frame: frame.dropDuplicates(["k"]), name="once")),
            "keeps state in Spark: Deduplicate",
        ),
    ],
)
def test_what_spark_cannot_evaluate_is_refused_at_the_start_and_when_explained_in_the_same_words(
    spark: SparkSession, tmp_path: Path, build: Any, words: str
) -> None:
    given = hf.read.rows(epochs("a"), schema=SCHEMA, name="given")
    pipeline = hf.Pipeline("refused", build(given) | hf.write.console(name="out"))
    assert "not checked" in pipeline.explain()
    with pytest.raises(InvalidPipeline, match=words) as explained:
        pipeline.explain(session=spark)
    with pytest.raises(InvalidPipeline) as started:
        run(pipeline, tmp_path, spark)
    assert str(explained.value) == str(started.value)


def test_where_spark_computes_stage_0_its_ends_may_change_when_types_show_what_else_is_spark_s(
    spark: SparkSession,
) -> None:
    """Rows of it bypass one level at first, and then two: that ``bround`` is Spark's is known with the type of n."""
    given = hf.read.rows([], schema="k STRING, n BIGINT", name="given")
    first = given | hf.map(lambda rows: rows.select("k", "n"), name="first")
    counted = counting(first | hf.select("k", v="n", name="v"), name="counted") | hf.select("k", "n", name="n")
    rounded = counted | hf.select("k", n="cast(bround(n / 3, 0) as bigint)", name="rounded")
    sinks = [
        hf.union(first, other, name=f"with_{other.name}") | hf.write.console(name=f"sink_{other.name}")
        for other in (counted, rounded)
    ]
    assert "not checked" not in hf.Pipeline("bypassing", *sinks).explain(session=spark)


def test_nothing_is_left_unchecked_when_spark_is_asked(spark: SparkSession) -> None:
    mapped = counting(hf.read.rows([], schema=SCHEMA, name="given")) | hf.map(lambda rows: rows, name="mapped")
    pipeline = hf.Pipeline("fine", mapped | hf.write.console(name="out"))
    assert "not checked" in pipeline.explain()
    assert "not checked" not in pipeline.explain(session=spark)
