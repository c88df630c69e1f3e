"""Base, deltas and cache (design/0010, section 3), with a dictionary in the place of Spark's store; no JVM."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.chunks import (
    ROWS,
    Chunk,
    ChunkTarget,
    Packer,
    Routing,
    bucket_of,
    decode,
    divided,
    in_order,
    rank_of,
)
from holdfast.plan.levels import store
from holdfast.plan.levels.store import Cache, HeldTables, Record, advance, load
from holdfast.state import tables
from holdfast.state.step import Change
from tests.everyday import examples
from tests.spark.counting import COUNTS, CountingStep

STEP = CountingStep({"rows": pa.schema([("k", pa.string()), ("v", pa.int64())])}, False, False, "")


@dataclass
class Cells:
    """A bucket's cells in a dictionary; counts what is read."""

    stored: dict[tuple[int, int], bytes] = field(default_factory=dict)
    reads: int = 0

    def record(self) -> str | None:
        raise NotImplementedError

    def put_record(self, record: str) -> None:
        raise NotImplementedError

    def piece(self, part: int, number: int) -> bytes:
        self.reads += 1
        return self.stored[part, number]

    def put_piece(self, part: int, number: int, data: bytes) -> None:
        assert (part, number) not in self.stored
        self.stored[part, number] = data

    def drop_piece(self, part: int, number: int) -> None:
        del self.stored[part, number]


def changed(chance: random.Random, keys: int) -> dict[str, Change]:
    """Return a change that deletes some keys and sets others."""
    names = [f"k{number}" for number in range(keys)]
    gone = pa.table({"k": chance.sample(names, chance.randrange(0, 3))}, schema=pa.schema([COUNTS.field("k")]))
    some = chance.sample(names, chance.randrange(1, 6))
    upserts = pa.table({"k": some, "n": [chance.randrange(1000) for _ in some]}, schema=COUNTS)
    return {"counts": Change(upserts, gone)}


