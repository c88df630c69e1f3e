"""The two ways to evaluate an epoch give the same rows, carried and staged (design/0001, section 4)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.config import Settings
from holdfast.connectors import memory
from holdfast.errors import present
from holdfast.ports import Span
from holdfast.spark.evaluation import (
    NO_EPOCH,
    SPANS_PROPERTY,
    SPANS_TEXT_MAX,
    SpanJobs,
    SpansOfEpoch,
    SpanTask,
)
from holdfast.spark.staging import TaskStaging

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, at TIMESTAMP, value DOUBLE, tags ARRAY<STRING>"


def write_input(directory: Path) -> None:
    directory.mkdir()
    for number in range(3):
        rows = [
            {
                "id": i,
                "at": f"2026-01-01T00:{i % 60:02}:00Z",
                "value": None if i % 7 == 0 else i / 4,
                "tags": ["a", None],
            }
            for i in range(number * 100, number * 100 + 100)
        ]
        lines = [json.dumps(row) for row in rows]
        lines.insert(50, '{"id": "no number"}')
        (directory / f"{number}.json").write_text("\n".join(lines) + "\n")


def shifted(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"id": [i + 1000 for i in batch.column("id").to_pylist()]})


def pipeline_of(directory: Path, prefix: str, with_user_code: bool) -> hf.Pipeline:
    source = hf.read.files(
        directory,
        format="json",
        schema=SCHEMA,
        timestamp="at",
        on_bad_row="reject",
        max_files_per_epoch=1,
        name="source",
    )
    parts = source | hf.split(high="value > 30", low="value <= 30", otherwise="unknown")
    clipped = source | hf.clip("2026-01-01T00:10:00", "2026-01-01T00:20:00", name="clipped")
    both = hf.union(parts.high, parts.unknown, name="both") | hf.select(
        "id", double="value * 2", is_late="value IS NOT NULL AND value > 50", name="computed"
    )
    sinks = {
        "low": parts.low,
        "both": both,
        "clipped": clipped,
        "rejected": source.rejects | hf.select("position", "reason", name="why"),
    }
    if with_user_code:
        sinks["shifted"] = parts.high | hf.map_batches(shifted, "id BIGINT", name="shift")
    return hf.Pipeline("two_ways", *[s | hf.write.memory(prefix + n) for n, s in sinks.items()])


def rows_of(run: Any, prefix: str) -> dict[str, list[str]]:
    tables = {sink.name.removeprefix(prefix): memory.rows(sink.name) for sink in run.pipeline.sinks}
    return {name: sorted(map(repr, table.to_pylist())) for name, table in tables.items()}


@pytest.mark.parametrize("with_user_code", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_both_ways_give_the_same_rows_carried_and_staged(
    tmp_path: Path, spark: SparkSession, with_user_code: bool
) -> None:
    write_input(tmp_path / "in")
    found, schemas, why = {}, {}, {}
    for columnar in (False, True):
        for carry_max in ("16 MB", "0 B"):
            prefix = f"user{with_user_code}_arrow{columnar}_{carry_max.replace(' ', '')}_"
            run = pipeline_of(tmp_path / "in", prefix, with_user_code).run(
                checkpoint=str(tmp_path / prefix),
                trigger=hf.available_now(),
                session=spark,
                settings=Settings(columnar=columnar, carry_max=carry_max),
            )
            found[prefix] = rows_of(run, prefix)
            schemas[prefix] = [memory.rows(prefix + name).schema for name in ("low", "both", "clipped", "rejected")]
            status = run.status()
            assert status.sources[0].rows == 303
            assert status.sources[0].rejects == 3
            why[prefix] = status.sources[0].reasons["rejects"]
            memory_carried = {sink.last_choice for sink in status.sinks}
            assert memory_carried == {"carried" if carry_max != "0 B" else "staged"}
    assert all(each == {"column 'id' is declared int64": 3} for each in why.values()), "counted alike, by whomever"
    first, *others = found.values()
    assert all(first.values()), "a branch without rows proves nothing"
    assert all(other == first for other in others)
    assert len({tuple(map(str, each)) for each in schemas.values()}) == 1


def called_in(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([placed(row["id"]) for row in batch.to_pylist()])


def counted_in(key: int, rows: Any, state: hf.KeyState) -> Any:
    state.set(n=state.get("n", 0) + len(rows))
    yield placed(state.get("n"))


def placed(number: int) -> dict[str, int]:
    return {"id": number, "process": os.getpid(), "is_task": int(TaskContext.get() is not None)}


@pytest.mark.parametrize("kind", ["program", "state"])
def test_small_epochs_call_functions_in_one_process_beside_the_driver_and_run_no_job(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    """A graph with a function pays for it what the function costs, and not a job of Spark for each epoch."""
    rows = hf.read.rows([[{"id": 1}], [{"id": 2}], [{"id": 3}]], schema="id BIGINT", name="rows")
    schema = "id BIGINT, process BIGINT, is_task BIGINT"
    if kind == "state":
        called = (
            rows
            | hf.select("id", k="1L", name="keyed")
            | hf.apply(counted_in, by="k", state="n BIGINT", schema=schema, name="counted")
        )
    else:
        called = rows | hf.map_batches(called_in, schema, name="called")
    pipeline = hf.Pipeline("kept", called | hf.write.memory(f"kept_{kind}"))
    pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark)
    found = memory.rows(f"kept_{kind}").to_pylist()
    assert [row["id"] for row in found] == [1, 2, 3]
    assert [row["is_task"] for row in found] == [0, 0, 0]
    (process,) = {row["process"] for row in found}
    assert process != os.getpid(), "what ends its process would end the driver"
    with pytest.raises(ProcessLookupError):  # the run has ended
        os.kill(process, 0)


def test_a_run_may_change_the_way_at_any_restart(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "in").mkdir()
    expected = []
    for number, columnar in enumerate([True, False, True]):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"id": number}) + "\n")
        expected.append(number)
        rows = hf.read.files(tmp_path / "in", format="json", schema="id BIGINT", name="rows") | hf.filter("id >= 0")
        hf.Pipeline("changing_way", rows | hf.write.memory("changing")).run(
            checkpoint=str(tmp_path / "checkpoint"),
            trigger=hf.available_now(),
            session=spark,
            settings=Settings(columnar=columnar),
        )
        assert sorted(memory.rows("changing")["id"].to_pylist()) == expected


@dataclass(frozen=True)
class Telling(SpanTask):
    """A task that answers with its epoch, its span, and where it has them from."""

    def __call__(self, shares: Iterable[tuple[int, int]]) -> Iterator[dict[str, Any]]:
        given = self.of_epoch()
        context = present(TaskContext.get(), "")
        for name, span in given.spans_of(shares):
            from_whom = "task" if self.spans is not None else "job"
            answer = {"sink": name, "name": str(span.value)[:9], "row_count": given.epoch, "reference": from_whom}
            yield {**answer, "report": repr(self.timestamps), "task": context.partitionId()}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each job that was not as one before it, how many tasks it has."""
    counts: list[int] = []
    tasks = SpanJobs._tasks
    monkeypatch.setattr(SpanJobs, "_tasks", lambda jobs, task, count: counts.append(count) or tasks(jobs, task, count))
    return counts


