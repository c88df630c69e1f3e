"""A pipeline that begins with given state has it whole or has not begun, whatever write is the last (design/0012)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import DirectoryHeader, newest_directory, noted_beginning
from holdfast.checkpoint.given_state import given_states
from holdfast.checkpoint.graph_record import GraphRecord, described, state_fingerprint
from holdfast.checkpoint.snapshot import checked, from_parquet, snapshot_keys
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.plan.chunks import bucket_of
from holdfast.plan.levels.seed import seed_of
from holdfast.ports import Held, Store
from holdfast.spark.read import SourceReader
from holdfast.spark.state.plan import state_schemas_of, upgrades_of
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.directory import Directory
from holdfast.starts.fork import Fork
from holdfast.starts.inputs import StartInputs
from holdfast.starts.plan import _stages
from holdfast.starts.start_at import StartAt
from holdfast.starts.table import Spark
from holdfast.store.local import LocalStore
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore
from tests.starts import begun

CITIES = [f"city{number}" for number in range(30)]
GIVEN = pa.table({"city": CITIES, "n": list(range(30))})
AT: dict[str, Any] = {"few": {"rows": 3}}
BEGINNING = {"few": {"rows": 0}}


def running(key: str, rows: list[dict[str, Any]], state: hf.KeyState) -> list[dict[str, Any]]:
    state.set(n=state.get("n", 0) + len(rows))
    return [{"city": key, "n": state.get("n")}]


def trips() -> hf.Pipeline:
    few = hf.read.rows([[{"city": "Ulm"}]] * 7, schema="city STRING", name="few")
    sums = few | hf.apply(running, by="city", state="n BIGINT", schema="city STRING, n BIGINT", name="sums")
    return hf.Pipeline("trips", sums | hf.write.sqlite("trips.db", table="t", name="table"))


PIPELINE = trips()


def start(
    directory: Path, store: Store, state: Any, held: dict[str, Held] | None = None, buckets: int = 3
) -> DirectoryHeader:
    """Do what a start does before it runs: compare, refuse or settle where Spark's directory begins."""
    stages = _stages(PIPELINE, Settings())
    assert stages is not None
    schemas, upgrades = state_schemas_of(PIPELINE, stages), upgrades_of(PIPELINE, stages)
    graph: GraphRecord = described(PIPELINE, schemas, buckets)
    fingerprint, clock = state_fingerprint(PIPELINE), SimulatedClock()
    transfer = Transfer(store, "trips", fingerprint, schemas, upgrades, buckets, 7, clock)
    first = None
    inputs = StartInputs(
        store, directory, Directory("spark/1", Spark.NONE), PIPELINE, schemas, fingerprint, transfer=transfer
    )
    if state is not None:
        begins = StartAt(state=given_states(state))
        if begins.is_due(store, "trips", has_begun=newest_directory(store) > 0):
            tables = begins.tables("trips", schemas, upgrades, clock.now_us())
            reader = SourceReader(cast("Any", None), directory, 1, 0, "", "")
            inputs = replace(inputs, begins=begins)
            first = Fork(inputs, transfer, None, reader, graph, given_state=tables)
    return begun(inputs, held or {}, 0, first)


def rows_of(directory: Path, buckets: int = 3) -> dict[str, int]:
    """Return the state that the directory begins with, after a look whether each key is where its hash says."""
    store, manifest = LocalStore(str(directory)), seed_of(directory, "spark/1")
    if manifest is None:
        return {}
    found: dict[str, int] = {}
    operator = manifest.operators["sums"]
    for number, bucket in operator.buckets.items():
        assert bucket.version > 0, "a level takes version 0 for that of nothing"
        for name, file in bucket.files.items():
            rows = from_parquet(checked(store.get(file.key), file), operator.schema.tables[name].schema, file.key)
            assert set(bucket_of(rows, operator.schema.key, buckets).tolist()) <= {number}
            found |= dict(zip(rows["city"].to_pylist(), rows["n"].to_pylist(), strict=True))
    return found


@pytest.mark.slow
def test_a_pipeline_begins_with_the_state_that_was_given_whatever_write_is_the_last_one(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", LocalStore(str(tmp_path / "whole")), {"sums": GIVEN})
    assert (whole.base, whole.seek, whole.kept) == (2, (BEGINNING,), ("sums",))
    wanted = dict(zip(CITIES, range(30), strict=True))
    assert rows_of(tmp_path / "whole") == wanted
    begun_before = 0
    for n in range(1, 100):
        directory = tmp_path / f"own-{n}"
        store = LocalStore(str(directory))
        try:
            start(directory, FaultyStore(store, Process(CrashAt(n, "after"))), {"sums": GIVEN})
        except SimulatedCrash:
            begun_before += noted_beginning(store) is not None
        else:
            break
        start(directory, store, {"sums": GIVEN})
        assert rows_of(directory) == wanted, n
    assert n > 4
    assert begun_before == 3, "after beginning.json, after sources.json, and after origin.json"


def test_what_a_start_has_left_that_was_given_up_is_never_taken_for_state(tmp_path: Path) -> None:
    """Killed before it had noted where it begins; then the user starts without the option."""
    for n in range(1, 100):
        directory = tmp_path / f"own-{n}"
        store = LocalStore(str(directory))
        with pytest.raises(SimulatedCrash):
            start(directory, FaultyStore(store, Process(CrashAt(n, "after"))), {"sums": GIVEN})
        if noted_beginning(store) is not None:
            break
        start(directory, store, None)
        assert rows_of(directory) == {}
        assert snapshot_keys(store) == []
    assert n > 3


def test_state_that_was_given_serves_when_sparks_directory_is_lost(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    start(tmp_path, store, {"sums": GIVEN})
    store.delete("spark/1/origin.json")
    restored = start(tmp_path, store, {"sums": GIVEN}, held={"table": Held(4, 1, AT)}, buckets=2)
    assert (restored.seek[0], restored.seek[-1]) == (BEGINNING, AT)
    assert rows_of(tmp_path, 2) == dict(zip(CITIES, range(30), strict=True))


def test_state_is_given_to_the_first_start_alone(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "own"))
    with pytest.raises(InvalidPipeline, match=r"cannot begin with state=\(sums: 30 rows.*sink 'table' holds epoch 4"):
        start(tmp_path / "own", store, {"sums": GIVEN}, held={"table": Held(4, 1, AT)})
    with pytest.raises(InvalidPipeline, match=r"(?s)names the operator 'sum', which keeps no state.*are: sums"):
        start(tmp_path / "own", store, {"sum": GIVEN})
    first = start(tmp_path / "own", store, {"sums": GIVEN})
    assert start(tmp_path / "own", store, {"sums": GIVEN}) == first, "a restart of the same program"
    with pytest.raises(InvalidPipeline, match="it has begun already"):
        start(tmp_path / "own", store, {"sums": GIVEN.slice(1)})


def test_columns_of_our_own_need_not_be_given_and_others_are_compared(tmp_path: Path) -> None:
    """``apply`` keeps the time of the last row of a key: a key that is given was touched when the pipeline began."""
    store = LocalStore(str(tmp_path))
    with pytest.raises(InvalidPipeline, match="column 'n' is string, and the state has int64"):
        start(tmp_path, store, {"sums": pa.table({"city": ["Ulm"], "n": ["1"]})})
    assert not store.keys("")
