"""A named checkpoint with other state in it: a new one, whole, and the old one as it was (design/0012)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast.capabilities import offers
from holdfast.checkpoint import named, portable
from holdfast.checkpoint.given_state import given_states
from holdfast.checkpoint.manifest import Manifest, OperatorState, StateSchema
from holdfast.checkpoint.snapshot import Bucket, prune, verify, write_bucket
from holdfast.cli.app import app
from holdfast.errors import InvalidPipeline
from holdfast.operators.lowering import LOWERINGS
from holdfast.plan.chunks import bucket_of
from holdfast.plan.levels import edited as editing
from holdfast.plan.levels.edited import edited, state_of
from holdfast.ports import Store
from holdfast.state.step import Broadcasting, StateTable
from holdfast.store.local import LocalStore
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore, SimulatedStore
from tests.contract.test_steps import CASES
from tests.unit.checkpoint.snapshots import ended, snapshot

KEY = pa.schema([("k", pa.string())])
KEEPS = StateSchema("stateful", "{}", KEY, {
    "counts": StateTable(pa.schema([*KEY, ("n", pa.int64())]), ("k",)),
})  # fmt: skip
ROWS = pa.table({"k": [f"key{n}" for n in range(20)], "n": list(range(20))})
BUCKETS = 3


def original(store: Store) -> Manifest:
    """Leave a named checkpoint of two operators with the same rows."""
    numbers = bucket_of(ROWS, KEY, BUCKETS)
    operators = {}
    for name in ("counted", "other"):
        states = {
            number: write_bucket(
                store,
                Bucket(name, number, 4, f"d{number}", {"rows": {"given": number}}, {
                    "counts": ROWS.filter(pa.array(numbers == number))
                }),
            )
            for number in range(BUCKETS)
        }  # fmt: skip
        operators[name] = OperatorState(KEEPS, states)
    made = Manifest("counts", 1, 99, "0123", ended(5), BUCKETS, operators)
    named.put_named(store, "before", made)
    return made


def edit(store: Store, rows: Any, name: str = "before", new_name: str = "after", operator: str = "counted") -> Manifest:
    (given,) = given_states({operator: rows})
    return edited(store, name, given, new_name)


def rows_of(store: Store, name: str, operator: str = "counted") -> dict[str, int]:
    found = state_of(store, name, operator)["counts"]
    return dict(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True))


def test_an_edited_checkpoint_has_the_given_rows_where_their_keys_belong_and_the_old_one_stays() -> None:
    store = SimulatedStore()
    old = original(store)
    patched = ROWS.slice(1).set_column(1, "n", pc.multiply(ROWS.slice(1)["n"], 100))
    made = edit(store, pa.concat_tables([patched, pa.table({"k": ["new"], "n": [7]})]))
    wanted = {f"key{n}": 100 * n for n in range(1, 20)} | {"new": 7}
    assert rows_of(store, "after") == wanted
    assert rows_of(store, "before") == dict(zip(ROWS["k"].to_pylist(), range(20), strict=True))
    assert named.read_named(store, "before") == old
    assert named.read_named(store, "after") == made
    assert made.operators["other"] == old.operators["other"], "what is not edited is not copied"
    assert (made.ended, made.graph, made.buckets) == (old.ended, old.graph, old.buckets)
    for number, bucket in made.operators["counted"].buckets.items():
        assert bucket.feeds == old.operators["counted"].buckets[number].feeds
        assert bucket.digest != old.operators["counted"].buckets[number].digest
        for file in bucket.files.values():
            rows = pq.read_table(pa.BufferReader(store.get(file.key)))
            assert set(bucket_of(rows, KEY, BUCKETS).tolist()) == {number}


def test_no_pruning_and_no_deletion_of_the_old_name_takes_what_an_edited_one_needs() -> None:
    store = SimulatedStore()
    original(store)
    edit(store, ROWS.slice(0, 5))
    edit(store, ROWS.slice(5, 5), "after", "again", "other")
    for name in ("before", "after"):
        named.delete_named(store, name)
    for epoch in (6, 7):
        snapshot(store, epoch)
        prune(store, keep=1)
    verify(store, named.read_named(store, "again"))
    assert len(rows_of(store, "again")) == len(rows_of(store, "again", "other")) == 5
    named.delete_named(store, "again")
    assert not store.keys("named/again/")


def test_an_edited_checkpoint_can_be_exported_and_imported_and_edited_there(tmp_path: Path) -> None:
    store, other = LocalStore(str(tmp_path / "one")), LocalStore(str(tmp_path / "two"))
    original(store)
    store.put("sources/given/log/1", b"one")
    edit(store, ROWS.slice(0, 5))
    portable.export(store, "after", tmp_path / "exported")
    assert portable.import_from(other, tmp_path / "exported", None) == "after"
    edit(other, ROWS.slice(0, 2), "after", "there")
    named.delete_named(other, "after")
    found = portable.kept(other, "there")
    assert rows_of(other, "there") == {"key0": 0, "key1": 1}
    assert dict(found.workspaces()) == {"sources/given/log/1": b"one"}
    assert {key for key, _ in found.files()} == {file.key for file in found.plain.files}
    assert all(key.startswith("snapshots/files/") for key, _ in found.files())


@pytest.mark.slow
def test_an_edit_that_dies_leaves_no_checkpoint_or_a_whole_one_whatever_write_is_the_last() -> None:
    made = 0
    for n in range(1, 100):
        store = SimulatedStore()
        original(store)
        try:
            edit(FaultyStore(store, Process(CrashAt(n, "after"))), ROWS.slice(0, 5))
        except SimulatedCrash:
            if "after" in named.names(store):
                verify(store, named.read_named(store, "after"))
                made += 1
            else:
                edit(store, ROWS.slice(0, 5))
            assert len(rows_of(store, "after")) == 5
        else:
            break
    assert n > 4
    assert made >= 1


def test_what_is_no_state_of_the_operator_makes_no_checkpoint() -> None:
    store = SimulatedStore()
    original(store)
    with pytest.raises(InvalidPipeline, match="column 'n' is string, and the state has int64"):
        edit(store, pa.table({"k": ["a"], "n": ["1"]}))
    with pytest.raises(InvalidPipeline, match=r"(?s)no state of operator 'count'.*that of: counted, other"):
        edit(store, ROWS, operator="count")
    with pytest.raises(InvalidPipeline, match="a checkpoint named 'before' already"):
        edit(store, ROWS, new_name="before")
    assert named.names(store) == ["before"]
    assert not store.keys("named/after/")


def test_rows_that_lie_in_every_bucket_are_known_by_the_kind_of_the_operator() -> None:
    """A checkpoint is read without its graph, so without steps."""
    found = {}
    for case in CASES:
        kind = case.name.partition(" ")[0]
        assert kind in LOWERINGS
        found[kind] = case.step.for_all_keys if offers(case.step, Broadcasting) else {}
    for kind, flags in found.items():
        assert dict(editing._FOR_ALL_KEYS.get(kind, {})) == dict(flags), kind


@pytest.mark.slow
def test_what_was_exported_is_edited_by_any_program_and_taken_back(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "ckpt"))
    original(store)

    def holdfast(*arguments: object) -> str:
        answer = CliRunner().invoke(
            app, ["checkpoint", *map(str, arguments), "--checkpoint", str(tmp_path / "ckpt")], catch_exceptions=False
        )
        assert answer.exit_code == 0, answer.output
        return answer.stdout

    assert "counted, table counts  k string, n int64" in holdfast("show", "before")
    exported = tmp_path / "state"
    assert "counts  20 rows" in holdfast("export", "before", exported, "--operator", "counted")
    rows = pq.read_table(exported / "counts.parquet")
    pq.write_table(rows.filter(pc.not_equal(rows["k"], "key3")), exported / "counts.parquet")
    told = holdfast("edit", "before", "--operator", "counted", "--with", exported, "--as", "without-key3")
    assert told.startswith("without-key3  epoch 5 of counts")
    assert "every file is whole" in holdfast("show", "without-key3")
    assert rows_of(store, "without-key3") == {f"key{n}": n for n in range(20) if n != 3}
