"""Where a pipeline begins that does not begin at the beginning: what is kept, and what a crash leaves (design/0012)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint import named, portable
from holdfast.checkpoint.directory_header import DirectoryHeader, noted_beginning
from holdfast.checkpoint.graph_record import Described, GraphRecord, Role
from holdfast.checkpoint.named import read_named
from holdfast.checkpoint.snapshot import read_manifest, snapshot_keys, verify
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.errors import Diverged, InvalidPipeline
from holdfast.graph.evolution import Evolution
from holdfast.plan.levels.seed import seed_of
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Store
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.directory import Directory
from holdfast.starts.fork import Fork, stateful_change
from holdfast.starts.graph_diff import NodeVerdict
from holdfast.starts.inputs import StartInputs
from holdfast.starts.start_at import StartAt
from holdfast.starts.table import Spark
from holdfast.store.local import LocalStore
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore
from tests.starts import begun, inputs_of, start_of
from tests.unit.checkpoint.snapshots import KEEPS, snapshot

GRAPH = GraphRecord("", {"counted": Described(Role.STATEFUL, "counting", "{}", ("given",))}, {"counted": KEEPS}, 2)
ASKED = StartAt("start")


@pytest.fixture
def original(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "original"))
    named.put_named(store, "start", snapshot(store, 4))
    store.put("sources/given/log/1", b"one")
    return store


def pipeline() -> hf.Pipeline:
    given = hf.read.rows([{"at": 1}], schema="at BIGINT", timestamp="at", name="given")
    return hf.Pipeline("forked", given | hf.write.memory("kept"))


def begin(
    original: Store,
    directory: Path,
    store: Store,
    held: dict[str, Held] | None = None,
    graph: GraphRecord = GRAPH,
    means: Mapping[str, StateUpgrade] | None = None,
) -> DirectoryHeader:
    """Do what a start does, with or without an earlier one."""
    if not ASKED.is_due(store, "forked", has_begun=False):
        inputs = inputs_of(store, directory, "spark/1", "forked", pipeline().sources, graph.state_schemas)
        return begun(inputs, held or {}, 0)
    first = fork(original, directory, store, graph, means)
    return begun(replace(first.inputs, graph=""), held or {}, 0, first)


def test_a_fork_begins_behind_the_epoch_of_its_checkpoint_with_the_state_of_then(
    original: LocalStore, tmp_path: Path
) -> None:
    store = LocalStore(str(tmp_path / "own"))
    origin = begin(original, tmp_path / "own", store)
    assert (origin.base, origin.seek, origin.kept) == (5, ({"given": {"log": 4}},), ("counted",))
    (key,) = snapshot_keys(store)
    ours = read_manifest(store, key)
    assert (ours.key.path, ours.pipeline) == (origin.seed, "forked")
    verify(store, ours)
    assert store.get("sources/given/log/1") == b"one"


@pytest.mark.slow
def test_a_fork_is_not_begun_or_begins_in_the_same_place_whatever_write_is_the_last_one(
    original: LocalStore, tmp_path: Path
) -> None:
    whole = begin(original, tmp_path / "whole", LocalStore(str(tmp_path / "whole")))
    begun = 0
    for n in range(1, 100):
        directory = tmp_path / f"own-{n}"
        store = LocalStore(str(directory))
        try:
            begin(original, directory, FaultyStore(store, Process(CrashAt(n, "after"))))
        except SimulatedCrash:
            begun += noted_beginning(store) is not None
        else:
            break
        assert begin(original, directory, store) == whole, n
    assert n > 6
    assert begun == 3, "after beginning.json, after sources.json, and after origin.json"


def test_a_fork_that_begins_with_another_number_of_buckets_than_it_was_noted_with_divides_the_state_anew(
    original: LocalStore, tmp_path: Path
) -> None:
    """A start died behind ``beginning.json``, and HOLDFAST_BUCKETS is another one than the checkpoint's."""
    store = LocalStore(str(tmp_path / "own"))
    begin(original, tmp_path / "own", store)
    store.delete("spark/1/origin.json")
    transfer = Transfer(store, "forked", "new", {"counted": KEEPS}, {}, 3, 8, SimulatedClock())
    state_schemas = {"counted": KEEPS}
    beginning = inputs_of(
        store, tmp_path / "own", "spark/1", "forked", pipeline().sources, state_schemas, "new", transfer=transfer
    )
    origin = begun(beginning, {}, 0)
    made = seed_of(tmp_path / "own", "spark/1")
    assert made is not None
    assert (made.buckets, made.ended.positions, set(made.operators)) == (3, {"given": {"log": 4}}, {"counted"})
    assert (origin.base, origin.seek, origin.kept) == (5, ({"given": {"log": 4}},), ("counted",))


