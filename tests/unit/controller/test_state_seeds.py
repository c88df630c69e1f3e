"""What is refused of a pipeline with state before its number of shards changes (design/0048, section 7)."""

from __future__ import annotations

from typing import Literal

import pytest

import holdfast as hf
from holdfast.controller.layouts.state_seeds import check_bounds, check_state
from holdfast.errors import InvalidPipeline
from holdfast.pipeline import Pipeline


def pipeline(shard_by: str | None = "k", commit_at: Literal["pts"] | None = None) -> Pipeline:
    rides = hf.read.files("in", schema="k STRING, t BIGINT", timestamp="t", name="rides")
    once = rides | hf.distinct(by="k", horizon=5, name="once")
    return hf.Pipeline("p", once | hf.write.memory(name="out"), shard_by=shard_by, commit_at=commit_at)


def test_state_moves_by_a_column_that_holds_keys_to_segments() -> None:
    check_state(pipeline())
    with pytest.raises(InvalidPipeline, match="keeps state"):
        check_state(pipeline(shard_by=None))


def test_rows_that_wait_for_the_sinks_do_not_move() -> None:
    with pytest.raises(InvalidPipeline, match="commit_at"):
        check_state(pipeline(commit_at="pts"))


def test_a_table_that_changes_as_it_is_looked_up_in_does_not_move() -> None:
    rides = hf.read.files("in", schema="k STRING, t BIGINT", timestamp="t", name="rides")
    prices = hf.read.files("prices", schema="k STRING, t BIGINT, p BIGINT", timestamp="t", name="prices")
    found = hf.lookup(rides, hf.table(prices, key="k"), on="k", name="priced")
    with pytest.raises(InvalidPipeline, match="keeps a table"):
        check_state(hf.Pipeline("p", found | hf.write.memory(name="out"), shard_by="k"))


def test_shards_that_share_segments_have_reached_one_bound() -> None:
    at = {0: {"rides": {"0/2": 3, "@bound": 7}}, 1: {"rides": {"1/2": 3, "@bound": 9}}}
    check_bounds(pipeline(), at, {})
    check_bounds(pipeline(), at, {2: {0}})
    with pytest.raises(InvalidPipeline, match="unlike bounds of source 'rides'"):
        check_bounds(pipeline(), at, {0: {1}})
