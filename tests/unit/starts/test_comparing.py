"""What a start does where a sink is not compared, without a JVM: a fake shadow stands for what Spark computes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.targets import add_targets
from holdfast.commit.owner import this_process
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.ports import Carried, Content, EpochRecord, Held, Publication, RunIdentity, Sink
from holdfast.starts.shadows.comparing import StartComparison
from holdfast.starts.shadows.reconciling import Reconciling, start_shadow
from holdfast.starts.shadows.shadow import Shadow
from holdfast.status import ComparedSink
from holdfast.store.paths import open_store

SCHEMA = pa.schema([("id", pa.int64())])
GONE = InvalidPipeline("what the sinks should hold cannot be computed.", why="in/000.json is gone.")


def given(work: Path, file: str = "actual.db") -> hf.Pipeline:
    rows = hf.read.files(work / "in", schema="id BIGINT", name="rows")
    return hf.Pipeline("trips", rows | hf.write.sqlite(work / file, table="trips", name="table"))


@contextmanager
def opened(pipeline: hf.Pipeline, ids: list[int]) -> Iterator[Any]:
    """Yield the sink of a pipeline, which holds one epoch."""
    (node,) = pipeline.sinks
    sink = node.spec.connect(node.name, pipeline.name, SCHEMA)
    with closing(sink):
        held = sink.open(RunIdentity(pipeline.name, 1))
        rows = pa.table({"id": ids}, schema=SCHEMA)
        sink.publish([Publication(EpochRecord(pipeline.name, 1, 1, {"rows": {"log": 1}}), (Carried(rows),))], held)
        yield sink


class FakeShadow:
    """What the sink should hold, or why that is not known."""

    is_what_was_kept = True

    def __init__(self, sink: Any = None, error: Exception | None = None) -> None:
        self.sink, self.error = sink, error

    def go_to(self, positions: object) -> None:
        if self.error is not None:
            raise self.error

    @contextmanager
    def content(self, name: str) -> Iterator[Content]:
        with self.sink.content() as content:
            yield content

    def __getattr__(self, name: str) -> Any:
        return lambda *told: None


@pytest.fixture
def expects(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeShadow], None]:
    def expects(shadow: FakeShadow) -> None:
        monkeypatch.setattr(Reconciling, "_shadow", lambda self, sinks: shadow)

    return expects


def comparison(pipeline: hf.Pipeline, *wanted: str) -> StartComparison:
    return StartComparison(pipeline, wanted, Settings(), None)


def mended(asked: StartComparison, work: Path, sink: Sink, held: Held | None = None) -> ComparedSink:
    at = held or Held(1, 1, {"rows": {"log": 1}})
    (found,) = asked.mend(work / "checkpoint", {"table": sink}, {"table": at}, lambda: None)
    return found


def test_where_nobody_can_compute_what_sinks_should_hold_the_start_goes_on_and_says_so(
    tmp_path: Path, expects: Callable[[FakeShadow], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Refused again and again, neither main nor replica would ever run the pipeline."""
    pipeline = given(tmp_path)
    expects(FakeShadow(error=GONE))
    with opened(pipeline, [1]) as sink:
        asked = comparison(pipeline)
        asked.prepare(tmp_path / "checkpoint")
        found = mended(asked, tmp_path, sink)
    assert found == ComparedSink("table", why_not=f"{GONE.what} {GONE.why}")
    assert any(each.levelno == logging.WARNING and found.text in each.message for each in caplog.records)


def test_where_nobody_can_compute_what_a_named_sink_should_hold_the_start_is_refused_before_the_takeover(
    tmp_path: Path, expects: Callable[[FakeShadow], None]
) -> None:
    pipeline = given(tmp_path)
    expects(FakeShadow(error=GONE))
    with opened(pipeline, [1]), pytest.raises(InvalidPipeline) as refused:
        comparison(pipeline, "table").prepare(tmp_path / "checkpoint")
    assert refused.value is GONE


@pytest.mark.parametrize("wanted", [(), ("table",)])
def test_a_row_that_a_table_refuses_leaves_it_as_it_is(
    tmp_path: Path, expects: Callable[[FakeShadow], None], wanted: tuple[str, ...]
) -> None:
    """The pipeline has left it out, by a checkpoint that this one knows nothing of."""
    pipeline = given(tmp_path)
    with opened(pipeline, [1, 2]) as sink, opened(given(tmp_path, "expected.db"), [1, 2, 3, 13]) as expected:
        connection = sink._session.connection()
        refuses = "BEFORE INSERT ON trips WHEN new.id = 13 BEGIN SELECT raise(ABORT, 'no'); END"
        connection.execute(f"CREATE TRIGGER refuses {refuses}")
        expects(FakeShadow(expected))
        if wanted:
            with pytest.raises(InvalidPipeline, match="left as it is") as refused:
                mended(comparison(pipeline, *wanted), tmp_path, sink)
            assert "start without naming it" in refused.value.do
        else:
            assert "no" in mended(comparison(pipeline), tmp_path, sink).why_not
        assert connection.execute("SELECT id FROM trips ORDER BY id").fetchall() == [(1,), (2,)]


