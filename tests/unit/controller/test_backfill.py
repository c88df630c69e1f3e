"""Backfills: what is refused, what is asked, and what the same command is (design/0056)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.backfills import check_none_adds, note_backfill, note_end, noted_backfills
from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader, note_beginning
from holdfast.checkpoint.spark_log import CONTROLS
from holdfast.config import Settings
from holdfast.connectors.reading.from_time import from_time
from holdfast.connectors.reading.until import up_to
from holdfast.controller import backfill as module
from holdfast.controller.backfill import Backfilling, backfilling
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.starts.shadows.reconciling import Reconciling
from holdfast.store import sealed
from holdfast.store.local import LocalStore

SECOND = 1_000_000
JANUARY = {"at": "2026-01-01", "until": "2026-02-01"}
FEBRUARY_US = 1_769_904_000 * SECOND
SCHEMA = "id BIGINT, at TIMESTAMP"


def rides(name: str = "rides", **options: Any) -> hf.Stream:
    return hf.read.files("in", schema=SCHEMA, timestamp="at", name=name, **options)


def table(name: str = "table", **options: Any) -> Any:
    return hf.write.sqlite("t.db", table=name, name=name, **options)


def ran(place: Path, pipeline: str = "p", *, from_us: int | None = None) -> LocalStore:
    """Return the checkpoint of a pipeline that has run."""
    store = LocalStore(str(place))
    store.put("identity.json", sealed.dump({"pipeline": pipeline, "format": 1}))
    if from_us is not None:
        note_beginning(store, f"at={from_us}", DirectoryHeader(1, from_us=from_us))
    return store


def made(place: Path, *sinks: Any, **options: Any) -> Backfilling:
    return backfilling(hf.Pipeline("p", *sinks), checkpoint=str(place), **{**JANUARY, **options})


def refused(place: Path, *sinks: Any, **options: Any) -> str:
    with pytest.raises(InvalidPipeline) as error:
        made(place, *sinks, **options)
    return str(error.value)


def test_a_range_below_where_the_live_run_began_is_written_by_whatever_sink(tmp_path: Path) -> None:
    ran(tmp_path, from_us=FEBRUARY_US)
    found = made(tmp_path, rides() | table())
    assert found.graph.name == f"p-backfill_{found.note.name}"
    assert found.checkpoint == f"{tmp_path}/backfills/{found.note.name}"
    assert found.note.adds == ("table",)
    assert made(tmp_path, rides() | hf.write.files("out", name="out")).note.adds == (), "its files say whose they are"
    assert found.note.shown == "2026-01-01T00:00:00Z to 2026-02-01T00:00:00Z"
    assert not list(tmp_path.glob("backfills*")), "nothing is written before it starts"


@pytest.mark.parametrize(
    ("from_us", "why"),
    [(None, "at the beginning of its sources"), (FEBRUARY_US - 1, "began at 2026-01-31T23:59:59.999999Z")],
)
def test_what_the_live_run_gives_an_appending_sink_is_refused_without_the_users_word(
    tmp_path: Path, from_us: int | None, why: str
) -> None:
    ran(tmp_path, from_us=from_us)
    said = refused(tmp_path, rides() | table())
    assert why in said
    assert "--except table" in said
    assert made(tmp_path, rides() | table(), again=True).note.adds == ("table",)


def test_a_row_that_replaces_itself_needs_no_word(tmp_path: Path) -> None:
    ran(tmp_path)
    by_time = rides() | table(mode="upsert", key=["id", "at"])
    assert made(tmp_path, by_time).note.adds == (), "the live run gives the same rows"
    by_id = rides("more") | hf.row_id() | table(mode="upsert", key=["row_id"])
    assert made(tmp_path, by_id).note.adds == ()


def test_an_old_row_that_would_replace_a_newer_one_is_refused(tmp_path: Path) -> None:
    ran(tmp_path, from_us=FEBRUARY_US)
    said = refused(tmp_path, rides() | table(mode="upsert", key=["id"]))
    assert "also one that is newer" in said
    assert "--again" in said


@pytest.mark.parametrize("kind", ["hash", "fields"])
def test_redis_replaces_rows_by_their_id(tmp_path: Path, kind: Any) -> None:
    ran(tmp_path)
    address: dict[str, Any] = {"key": "now", "kind": kind, "name": "out"}
    assert "(id), also one that is newer" in refused(
        tmp_path, rides() | hf.write.redis("redis://localhost", id="id", **address)
    )
    by_row_id = rides() | hf.row_id() | hf.write.redis("redis://localhost", **address)
    assert made(tmp_path, by_row_id).note.adds == (), "the live run gives the same rows"
    stream = hf.write.redis("redis://localhost", id=None, **address | {"kind": "stream"})
    assert "it appends" in refused(tmp_path, rides() | stream)


def test_an_old_row_would_be_the_last_of_its_key_in_a_compacted_topic(tmp_path: Path) -> None:
    ran(tmp_path / "later", from_us=FEBRUARY_US)
    ran(tmp_path / "whole")

    def topic(*key: str) -> Any:
        return rides() | hf.write.kafka("localhost:1", topic="t", mode="upsert", key=[*key], name="out")

    assert "also one that is newer" in refused(tmp_path / "later", topic("id"))
    assert made(tmp_path / "later", topic("id", "at")).note.adds == ("out",)
    assert "it appends" in refused(tmp_path / "whole", topic("id", "at")), "who reads the topic meets both"


def test_rows_of_an_earlier_backfill_are_refused_and_its_neighbours_are_not(tmp_path: Path) -> None:
    store = ran(tmp_path, from_us=FEBRUARY_US)
    first = made(tmp_path, rides() | table())
    note_backfill(store, first.note)
    assert f"backfill {first.note.name} wrote" in refused(tmp_path, rides() | table(), at="2026-01-31")
    made(tmp_path, rides() | table(), at="2025-12-31", until="2026-01-01")
    made(tmp_path, rides() | table("another"))


def test_state_is_asked_for_and_results_of_it_do_not_replace_those_of_the_live_run(tmp_path: Path) -> None:
    ran(tmp_path)
    windows = rides() | hf.aggregate(by="id", window=hf.tumbling("1 h"), n=hf.count(), name="windows")
    sink = windows | table(mode="upsert", key=["id", "window_start"])
    said = refused(tmp_path, sink)
    assert "--empty-state" in said
    assert "of the range alone" in refused(tmp_path, sink, empty_state=True)
    assert "begins empty" in "\n".join(made(tmp_path, sink, empty_state=True, again=True).lines())


def test_sinks_that_only_the_live_run_can_write_are_refused_whatever_is_said(tmp_path: Path) -> None:
    ran(tmp_path, from_us=FEBRUARY_US)
    told = hf.write.foreach_batch(lambda rows, epoch: None, name="function")
    assert "--except function" in refused(tmp_path, rides() | told, again=True)
    assert "a rewind finds the rows" in refused(tmp_path, rides() | table(rewindable=True), again=True)


def test_rejects_of_a_source_have_no_time(tmp_path: Path) -> None:
    ran(tmp_path, from_us=FEBRUARY_US)
    source = rides(on_bad_row="reject")
    sinks = source | table(), source.rejects | table("bad")
    assert "malformed rows have no time" in refused(tmp_path, *sinks)
    assert made(tmp_path, *sinks, leave_out=["bad"]).note.sinks == ("table",)


def test_sources_without_a_past_or_a_time_are_refused(tmp_path: Path) -> None:
    ran(tmp_path)
    rate = hf.read.rate(rows_per_second=1, name="generated")
    assert "no past" in refused(tmp_path, rate | table())
    camera = hf.read.camera("rtsp://localhost/front", journal=tmp_path / "journal", name="front")
    assert "no past" in refused(tmp_path, camera | table())
    timeless = hf.read.files("in", schema=SCHEMA, name="timeless")
    assert "declares no timestamp" in refused(tmp_path, timeless | table())


def test_the_range_says_where_sources_begin_and_not_where_the_live_run_starts(tmp_path: Path) -> None:
    ran(tmp_path / "ckpt", from_us=FEBRUARY_US)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "at": "2026-01-05T00:00:00Z"}\n')
    live = hf.read.files(str(tmp_path / "in"), schema=SCHEMA, timestamp="at", start="latest", name="rides")
    for stream, column in ((live, "id"), (live | hf.row_id(), "row_id")):
        found = made(tmp_path / "ckpt", stream | table(mode="upsert", key=[column, "at"]))
        [node] = found.graph.sources
        spec = from_time(up_to(node.source_spec, found.note.until), found.note.at)
        source = spec.open("rides", str(tmp_path / column))
        begin = source.initial()
        source.freeze()
        end = source.latest(begin, bounded=True)
        rows = [row for span in source.spans(begin, end, parallelism=1) for row in source.read(span)]
        assert sum(batch.num_rows for batch in rows) == 1
    topic = {"topic": "rides", "schema": SCHEMA, "format": "json", "timestamp": "at", "name": "rides"}
    messages = {"start": "2027-01-01T00:00:00Z", "clip": True, "name": "rides"}
    for stream in (
        hf.read.kafka("localhost:1", start="latest", **topic),
        hf.read.kafka("localhost:1", start="2027-01-01T00:00:00Z", disorder="1 min", **topic),
        hf.read.byte_stream(tmp_path / "store", **messages),
    ):
        [node] = made(tmp_path / "ckpt", stream | table()).graph.sources
        said = node.source_spec.arguments()
        assert (said["start"], said.get("clip")) == ("earliest", None)


def test_a_sink_gets_rows_of_all_its_sources_or_is_left_out(tmp_path: Path) -> None:
    ran(tmp_path, from_us=FEBRUARY_US)
    left, right = rides("left"), rides("right")
    sinks = hf.union(left, right, name="both") | table("both_table"), left | table("left_table")
    said = refused(tmp_path, *sinks, sources=["left"])
    assert "--source right" in said
    assert "--except both_table" in said
    found = made(tmp_path, *sinks, sources=["left"], leave_out=["both_table"])
    assert (found.note.sources, found.note.sinks) == (("left",), ("left_table",))
    assert "would write to no sink" in refused(tmp_path, *sinks, leave_out=["both_table", "left_table"])
    assert "has no source 'middle'" in refused(tmp_path, *sinks, sources=["middle"])
    assert "has no sink 'middle'" in refused(tmp_path, *sinks, leave_out=["middle"])
    assert "no sink of the backfill needs source 'right'" in refused(
        tmp_path, *sinks, sources=["left", "right"], leave_out=["both_table"]
    )


def test_a_pipeline_that_has_not_run_or_another_one_is_refused(tmp_path: Path) -> None:
    assert "has not run on this checkpoint" in refused(tmp_path / "none", rides() | table())
    assert not (tmp_path / "none").exists()
    ran(tmp_path / "other", "other")
    assert "belongs to pipeline 'other'" in refused(tmp_path / "other", rides() | table())


def test_the_same_command_is_the_same_backfill_and_knows_that_it_is_done(tmp_path: Path) -> None:
    store = ran(tmp_path)
    first = made(tmp_path, rides() | table(), again=True)
    note_backfill(store, first.note)
    second = made(tmp_path, rides() | table())
    assert second.note == first.note, "what was consented to stays so"
    assert not second.is_done
    note_end(store, second.note, FEBRUARY_US)
    third = made(tmp_path, rides() | table(), at="2026-01-01T01:00:00+01:00")
    assert third.is_done
    assert "done since 2026-02-01T00:00:00Z" in "\n".join(third.lines())
    assert [each.name for each in noted_backfills(store)] == [first.note.name]


ENDED = {"rides": {"log": 9, "@ended": 1}}


def log_batch(place: Backfilling, number: int, positions: dict[str, dict[str, int]], *, is_finished: bool) -> None:
    """Write what Spark logs of a batch: that it is planned, and that it is finished."""
    spark = place.directory / "spark" / "1"
    for log in ("offsets", "commits"):
        (spark / log).mkdir(parents=True, exist_ok=True)
    (spark / FILE_NAME).write_bytes(DirectoryHeader(1).to_json())
    offsets = {
        name: {
            "positions": {segment: at for segment, at in of.items() if segment != "@ended"},
            "size_bytes": 1,
            "row_count": 9,
            **({"has_ended": True} if "@ended" in of else {}),
        }
        for name, of in positions.items()
    }
    head = ["v2", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})]
    lines = [f"{name}:{json.dumps(offset)}" for name, offset in offsets.items()]
    (spark / "offsets" / str(number)).write_text("\n".join([*head, *lines]))
    if is_finished:
        (spark / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def publish(of: Backfilling, epoch: int, positions: dict[str, dict[str, int]]) -> None:
    """Let each table of a backfill hold an epoch without rows."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    for node in of.graph.sinks:
        sink = node.spec.connect(node.name, of.graph.name, schema)
        try:
            sink.open(RunIdentity(of.graph.name, epoch))
            record = EpochRecord(of.graph.name, epoch, epoch, positions)
            sink.publish([Publication(record, (Carried(schema.empty_table()),))], Held())
        finally:
            sink.close()


