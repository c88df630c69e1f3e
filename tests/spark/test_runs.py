"""Real runs of every source and sink, carried and staged, over several epochs and restarts (design/0001, 3 and 4)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.connectors import memory
from holdfast.graph.nodes import Stream
from holdfast.spark.launch.session import run_session
from tests.spark.running import (
    CARRIED,
    MODES,
    NAMED,
    STAGED,
    arrive,
    arrive_in_order,
    batches_of_log,
    die_at,
    eventually,
    held_back,
    numbered,
    parquet_rows,
    reach,
    sqlite_rows,
)

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, at TIMESTAMP"


@pytest.fixture
def kept() -> str:
    """Name of a memory table that no other test uses."""
    return f"kept_{uuid.uuid4().hex[:8]}"


def json_source(directory: Path, **arguments: Any) -> Stream:
    """Read the JSON lines of a directory, one file an epoch unless the test says otherwise."""
    options = {"max_files_per_epoch": 1, "timestamp": "at", "name": "source", **arguments}
    return hf.read.files(str(directory), schema=SCHEMA, **options)


# --- every source -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceCase:
    """A source of the ids 0 to 39 and what is known of it."""

    make: Callable[[Path], Stream]
    epochs: int
    is_sized: bool = True
    ids: str = "id"


def _json_files(work: Path) -> Stream:
    arrive_in_order(work / "in", 4, 10)
    return json_source(work / "in")


def _csv_files(work: Path) -> Stream:
    (work / "in").mkdir()
    for number in range(4):
        ids = pa.table({"id": list(range(number * 10, number * 10 + 10)), "at": ["2026-01-01T00:00:00Z"] * 10})
        pa.csv.write_csv(ids, work / "in" / f"{number}.csv")
    return json_source(work / "in", format="csv")


def _parquet_files(work: Path) -> Stream:
    (work / "in").mkdir()
    at = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 10, pa.timestamp("us", tz="UTC"))
    for number in range(4):
        ids = pa.table({"id": pa.array(range(number * 10, number * 10 + 10), pa.int64()), "at": at})
        pa.parquet.write_table(ids, work / "in" / f"{number}.parquet")
    return json_source(work / "in", format="parquet")


def _rows(work: Path) -> Stream:
    return hf.read.rows([[{"id": i} for i in range(n, n + 10)] for n in range(0, 40, 10)], schema="id BIGINT")


def _callback(work: Path) -> Stream:
    feed = hf.read.CallbackFeed(work / "feed", schema="id BIGINT")
    for first in range(0, 40, 10):
        feed.push([{"id": i} for i in range(first, first + 10)])
    return hf.read.callback(feed, max_rows_per_epoch=10, name="source")


def _rate(work: Path) -> Stream:
    ticks = hf.read.rate(1, start="2026-01-01", max_rows_per_epoch=10, name="source")
    return ticks | hf.filter("value < 40") | hf.select(id="value")


def _spark(work: Path) -> Stream:
    arrive_in_order(work / "in", 4, 10)
    options = {"path": str(work / "in"), "maxFilesPerTrigger": "1"}
    return hf.read.spark("json", options, schema="id BIGINT", name="source")


SOURCES = {
    "files, json": SourceCase(_json_files, 4),
    "files, csv": SourceCase(_csv_files, 4),
    "files, parquet": SourceCase(_parquet_files, 4),
    "rows": SourceCase(_rows, 4),
    "callback": SourceCase(_callback, 4),
    "spark": SourceCase(_spark, 4, is_sized=False),
}


IN_TURN = [
    pytest.param(kind, mode, columnar, id=f"{kind}-{mode}-{'in Arrow' if columnar else 'through Spark'}",
                 marks=[pytest.mark.nightly] * ((place + (mode == "staged") + columnar) % 2)
                 + [NAMED] * (kind == "spark"))
    for place, kind in enumerate(SOURCES) for mode in MODES for columnar in (True, False)
]  # fmt: skip
"""Each source by two of its four ways; the other two at night."""


@pytest.mark.parametrize(("kind", "mode", "columnar"), IN_TURN)
def test_every_source_gives_each_row_once_over_several_epochs(
    kind: str, mode: str, columnar: bool, spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    case = SOURCES[kind]
    pipeline = hf.Pipeline("p", case.make(tmp_path) | hf.write.memory(kept))
    settings = MODES[mode].model_copy(update={"columnar": columnar})
    run = _run(pipeline, tmp_path, spark, settings)
    assert sorted(memory.rows(kept)["id"].to_pylist()) == list(range(40))
    status = run.status()
    assert (status.state, status.epoch, status.rows_total) == ("stopped", case.epochs, 40)
    assert status.last_epoch is not None
    assert status.last_epoch.carried is (mode == "carried" and case.is_sized)


@pytest.mark.parametrize("mode", MODES)
def test_a_rate_source_gives_consecutive_values_until_it_is_stopped(
    mode: str, spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    pipeline = hf.Pipeline("p", hf.read.rate(500, name="ticks") | hf.write.memory(kept))
    run = pipeline.start(checkpoint=str(tmp_path / "c"), trigger=hf.every("50 ms"), session=spark, settings=MODES[mode])
    reach(run, 4)
    run.stop()
    values = memory.rows(kept)["value"].to_pylist()
    assert values == list(range(len(values)))
    assert len(values) > 0


# --- every sink ---------------------------------------------------------------------------------------------


def _run(
    pipeline: hf.Pipeline, work: Path, spark: SparkSession, settings: Settings = CARRIED, **options: Any
) -> hf.Run:
    options = {"trigger": hf.available_now(), **options}
    return pipeline.run(checkpoint=str(work / "c"), session=spark, settings=settings, **options)


@pytest.mark.parametrize("mode", MODES)
def test_sqlite_and_files_and_memory_get_every_row_in_one_pipeline(
    mode: str, spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    arrive_in_order(tmp_path / "in", 3, 20)
    rows = json_source(tmp_path / "in")
    pipeline = hf.Pipeline(
        "p",
        rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"),
        rows | hf.filter("id % 2 = 0") | hf.write.files(tmp_path / "even", name="even"),
        rows | hf.select(id="-id") | hf.write.memory(kept),
    )
    run = _run(pipeline, tmp_path, spark, MODES[mode])
    assert sqlite_rows(tmp_path / "out.db") == list(range(60))
    assert parquet_rows(tmp_path / "even") == list(range(0, 60, 2))
    assert sorted(memory.rows(kept)["id"].to_pylist()) == sorted(-i for i in range(60))
    assert {sink.name: (sink.epoch, sink.rows, sink.last_choice) for sink in run.status().sinks} == {
        "table": (3, 60, mode),
        "even": (3, 30, mode),
        kept: (3, 60, mode),
    }


@pytest.mark.parametrize("mode", MODES)
def test_messages_go_into_a_byte_stream_and_back_from_a_time_on_to_its_end(
    mode: str, spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    arrive_in_order(tmp_path / "in", 3, 20)
    messages = json_source(tmp_path / "in") | hf.select(
        timestamp="at", data="cast(id as string)", camera="if(id % 2 = 0, 'even', 'odd')", is_key="id % 10 < 2"
    )
    store = tmp_path / "store"
    sink = hf.write.byte_stream(store, stream="camera", key="is_key", name="cameras")
    _run(hf.Pipeline("there", messages | sink), tmp_path / "there", spark, MODES[mode])

    back = hf.read.byte_stream(store, start="2026-01-01T00:00:25Z", end="2026-01-01T00:00:45Z", name="back")
    run = _run(hf.Pipeline("back", back | hf.write.memory(kept)), tmp_path / "back", spark, MODES[mode])
    rows = memory.rows(kept).to_pylist()
    assert sorted(int(row["data"]) for row in rows) == list(range(20, 45))
    assert {(row["stream"], int(row["data"]) % 2) for row in rows} == {("even", 0), ("odd", 1)}
    assert [int(row["data"]) for row in rows if row["is_key"]] == [20, 30, 40, 21, 31, 41]
    assert {row["timestamp"].second for row in rows} == set(range(20, 45))
    assert run.status().last_epoch.carried is (mode == "carried")


@pytest.mark.postgres
@pytest.mark.parametrize(("mode", "stage"), [("carried", "auto"), ("staged", "table"), ("staged", "prepared")])
def test_postgres_gets_every_row(
    mode: str, stage: Any, spark: SparkSession, tmp_path: Path, postgres_prepared: str
) -> None:
    arrive_in_order(tmp_path / "in", 3, 20)
    pipeline = hf.Pipeline(
        "p", json_source(tmp_path / "in") | hf.write.postgres(postgres_prepared, table="rows", stage=stage, name="t")
    )
    _run(pipeline, tmp_path, spark, MODES[mode])
    with psycopg.connect(postgres_prepared) as connection:
        ids = [number for (number,) in connection.execute("SELECT id FROM rows ORDER BY id")]
        prepared = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        assert prepared.fetchall() == []
    assert ids == list(range(60))


@pytest.mark.parametrize("mode", MODES)
def test_an_upsert_keeps_the_last_row_of_each_key_and_deletes(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    epochs: list[Any] = [
        [{"k": 1, "v": "a", "gone": False}, {"k": 2, "v": "b", "gone": False}],
        [{"k": 1, "v": "c", "gone": False}, {"k": 2, "v": None, "gone": True}],
        [{"k": 3, "v": "d", "gone": False}],
    ]
    rows = hf.read.rows(epochs, schema="k BIGINT, v STRING, gone BOOLEAN", name="changes")
    table = hf.write.sqlite(tmp_path / "out.db", table="rows", mode="upsert", key=["k"], delete="gone", name="table")
    _run(hf.Pipeline("p", rows | table), tmp_path, spark, MODES[mode])
    assert sqlite_rows(tmp_path / "out.db", "SELECT k, v FROM rows") == [(1, "c"), (3, "d")]


@pytest.mark.parametrize("mode", MODES)
def test_the_console_shows_each_epoch(
    mode: str, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = hf.read.rows([[{"id": 17}], [{"id": 42}]], schema="id BIGINT", name="rows")
    _run(hf.Pipeline("p", rows | hf.write.console(name="screen")), tmp_path, spark, MODES[mode])
    shown = capsys.readouterr().out
    assert shown.index("screen · epoch 1 · 1 row") < shown.index("17") < shown.index("epoch 2") < shown.index("42")


@pytest.mark.parametrize("mode", MODES)
def test_foreach_batch_gets_each_epoch_as_a_dataframe(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    given: list[tuple[int, list[int]]] = []

    def save(frame: DataFrame, epoch: int) -> None:
        assert isinstance(frame, DataFrame)
        assert frame.columns == ["id", "at"]
        given.append((epoch, sorted(row.id for row in frame.collect())))

    arrive_in_order(tmp_path / "in", 3, 5)
    pipeline = hf.Pipeline("p", json_source(tmp_path / "in") | hf.write.foreach_batch(save, name="save"))
    _run(pipeline, tmp_path, spark, MODES[mode])
    assert given == [(1, [0, 1, 2, 3, 4]), (2, [5, 6, 7, 8, 9]), (3, [10, 11, 12, 13, 14])]
    _run(pipeline, tmp_path, spark, MODES[mode])
    assert len(given) == 3, "a clean restart hands nothing over again"


# --- restarts and stops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_goes_on_where_the_last_run_ended(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    arrive_in_order(tmp_path / "in", 2, 10)
    rows = json_source(tmp_path / "in")
    pipeline = hf.Pipeline(
        "p",
        rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"),
        rows | hf.write.files(tmp_path / "files", name="files"),
    )
    first = _run(pipeline, tmp_path, spark, MODES[mode]).status()
    again = _run(pipeline, tmp_path, spark, MODES[mode]).status()
    arrive(tmp_path / "in", "later.json", numbered(20, 35))
    last = _run(pipeline, tmp_path, spark, MODES[mode]).status()
    assert [(s.generation, s.epoch, s.rows_total) for s in (first, again, last)] == [(1, 2, 40), (2, 2, 0), (3, 3, 30)]
    assert sqlite_rows(tmp_path / "out.db") == parquet_rows(tmp_path / "files") == list(range(35))


def test_a_process_that_was_killed_while_spark_wrote_its_first_entry_is_gone_on_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark renames an entry into place; it starts no query where there is such a file, and no entry."""
    arrive_in_order(tmp_path / "in", 2, 10)
    pipeline = hf.Pipeline("p", json_source(tmp_path / "in") | hf.write.sqlite(tmp_path / "out.db", table="rows"))
    die_at("before-stage", 1)
    with pytest.raises(hf.HoldfastError):
        _run(pipeline, tmp_path, spark)
    faults.install(None)
    [offsets] = (tmp_path / "c" / "spark").glob("*/offsets")
    (offsets / ".0.crc").unlink()
    (offsets / "0").rename(offsets / ".0.3d9556cb-7559-4c97-ae48-fd0800138556.tmp")
    _run(pipeline, tmp_path, spark)
    assert sqlite_rows(tmp_path / "out.db") == list(range(20))