def answers(jobs: SpanJobs, task: SpanTask, epoch: int, *values: str) -> list[tuple[Any, ...]]:
    spans = SpansOfEpoch(epoch, tuple(("rows", Span(value)) for value in values))
    return sorted(tuple(row.values())[:5] for row in jobs.run(task, spans))


def test_epochs_that_differ_in_their_spans_are_prepared_once(spark: SparkSession, prepared: list[int]) -> None:
    timestamps: dict[str, str | None] = {"rows": "at"}
    task = Telling(TaskStaging("rides", 1, NO_EPOCH, {}), cast("Any", None), {}, timestamps)
    jobs = SpanJobs(spark, 2)
    known = repr(timestamps)
    assert answers(jobs, task, 1, "a", "b") == [("rows", "a", 1, "job", known), ("rows", "b", 1, "job", known)]
    assert answers(jobs, task, 2, "c", "d") == [("rows", "c", 2, "job", known), ("rows", "d", 2, "job", known)]
    assert prepared == [2], "the same tasks"
    assert answers(jobs, task, 3, "e") == [("rows", "e", 3, "job", known)]
    assert prepared == [2, 1], "no task without a span"
    assert len(answers(jobs, task, 3, "e", "f")) == 2
    assert prepared == [2, 1], "the other ones are still there"
    timestamps["more"] = "then"  # in place: the task is equal to what it was
    assert answers(jobs, task, 4, "f") == [("rows", "f", 4, "job", repr(timestamps))]
    assert prepared == [2, 1, 1]
    assert answers(jobs, task, 5, "x" * SPANS_TEXT_MAX) == [("rows", "x" * 9, 5, "task", repr(timestamps))]
    assert spark.sparkContext.getLocalProperty(SPANS_PROPERTY) is None


def test_an_epoch_has_a_task_for_each_core_and_all_of_its_spans(spark: SparkSession, prepared: list[int]) -> None:
    task = Telling(TaskStaging("rides", 1, NO_EPOCH, {}), cast("Any", None), {}, {})
    jobs = SpanJobs(spark, 2)
    rows = jobs.run(task, SpansOfEpoch(1, tuple(("rows", Span(value)) for value in "abcde")))
    assert prepared == [2]
    assert sorted((row["name"], row["task"]) for row in rows) == [("a", 0), ("b", 1), ("c", 0), ("d", 1), ("e", 0)]


def test_first_epochs_start_the_workers_that_later_ones_need(spark: SparkSession, prepared: list[int]) -> None:
    task = Telling(TaskStaging("rides", 1, NO_EPOCH, {}), cast("Any", None), {}, {})
    jobs = SpanJobs(spark, 6)
    for count in (1, 1, 2, 5, 4, 2):
        assert len(answers(jobs, task, 1, *"abcde"[:count])) == count
    assert prepared == [2, 1, 6, 4], "twice as many as spans, where there were never as many"


def test_a_run_that_stages_its_epochs_prepares_them_once(
    tmp_path: Path, spark: SparkSession, prepared: list[int]
) -> None:
    write_input(tmp_path / "in")
    run = pipeline_of(tmp_path / "in", "once_", with_user_code=True).run(
        checkpoint=str(tmp_path / "checkpoint"),
        trigger=hf.available_now(),
        session=spark,
        settings=Settings(carry_max="0 B"),
    )
    assert run.status().sources[0].rows == 303
    assert prepared == [2, 1], "three epochs of a file each, the first of them with a task that starts a worker"