def test_a_graph_that_changes_before_the_first_epoch_of_a_fork_takes_the_state_from_the_directory_before(
    original: LocalStore, tmp_path: Path
) -> None:
    """And not once more from the checkpoint: that has the names, tables and buckets of the graph before."""
    store = LocalStore(str(tmp_path / "own"))
    began = begin(original, tmp_path / "own", store)

    class Changed:
        def begin(self, origin: DirectoryHeader, held: Mapping[str, Held]) -> DirectoryHeader:
            return replace(origin, seek=began.seek, seed="snapshots/of-the-new-graph")

    beginning = inputs_of(
        store,
        tmp_path / "own",
        "spark/2",
        "forked",
        pipeline().sources,
        previous="spark/1",
        spark=Spark.OTHER,
    )
    assert begun(beginning, {}, 0, Changed()).seed == "snapshots/of-the-new-graph"


def test_sinks_that_hold_epochs_refuse_and_nothing_is_noted(original: LocalStore, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "own"))
    with pytest.raises(InvalidPipeline, match="sink 'kept' holds epoch 3"):
        begin(original, tmp_path / "own", store, {"kept": Held(3, 1, {"given": {"log": 9}})})
    assert noted_beginning(store) is None
    assert snapshot_keys(store) == []


def test_a_time_is_noted_as_a_number_and_shown_as_a_time() -> None:
    asked = StartAt(at_us=1_767_225_600_000_000)
    assert (asked.noted, str(asked)) == ("at=1767225600000000", "at=2026-01-01T00:00:00Z")
    assert str(StartAt("start", 7, has_ticks=True)) == "from_checkpoint='start', at=7"


def test_another_beginning_is_refused_and_the_same_one_goes_on(original: LocalStore, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "own"))
    begin(original, tmp_path / "own", store)
    assert not ASKED.is_due(store, "forked", has_begun=True)
    with pytest.raises(InvalidPipeline) as refused:
        StartAt("start", 5).is_due(store, "forked", has_begun=True)
    assert "began with from_checkpoint='start'" in refused.value.why
    assert "at=1970-01-01T00:00:00.000005Z" in refused.value.what
    with pytest.raises(InvalidPipeline, match="has begun already"):
        ASKED.is_due(LocalStore(str(tmp_path / "plain")), "forked", has_begun=True)


def test_a_renamed_operator_of_a_fork_takes_its_state_over(original: LocalStore, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "own"))
    renamed = GraphRecord("", {"tallied": GRAPH.nodes["counted"]}, {"tallied": KEEPS}, 2)
    origin = begin(
        original, tmp_path / "own", store, graph=renamed, means={"tallied": StateUpgrade(Evolution("counted"))}
    )
    assert origin.kept == ("tallied",)
    (key,) = snapshot_keys(store)
    ours = read_manifest(store, key)
    verify(store, ours)
    before = read_named(original, "start").operators["counted"].buckets
    assert {number: of.files for number, of in ours.operators["tallied"].buckets.items()} == {
        number: of.files for number, of in before.items()
    }


