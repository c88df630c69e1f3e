"""Names of shards: design/0048, section 2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InternalError, InvalidPipeline
from holdfast.graph.naming import checked_name, origin
from holdfast.shards.naming import SHARDS_MAX, shard_name, shard_of

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,59}", fullmatch=True)


@given(NAMES, st.integers(0, SHARDS_MAX - 1))
def test_a_name_says_pipeline_and_shard(pipeline: str, shard: int) -> None:
    assert shard_of(shard_name(pipeline, shard)) == (pipeline, shard)


@given(NAMES, st.integers(1, SHARDS_MAX - 1))
def test_no_users_pipeline_has_the_name_of_a_shard(pipeline: str, shard: int) -> None:
    with pytest.raises(InvalidPipeline):
        checked_name(shard_name(pipeline, shard), of="pipeline", built_at=origin())


@pytest.mark.parametrize("shard", [-1, SHARDS_MAX])
def test_there_are_at_most_a_thousand(shard: int) -> None:
    with pytest.raises(InternalError):
        shard_name("trips", shard)
