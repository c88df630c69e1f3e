"""What a comparison reports, without a JVM: a fake shadow stands for what Spark computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.capabilities import offers
from holdfast.config import Settings
from holdfast.ports import Carried, Comparable, Content, EpochRecord, Publication, RunIdentity
from holdfast.starts.shadows import reconciling
from holdfast.starts.shadows.reconciling import Reconciling

SCHEMA = pa.schema([("id", pa.int64())])
COMPUTING_S = 158.0
"""So long a run of the shadow takes, by the clock of the test."""


def given(work: Path, file: str) -> hf.Pipeline:
    rows = hf.read.files(work / "in", schema="id BIGINT", name="rows")
    return hf.Pipeline("trips", rows | hf.write.sqlite(work / file, table="trips", name="table"))


def opened(pipeline: hf.Pipeline, ids: list[int]) -> Any:
    """Return the sink of a pipeline, which holds one epoch."""
    (node,) = pipeline.sinks
    sink = node.spec.connect(node.name, pipeline.name, SCHEMA)
    held = sink.open(RunIdentity(pipeline.name, 1))
    rows = pa.table({"id": ids}, schema=SCHEMA)
    sink.publish([Publication(EpochRecord(pipeline.name, 1, 1, {"rows": {"log": 1}}), (Carried(rows),))], held)
    return sink


class FakeShadow:
    """What the sink should hold, after a run that takes its time."""

    is_what_was_kept = True

    def __init__(self, sink: Any, clock: list[float]) -> None:
        self.sink, self.clock = sink, clock

    def go_to(self, positions: object) -> None:
        self.clock[0] += COMPUTING_S

    def schema(self, name: str) -> pa.Schema:
        return SCHEMA

    @contextmanager
    def content(self, name: str) -> Iterator[Content]:
        assert offers(self.sink, Comparable)
        with self.sink.content() as content:
            yield content

    def __getattr__(self, name: str) -> Any:
        return lambda *told: None


def test_a_comparison_took_as_long_as_its_user_has_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(reconciling, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    pipeline = given(tmp_path, "actual.db")
    opened(pipeline, [1, 2, 3]).close()
    shadow = FakeShadow(opened(given(tmp_path, "expected.db"), [1, 2, 3]), clock)
    monkeypatch.setattr(Reconciling, "_shadow", lambda self, sinks: shadow)
    asked = Reconciling(pipeline, pipeline.sinks[0], tmp_path / "none", tmp_path / "shadow", Settings())
    found = asked.look()
    shadow.sink.close()
    assert found.is_equal
    assert found.actual_count == 3
    assert clock[0] >= 1000.0 + COMPUTING_S
    assert found.duration_s == clock[0] - 1000.0