def test_operators_are_compared_by_name_and_by_what_they_keep() -> None:
    verdicts = {node.name: node.verdict for node in stateful_change({"counted": KEEPS}, GRAPH, {}).nodes}
    assert verdicts == {"counted": NodeVerdict.KEPT}
    renamed = GraphRecord("", {"other": GRAPH.nodes["counted"]}, {"other": KEEPS})
    verdicts = {node.name: node.verdict for node in stateful_change({"counted": KEEPS}, renamed, {}).nodes}
    assert verdicts == {"other": NodeVerdict.NEW, "counted": NodeVerdict.GONE}
    (told,) = stateful_change({"counted": KEEPS}, renamed, {"other": StateUpgrade(Evolution("counted"))}).nodes
    assert (told.verdict, told.details) == (NodeVerdict.RENAMED, ())
    (lost,) = stateful_change({}, renamed, {"other": StateUpgrade(Evolution("counted"))}).nodes
    assert lost.verdict is NodeVerdict.REFUSED


def test_a_written_sink_with_a_checkpoint_that_knows_nothing_may_be_another_checkpoints(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    beginning = inputs_of(store, tmp_path, "spark/1", "forked", pipeline().sources, state_schemas={"counted": KEEPS})
    with pytest.raises(Diverged) as refused:
        begun(beginning, {"table": Held(7, 1, {"given": {"rows": 3}})}, 7)
    assert "sink 'table' holds epoch 7" in refused.value.what
    assert "the state of counted was in it, and no snapshot serves; or the sink was written with another" in (
        refused.value.why
    )
    assert refused.value.do.startswith("start with the checkpoint that the sink was written with; ")
    assert "or give the sinks new targets" in refused.value.do


def fork(
    original: Store,
    directory: Path,
    store: Store,
    graph: GraphRecord = GRAPH,
    means: Mapping[str, StateUpgrade] | None = None,
) -> Fork:
    """Return what a start is asked for, that nobody has begun so far."""
    transfer = Transfer(store, "forked", "new", graph.state_schemas, means or {}, 2, 7, SimulatedClock())
    chosen = Directory("spark/1", Spark.NONE)
    inputs = StartInputs(store, directory, chosen, pipeline(), graph.state_schemas, "new", ASKED, transfer)
    reader = cast("Any", None)  # asked by a beginning at a time only
    return Fork(inputs, transfer, portable.kept(original, "start"), reader, graph)


@pytest.mark.parametrize("has_published", [False, True])
def test_two_first_starts_at_once_begin_once_and_the_later_one_goes_on(
    original: LocalStore, tmp_path: Path, has_published: bool
) -> None:
    """Both looked before one of them noted where it begins."""
    store = LocalStore(str(tmp_path / "own"))
    both = [fork(original, tmp_path / "own", store) for _ in range(2)]
    first, later = both
    began = begun(first.inputs, {}, 0, first)
    store.put("spark/1/metadata", b'{"id": "x"}')
    held = {"kept": Held(began.base, 1, began.seek[-1])} if has_published else {}
    assert begun(later.inputs, held, 0, later) == began


def test_a_start_that_is_asked_for_another_beginning_meanwhile_is_refused(original: LocalStore, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "own"))
    store.put("spark/1/origin.json", DirectoryHeader(1).to_json())
    asked = fork(original, tmp_path / "own", store)
    with pytest.raises(InvalidPipeline, match="it has begun already"):
        begun(asked.inputs, {}, 0, asked)


def test_where_the_checkpoint_is_lost_that_knew_the_time_the_refusal_says_what_to_do_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sinks know what was read, and not since when."""
    given = hf.read.rows([{"at": 5}], schema="at BIGINT", timestamp="at", name="given")
    timed = hf.Pipeline("timed", given | hf.write.sqlite(tmp_path / "t.db", table="t", name="table"))
    schema = pa.schema([("at", pa.int64())])
    sink = timed.sinks[0].spec.connect("table", "timed", schema)
    sink.open(RunIdentity("timed", 1))
    record = EpochRecord("timed", 1, 1, {"given": {"rows": 1}})
    sink.publish([Publication(record, (Carried(pa.table({"at": [5]}, schema)),))], Held())
    sink.close()
    with pytest.raises(InvalidPipeline, match="sink 'table' holds epoch 1") as refused:
        start_of(timed, str(tmp_path / "checkpoint"), schema, monkeypatch, at=3)
    assert "leave out the rows before that time with hf.filter" in refused.value.do