def test_ends_that_are_only_planned_or_in_no_sink_are_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = ran(tmp_path / "ckpt", from_us=FEBRUARY_US)
    found = made(tmp_path / "ckpt", rides() | table())
    note_backfill(store, found.note)
    assert not found.finish(), "it has not begun"
    log_batch(found, 0, {"rides": {"log": 9}}, is_finished=True)
    publish(found, 1, {"rides": {"log": 9}})
    log_batch(found, 1, ENDED, is_finished=False)
    assert not found.finish(), "the epoch with the ends is planned"
    log_batch(found, 1, ENDED, is_finished=True)
    assert not found.finish(), "it is in no sink"
    publish(found, 2, ENDED)
    assert found.finish()
    assert made(tmp_path / "ckpt", rides() | table()).is_done
    assert found.finish(), "again: it is done"


def test_where_spark_computes_what_is_before_the_state_steps_must_have_been_told_of_the_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = ran(tmp_path / "ckpt", from_us=FEBRUARY_US)
    found = made(tmp_path / "ckpt", rides() | table())
    note_backfill(store, found.note)
    not_told: dict[str, dict[str, int]] = {**ENDED, CONTROLS: {}}
    log_batch(found, 0, not_told, is_finished=True)
    publish(found, 1, not_told)
    assert not found.finish(), "windows are open yet"
    told = {**ENDED, CONTROLS: {"rides": 1}}
    log_batch(found, 1, told, is_finished=True)
    publish(found, 2, told)
    assert found.finish()