def as_dict(state: dict[str, pa.Table]) -> dict[str, int]:
    return dict(zip(state["counts"]["k"].to_pylist(), state["counts"]["n"].to_pylist(), strict=True))


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), st.integers(6, 60), st.sampled_from([64 * 2**20, 1000, 0]))
def test_the_state_is_what_the_changes_made_whatever_the_worker_holds(seed: int, keys: int, large: int) -> None:
    """Workers take turns at random: each has what it had when it was last asked, or nothing."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "_STAY_BYTES", large)
        take_turns(random.Random(seed), keys)


def take_turns(chance: random.Random, keys: int) -> None:
    cells, record = Cells(), Record()
    workers: list[HeldTables | None] = [None, None, None]
    wanted: dict[str, int] = {}
    for epoch in range(1, 60):
        number = chance.randrange(3)
        state = load(cells, Record.from_json(record.to_json()), STEP, workers[number])
        assert as_dict(state) == wanted
        changes = changed(chance, keys)
        state = tables.apply_changes(state, STEP.tables, changes)
        attempts = [dict(changes), dict(changed(chance, keys))] if chance.random() < 0.2 else [changes]
        for attempt in attempts[1:]:  # an attempt that is never committed leaves its tables in a worker
            lost = advance(Cells(dict(cells.stored)), record, STEP.tables, attempt, state, epoch)
            other = tables.apply_changes(state, STEP.tables, attempt)
            workers[chance.randrange(3)] = HeldTables(lost.version, lost.token, other, 0)
        record = advance(cells, record, STEP.tables, changes, state, epoch)
        workers[number] = HeldTables(record.version, record.token, state, 0)
        wanted = as_dict(state)
    assert as_dict(load(cells, record, STEP, None)) == wanted
    assert {part for part, _ in cells.stored} == {part.serial for part in record.parts}
    assert len(record.parts) <= 12


def test_a_worker_that_holds_the_last_version_reads_nothing() -> None:
    cells, record, chance = Cells(), Record(), random.Random(1)
    state = tables.empty_state(STEP)
    for epoch in range(1, 20):
        changes = changed(chance, 500)
        state = tables.apply_changes(state, STEP.tables, changes)
        record = advance(cells, record, STEP.tables, changes, state, epoch)
    cells.reads = 0
    load(cells, record, STEP, HeldTables(record.version, record.token, state, 0))
    assert cells.reads == 0


@pytest.mark.slow
def test_an_epoch_writes_what_changed_and_not_what_exists() -> None:
    cells, chance = Cells(), random.Random(1)
    many = pa.table({"k": [f"key-{n}" for n in range(50_000)], "n": list(range(50_000))}, schema=COUNTS)
    first = {"counts": Change(many, tables.empty(pa.schema([COUNTS.field("k")])))}
    state = tables.apply_changes(tables.empty_state(STEP), STEP.tables, first)
    record = advance(cells, Record(), STEP.tables, first, state, 1)
    base = record.size_bytes
    written = 0
    for epoch in range(2, 102):
        changes = changed(chance, 500)
        state = tables.apply_changes(state, STEP.tables, changes)
        before = set(cells.stored)
        record = advance(cells, record, STEP.tables, changes, state, epoch)
        written += sum(len(data) for key, data in cells.stored.items() if key not in before)
    assert written < base


def stored_epochs(
    monkeypatch: pytest.MonkeyPatch, epochs: list[Change]
) -> tuple[Cells, Record, dict[str, pa.Table], int]:
    """Return what is stored after epochs whose parts all count as large, the state, and the bytes that were written."""
    monkeypatch.setattr(store, "_STAY_BYTES", 0)
    cells, record, state, written = Cells(), Record(), tables.empty_state(STEP), 0
    for version, change in enumerate(epochs, start=1):
        state = tables.apply_changes(state, STEP.tables, {"counts": change})
        record = advance(cells, Record.from_json(record.to_json()), STEP.tables, {"counts": change}, state, version)
        written += record.parts[-1].size_bytes
    return cells, record, state, written


def counted(keys: range, n: int) -> Change:
    upserts = pa.table({"k": [f"key-{key:06}" for key in keys], "n": [n] * len(keys)}, schema=COUNTS)
    return Change(upserts, tables.empty(pa.schema([COUNTS.field("k")])))


def test_rows_that_only_come_are_written_once_while_parts_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = [counted(range(1000 * at, 1000 * at + 1000), at) for at in range(store._STAY_MAX)]
    cells, record, state, written = stored_epochs(monkeypatch, epochs)
    assert written < 1.2 * len(tables.encode(state))
    assert as_dict(load(cells, record, STEP, None)) == as_dict(state)
    more = [counted(range(1000 * at, 1000 * at + 1000), at) for at in range(100)]
    cells, record, state, written = stored_epochs(monkeypatch, more)
    assert written < 4 * len(tables.encode(state))
    assert len(record.parts) <= 12
    assert as_dict(load(cells, record, STEP, None)) == as_dict(state)


@pytest.mark.parametrize("left", [0, 2])
def test_of_what_an_epoch_mostly_deletes_the_rest_is_written_whole(left: int) -> None:
    """Nobody reads the parts before it then: not the next worker, nor a snapshot."""
    cells, record, state = Cells(), Record(), tables.empty_state(STEP)
    names = [f"k{number}" for number in range(1000)]
    nothing = pa.table({"k": []}, schema=pa.schema([COUNTS.field("k")]))
    for epoch in range(1, 6):
        some = pa.table({"k": names, "n": [epoch] * 1000}, schema=COUNTS).slice(200 * (epoch - 1), 200)
        changes = {"counts": Change(some, nothing)}
        state = tables.apply_changes(state, STEP.tables, changes)
        record = advance(cells, record, STEP.tables, changes, state, epoch)
    before, cells.reads = record.size_bytes, 0
    gone = pa.table({"k": names[left:]}, schema=nothing.schema)
    changes = {"counts": Change(pa.table({"k": [], "n": []}, schema=COUNTS), gone)}
    state = tables.apply_changes(state, STEP.tables, changes)
    record = advance(cells, record, STEP.tables, changes, state, 6)
    assert [part.is_base for part in record.parts] == [True]
    assert cells.reads == 0
    assert record.size_bytes < before / 4
    assert as_dict(load(cells, record, STEP, None)) == dict.fromkeys(names[:left], 1)


def test_rows_that_are_replaced_are_not_kept_twice_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = [counted(range(1000), at) for at in range(20)]
    cells, record, state, _ = stored_epochs(monkeypatch, epochs)
    assert record.size_bytes < 2.1 * len(tables.encode(state))
    assert as_dict(load(cells, record, STEP, None)) == dict.fromkeys((f"key-{key:06}" for key in range(1000)), 19)


def test_parts_of_an_earlier_version_are_merged_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, record, state, _ = stored_epochs(monkeypatch, [counted(range(1000), 1)])
    earlier = json.loads(record.to_json())
    del earlier["rows"]
    change = {"counts": counted(range(1000, 2100), 2)}
    state = tables.apply_changes(state, STEP.tables, change)
    record = advance(cells, Record.from_json(json.dumps(earlier)), STEP.tables, change, state, 2)
    assert [(part.is_base, part.row_count) for part in record.parts] == [(True, 2100)]
    assert as_dict(load(cells, record, STEP, None)) == as_dict(state)


def test_parts_larger_than_a_message_are_stored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PIECE_BYTES", 100)
    cells, changes = Cells(), changed(random.Random(3), 20)
    state = tables.apply_changes(tables.empty_state(STEP), STEP.tables, changes)
    record = advance(cells, Record(), STEP.tables, changes, state, 1)
    assert len(cells.stored) == record.parts[0].pieces > 1
    assert as_dict(load(cells, record, STEP, None)) == as_dict(state)


def test_the_cache_drops_what_was_used_longest_ago() -> None:
    cache = Cache(limit_bytes=10)
    for name in ("a", "b", "c"):
        cache.put(("run", name), HeldTables(1, "", {}, 4))
    assert cache.get(("run", "a")) is None
    assert cache.get(("run", "c")) is not None
    cache.drop_others("next run")
    assert cache.get(("run", "c")) is None


def test_rows_keep_their_order_of_arrival_however_an_epoch_is_cut() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    routing = Routing((ChunkTarget(0, 1, "op", "rows", schema, pa.schema([schema.field("k")])),), 3, 2)
    rows = pa.table({"k": [v % 7 for v in range(100)], "v": list(range(100))}, schema=schema)

    def arrived(cuts: list[int], batch_rows: int) -> list[list[int]]:
        chunks: list[Chunk] = []
        for ordinal, (start, end) in enumerate(zip([0, *cuts], [*cuts, 100], strict=True)):
            packer = Packer(routing, rank_of(0, 0, ordinal), ordinal)
            for batch in rows.slice(start, end - start).to_batches(max_chunksize=batch_rows):
                chunks += packer.add(0, batch)
                chunks += packer.rows()
        random.Random(1).shuffle(chunks)
        found: list[list[int]] = [[], [], []]
        for chunk in in_order(chunks):
            assert chunk.kind == ROWS
            found[chunk.bucket] += decode(chunk.data)["v"].to_pylist()
        return found

    assert arrived([], 100) == arrived([40], 7) == arrived([10, 20, 90], 33)
    assert sorted(value for bucket in arrived([], 100) for value in bucket) == list(range(100))


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=50), st.integers(2, 9))
def test_a_key_goes_to_one_bucket_wherever_its_row_stands(values: list[str | None], buckets: int) -> None:
    key = pa.schema([("k", pa.string())])
    table = pa.table({"k": values, "v": list(range(len(values)))}, schema=key.append(pa.field("v", pa.int64())))
    parts = list(divided(pa.concat_tables([table.slice(3), table.slice(0, 3)]), key, buckets))
    where: dict[str | None, int] = {}
    for bucket, part in parts:
        for value in part["k"].to_pylist():
            assert where.setdefault(value, bucket) == bucket
    assert sum(part.num_rows for _, part in parts) == len(values)


def test_buckets_never_change() -> None:
    """State is found again by them: these numbers are part of the format."""
    names = pa.array(["JFK", "", None, "Zürich", "a" * 100])
    found = [number for number, part in divided(pa.table({"k": names}), pa.schema([("k", pa.string())]), 1000)]
    assert found == sorted(found)
    assert bucket_of(pa.table({"k": names}), pa.schema([("k", pa.string())]), 1000).tolist() == EXPECTED_NAMES
    numbers = pa.array([0, 1, -1, 2**62, None])
    assert bucket_of(pa.table({"k": numbers}), pa.schema([("k", pa.int64())]), 1000).tolist() == EXPECTED_NUMBERS
    floats = pa.array([0.0, -0.0, 1.5, float("nan"), None])
    of_floats = bucket_of(pa.table({"k": floats}), pa.schema([("k", pa.float64())]), 1000).tolist()
    assert of_floats[0] == of_floats[1]
    assert of_floats == EXPECTED_FLOATS


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_a_text_that_comes_often_has_the_bucket_that_it_has_alone(kind: pa.DataType) -> None:
    names = pa.array(["JFK", "", None, "Zürich", "a" * 100] * 400).cast(kind).slice(3)
    key = pa.schema([("k", kind)])
    found = bucket_of(pa.table({"k": names}), key, 1000).tolist()
    assert found == (EXPECTED_NAMES * 400)[3:]


EXPECTED_NAMES = [806, 516, 859, 240, 362]
EXPECTED_NUMBERS = [516, 718, 803, 917, 859]
EXPECTED_FLOATS = [516, 516, 263, 52, 859]


def test_of_many_chunks_the_small_ones_are_put_together_and_the_large_ones_are_not_copied() -> None:
    sizes = [1000, *[1] * 40, 500, *[3] * 30]
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    parts = [pa.table({"n": pa.array(range(begin, begin + size))}) for begin, size in zip(begins, sizes, strict=True)]
    table = pa.concat_tables(parts)
    found = store.compacted({"rows": table, "few": table.slice(0, 1010)})
    assert found["rows"].column("n").to_pylist() == table.column("n").to_pylist()
    assert [len(chunk) for chunk in found["rows"].column("n").chunks] == [1000, 40, 500, 90]
    large = found["rows"].column("n").chunk(0)
    assert large.buffers()[1].address == parts[0].column("n").chunk(0).buffers()[1].address
    assert found["few"].column("n").num_chunks == 11
