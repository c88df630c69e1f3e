"""State goes with its keys from shard to shard, and back as it was (design/0048, section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.checkpoint.manifest import StateSchema
from holdfast.errors import Diverged, InvalidPipeline
from holdfast.plan.levels.edited import division_of
from holdfast.shards.assignment import Assignment, assign, regroup
from holdfast.shards.keys import HASHED, KeyTable
from holdfast.spark.state.shard_state import KeyMoves, OperatorTables, StateMoves, least_of_feeds
from holdfast.state.step import ALL_KEYS, BOUND, UNBOUNDED
from holdfast.types.row_ids import lanes_of_columns
from holdfast.types.schema import to_arrow

SCHEMA = "k STRING, d BIGINT, t BIGINT"
UNITS = [f"{number}/7" for number in range(7)]
DEVICES: list[int | None] = [None, *range(30)]
UNIT_OF = {device: UNITS[at % 7] for at, device in enumerate(DEVICES)}


def schema_of(operator: Any) -> StateSchema:
    node = (hf.read.rows([], schema=SCHEMA, timestamp="t", name="rows") | operator).node
    step = node.spec.step({"rows": to_arrow(SCHEMA)})
    return StateSchema(node.kind, "", step.key, step.tables)


DISTINCT = schema_of(hf.distinct(by=["d", "k"], horizon=5, name="once"))


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> KeyTable:
    found = KeyTable(str(tmp_path_factory.mktemp("keys")))
    for unit in UNITS:
        devices = pa.array([device for device in DEVICES if UNIT_OF[device] == unit], pa.int64())
        found.claim(lanes_of_columns(HASHED, [devices]), unit)
    return found


def kept(rows: list[tuple[int | None, str, int]]) -> pa.Table:
    schema = DISTINCT.tables["kept"].schema
    return pa.Table.from_pylist([{"d": d, "k": k, "__ticks__": at} for d, k, at in rows], schema=schema)


def tables_of(rows: list[tuple[int | None, str, int]], newest: int = 50, bound: int = 20) -> OperatorTables:
    of = DISTINCT.tables
    clock = pa.table({"clock": [0], "newest": [newest]}, schema=of["clock"].schema)
    bounds = pa.Table.from_pylist([{ALL_KEYS: True, BOUND: bound}], schema=of["bounds"].schema)
    return OperatorTables({"kept": kept(rows), "clock": clock, "bounds": bounds}, {"rows": {"given": bound}})


def moved(
    claims: KeyTable, held: Mapping[int, OperatorTables], before: Assignment, after: Assignment, **more: Any
) -> dict[int, OperatorTables]:
    """Return what all shards have, of which each shares in each: what changes nothing stays the same."""
    division = division_of("once", DISTINCT, "p")
    shares = {shard: {*held} for shard in range(after.shard_count)}
    return StateMoves(division, "d", KeyMoves(claims, before, after), shares, **more).state_after(held)


def plain(of: OperatorTables) -> dict[str, list[str]]:
    return {name: sorted(map(str, table.to_pylist())) for name, table in of.tables.items()}


rows_of = st.lists(
    st.tuples(st.sampled_from(DEVICES), st.sampled_from("abc"), st.integers(0, 9)), max_size=40, unique=True
)


@given(rows_of, st.integers(1, 5), st.integers(1, 5))
def test_each_row_is_in_the_shard_of_its_key_and_comes_back(
    claims: KeyTable, rows: list[tuple[int | None, str, int]], few: int, many: int
) -> None:
    before = assign(Assignment(few), UNITS)
    after = regroup(before, many)
    held = {n: tables_of([row for row in rows if before.shards[UNIT_OF[row[0]]] == n]) for n in range(few)}
    there = moved(claims, held, before, after)
    for shard, of in there.items():
        expected = [row for row in rows if after.shards[UNIT_OF[row[0]]] == shard]
        assert plain(of) == plain(tables_of(expected))
        assert of.feeds == {"rows": {"given": 20}}
    back = moved(claims, there, after, regroup(after, few))
    assert {shard: plain(of) for shard, of in back.items()} == {shard: plain(of) for shard, of in held.items()}


def test_a_shard_whose_state_stays_is_not_in_the_answer(claims: KeyTable) -> None:
    before = assign(Assignment(2), UNITS)
    division, after = division_of("once", DISTINCT, "p"), regroup(before, 2)
    held = {0: tables_of([]), 1: tables_of([])}
    assert StateMoves(division, "d", KeyMoves(claims, before, after), {}).state_after(held) == {}


def test_of_what_was_told_the_least_holds_and_of_what_was_counted_the_greatest(claims: KeyTable) -> None:
    two, one = assign(Assignment(2), UNITS), Assignment(1, dict.fromkeys(UNITS, 0))
    found = moved(claims, {0: tables_of([], 50, 20), 1: tables_of([], 40, 30)}, two, one)[0]
    assert found.tables["clock"].to_pylist() == [{"clock": 0, "newest": 40}]
    assert [row[BOUND] for row in found.tables["bounds"].to_pylist()] == [20]
    assert found.feeds == {"rows": {"given": 20}}
    nothing = OperatorTables({name: of.schema.empty_table() for name, of in DISTINCT.tables.items()})
    found = moved(claims, {0: tables_of([], 50), 1: nothing}, two, one)[0]
    assert found.tables["clock"].to_pylist() == [{"clock": 0, "newest": UNBOUNDED}]
    assert found.feeds == {}


def test_numbers_of_rows_go_on_behind_those_of_all_shards(claims: KeyTable) -> None:
    """Rows of one key are told apart by their numbers: a new one may not have that of one that came along."""
    left = hf.read.rows([], schema=SCHEMA, timestamp="t", name="left")
    right = hf.read.rows([], schema=SCHEMA, timestamp="t", name="right")
    node = hf.join(left, right, on="d", within=3, name="pairs").node
    step = node.spec.step({"left": to_arrow(SCHEMA), "right": to_arrow(SCHEMA)})
    division = division_of("pairs", StateSchema(node.kind, "", step.key, step.tables), "p")
    schema = step.tables["inputs"].schema

    def inputs(*rows: tuple[str, int, int]) -> OperatorTables:
        of = [dict(zip(schema.names, row, strict=True)) for row in rows]
        return OperatorTables({"inputs": pa.Table.from_pylist(of, schema=schema)})

    held = {0: inputs(("left", 7, 100), ("right", 9, 3)), 1: inputs(("left", 8, 4))}
    two, one = assign(Assignment(2), UNITS), Assignment(1, dict.fromkeys(UNITS, 0))
    moves = StateMoves(division, "d", KeyMoves(claims, two, one), {0: {0, 1}})
    rows = [tuple(row.values()) for row in moves.state_after(held)[0].tables["inputs"].to_pylist()]
    assert rows == [("left", 7, 100), ("right", UNBOUNDED, 3)]


def test_a_key_that_nobody_has_noted_is_refused(claims: KeyTable) -> None:
    one, two = Assignment(1, dict.fromkeys(UNITS, 0)), assign(Assignment(2), UNITS)
    with pytest.raises(InvalidPipeline, match="state of 'd' 99, and of which segment"):
        moved(claims, {0: tables_of([(3, "a", 1), (99, "a", 1)])}, one, two)


def test_a_row_in_another_shard_than_its_segment_is_refused(claims: KeyTable) -> None:
    two = assign(Assignment(2), UNITS)
    stray = next(device for device in DEVICES if two.shards[UNIT_OF[device]] == 1)
    with pytest.raises(Diverged, match="shard 1 reads the segment of that key"):
        moved(claims, {0: tables_of([(stray, "a", 1)])}, two, regroup(two, 3))


def test_rows_of_no_key_are_refused(claims: KeyTable) -> None:
    one, two = Assignment(1, dict.fromkeys(UNITS, 0)), assign(Assignment(2), UNITS)
    moves = StateMoves(division_of("once", DISTINCT, "p"), None, KeyMoves(claims, one, two), {0: {0}, 1: {0}})
    assert moves.state_after({0: tables_of([])})[1].tables["kept"].num_rows == 0
    with pytest.raises(InvalidPipeline, match="1 rows that are of no key"):
        moves.state_after({0: tables_of([(3, "a", 1)])})


def test_unlike_bounds_of_a_source_that_gives_them_are_refused(claims: KeyTable) -> None:
    two, one = assign(Assignment(2), UNITS), Assignment(1, dict.fromkeys(UNITS, 0))
    held = {0: tables_of([], bound=20), 1: tables_of([], bound=30)}
    assert moved(claims, held, two, one)
    with pytest.raises(InvalidPipeline, match="unlike bounds of source 'given'"):
        moved(claims, held, two, one, bounding={"given"})


def test_keys_are_counted_by_who_gives_and_who_gets_them(claims: KeyTable) -> None:
    one, two = Assignment(1, dict.fromkeys(UNITS, 0)), assign(Assignment(2), UNITS)
    expected = sum(two.shards[UNIT_OF[device]] == 1 for device in DEVICES)
    assert KeyMoves(claims, one, two).counts() == {(0, 1): expected}
    assert KeyMoves(claims, two, two).counts() == {}


def test_a_unit_that_is_read_alone_is_the_first_shards(claims: KeyTable) -> None:
    units = dict.fromkeys(UNITS[:3], 1)
    keys = KeyMoves(claims, Assignment(2, units), Assignment(2, units), UNITS[3:])
    before, after = keys.shards_of(pa.array(DEVICES, pa.int64()))
    assert before.tolist() == after.tolist() == [1 if UNIT_OF[device] in units else 0 for device in DEVICES]


def test_bounds_that_one_shard_was_not_told_do_not_hold() -> None:
    assert least_of_feeds([]) == {}
    assert least_of_feeds([{"rows": {"a": 7}}, {"others": {"a": 3}}]) == {}