class _FailedRun:
    """A run that has failed before it is asked to tell."""

    is_active = False

    def wait(self, timeout_s: float | None = None) -> bool:
        raise Unavailable("sink 'table' is away.", do="start it.")


def test_a_run_that_has_failed_at_once_notes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(tmp_path, from_us=FEBRUARY_US)
    found = made(tmp_path, rides() | table())
    monkeypatch.setattr(module, "start_as_asked", lambda *_, **__: _FailedRun())
    monkeypatch.setattr(module, "listen", lambda *_: None)
    monkeypatch.setattr(module, "call_at_end", lambda *_: None)
    monkeypatch.setattr(Backfilling, "finish", lambda _: pytest.fail("the run has failed"))
    assert isinstance(found.start(), _FailedRun), "who waits for it is told why"


def test_a_graph_that_has_changed_since_is_asked_again_and_what_it_adds_is_noted(tmp_path: Path) -> None:
    store = ran(tmp_path)
    by_itself = rides() | table(mode="upsert", key=["id", "at"])
    first = made(tmp_path, by_itself)
    note_backfill(store, first.note)
    note_backfill(store, replace(first.note, accepted=True))
    assert made(tmp_path, by_itself).note == replace(first.note, accepted=True)
    assert "--again" in refused(tmp_path, rides() | table())
    assert "a rewind finds the rows" in refused(tmp_path, rides() | table(rewindable=True))
    windows = rides() | hf.aggregate(by="id", window=hf.tumbling("1 h"), n=hf.count(), name="windows")
    with_state = windows | table(mode="upsert", key=["id", "window_start"])
    assert "--empty-state" in refused(tmp_path, with_state, again=True)
    appends = made(tmp_path, rides() | table(), again=True)
    assert (appends.note.name, appends.note.adds) == (first.note.name, ("table",))
    note_backfill(store, appends.note)
    [noted] = noted_backfills(store)
    assert noted == replace(first.note, adds=("table",), again=True, accepted=True)
    assert made(tmp_path, by_itself).note == noted, "what was added is there"


