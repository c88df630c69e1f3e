"""A snapshot of one graph becomes one for another: names, tables, buckets (design/0011, section 5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.graph_record import GraphRecord as Described
from holdfast.checkpoint.graph_record import Role
from holdfast.checkpoint.manifest import EpochEnd, Manifest, OperatorState, SnapshotKey, StateSchema
from holdfast.checkpoint.snapshot import (
    Bucket,
    checked,
    commit,
    from_parquet,
    good_snapshots,
    read_manifest,
    snapshot_keys,
    verify,
    write_bucket,
)
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.errors import InvalidPipeline
from holdfast.graph.evolution import Evolution
from holdfast.graph.naming import canonical_json
from holdfast.plan.chunks import bucket_of
from holdfast.ports import Held, Store
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.graph_diff import GraphChange, NodeChange, NodeVerdict
from holdfast.starts.state_change import StateChange
from holdfast.starts.table import Spark
from holdfast.store.local import LocalStore
from holdfast.testing import SimulatedCrash
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.store import SimulatedStore
from holdfast.types.schema import to_arrow
from tests.starts import inputs_of

SCHEMA = "k STRING, t BIGINT, v BIGINT"
KEYS = [f"key{number}" for number in range(40)]
KEY = pa.schema([("k", pa.string())])
POSITIONS = {"given": {"log": 3}}


class GraphRecord:
    """One operator behind one source."""

    def __init__(self, operator: Any, name: str = "sums", **past: Any) -> None:
        node = (hf.read.rows([], schema=SCHEMA, timestamp="t", name="rows") | operator).node
        step = node.spec.step({"rows": to_arrow(SCHEMA)})
        self.name = name
        self.state_schemas = {
            name: StateSchema(node.kind, canonical_json(dict(node.arguments())), step.key, step.tables)
        }
        self.means = {name: StateUpgrade(Evolution(**past), step)}


def snapshot(store: Store, graph: GraphRecord, tables: Mapping[str, pa.Table], buckets: int = 2) -> Manifest:
    """Write rows of keys into the buckets where they belong."""
    found = {}
    schema = graph.state_schemas[graph.name]
    for number in range(buckets):
        parts = {
            name: rows.filter(pa.array(bucket_of(rows, KEY, buckets) == number)) if "k" in rows.schema.names else rows
            for name, rows in tables.items()
        }
        feeds = {"rows": {"given": 5 + number, "before/0": 7, "before/1": 9}}
        found[number] = write_bucket(store, Bucket(graph.name, number, 3 + number, f"d{number}", feeds, parts))
    return Manifest(
        "p", 1, 0, "old", EpochEnd(4, 4, POSITIONS, 4000), buckets, {graph.name: OperatorState(schema, found)}
    )


def moved(
    store: SimulatedStore, manifest: Manifest, graph: GraphRecord, buckets: int = 2, was: str = "sums"
) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """Return the rows of each bucket for the new graph."""
    transfer = Transfer(store, "p", "new", graph.state_schemas, graph.means, buckets, 2, SimulatedClock())
    sources = transfer.sources(manifest.operators)
    assert sources == {graph.name: was}
    assert transfer.is_needed(manifest, sources)
    made = transfer.made(manifest, sources)
    assert [each.graph for each in good_snapshots(store, lambda key, why: pytest.fail(why))] == ["new"]
    tables = graph.state_schemas[graph.name].tables
    return {
        number: {
            name: from_parquet(checked(store.get(file.key), file), tables[name].schema, file.key).to_pylist()
            for name, file in of.files.items()
        }
        for number, of in made.operators[graph.name].buckets.items()
    }


def counts(*keys: str) -> pa.Table:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    return pa.table({"k": list(keys), "n": range(len(keys))}, schema=schema)


def counting(**more: Any) -> Any:
    return hf.apply(lambda key, rows, state: None, by="k", schema="k STRING", state="n BIGINT", **more)


def kept(*keys: str) -> pa.Table:
    return counts(*keys).append_column("__touched_us__", pa.array([9] * len(keys), pa.int64()))


def test_a_renamed_operator_takes_its_files_along() -> None:
    store, old = SimulatedStore(), GraphRecord(counting())
    manifest = snapshot(store, old, {"keys": kept(*KEYS)})
    new = GraphRecord(counting(), "totals", renamed_from="sums")
    found = moved(store, manifest, new)
    assert sorted(row["k"] for of in found.values() for row in of["keys"]) == sorted(KEYS)
    (made,) = good_snapshots(store, lambda key, why: None)
    before = manifest.operators["sums"].buckets
    assert [of.files for of in made.operators["totals"].buckets.values()] == [of.files for of in before.values()]


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [1, 3, 5, 64])
def test_every_key_is_found_in_the_bucket_where_it_is_looked_for(buckets: int) -> None:
    store, old = SimulatedStore(), GraphRecord(counting())
    manifest = snapshot(store, old, {"keys": kept(*KEYS)})
    found = moved(store, manifest, old, buckets)
    assert len(found) > 1 or buckets == 1
    for number, of in found.items():
        assert set(bucket_of(pa.Table.from_pylist(of["keys"]), KEY, buckets)) == {number}
    assert sorted(row["n"] for of in found.values() for row in of["keys"]) == list(range(len(KEYS)))


def test_what_holds_for_all_keys_is_in_every_bucket() -> None:
    store, old = SimulatedStore(), GraphRecord(hf.distinct(by="k", horizon=5))
    tables = old.state_schemas["sums"].tables
    kept_rows = pa.table({"k": KEYS, "__ticks__": range(len(KEYS))}, schema=tables["kept"].schema)
    clock = pa.table({"clock": [0], "newest": [77]}, schema=tables["clock"].schema)
    found = moved(store, snapshot(store, old, {"kept": kept_rows, "clock": clock}), old, 3)
    assert [of["clock"] for of in found.values()] == [[{"clock": 0, "newest": 77}]] * 3


def test_bounds_are_told_by_the_buckets_of_now() -> None:
    store, old = SimulatedStore(), GraphRecord(counting())
    manifest = snapshot(store, old, {"keys": kept(*KEYS)})
    before = {"before": manifest.operators["sums"]}
    manifest = Manifest("p", 1, 0, "old", manifest.ended, 2, {**manifest.operators, **before})
    state_schemas, means = (
        {**old.state_schemas, "ahead": old.state_schemas["sums"]},
        {**old.means, "ahead": StateUpgrade(Evolution("before"))},
    )

    def feeds(buckets: int) -> list[Any]:
        transfer = Transfer(store, "p", "new", state_schemas, means, buckets, 2, SimulatedClock())
        made = transfer.made(manifest, transfer.sources(manifest.operators))
        return [of.feeds["rows"] for of in made.operators["sums"].buckets.values()]

    assert feeds(2) == [{"given": 5 + number, "ahead/0": 7, "ahead/1": 9} for number in range(2)]
    assert feeds(3) == [{"given": 6, "ahead/0": 7, "ahead/1": 7, "ahead/2": 7}] * 3, "the least of those before"


def test_a_migration_sees_all_rows_and_gives_those_of_now() -> None:
    store, old = SimulatedStore(), GraphRecord(counting())
    manifest = snapshot(store, old, {"keys": kept(*KEYS)})

    def doubled(table: pa.Table) -> pl.DataFrame:
        assert table.num_rows == len(KEYS)
        return pl.DataFrame(table).select("k", m=pl.col("n") * 2)

    def state(schema: str, **past: Any) -> GraphRecord:
        return GraphRecord(hf.apply(lambda key, rows, state: None, by="k", schema="k STRING", state=schema), **past)

    found = moved(store, manifest, state("m BIGINT", migrate=doubled), 3)
    rows = [row for of in found.values() for row in of["keys"]]
    assert sorted(row["m"] for row in rows) == [2 * number for number in range(len(KEYS))]
    assert {row["__touched_us__"] for row in rows} == {4000}, "what it left out begins at the change point"


@pytest.mark.parametrize(
    ("migrate", "said"),
    [
        (lambda table: 1 / 0, "raised ZeroDivisionError"),
        (lambda table: table, "with another schema than declared"),
        (
            lambda table: pa.concat_tables([table, table]).rename_columns(["k", "m", "__touched_us__"]),
            "two rows of one",
        ),
        (lambda table: 5, "returned an int"),
        (lambda table: None, "returned None"),
    ],
)
def test_a_migration_that_fails_says_where_and_changes_nothing(migrate: Callable[[Any], Any], said: str) -> None:
    store, old = SimulatedStore(), GraphRecord(counting())
    manifest = snapshot(store, old, {"keys": kept(*KEYS)})
    operator = hf.apply(lambda key, rows, state: None, by="k", schema="k STRING", state="m BIGINT")
    with pytest.raises(InvalidPipeline, match="migrate= of operator 'sums'") as refused:
        moved(store, manifest, GraphRecord(operator, migrate=migrate))
    assert said in refused.value.what
    assert not list(good_snapshots(store, lambda key, why: None))


def test_rows_that_belong_to_no_key_cannot_be_divided_anew() -> None:
    def step(tables: Any, rows: Any, at: Any) -> Any:
        return None, None

    store = SimulatedStore()
    of_bucket = hf.StateTable(to_arrow("day BIGINT, n BIGINT"), ("day",))
    old = GraphRecord(hf.stateful(step, by="k", schema="k STRING", state={"days": of_bucket}))
    days = pa.table({"day": [1, 2], "n": [5, 6]}, schema=of_bucket.schema)
    with pytest.raises(InvalidPipeline, match="cannot be divided into 3 buckets") as refused:
        moved(store, snapshot(store, old, {"days": days}), old, 3)
    assert "does not hold the key column 'k'" in refused.value.why


class Limited(LocalStore):
    """A store whose process dies before the write after so many."""

    def __init__(self, directory: str, writes: int) -> None:
        super().__init__(directory)
        self.left = writes

    def put(self, key: str, data: bytes) -> None:
        if not self.left:
            raise SimulatedCrash
        self.left -= 1
        super().put(key, data)


@pytest.mark.slow
def test_a_start_that_dies_at_any_write_of_a_transfer_is_begun_again(tmp_path: Path) -> None:
    old, new = GraphRecord(counting()), GraphRecord(counting(), "totals", renamed_from="sums")
    offset = {"positions": {"log": 3}, "size_bytes": 0, "row_count": 0}
    for writes in range(50):
        directory = tmp_path / str(writes)
        store = LocalStore(str(directory))
        store.put("spark/1/origin.json", DirectoryHeader(4, graph="old").to_json())
        store.put("spark/1/offsets/0", f'v2\n{{"batchTimestampMs": 4}}\ngiven:{json.dumps(offset)}'.encode())
        store.put("spark/1/commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
        commit(store, snapshot(store, old, {"keys": kept(*KEYS)}))

        def start(generation: int, limit: int, directory: Path = directory) -> DirectoryHeader:
            mortal, clock = Limited(str(directory), limit), SimulatedClock()
            transfer = Transfer(mortal, "p", "new", new.state_schemas, new.means, 3, generation, clock)
            renamed = NodeChange("totals", Role.STATEFUL, NodeVerdict.RENAMED, "", was="sums")
            inputs = inputs_of(mortal, directory, "spark/2", "p", previous="spark/1", spark=Spark.OTHER)
            session: Any = None
            before = Described("", {}, old.state_schemas, 2)
            change = StateChange(inputs, transfer, GraphChange((renamed,)), before, session)
            return change.begin(DirectoryHeader(100, graph="new"), {"table": Held(4, 1, POSITIONS, None)})

        with suppress(SimulatedCrash):
            start(2, writes)
        origin = start(3, 99)
        assert origin.kept == ("totals",)
        made = read_manifest(store, SnapshotKey(4, 3))
        assert (made.key.path, made.graph, made.buckets) == (origin.seed, "new", 3)
        verify(store, made)
        assert made.rows == len(KEYS)
        before = read_manifest(store, SnapshotKey(4, 1))
        verify(store, before)
        assert before.rows == len(KEYS)
        if SnapshotKey(4, 2) in snapshot_keys(store):
            break
    assert writes > 2, "it died before and behind each of them"
