"""The record of which shard has which segments: design/0048, sections 1 and 2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import Corrupt
from holdfast.shards.assignment import Assignment, assign, regroup
from holdfast.shards.layout import LAYOUTS, ShardLayout, newest_layout, record_layout
from holdfast.testing.store import SimulatedStore

LAYOUT = ShardLayout(regroup(assign(Assignment(3), ["a:1", "a:2", "b:0/60"]), 2), {"b": 60}, "independent")


def test_a_pipeline_without_a_layout_has_no_shards() -> None:
    assert newest_layout(SimulatedStore()) is None


def test_the_newest_layout_counts_and_says_what_was_recorded() -> None:
    store = SimulatedStore()
    first = record_layout(store, LAYOUT)
    assert first == replace(LAYOUT, number=1)
    second = record_layout(store, replace(first, assignment=assign(first.assignment, ["a:3"])))
    assert newest_layout(store) == second
    assert second == replace(second or LAYOUT, number=2)


def test_of_two_that_follow_the_same_one_one_counts() -> None:
    store = SimulatedStore()
    mine = record_layout(store, LAYOUT)
    assert record_layout(store, replace(LAYOUT, by="")) is None
    assert newest_layout(store) == mine


def test_a_damaged_layout_is_not_replaced_by_an_older_one() -> None:
    store = SimulatedStore()
    first = record_layout(store, LAYOUT)
    assert first is not None
    record_layout(store, first)
    store.damage(f"{LAYOUTS}00000002.json", flip=20)
    with pytest.raises(Corrupt, match="00000002"):
        newest_layout(store)