def test_a_sink_whose_lost_rows_come_again_is_not_asked_for_them(
    tmp_path: Path, expects: Callable[[FakeShadow], None]
) -> None:
    pipeline = given(tmp_path)
    refilled = Held(1, 1, {"rows": {"log": 1}}, stops=({"rows": {"log": 3}},))
    expects(FakeShadow(error=AssertionError("nothing is computed")))
    with opened(pipeline, [1]) as sink:
        assert "come again in the next run" in mended(comparison(pipeline), tmp_path, sink, refilled).why_not
        with pytest.raises(InvalidPipeline, match="come again") as refused:
            mended(comparison(pipeline, "table"), tmp_path, sink, refilled)
    assert "without naming this sink" in refused.value.do


def test_a_checkpoint_that_has_not_led_may_not_know_dead_letters_and_says_so(
    tmp_path: Path, expects: Callable[[FakeShadow], None], caplog: pytest.LogCaptureFixture
) -> None:
    pipeline, checkpoint = given(tmp_path), tmp_path / "checkpoint"
    with opened(pipeline, [1]) as sink:
        expects(FakeShadow(sink))
        comparison(pipeline).prepare(checkpoint)
        assert "dead letters there is not known here" in caplog.text
        caplog.clear()
        (checkpoint / "spark" / "1").mkdir(parents=True)
        (checkpoint / "spark" / "1" / "origin.json").write_bytes(b"{}")
        comparison(pipeline).prepare(checkpoint)
        assert "dead letters" not in caplog.text


def test_what_another_process_computes_is_not_removed(
    tmp_path: Path, expects: Callable[[FakeShadow], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, place = given(tmp_path), start_shadow(tmp_path / "checkpoint")
    with opened(pipeline, [1]) as sink:
        expects(FakeShadow(sink))
        for in_use in (True, False):
            place.mkdir(exist_ok=True)
            monkeypatch.setattr(Shadow, "check_nobody_runs", lambda self, is_in_use=in_use: used(is_in_use))
            assert mended(comparison(pipeline), tmp_path, sink).is_equal
            assert place.exists() is in_use


@pytest.mark.parametrize(("computed", "goes_to", "left"), [(0, 1, set()), (2, 2, {"behind"}), (3, 1, set())])
def test_what_was_computed_beyond_a_sink_is_kept_for_those_that_have_come_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: int, goes_to: int, left: set[str]
) -> None:
    """A start was killed between two sinks: from the beginning it would take long, or sources are gone.

    Where it is beyond all of them it is of no use, and computed anew.
    """
    rows = hf.read.files(tmp_path / "in", schema="id BIGINT", name="rows")
    names = ("behind", "ahead")
    pipeline = hf.Pipeline("trips", *(rows | hf.write.sqlite(tmp_path / f"{n}.db", table="t", name=n) for n in names))
    for epoch_count, node in enumerate(pipeline.sinks, 1):
        with closing(node.spec.connect(node.name, "trips", SCHEMA)) as sink:
            held = sink.open(RunIdentity("trips", 1))
            for epoch in range(1, epoch_count + 1):
                record = EpochRecord("trips", epoch, 1, {"rows": {"log": epoch}})
                sink.publish([Publication(record, ())], held)
                held = Held(epoch, 1, record.positions)
    shadow = Shadow(pipeline, pipeline.sinks, start_shadow(tmp_path / "checkpoint"), Settings())
    if computed:
        shadow.checkpoint.mkdir(parents=True)
        (shadow.directory / "graph").write_text(shadow.pipeline.fingerprint())
        add_targets(open_store(str(shadow.checkpoint)), shadow.checkpoint / "targets", {"rows": {"log": computed}})
    gone: list[object] = []
    monkeypatch.setattr(Shadow, "go_to", lambda self, positions: gone.append(positions["rows"]["log"]))
    asked = comparison(pipeline)
    asked.prepare(tmp_path / "checkpoint")
    assert gone == [goes_to]
    at = {node.name: Held(epoch, 1, {"rows": {"log": epoch}}) for epoch, node in enumerate(pipeline.sinks, 1)}
    monkeypatch.setattr(StartComparison, "_mended", lambda self, node, *told: ComparedSink(node.name))
    told = asked.mend(tmp_path / "checkpoint", dict.fromkeys(at), at, lambda: None)  # type: ignore[arg-type]
    assert {each.sink for each in told if "goes beyond it" in each.why_not} == left
    gone.clear()
    comparison(pipeline, *names).prepare(tmp_path / "checkpoint")
    assert gone == [1], "named: all of them"


def test_who_uses_a_shadow_is_named_with_what_to_do(tmp_path: Path) -> None:
    """A start has no other directory to name; the process may have failed, and be there still."""
    shadow = Shadow(given(tmp_path), [], tmp_path / "shadow", Settings())
    who = json.loads(this_process(1)) | {"pid": os.getppid(), "began": ""}
    open_store(str(shadow.checkpoint)).put("generations/000001", json.dumps(who).encode())
    with pytest.raises(InvalidPipeline, match=f"process {os.getppid()} on this host is alive") as refused:
        shadow.check_nobody_runs()
    assert refused.value.do.startswith(f"end process {os.getppid()}, and do it again")


def used(is_in_use: bool) -> None:
    if is_in_use:
        raise InvalidPipeline("the shadow is in use.")
