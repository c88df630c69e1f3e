"""Spans and lineage are told to others, and what of that fails is dropped and counted (design/0049, section 4)."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import holdfast as hf
from holdfast.commit.busy import Busy
from holdfast.errors import BadRow, Unavailable
from holdfast.metrics.lineage import LineageRun
from holdfast.metrics.outbox import Outbox, drops
from holdfast.metrics.tracing import send_spans
from holdfast.plan.epoch_times import EpochTimes
from holdfast.plan.lineage import lineage_of
from holdfast.time_use import EpochTrace

PATIENCE_S = 60.0


def dropped(what: str) -> int:
    return drops()[what]


def test_what_does_not_fit_is_dropped_and_counted_and_nobody_waits() -> None:
    may_go_on, is_sending, sent = threading.Event(), threading.Event(), []

    def send(number: int) -> None:
        is_sending.set()
        may_go_on.wait(PATIENCE_S)
        sent.append(number)

    outbox = Outbox("full", send, most=3)
    assert dropped("full") == 0
    outbox.put(0)
    assert is_sending.wait(PATIENCE_S)
    for number in range(1, 10):
        outbox.put(number)
    assert dropped("full") == 6
    may_go_on.set()
    outbox.end(PATIENCE_S)
    assert sent == [0, 1, 2, 3]
    outbox.put(11)
    assert dropped("full") == 7


def test_what_cannot_be_sent_is_dropped_and_the_next_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    sent = []

    def send(number: int) -> None:
        if number < 2:
            raise ConnectionError("to https://ann:pw7Qx1vulpine@collector")
        sent.append(number)

    outbox = Outbox("failing", send)
    for number in range(4):
        outbox.put(number)
    outbox.end(PATIENCE_S)
    assert (sent, dropped("failing")) == ([2, 3], 2)
    assert "the run goes on" in caplog.text
    assert "vulpine" not in caplog.text


def test_an_end_waits_no_longer_than_it_may_for_a_system_that_hangs() -> None:
    may_go_on, is_sending = threading.Event(), threading.Event()

    def send(number: int) -> None:
        is_sending.set()
        may_go_on.wait(PATIENCE_S)

    outbox = Outbox("hanging", send)
    for number in range(3):
        outbox.put(number)
    assert is_sending.wait(PATIENCE_S)
    outbox.end(0.01)
    assert dropped("hanging") == 2
    may_go_on.set()


def spans_of(told: EpochTrace) -> dict[str, ReadableSpan]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    send_spans(provider, told, {"holdfast.pipeline": "trips"})
    return {span.name: span for span in exporter.get_finished_spans()}


def test_an_epoch_is_a_span_and_its_stages_follow_each_other_below_it() -> None:
    stages = (("plan", 0.25), ("evaluate", 1.0), ("decide", 0.0), ("publish", 0.5), ("log", 0.25))
    spans = spans_of(EpochTrace(41, 10_000_000, 7, stages, {"evaluate": {"sums": 0.75}}))
    whole = spans.pop("epoch")
    assert (whole.start_time, whole.end_time) == (8_000_000_000, 10_000_000_000)
    assert dict(whole.attributes or {}) == {"holdfast.pipeline": "trips", "holdfast.epoch": 41, "holdfast.rows": 7}
    assert list(spans) == [stage for stage, _ in stages]
    at = whole.start_time
    for (_, seconds), span in zip(stages, spans.values(), strict=True):
        assert span.parent is not None
        assert span.parent.span_id == whole.context.span_id
        assert (span.start_time, span.end_time) == (at, at + round(seconds * 1e9))
        at = span.end_time
    assert at == whole.end_time
    assert (spans["evaluate"].attributes or {})["holdfast.node.sums.seconds"] == 0.75


def test_who_follows_is_told_each_epoch_with_stages_that_add_up() -> None:
    clock = iter([0.0, 0.1, 0.3, 0.7, 1.0, 1.0, 2.0, 2.0, 2.5, 2.5, 3.0, 3.0])
    times, told = EpochTimes(lambda: next(clock), lambda: 5), []
    times.follow = told.append
    for epoch in (1, 2):
        times.begin(epoch, Busy())
        for _ in range(3):
            times.mark()
        times.note({}, Busy(), epoch=epoch, rows=10 * epoch)
        times.end()
    assert [(each.epoch, each.rows, each.ended_us) for each in told] == [(1, 10, 5), (2, 20, 5)]
    assert [round(sum(seconds for _, seconds in each.stages), 9) for each in told] == [1.0, 1.0]


# --- lineage ----------------------------------------------------------------------------------------------------------


def pipeline(tmp_path: Path) -> hf.Pipeline:
    rides = hf.read.files(str(tmp_path / "in"), schema="id BIGINT, fare DOUBLE, tip DOUBLE, city STRING", name="rides")
    paid = (
        rides | hf.filter("fare > 0", name="valid") | hf.select("id", "fare + tip AS Total", "city AS town", name="p")
    )
    counted = paid | hf.map_batches(lambda rows: rows, "id BIGINT", name="by_function")
    dsn = "postgresql://app:pw7Qx1vulpine@db.example:5433/taxis?password=pw7Qx1vulpine"
    table = paid | hf.write.postgres(dsn, table="paid", name="table")
    return hf.Pipeline("trips", table, counted | hf.write.files(str(tmp_path / "out"), name="out"))


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_of(tmp_path: Path) -> tuple[LineageRun, Path]:
    path = tmp_path / "events"
    client = OpenLineageClient(transport=FileTransport(FileConfig(str(path), append=True)))
    return LineageRun(lineage_of(pipeline(tmp_path)), client), path


def test_a_run_tells_its_data_sets_with_schemas_and_where_columns_come_from(tmp_path: Path) -> None:
    run, path = run_of(tmp_path)
    run.begin()
    run.end(None)
    run.end(None)
    began, ended = events(path)
    assert [began["eventType"], ended["eventType"]] == ["START", "COMPLETE"]
    assert began["run"]["runId"] == ended["run"]["runId"]
    assert (began["job"]["namespace"], began["job"]["name"]) == ("holdfast", "trips")
    (rides,) = began["inputs"]
    assert (rides["namespace"], rides["name"]) == ("file", str(tmp_path / "in"))
    types = {each["name"]: each["type"] for each in rides["facets"]["schema"]["fields"]}
    assert types == {"id": "int64", "fare": "double", "tip": "double", "city": "string"}
    table, out = began["outputs"]
    assert (table["namespace"], table["name"]) == ("postgres://db.example:5433", "taxis.paid")
    assert [each["name"] for each in table["facets"]["schema"]["fields"]] == ["id", "Total", "town"]
    columns = {
        name: [(each["field"], each["transformations"][0]["subtype"]) for each in of["inputFields"]]
        for name, of in table["facets"]["columnLineage"]["fields"].items()
    }
    assert columns == {
        "id": [("id", "IDENTITY")],
        "Total": [("fare", "TRANSFORMATION"), ("tip", "TRANSFORMATION")],
        "town": [("city", "IDENTITY")],
    }
    assert "columnLineage" not in out["facets"], "what a function computes is not known"
    assert "pw7Qx1vulpine" not in path.read_text()


def test_a_failure_is_told_by_its_kind_and_no_row(tmp_path: Path) -> None:
    run, path = run_of(tmp_path)
    run.begin()
    run.end(BadRow("row8Zk2marzipan is no number", why="row8Zk2marzipan", do="mend it", participant="rides"))
    failed = events(path)[-1]
    assert failed["eventType"] == "FAIL"
    assert failed["run"]["facets"]["errorMessage"]["message"] == "BadRow in rides"
    assert "row8Zk2marzipan" not in path.read_text()


def test_a_client_that_fails_leaves_the_run_alone(tmp_path: Path) -> None:
    class Away:
        def emit(self, event: Any) -> None:
            raise Unavailable("no collector", why="it is away", do="start it")

    run, before = LineageRun(lineage_of(pipeline(tmp_path)), Away()), dropped("lineage")
    run.begin()
    run.end(None)
    assert dropped("lineage") - before == 2
