"""Large epochs with state as jobs: an RDD's where Spark's plan has no part in them (design/0066)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import RDD
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.spark import physical_plan
from holdfast.spark.state import evaluation, jobs
from tests.spark.counting import counting
from tests.spark.running import MODES, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, v BIGINT"
ROWS = [[{"k": f"k{number % 7}", "v": number} for number in range(100 * at, 100 * at + 100)] for at in range(3)]


def two_levels(db: Path, *, through_spark: bool) -> hf.Pipeline:
    """Return how many rows each key has so far, and how often it had any; Spark evaluates what is between, or Arrow."""
    counted = counting(hf.read.rows(ROWS, schema=SCHEMA, name="given"), name="counted")
    between = (
        hf.sql("SELECT k, x AS v FROM input LATERAL VIEW explode(array(n)) AS x")
        if through_spark
        else hf.select("k", v="n")
    )
    again = counting(counted | between, name="again")
    return hf.Pipeline("two", again | hf.write.sqlite(db, table="out", name="out"))


@pytest.mark.parametrize("through_spark", [False, True], ids=["an RDD's", "of the plan"])
def test_a_large_epoch_is_a_job_of_the_plan_only_where_spark_has_a_part_in_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through_spark: bool
) -> None:
    called: Counter[str] = Counter()
    for kind in (evaluation.PlanJob, jobs.LevelJobs):

        def noted(self: Any, *given: Any, of: Any = kind.answers, name: str = kind.__name__) -> Any:
            called[name] += 1
            return of(self, *given)

        monkeypatch.setattr(kind, "answers", noted)
    db = tmp_path / "out.db"
    two_levels(db, through_spark=through_spark).run(
        checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=MODES["staged"]
    )
    found = sqlite_rows(db, "SELECT k, n FROM out")
    assert found == [(f"k{number}", epoch) for number in range(7) for epoch in (1, 2, 3)]
    assert called == {"PlanJob" if through_spark else "LevelJobs": 3}


def test_each_level_has_workers_of_its_own_and_a_bucket_stays_with_few(spark: SparkSession, tmp_path: Path) -> None:
    """Else state is read again by each worker that a bucket comes to."""

    def told(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.append_column("reader", pa.array([os.getpid()] * rows.num_rows, pa.int64()))

    def totals(key: str, rows: Any, state: hf.KeyState) -> Any:
        for row in rows:
            yield {"reader": row["reader"], "counter": os.getpid(), "pool": os.environ.get("HOLDFAST_POOL", "")}

    db = tmp_path / "out.db"
    read = hf.read.rows(ROWS, schema=SCHEMA, name="given") | hf.map_batches(told, f"{SCHEMA}, reader BIGINT")
    seen = "reader BIGINT, counter BIGINT, pool STRING"
    stream = read | hf.apply(totals, by="k", state="n BIGINT", schema=seen, name="totals")
    hf.Pipeline("told", stream | hf.write.sqlite(db, table="out", name="out")).run(
        checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=MODES["staged"]
    )
    found = sqlite_rows(db, "SELECT DISTINCT reader, counter, pool FROM out")
    readers, counters = {row[0] for row in found}, {row[1] for row in found}
    assert {row[2] for row in found} == {"level-1"}
    assert not readers & counters
    assert len(counters) <= 2


def test_a_small_epoch_comes_to_a_driver_that_must_not_call_functions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster what a function of the user needs may be on the workers' machines alone."""

    def counts(key: str, rows: Any, state: hf.KeyState) -> Any:
        for _ in rows:
            state.set(n=state.get("n", 0) + 1)
        yield {"k": key, "n": state.get("n"), "worker": os.getpid()}

    monkeypatch.setattr(physical_plan, "is_local", lambda session: False)
    came: list[int] = []
    chunks = jobs.LevelJobs.chunks
    monkeypatch.setattr(jobs.LevelJobs, "chunks", lambda *given: came.append(1) or chunks(*given))
    given = hf.read.rows(ROWS, schema=SCHEMA, name="given")
    seen = given | hf.apply(counts, by="k", state="n BIGINT", schema="k STRING, n BIGINT, worker BIGINT", name="counts")
    db = tmp_path / "out.db"
    hf.Pipeline("counted", seen | hf.write.sqlite(db, table="out", name="out")).run(
        checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=MODES["carried"]
    )
    assert len(came) == 3
    assert sqlite_rows(db, "SELECT k, max(n) FROM out GROUP BY k") == [
        (f"k{number}", 43 if number < 6 else 42) for number in range(7)
    ]
    assert (os.getpid(),) not in sqlite_rows(db, "SELECT DISTINCT worker FROM out")


@pytest.mark.parametrize("share", [0, 0.5, 0.9])
def test_an_epoch_whose_answers_are_cut_off_is_evaluated_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Spark's JVM dies while it hands them over: the epoch was decided without the parts that did not come."""
    db, collect, left = tmp_path / "out.db", RDD.collect, [2, 1]

    def short(job: Any) -> list[Any]:
        answers = collect(job)
        if None not in answers or not left:
            return answers
        left.pop()
        return answers[: int(share * len(answers))]

    monkeypatch.setattr(RDD, "collect", short)
    two_levels(db, through_spark=False).run(
        checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=MODES["staged"]
    )
    assert not left
    found = sqlite_rows(db, "SELECT k, n FROM out")
    assert found == [(f"k{number}", epoch) for number in range(7) for epoch in (1, 2, 3)]
