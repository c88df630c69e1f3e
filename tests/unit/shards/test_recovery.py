"""Ledgers of shards whose checkpoint is lost: who goes on with which segment, and what has to be handed over first."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.errors import Diverged
from holdfast.ports import Held
from holdfast.shards.recovery import RecoveredShards, recover_shards


def held(epoch: int, **segments: int) -> Held:
    return Held(epoch, 1, {"topic": segments} if segments else {})


def recover(*shards: Mapping[str, Held]) -> RecoveredShards:
    def unit_of(source: str, name: str) -> str | None:
        return "" if name == "@bound" else None if name.startswith("@") else name

    return recover_shards(shards, unit_of)


def test_a_shard_whose_sinks_are_at_different_epochs_is_left_as_it_is() -> None:
    found = recover({"a": held(7, x=9, y=3), "b": held(5, x=4)}, {"a": held(2, z=1), "b": Held()})
    assert (found.assignment.shards, found.hand_overs) == ({"x": 0, "y": 0, "z": 1}, {})


def test_a_segment_that_one_sink_only_has_received_is_the_lower_shards_in_all_of_them() -> None:
    """A crash in the middle of the hand-over by which shard 0 receives: shard 1 still has the segment in both sinks."""
    found = recover({"a": held(4, x=9, y=3), "b": held(3, x=9)}, {"a": held(2, y=3, z=1), "b": held(2, y=3, z=1)})
    assert found.assignment.shards == {"x": 0, "y": 0, "z": 1}
    assert found.hand_overs == {0: {"topic": {"x": 9, "y": 3}}, 1: {"topic": {"z": 1}}}


def test_a_segment_that_a_higher_shard_has_received_in_one_sink_stays_with_the_lower_one() -> None:
    """Also if another sink of it holds nothing yet: it gets the hand-over too."""
    found = recover({"a": held(4, x=9, y=3), "b": held(4, x=9, y=3)}, {"a": held(1, y=3), "b": Held()})
    assert (found.assignment.shard_count, found.assignment.shards) == (1, {"x": 0, "y": 0})
    assert found.hand_overs == {1: {}}


def test_a_segment_that_one_sink_only_has_given_away_is_whose_it_was_to_be() -> None:
    found = recover({"a": held(5, x=9), "b": held(4, x=9, y=3)}, {"a": held(2, y=3), "b": held(2, y=3)})
    assert (found.assignment.shards, found.hand_overs) == ({"x": 0, "y": 1}, {0: {"topic": {"x": 9}}})


def test_what_a_run_notes_beside_segments_contradicts_nothing() -> None:
    one, other = Held(3, 1, {"topic": {"x": 9, "@bound": 4, "@ended": 1}}), Held(4, 1, {"topic": {"x": 9, "y": 3}})
    found = recover({"a": one, "b": other}, {"a": held(2, y=3), "b": held(2, y=3)})
    assert found.hand_overs == {0: {"topic": {"x": 9, "y": 3}}, 1: {}}


@pytest.mark.parametrize(
    "shards",
    [
        ({"a": held(7, x=9)}, {"a": held(2, x=8)}),
        ({"a": held(7, x=8)}, {"a": held(2, x=9)}),
        ({"a": held(7, x=9), "b": held(5, x=4)}, {"a": held(2, x=9)}),
        ({"a": held(7, x=9, y=2), "b": held(7, x=9, y=1)}, {"a": held(2, x=9), "b": held(2, x=9)}),
    ],
)
def test_what_no_crash_leaves_is_refused(shards: tuple[Mapping[str, Held], ...]) -> None:
    with pytest.raises(Diverged, match="at different positions"):
        recover(*shards)


def test_rows_of_a_sink_that_has_lost_its_epochs_say_whose_a_segment_is() -> None:
    """A store of segments without its journal: no epoch as a whole, and rows up to a later one."""
    found = recover({"a": Held()}, {"a": Held(0, 1, {}, stops=({"topic": {"x": 4}},))})
    assert (found.assignment.shard_count, found.assignment.shards, found.hand_overs) == (2, {"x": 1}, {})