def test_of_two_that_overlap_and_are_asked_for_at_once_one_at_least_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ran(tmp_path, from_us=FEBRUARY_US)
    started: list[Any] = []
    monkeypatch.setattr(module, "start_as_asked", lambda graph, **_: started.append(graph.name) or _FailedRun())
    monkeypatch.setattr(module, "listen", lambda *_: None)
    monkeypatch.setattr(module, "call_at_end", lambda *_: None)
    first, second = made(tmp_path, rides() | table()), made(tmp_path, rides() | table(), at="2026-01-15")
    first.start()
    with pytest.raises(InvalidPipeline, match=f"backfill {first.note.name} wrote"):
        second.start()
    assert started == [first.graph.name]
    made(tmp_path, rides() | table()).start()
    assert started == [first.graph.name] * 2, "it goes on, whatever was refused since"
    assert [each.accepted for each in noted_backfills(store)] == [True, False]
    third = made(tmp_path, rides() | table("another"))
    note_backfill(store, replace(third.note, name="0" * 8, at=third.note.at + 1))
    with pytest.raises(InvalidPipeline, match="backfill 00000000 wrote"):
        third.start()
    assert len(started) == 2


def test_a_sink_to_which_rows_were_added_is_not_computed_from_its_sources(tmp_path: Path) -> None:
    store = ran(tmp_path, from_us=FEBRUARY_US)
    pipeline = hf.Pipeline("p", rides() | table())
    note_backfill(store, made(tmp_path, *pipeline.sinks).note)
    reconciling = Reconciling(pipeline, pipeline.sinks[0], tmp_path, tmp_path / "shadow", Settings())
    with pytest.raises(InvalidPipeline, match="a backfill has added rows to it"):
        reconciling.check_computable()
    check_none_adds(store, "p", ["another"], "compared")
    with pytest.raises(InvalidPipeline, match="taken for surplus"):
        check_none_adds(store, "p", ["table"], "compared")
