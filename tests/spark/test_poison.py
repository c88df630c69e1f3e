"""Rows that kill a run are isolated, and every other one has its effect once (design/0013, section 4)."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast import faults
from holdfast.cli.dead_letters import described, replay
from holdfast.config import Settings
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline
from holdfast.graph.hooks import NONE
from holdfast.quarantine.dead_letters import read_letters
from holdfast.spark.quarantine.trials import Trials
from holdfast.store.local import LocalStore
from tests.everyday import everyday
from tests.spark.counting import counting
from tests.spark.running import die_at, sqlite_rows

pytestmark = pytest.mark.spark

SETTINGS = Settings(
    on_poison="isolate",
    poison_attempts=1,
    retry_attempts=2,
    buckets=2,
    checkpoint_freq=86_400_000,
    first_epoch_max="0 B",  # all that is there is one epoch
)
BAD = (3, 4)
LISTS = [[0, 1], [2, 3, 4, 5], [6]]


def refusing(bad: tuple[int, ...]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        for one in batch.column("v").to_pylist():
            if one in bad:
                raise ValueError(f"{one} is poison")
        return batch

    return refuse


def raising(bad: tuple[int, ...]) -> Callable[[DataFrame], DataFrame]:
    def add(frame: DataFrame) -> DataFrame:
        poison = F.raise_error(F.concat(F.col("v").cast("string"), F.lit(" is poison"))).cast("bigint")
        return frame.withColumn("w", F.when(F.col("v").isin(list(bad)), poison).otherwise(F.col("v")))

    return add


def built(kind: str, work: Path, bad: tuple[int, ...], hooks: hf.Hooks = NONE) -> hf.Pipeline:
    lists = [[{"k": "a", "v": one} for one in each] for each in LISTS]
    given = hf.read.rows(lists, schema="k STRING, v BIGINT", name="given")
    if kind == "plan":
        rows = given | hf.map(raising(bad), name="raised")
    else:
        rows = given | hf.map_batches(refusing(bad), "k STRING, v BIGINT", name="refused")
        rows = counting(rows, name="counts") if kind == "state" else rows
    return hf.Pipeline("poisoned", rows | hf.write.sqlite(work / "out.db", table="rows", name="table"), hooks=hooks)


def run(pipeline: hf.Pipeline, work: Path, spark: SparkSession) -> None:
    pipeline.run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, settings=SETTINGS)


@pytest.mark.parametrize("kind", everyday(("program", "plan", "state"), ["program"]))
def test_rows_that_kill_the_run_are_isolated_and_come_back_when_they_are_sent_again(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    told: list[Any] = []
    hooks = hf.Hooks(on_error=lambda error, operator, rows: told.append(rows and rows.to_pylist()[0]["v"]))
    poisoned = built(kind, tmp_path, BAD, hooks)
    with pytest.raises(BadRow, match="is poison") as caught:
        run(poisoned, tmp_path, spark)
    assert caught.value.epoch == 2
    run(poisoned, tmp_path, spark)
    checkpoint = tmp_path / "checkpoint"
    store = LocalStore(str(checkpoint))
    found = [(one.address.position, one.address.ordinal, one.table.to_pylist()[0]["v"]) for one in read_letters(store)]
    assert found == [(1, 1, 3), (1, 2, 4)]
    assert told == [None, 3, 4]
    query = "SELECT n FROM rows" if kind == "state" else "SELECT v FROM rows"
    # Counts of one key tell by themselves that no row was counted twice: state has no trace of trials.
    assert sqlite_rows(tmp_path / "out.db", query) == ([2, 4, 5] if kind == "state" else [0, 1, 2, 5, 6])

    assert {each["standing"] for each in described(store, checkpoint)} == {"left out"}
    assert len(replay(store, checkpoint, [])) == 2
    assert {each["standing"] for each in described(store, checkpoint)} == {"to be replayed at the next start"}
    mended = built(kind, tmp_path, ())
    die_at("after-publish", 4)
    with pytest.raises(HoldfastError):
        run(mended, tmp_path, spark)
    faults.install(None)
    run(mended, tmp_path, spark)
    assert sqlite_rows(tmp_path / "out.db", query) == ([2, 4, 5, 7] if kind == "state" else [0, 1, 2, 3, 4, 5, 6])
    assert {each["standing"] for each in described(store, checkpoint)} == {"replayed"}


def behind(kind: str, work: Path, bad: tuple[int, ...]) -> hf.Pipeline:
    """Return a pipeline in which what refuses rows is behind state: a window's row leaves when a later row arrives."""
    lists = [[("a", 1), ("a", 2), ("b", 4)], [("a", 11), ("b", 12)]]
    rows = [[{"k": k, "t": t} for k, t in each] for each in lists]
    given = hf.read.rows(rows, schema="k STRING, t BIGINT", timestamp="t", bounded=True, name="given")
    sums = given | hf.aggregate(by="k", window=hf.tumbling(10), v=hf.sum("t"), name="sums")
    chosen = sums | hf.select("k", "v", name="chosen")
    if kind == "plan":
        refused = chosen | hf.map(raising(bad), name="raised")
    else:
        refused = chosen | hf.map_batches(refusing(bad), "k STRING, v BIGINT", name="refused")
    return hf.Pipeline("poisoned", refused | hf.write.sqlite(work / "out.db", table="rows", name="table"))


