"""Which shard reads which segments: design/0048, section 4."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InternalError
from holdfast.shards.assignment import Assignment, assign, keep, moves, regroup

pytestmark = pytest.mark.slow

UNITS = st.sets(st.text("abc0/", min_size=1, max_size=4), max_size=30)
COUNTS = st.integers(1, 7)
STEPS = st.lists(st.one_of(UNITS, COUNTS), max_size=8)


def after(steps: Any, start: int = 3) -> Assignment:
    """Return the assignment after units have come and numbers of shards have changed."""
    found = Assignment(start)
    for step in steps:
        found = regroup(found, step) if isinstance(step, int) else assign(found, step)
    return found


def fewest_moves(before: Assignment, shard_count: int) -> int:
    """Return by trying all balanced sizes how many units have to move."""
    counts = [sum(of == shard for of in before.shards.values()) for shard in range(shard_count)]
    least, more = divmod(len(before.shards), shard_count)
    favoured = (frozenset(each) for each in combinations(range(shard_count), more))
    stays = (sum(min(count, least + (at in each)) for at, count in enumerate(counts)) for each in favoured)
    return len(before.shards) - max(stays)


@given(STEPS)
def test_each_unit_has_one_shard_whatever_came_before(steps: Any) -> None:
    found = after(steps)
    assert {*found.shards} == set().union(*(step for step in steps if not isinstance(step, int)))
    own = [{unit for unit in found.shards if unit in found.units_of(shard)} for shard in range(found.shard_count)]
    assert sum(map(len, own)) == len(found.shards)
    assert [len(each) for each in own] == found.counts()


@given(STEPS)
def test_what_is_new_is_in_one_shard_the_one_with_the_fewest(steps: Any) -> None:
    found = after(steps)
    sets = [found.units_of(shard) for shard in range(found.shard_count)]
    assert ["new" in each for each in sets].count(True) == 1
    assert "new" in sets[found.rest]
    assert found.counts()[found.rest] == min(found.counts())


@given(STEPS, UNITS)
def test_new_units_move_no_other_and_fill_the_shards_with_fewest(steps: Any, new: set[str]) -> None:
    before = after(steps)
    found = assign(before, new)
    assert moves(before, found) == {}
    highest = max(before.counts())
    for count, earlier in zip(found.counts(), before.counts(), strict=True):
        assert count == earlier or count <= max(highest, min(found.counts()) + 1)
    assert assign(found, new) == found


@given(STEPS, UNITS)
def test_what_the_shard_with_the_rest_has_begun_to_read_stays_with_it(steps: Any, new: set[str]) -> None:
    before = after(steps)
    found = keep(before, new, before.rest)
    assert moves(before, found) == {}
    assert all(unit in before.units_of(before.rest) for unit in new - before.shards.keys())
    assert {unit: found.shards[unit] for unit in new - before.shards.keys()} == dict.fromkeys(
        new - before.shards.keys(), before.rest
    )


@given(UNITS, COUNTS, COUNTS)
def test_another_number_is_balanced_and_moves_as_few_as_that_allows(units: set[str], count: int, to: int) -> None:
    before = assign(Assignment(count), units)
    found = regroup(before, to)
    assert max(found.counts()) - min(found.counts()) <= 1
    assert len(moves(before, found)) == (0 if to == count else fewest_moves(before, to))


@given(UNITS, COUNTS, UNITS, COUNTS)
def test_an_uneven_start_is_balanced_with_as_few_moves(some: set[str], count: int, more: set[str], to: int) -> None:
    """Segments that ended leave some shards with fewer: whatever it was, the change moves no more than it has to."""
    uneven = Assignment(count, {unit: len(unit) % count for unit in some | more})
    if to != count:
        found = regroup(uneven, to)
        assert max(found.counts()) - min(found.counts()) <= 1
        assert len(moves(uneven, found)) == fewest_moves(uneven, to)


@given(STEPS, st.lists(COUNTS, min_size=1, max_size=4))
def test_a_number_that_there_was_gives_what_there_was(steps: Any, way: list[int]) -> None:
    before = after(steps)
    found = before
    for count in way:
        found = regroup(found, count)
    assert regroup(found, before.shard_count).shards == before.shards


@given(STEPS, COUNTS, UNITS)
def test_units_that_came_meanwhile_move_none_that_were_there(steps: Any, to: int, new: set[str]) -> None:
    before = after(steps)
    back = regroup(assign(regroup(before, to), new), before.shard_count)
    assert {unit: back.shards[unit] for unit in before.shards} == before.shards
    assert {*back.shards} == {*before.shards} | new


@given(STEPS)
def test_it_is_the_same_in_whatever_order_units_are_named_and_when_it_was_written(steps: Any) -> None:
    found = after(steps)
    turned = after([step if isinstance(step, int) else sorted(step, reverse=True) for step in steps])
    assert found == turned
    assert Assignment.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_shard_that_is_not_there_is_refused() -> None:
    with pytest.raises(InternalError, match="beyond the 2"):
        Assignment(2, {"a": 2})
