"""A rename of a stateful operator, without an engine: its state is not lost, whatever write of the start is the last
(design/0011, section 5)."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import DirectoryHeader, newest_directory, read_origin
from holdfast.checkpoint.graph_record import GraphRecord, described, read_graph, state_fingerprint, write_graph
from holdfast.checkpoint.manifest import EpochEnd, Manifest, OperatorState
from holdfast.checkpoint.snapshot import Bucket, commit, snapshot_keys, verify, write_bucket
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.plan.levels.seed import seed_of
from holdfast.ports import Held, Store
from holdfast.spark.state.plan import state_schemas_of, upgrades_of
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.directory import find_directory
from holdfast.starts.inputs import StartInputs
from holdfast.starts.plan import _stages
from holdfast.starts.refusals import check_change
from holdfast.starts.rewind_target import note_rewind
from holdfast.starts.state_change import StateChange, compare_graphs
from holdfast.store.local import LocalStore
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore
from tests.starts import begun

AT: dict[str, Any] = {"few": {"rows": 3}}
BUCKETS = 2


def trips(name: str, **past: Any) -> hf.Pipeline:
    few = hf.read.rows([[{"city": "Ulm"}]] * 7, schema="city STRING", name="few")
    sums = few | hf.accumulate(by="city", n=hf.count(), name=name, **past)
    return hf.Pipeline("trips", sums | hf.write.sqlite("trips.db", table="t", name="table"))


OLD, NEW, RENAMED = trips("sums"), trips("totals"), trips("totals", renamed_from="sums")


def remembered(pipeline: hf.Pipeline) -> tuple[GraphRecord, Any]:
    stages = _stages(pipeline, Settings())
    assert stages is not None
    return described(pipeline, state_schemas_of(pipeline, stages), BUCKETS), upgrades_of(pipeline, stages)


def run_once(directory: Path) -> None:
    """Leave what a run of the old graph leaves that was stopped cleanly: a directory, and a snapshot of its end."""
    store, (graph, means) = LocalStore(str(directory)), remembered(OLD)
    fingerprint = state_fingerprint(OLD)
    write_graph(store, "spark/1", graph)
    store.put("spark/1/origin.json", DirectoryHeader(1, graph=fingerprint).to_json())
    offset = '{"positions": {"rows": 3}, "size_bytes": 0, "row_count": 0}'
    store.put("spark/1/offsets/0", f'v2\n{{"batchTimestampMs": 4}}\nfew:{offset}'.encode())
    store.put("spark/1/commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    state = {"running": pa.table({"city": ["Ulm"], "n": [3]}, schema=means["sums"].step.tables["running"].schema)}
    bucket = write_bucket(store, Bucket("sums", 0, 1, "d", {}, state))
    commit(
        store,
        Manifest("trips", 1, 0, fingerprint, EpochEnd(1, 1, AT, 4), BUCKETS, {
            "sums": OperatorState(graph.state_schemas["sums"], {0: bucket})
        }),
    )  # fmt: skip


def rewind(directory: Path) -> DirectoryHeader:
    """Leave what a rewind leaves: a directory that begins at the target, with its state."""
    store = LocalStore(str(directory))
    graph, _ = remembered(OLD)
    note_rewind(store, 9, AT)
    write_graph(store, "spark/2", graph)
    seed = next(iter(snapshot_keys(store))).path
    origin = DirectoryHeader(10, (AT,), seed, graph=state_fingerprint(OLD))
    store.put("spark/2/origin.json", origin.to_json())
    shutil.rmtree(directory / "spark" / "1")
    return origin


def start(directory: Path, pipeline: hf.Pipeline, store: Store | None = None, drop_state: tuple[str, ...] = ()) -> None:
    """Do what a start does before it runs: compare, refuse or settle where Spark's directory begins."""
    store = store or LocalStore(str(directory))
    graph, means = remembered(pipeline)
    fingerprint = state_fingerprint(pipeline)
    chosen = find_directory(store, directory, fingerprint)
    change = compare_graphs(store, directory, chosen, graph, means, pipeline)
    assert change is not None
    check_change(change, "trips", is_forced=False, drop_state=drop_state)
    generation, clock = 2 + len(list(directory.glob("lives*"))), SimulatedClock()
    transfer = Transfer(store, "trips", fingerprint, graph.state_schemas, means, BUCKETS, generation, clock)
    inputs = StartInputs(store, directory, chosen, pipeline, graph.state_schemas, fingerprint, transfer=transfer)
    state_change = None
    if chosen.is_changed:
        before = read_graph(store, chosen.previous)
        session: Any = None  # the state is in a snapshot
        state_change = StateChange(inputs, transfer, change, before, session)
    write_graph(store, chosen.below, graph)
    origin = read_origin(directory / chosen.previous / "origin.json") if chosen.previous else DirectoryHeader(1)
    position, epoch = (origin.seek[-1], origin.base - 1) if origin.seek else (AT, 3)
    begun(inputs, {"table": Held(epoch, 1, position)}, epoch, state_change)


