"""Rows that filters drop are counted where Arrow evaluates them: on the driver, in tasks, before and behind state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.plan.counts import Counts, EpochReport, Observed
from holdfast.plan.program_build import build_program
from holdfast.spark.evaluation import ColumnarEvaluation, ProgramHere, Reader, SourcesHere, timestamps_of
from holdfast.state.bucket_report import BucketReport, Pressure
from holdfast.status import Wait
from holdfast.testing.simulation.levels import StatefulWorkload
from holdfast.testing.simulation.process import Process

ROWS = [[{"k": "a", "t": t} for t in range(10)], [{"k": "b", "t": 20}]]


def rows() -> hf.Stream:
    return hf.read.rows(ROWS, schema="k STRING, t BIGINT", timestamp="t", name="rows")


def stateless() -> hf.Pipeline:
    kept = rows() | hf.filter("t > 2", name="later") | hf.clip(0, 8, name="span")
    return hf.Pipeline("p", kept | hf.write.memory("p_kept"))


def test_an_epoch_that_the_driver_carries_counts_what_each_filter_dropped(tmp_path: Path) -> None:
    pipeline = stateless()
    program = build_program(pipeline, lambda schema: schema, "token")
    assert program is not None
    assert program.filters == {"later", "span"}
    (node,) = pipeline.sources
    spec: Any = node.spec
    nothing: Any = None
    readers = {"rows": Reader(spec, "rows", str(tmp_path))}
    sources = SourcesHere(readers, {}, {})
    here = ProgramHere(program, sources, timestamps_of(readers))
    evaluation = ColumnarEvaluation(nothing, program, readers, 1, sources, here)
    found = evaluation.carry(nothing, {}, {"rows": {"rows": 2}}, frozenset({pipeline.sinks[0].name}))
    assert found is not None
    assert {name: (of.rows, of.rejects) for name, of in found.report.observed.items()} == {
        "rows": (11, 0),
        "later": (11, 3),
        "span": (8, 3),
    }


def test_counts_of_tasks_come_back_as_they_left() -> None:
    counts = Counts({"rows": "t"})
    counts.add("rows", pa.record_batch({"t": [1, 7]}))
    counts.passed("later", 2, 1, 1, drops=True)
    counts.passed("later", 3, 3, 3, drops=True)
    said = BucketReport({"late": 1}, 3, 90, 2, (Wait({"k": "a"}, "lidar", 5),), 7, Pressure(4, ("x",), ("y",)))
    report = counts.report({"sums/0": said})
    assert EpochReport.from_json(report.to_json()) == report
    assert report.observed == {"rows": Observed(2, 0, 7), "later": Observed(5, 1)}
    assert report.buckets == {"sums/0": said}


def test_rows_with_members_that_are_no_column_are_counted_and_the_members_named() -> None:
    counts = Counts({"rides": None})
    for texts in ([None, '{"tip":1}'], ['{"tip":null,"vip":true}', '{"id":{"x":1}}'], [None, None]):
        counts.add("rides", pa.record_batch({"id": [1, 2], "_rescued": pa.array(texts, pa.string())}))
    (of,) = counts.report().observed.values()
    assert (of.rows, of.rescued, of.members) == (6, 3, {"tip": 2, "vip": 1, "id.*": 1})
    assert EpochReport.from_json(counts.report().to_json()) == counts.report()


def test_names_are_bounded_and_a_column_of_somebody_else_ends_no_run() -> None:
    counts = Counts({"rides": None})
    texts = [f'{{"{n}":1}}' for n in range(30)] + ["no JSON", "[1]"]
    counts.add("rides", pa.record_batch({"_rescued": texts}))
    counts.add("rides", pa.record_batch({"_rescued": [1, 2]}))
    of = counts.found["rides"]
    assert (of.rows, of.rescued, len(of.members), of.members["other members"]) == (34, 32, 21, 10)


@pytest.mark.parametrize("buckets", [1, 3])
def test_filters_before_and_behind_state_are_counted(buckets: int) -> None:
    before = rows() | hf.filter("t > 2", name="before")
    running = before | hf.accumulate(by="k", n=hf.count(), name="running") | hf.filter("n > 4", name="behind")
    pipeline = hf.Pipeline("p", running | hf.write.memory("p_running"))
    events = [("rows", row) for epoch in ROWS for row in epoch]
    workload = StatefulWorkload(pipeline, events, lambda visible: [], buckets=buckets)
    evaluation = workload.evaluation(Process(), random.Random(1), 0)
    evaluation.carry(1, 0, len(events), frozenset({pipeline.sinks[0].name}))
    observed = evaluation._reported().observed
    assert {name: (of.rows, of.rejects) for name, of in observed.items()} == {
        "rows": (11, 0),
        "before": (11, 3),
        "behind": (8, 5),
    }