@pytest.mark.parametrize("mode", MODES)
def test_a_graceful_stop_ends_at_an_epochs_boundary(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    ticks = hf.read.rate(2000, name="ticks") | hf.select(id="value")
    pipeline = hf.Pipeline(
        "p",
        ticks | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"),
        ticks | hf.write.files(tmp_path / "files", name="files"),
    )
    offsets, commits = tmp_path / "c" / "spark" / "1" / "offsets", tmp_path / "c" / "spark" / "1" / "commits"
    epoch = 0
    for stop_after in (1, 2, 3):
        run = pipeline.start(
            checkpoint=str(tmp_path / "c"), trigger=hf.every("20 ms"), session=spark, settings=MODES[mode]
        )
        reach(run, epoch + stop_after)
        assert run.stop()
        assert not run.is_active
        assert run.status().state == "stopped"
        assert run.status().queue == 0
        epoch = run.status().epoch
        assert batches_of_log(offsets) == batches_of_log(commits)
        assert batches_of_log(offsets)[-1] == epoch - 1
        ids = sqlite_rows(tmp_path / "out.db")
        assert ids == parquet_rows(tmp_path / "files") == list(range(len(ids)))


@NAMED
@pytest.mark.nightly
def test_a_graceful_stop_loses_nothing_of_a_source_that_only_spark_knows(spark: SparkSession, tmp_path: Path) -> None:
    """Such a source cannot be told to hand out no more: the stop comes between two of its epochs, or is made good."""
    ticks = hf.read.spark("rate", {"rowsPerSecond": 1000, "numPartitions": 1}, name="ticks") | hf.select(id="value")
    pipeline = hf.Pipeline("p", ticks | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"))
    epoch = 0
    for _ in range(4):
        run = pipeline.start(checkpoint=str(tmp_path / "c"), trigger=hf.every("0 s"), session=spark, settings=CARRIED)
        reach(run, epoch + 2)
        assert run.stop(timeout_s=60)
        assert run.wait()
        epoch = run.status().epoch
        ids = sqlite_rows(tmp_path / "out.db")
        assert ids == list(range(len(ids)))


def test_stopping_twice_and_after_the_end_is_harmless(spark: SparkSession, tmp_path: Path, kept: str) -> None:
    rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
    run = _run(hf.Pipeline("p", rows | hf.write.memory(kept)), tmp_path, spark)
    assert run.stop()
    assert run.stop(timeout_s=1)
    assert run.wait()


def test_new_files_are_picked_up_while_a_run_is_on(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path / "in", "0.json", numbered(0, 10))
    pipeline = hf.Pipeline(
        "p", json_source(tmp_path / "in") | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table")
    )
    run = pipeline.start(checkpoint=str(tmp_path / "c"), trigger=hf.every("50 ms"), session=spark)
    for number in range(1, 4):
        eventually(lambda wanted=number * 10: len(sqlite_rows(tmp_path / "out.db")) == wanted)
        arrive(tmp_path / "in", f"{number}.json", numbered(number * 10, number * 10 + 10))
    eventually(lambda: len(sqlite_rows(tmp_path / "out.db")) == 40)
    assert not run.wait(timeout_s=0.2), "nothing new is no reason to end"
    run.stop()
    assert sqlite_rows(tmp_path / "out.db") == list(range(40))
    assert run.status().epoch == 4, "an interval without new rows has no epoch"


def test_a_limit_of_rows_cuts_files_into_epochs(spark: SparkSession, tmp_path: Path) -> None:
    counts: list[int] = []
    arrive_in_order(tmp_path / "in", 2, 50)
    rows = json_source(tmp_path / "in", max_rows_per_epoch=30, max_files_per_epoch=None)
    pipeline = hf.Pipeline(
        "p",
        rows | hf.write.foreach_batch(lambda frame, epoch: counts.append(frame.count()), name="count"),
        rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"),
    )
    _run(pipeline, tmp_path, spark)
    assert sum(counts) == 100
    assert max(counts) <= 30
    assert sqlite_rows(tmp_path / "out.db") == list(range(100))


@pytest.mark.parametrize("mode", MODES)
def test_rejects_are_counted_and_go_to_a_sink_of_their_own(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path / "in", "0.json", [*numbered(0, 5), '{"id": "no number"}', *numbered(5, 10), "{broken"])
    arrive(tmp_path / "in", "1.json", [*numbered(10, 12), "[]"])
    rows = json_source(tmp_path / "in", on_bad_row="reject")
    pipeline = hf.Pipeline(
        "p",
        rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="good"),
        rows.rejects | hf.write.sqlite(tmp_path / "out.db", table="bad", name="bad"),
    )
    status = _run(pipeline, tmp_path, spark, MODES[mode]).status()
    assert sqlite_rows(tmp_path / "out.db") == list(range(12))
    bad = sqlite_rows(tmp_path / "out.db", "SELECT position, raw FROM bad")
    assert [(position.rpartition("/")[2], raw) for position, raw in bad] == [
        ("0.json:12", "{broken"),
        ("0.json:6", '{"id": "no number"}'),
        ("1.json:3", "[]"),
    ]
    assert (status.sources[0].rows, status.sources[0].rejects) == (15, 3)


# --- status -------------------------------------------------------------------------------------------------


def test_a_status_tells_where_every_source_and_sink_stands(spark: SparkSession, tmp_path: Path) -> None:
    arrive_in_order(tmp_path / "in", 3, 10)
    gate = threading.Event()
    rows = json_source(tmp_path / "in")
    pipeline = hf.Pipeline(
        "p",
        held_back(rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"), gate),
    )
    run = pipeline.start(checkpoint=str(tmp_path / "c"), trigger=hf.available_now(), session=spark)
    before = run.status()
    gate.set()
    assert run.wait(60)
    after = run.status()
    assert (before.pipeline, before.generation, before.epoch, before.rows_total) == ("p", 1, 0, 0)
    assert before.state == "running"
    assert not before.is_final
    assert after.is_final
    assert after.error is None
    source, sink = after.sources[0], after.sinks[0]
    assert (source.name, source.positions, source.newest, source.lag, source.rows) == (
        "source",
        {"log": 3},
        {"log": 3},
        0,
        30,
    )
    assert (sink.name, sink.kind, sink.guarantee, sink.epoch, sink.rows) == ("table", "sqlite", "exactly-once", 3, 30)
    assert sink.staging
    assert after.last_epoch is not None
    assert (after.last_epoch.epoch, after.last_epoch.rows) == (3, 10)
    assert after.last_epoch.bytes > 0
    assert set(after.last_epoch.duration_ms) >= {"plan", "evaluate", "publish"}
    assert after.started_at_us > 1_700_000_000_000_000
    assert (after.retries, after.queue) == (0, 0)


# --- operators on workers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_set_up_of_map_batches_runs_once_in_a_worker(mode: str, spark: SparkSession, tmp_path: Path, kept: str) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def set_up() -> int:
        import os
        import uuid

        (marks / f"{os.getpid()}-{uuid.uuid4().hex}").touch()
        return 100

    def add(batch: pa.RecordBatch, ready: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": [value + ready for value in batch.column("id").to_pylist()]})

    arrive_in_order(tmp_path / "in", 6, 10)
    added = json_source(tmp_path / "in") | hf.map_batches(add, "id BIGINT", setup=set_up, name="add")
    _run(hf.Pipeline("p", added | hf.write.memory(kept)), tmp_path, spark, MODES[mode])
    assert sorted(memory.rows(kept)["id"].to_pylist()) == list(range(100, 160))
    workers = [mark.name.partition("-")[0] for mark in marks.iterdir()]
    assert workers, "nobody set up"
    assert len(workers) == len(set(workers)), "a worker set up twice in one run"


# --- staging with a commit thread ---------------------------------------------------------------------------


def test_the_commit_thread_lets_epochs_be_evaluated_while_an_older_one_is_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    arrive_in_order(tmp_path / "in", 3, 10)
    gate = threading.Event()
    rows = json_source(tmp_path / "in")
    pipeline = hf.Pipeline(
        "p",
        held_back(rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"), gate),
        rows | hf.write.files(tmp_path / "files", name="files"),
    )
    run = pipeline.start(checkpoint=str(tmp_path / "c"), trigger=hf.available_now(), session=spark, settings=STAGED)
    eventually(lambda: (last := run.status().last_epoch) is not None and last.epoch == 3)
    held = run.status()
    assert (held.epoch, held.rows_total) == (0, 0), "nothing is published yet"
    assert held.queue > 0
    assert run.is_active
    gate.set()
    assert run.wait(60)
    assert sqlite_rows(tmp_path / "out.db") == parquet_rows(tmp_path / "files") == list(range(30))
    assert (run.status().epoch, run.status().queue) == (3, 0)


def test_without_the_commit_thread_an_epoch_is_published_before_the_next_is_evaluated(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    arrive_in_order(tmp_path / "in", 3, 10)
    rows = json_source(tmp_path / "in")
    pipeline = hf.Pipeline(
        "p",
        rows | hf.write.sqlite(tmp_path / "out.db", table="rows", name="table"),
        rows
        | hf.write.foreach_batch(
            lambda frame, epoch: seen.append((epoch, len(sqlite_rows(tmp_path / "out.db")))), name="look"
        ),
    )
    _run(pipeline, tmp_path, spark, STAGED, commit_thread=False)
    assert seen == [(1, 10), (2, 20), (3, 30)]


def test_a_run_starts_where_another_session_is_active_that_knows_our_data_source(spark: SparkSession) -> None:
    """``createDataFrame`` makes its session the active one of the thread, for good."""
    active = SparkSession.getActiveSession()
    try:
        run_session(spark, 2).createDataFrame([(1,)], "id BIGINT")
        assert run_session(spark, 2).version == spark.version
    finally:
        assert active is not None
        active.createDataFrame([(1,)], "id BIGINT")
