"""A run is told to OpenTelemetry and OpenLineage: its epochs, its begin and its end (design/0049, section 4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import holdfast as hf
from holdfast.config import Settings
from holdfast.errors import HoldfastError
from holdfast.metrics import tracing
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark


def events(path: Path) -> list[tuple[str, str]]:
    return [(each["eventType"], each["job"]["name"]) for each in map(json.loads, path.read_text().splitlines())]


def pipeline(work: Path) -> hf.Pipeline:
    numbers = hf.read.files(str(work / "in"), schema="id BIGINT", name="numbers")
    some = numbers | hf.filter("id >= 2", name="some")
    return hf.Pipeline("numbers", some | hf.write.sqlite(str(work / "table.db"), table="rows", name="table"))


@pytest.mark.parametrize("shards", [None, 2])
def test_the_epochs_of_a_run_are_spans_and_its_begin_and_end_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int | None
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_provider", lambda: provider)
    told = tmp_path / "events"
    monkeypatch.setenv(
        "OPENLINEAGE__TRANSPORT", json.dumps({"type": "file", "log_file_path": str(told), "append": True})
    )
    for number in range(4):
        arrive(tmp_path / "in", f"{number}.json", [{"id": 10 + number}])
    given = {} if shards is None else {"shards": shards}
    settings = Settings(tracing=True, lineage=True)
    run = pipeline(tmp_path).start(checkpoint=tmp_path / "ckpt", trigger=hf.every("20 ms"), settings=settings, **given)
    eventually(lambda: run.status().rows_total == 4, what="all rows")
    run.stop()
    run.wait()
    assert sorted(sqlite_rows(tmp_path / "table.db")) == [10, 11, 12, 13]
    assert events(told) == [("START", "numbers"), ("COMPLETE", "numbers")]
    spans = exporter.get_finished_spans()
    whole = [span for span in spans if span.name == "epoch"]
    assert {(span.attributes or {})["holdfast.shard"] for span in whole} == set(range(shards or 1))
    assert sum(int((span.attributes or {})["holdfast.rows"]) for span in whole) == 4  # type: ignore[arg-type]
    ids = {span.context.span_id for span in whole}
    below = [span for span in spans if span.name != "epoch"]
    assert {span.name for span in below} == {"plan", "evaluate", "decide", "publish", "log"}
    assert all(span.parent is not None and span.parent.span_id in ids for span in below)
    assert len(below) == 5 * len(whole)


def test_a_run_that_fails_and_a_start_that_does_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "events"
    monkeypatch.setenv(
        "OPENLINEAGE__TRANSPORT", json.dumps({"type": "file", "log_file_path": str(told), "append": True})
    )
    arrive(tmp_path / "in", "a.json", [{"id": "no number"}])
    run = pipeline(tmp_path).start(checkpoint=tmp_path / "ckpt", settings=Settings(lineage=True))
    with pytest.raises(HoldfastError):
        run.wait(120)
    assert [state for state, _ in events(told)] == ["START", "FAIL"]
    with pytest.raises(HoldfastError):
        pipeline(tmp_path).start(checkpoint=tmp_path / "ckpt", settings=Settings(lineage=True), from_checkpoint="none")
    assert [state for state, _ in events(told)] == ["START", "FAIL", "START", "FAIL"]
