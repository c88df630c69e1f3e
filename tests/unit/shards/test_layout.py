"""The record of which shard has which segments: design/0048, sections 1 and 2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import Corrupt, Fenced
from holdfast.shards.assignment import Assignment, assign, regroup
from holdfast.shards.layout import DECIDED, LAYOUTS, ShardLayout, newest_layout, record_layout, settled_layout
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


def test_a_layout_counts_only_once_it_is_decided_and_a_start_decides_against_what_is_left() -> None:
    store = SimulatedStore()
    first = record_layout(store, LAYOUT)
    assert first is not None

    def die() -> None:
        raise Fenced("somebody has taken a shard over.")

    with pytest.raises(Fenced):
        record_layout(store, replace(first, by=""), die)
    assert newest_layout(store) == first
    assert settled_layout(store) == first
    third = record_layout(store, first)
    assert third is not None
    assert third.number == 3
    assert settled_layout(store) == newest_layout(store) == third


def test_who_proposes_and_is_slow_finds_that_his_layout_does_not_count() -> None:
    store = SimulatedStore()
    first = record_layout(store, LAYOUT)
    assert first is not None

    def be_late() -> None:
        settled_layout(store)

    assert record_layout(store, first, be_late) is None
    assert newest_layout(store) == first


def test_what_was_decided_must_be_readable() -> None:
    store = SimulatedStore()
    record_layout(store, LAYOUT)
    store.damage(f"{DECIDED}00000001.json", flip=20)
    with pytest.raises(Corrupt, match="whether the layout of this number counts"):
        newest_layout(store)