@pytest.mark.parametrize("kind", everyday(("arrow", "plan"), ["arrow"]))
def test_a_row_that_a_function_behind_state_refuses_is_left_out_there_and_no_row_that_let_it_go(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    poisoned = behind(kind, tmp_path, (3,))
    with pytest.raises(BadRow, match="is poison") as caught:
        run(poisoned, tmp_path, spark)
    assert caught.value.epoch == 2
    run(poisoned, tmp_path, spark)
    assert sqlite_rows(tmp_path / "out.db", "SELECT k, v FROM rows") == [("a", 11), ("b", 4), ("b", 12)]
    store = LocalStore(str(tmp_path / "checkpoint"))
    (letter,) = described(store, tmp_path / "checkpoint")
    assert (letter["source"], letter["epoch"], letter["standing"]) == ("sums", 2, "left out behind state")
    assert (letter["row"]["k"], letter["row"]["v"]) == ("a", 3)
    assert replay(store, tmp_path / "checkpoint", []) == []
    with pytest.raises(InvalidPipeline, match="cannot be sent through the graph again"):
        replay(store, tmp_path / "checkpoint", [letter["name"]])


@pytest.mark.parametrize("kind", everyday(("program", "plan"), ["plan"]))
def test_rows_that_a_sink_refuses_stop_every_sink_alike_and_are_isolated(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """What only the database can say (CHECK, UNIQUE) is said before the decision, and in trials (design/0002)."""
    with closing(sqlite3.connect(tmp_path / "strict.db")) as connection:
        connection.executescript(
            "CREATE TABLE rows (k TEXT, v BIGINT UNIQUE CHECK (v NOT IN (3, 4))); INSERT INTO rows VALUES ('before', 6)"
        )
    given = hf.read.rows([[{"k": "a", "v": one} for one in each] for each in LISTS], schema="k STRING, v BIGINT")
    rows = given | (hf.filter("v >= 0", name="all") if kind == "program" else hf.map(lambda df: df, name="all"))
    sinks = [
        rows | hf.write.sqlite(tmp_path / "free.db", table="rows", name="free"),
        rows | hf.write.sqlite(tmp_path / "strict.db", table="rows", name="strict"),
    ]
    pipeline = hf.Pipeline("refused", *sinks)
    with pytest.raises(BadRow, match="CHECK constraint failed"):
        run(pipeline, tmp_path, spark)

    def published() -> list[Any]:
        query = "SELECT v FROM rows WHERE k = 'a'"
        return [sqlite_rows(tmp_path / name, query) for name in ("free.db", "strict.db")]

    assert published() == [[0, 1], [0, 1]]
    with pytest.raises(BadRow, match="UNIQUE constraint failed"):  # epoch 2 without 3 and 4, then epoch 3
        run(pipeline, tmp_path, spark)
    assert published() == [[0, 1, 2, 5], [0, 1, 2, 5]]
    run(pipeline, tmp_path, spark)
    assert published() == [[0, 1, 2, 5], [0, 1, 2, 5]]
    letters = read_letters(LocalStore(str(tmp_path / "checkpoint")))
    assert [letter.table.to_pylist()[0]["v"] for letter in letters] == [3, 4, 6]
    assert "UNIQUE" in letters[-1].error["why"]


def test_a_letter_comes_back_with_the_columns_that_its_source_has_now_or_is_refused_before_it_is_planned(
    spark: SparkSession, tmp_path: Path
) -> None:
    def read_with(schema: str, bad: tuple[int, ...]) -> hf.Pipeline:
        given = hf.read.files(tmp_path / "in", schema=schema, max_files_per_epoch=1, name="given")
        checked = given | hf.map_batches(
            lambda batch: refusing(bad)(batch.select(["k", "v"])), "k STRING, v BIGINT", name="checked"
        )
        return hf.Pipeline("poisoned", checked | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"))

    (tmp_path / "in").mkdir()
    for number, values in enumerate(LISTS):
        text = "".join(f'{{"k": "a", "v": {value}}}\n' for value in values)
        (tmp_path / "in" / f"{number}.json").write_text(text)
    poisoned = read_with("k STRING, v BIGINT", (4,))
    with pytest.raises(BadRow, match="is poison"):
        run(poisoned, tmp_path, spark)
    run(poisoned, tmp_path, spark)
    assert len(replay(LocalStore(str(tmp_path / "checkpoint")), tmp_path / "checkpoint", [])) == 1
    planned = sorted((tmp_path / "checkpoint/spark/1/offsets").glob("[0-9]*"))
    with pytest.raises(InvalidPipeline, match="dead letter 'given/log/1/2' is to be read again, and does not fit"):
        run(read_with("x STRING NOT NULL, k STRING, v BIGINT", ()), tmp_path, spark)
    assert sorted((tmp_path / "checkpoint/spark/1/offsets").glob("[0-9]*")) == planned
    run(read_with("v BIGINT, x STRING, k STRING", ()), tmp_path, spark)
    assert sqlite_rows(tmp_path / "out.db", "SELECT v FROM rows") == [0, 1, 2, 3, 4, 5, 6]


def refusing_any_of(bad: tuple[int, ...]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.is_in(batch.column("id"), pa.array(bad, pa.int64()))).as_py():
            raise ValueError("this is poison")
        return batch

    return refuse


MILLION, FILES = 1_000_000, 4


def a_million(work: Path) -> hf.Stream:
    """Write a million rows in four files, and return the source that reads them."""
    (work / "in").mkdir()
    for number in range(FILES):
        ids = range(number * MILLION // FILES, (number + 1) * MILLION // FILES)
        pyarrow.parquet.write_table(pa.table({"id": pa.array(ids, pa.int64())}), work / "in" / f"{number}.parquet")
    return hf.read.files(work / "in", schema="id BIGINT", format="parquet", name="given")


def check_all_but(bad: Collection[int], work: Path) -> None:
    """Assert that the sink holds each row of the million once, apart from some."""
    found = pyarrow.dataset.dataset(work / "out", format="parquet").to_table()["id"].combine_chunks()
    expected = pa.array([one for one in range(MILLION) if one not in bad], pa.int64())
    assert found.take(pc.array_sort_indices(found)).equals(expected)


@pytest.mark.nightly
def test_three_bad_rows_among_a_million_end_in_dead_letters_and_all_others_once_in_the_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    bad = (0, 543_210, 999_999)
    given = a_million(tmp_path)
    checked = given | hf.map_batches(refusing_any_of(bad), "id BIGINT", name="checked")
    pipeline = hf.Pipeline("million", checked | hf.write.files(tmp_path / "out", name="out"))
    with pytest.raises(BadRow, match="this is poison"):
        run(pipeline, tmp_path, spark)
    run(pipeline, tmp_path, spark)
    letters = read_letters(LocalStore(str(tmp_path / "checkpoint")))
    assert [one.table.to_pylist() for one in letters] == [[{"id": one}] for one in bad]
    check_all_but(bad, tmp_path)


def ending(bad: dict[int, str], name: str = "id") -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that some rows end, each in its way."""

    def end(batch: pa.RecordBatch) -> pa.RecordBatch:
        column = batch.column(name)
        found = column.filter(pc.is_in(column, pa.array(list(bad), pa.int64())))
        for one in found.to_pylist():
            if bad[one] == "exit":
                os._exit(3)
            if bad[one] == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            if bad[one] == "hang":
                threading.Event().wait()
            if bad[one] == "memory":
                os.kill(os.getpid(), signal.SIGKILL)  # what the system's out-of-memory killer does
        return batch

    return end


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows by one with each trial."""
    trials: list[Any] = []
    make = Trials.make
    monkeypatch.setattr(Trials, "make", lambda self, *given: (trials.append(given), make(self, *given))[1])
    return trials


@pytest.mark.nightly
def test_rows_that_end_the_worker_are_found_among_a_million_in_a_few_trials(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {3: "exit", 543_210: "segfault", 999_999: "memory"}
    given = a_million(tmp_path)
    checked = given | hf.map_batches(ending(bad), "id BIGINT", name="checked")
    pipeline = hf.Pipeline("million", checked | hf.write.files(tmp_path / "out", name="out"))
    trials = counted(monkeypatch)
    with pytest.raises(HoldfastError):
        run(pipeline, tmp_path, spark)
    assert trials == []
    run(pipeline, tmp_path, spark)
    assert len(trials) == 2, "without any row, and without those that the probe has found"
    letters = read_letters(LocalStore(str(tmp_path / "checkpoint")))
    assert [one.table.to_pylist() for one in letters] == [[{"id": one}] for one in bad]
    said = {"exit": "exit code 3", "segfault": "SIGSEGV", "memory": "SIGKILL"}
    assert all(said[how] in one.error["why"] for one, how in zip(letters, bad.values(), strict=True))
    check_all_but(bad, tmp_path)


def test_a_search_in_a_small_epoch_runs_no_job(spark: SparkSession, tmp_path: Path) -> None:
    """A session's first job, and its workers, would hold up its other queries: those of other shards."""

    def check(batch: pa.RecordBatch) -> pa.RecordBatch:
        with (tmp_path / "evaluated").open("a") as file:
            file.write("beside the driver\n" if TaskContext.get() is None else "in a task\n")
        return ending({3: "exit"}, "v")(batch)

    given = hf.read.rows([[{"v": one} for one in each] for each in LISTS], schema="v BIGINT", name="given")
    checked = given | hf.map_batches(check, "v BIGINT", name="checked")
    pipeline = hf.Pipeline("poisoned", checked | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"))
    with pytest.raises(HoldfastError, match="has died"):
        run(pipeline, tmp_path, spark)
    run(pipeline, tmp_path, spark)
    assert sqlite_rows(tmp_path / "out.db", "SELECT v FROM rows") == [0, 1, 2, 4, 5, 6]
    assert set((tmp_path / "evaluated").read_text().splitlines()) == {"beside the driver"}


def hanging(work: Path, spark: SparkSession, bad: dict[int, str], limit: str) -> None:
    """Run a pipeline with state once."""
    rows = [{"k": "a", "v": one} for one in range(200)]
    given = hf.read.rows([rows], schema="k STRING, v BIGINT", name="given")
    checked = given | hf.map_batches(ending(bad, "v"), "k STRING, v BIGINT", name="checked")
    counts = counting(checked, name="counts") | hf.write.sqlite(work / "out.db", table="rows", name="table")
    settings = Settings(on_poison="isolate", poison_attempts=1, poison_timeout=limit, checkpoint_freq=0, buckets=2)
    hf.Pipeline("hanging", counts).run(
        checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, settings=settings
    )


@pytest.mark.nightly
def test_a_run_in_which_a_function_hangs_ends_when_its_time_is_over_and_goes_on_when_it_is_mended(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(BadRow, match="epoch 1 was not done within 3 s") as caught:
        hanging(tmp_path, spark, {123: "hang"}, "3 s")
    assert caught.value.epoch == 1
    hanging(tmp_path, spark, {}, "1 d")
    assert sqlite_rows(tmp_path / "out.db", "SELECT n FROM rows") == [200]


@pytest.mark.nightly
def test_rows_that_hang_or_end_the_worker_before_state_are_isolated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = counted(monkeypatch)
    bad = {17: "exit", 123: "hang"}
    with pytest.raises(HoldfastError):
        hanging(tmp_path, spark, bad, "20 s")
    hanging(tmp_path, spark, bad, "20 s")
    searched = [(passing.level, sum(passing.until.values())) for _, _, passing in trials]
    assert searched == [(0, 0), (0, 0), (1, 1)], (
        "without any row, without those that the probe has found, and with the one that the state gives"
    )
    letters = read_letters(LocalStore(str(tmp_path / "checkpoint")))
    assert [one.table["v"].to_pylist() for one in letters] == [[17], [123]]
    assert "not done within 20 s" in letters[1].error["why"]
    assert sqlite_rows(tmp_path / "out.db", "SELECT n FROM rows") == [198]