def begins_with(directory: Path) -> dict[str, int]:
    """Return the operators that the directory of now begins with, and how many rows each has."""
    store = LocalStore(str(directory))
    manifest = seed_of(directory, f"spark/{newest_directory(store)}")
    if manifest is None:
        return {}
    verify(store, manifest)
    return {
        name: sum(file.rows for bucket in of.buckets.values() for file in bucket.files.values())
        for name, of in manifest.operators.items()
    }


@pytest.mark.slow
def test_a_start_that_dies_at_any_write_of_a_rename_loses_no_state_to_one_without_the_argument(tmp_path: Path) -> None:
    run_once(tmp_path / "ran")
    shutil.copytree(tmp_path / "ran", tmp_path / "survivor")
    process = Process()
    with process.counting_points():
        start(tmp_path / "survivor", RENAMED, FaultyStore(LocalStore(str(tmp_path / "survivor")), process))
    assert begins_with(tmp_path / "survivor") == {"totals": 1}
    assert process.write_count > 3
    renamed = refused = 0
    for write in range(1, process.write_count + 1):
        for when in ("before", "after"):
            work = tmp_path / f"{write} {when}"
            shutil.copytree(tmp_path / "ran", work)
            mortal = Process(CrashAt(write, when))
            with mortal.counting_points(), pytest.raises(SimulatedCrash):
                start(work, RENAMED, FaultyStore(LocalStore(str(work)), mortal))
            if newest_directory(LocalStore(str(work))) == 2:  # it has happened: the argument may go
                start(work, NEW)
                assert begins_with(work) == {"totals": 1}
                renamed += 1
                continue
            assert renamed == 0
            for _ in range(2):  # and nothing is changed by being refused
                with pytest.raises(InvalidPipeline, match="state of stateful operator 'sums' would be lost") as error:
                    start(work, NEW)
                assert "'totals', of the same kind, is new" in error.value.why
                assert "renamed_from='sums' at 'totals'" in error.value.do
                assert "--drop-state sums" in error.value.do
            shutil.copytree(work, tmp_path / "cured")
            start(tmp_path / "cured", RENAMED)
            assert begins_with(tmp_path / "cured") == {"totals": 1}
            shutil.rmtree(tmp_path / "cured")
            start(work, NEW, drop_state=("sums",))
            assert begins_with(work) == {}
            refused += 1
    assert renamed
    assert refused > 4


def test_a_mended_graph_whose_first_start_behind_a_rewind_dies_at_any_write_begins_at_the_next(tmp_path: Path) -> None:
    """With its state under another name (design/0012, section 4)."""
    run_once(tmp_path / "ran")
    rewound = rewind(tmp_path / "ran")
    for write in count(1):
        work = tmp_path / str(write)
        shutil.copytree(tmp_path / "ran", work)
        mortal = Process(CrashAt(write, "after"))
        try:
            with mortal.counting_points():
                start(work, RENAMED, FaultyStore(LocalStore(str(work)), mortal))
        except SimulatedCrash:
            pass
        start(work, RENAMED)  # goes on with what is there
        assert begins_with(work) == {"totals": 1}
        origin = read_origin(work / "spark" / "3" / "origin.json")
        assert (origin.seek, origin.replayed) == (rewound.seek, ())
        assert origin.base > rewound.base - 1
        if mortal.is_alive:
            break
    assert write > 4
