"""What becomes of each shard when segments move: design/0048, section 6."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Diverged
from holdfast.shards.assignment import Assignment, assign, regroup
from holdfast.shards.moves import Move, Stand, moves_between, note_beginnings

SOURCE = "rides"


def unit_of(source: str, name: str) -> str | None:
    if name.startswith("@ended"):
        return None
    return "" if name in ("log", "@bound") else f"{source}:{name}"


def stands_of(assignment: Assignment, positions: dict[str, int]) -> dict[int, Stand]:
    """Return shards that have read all their segments so far."""
    found: dict[int, dict[str, int]] = {shard: {} for shard in range(assignment.shard_count)}
    for segment, at in positions.items():
        found[assignment.shards[f"{SOURCE}:{segment}"]][segment] = at
    return {shard: Stand(5 + shard, {SOURCE: of} if of else {}) for shard, of in found.items()}


def after(stands: dict[int, Stand], moves: dict[int, Move]) -> dict[int, Stand]:
    return {shard: Stand(*move.end) for shard, move in moves.items()}


positions_of = st.dictionaries(st.sampled_from([f"s{n}" for n in range(12)]), st.integers(1, 99), min_size=1)


@given(positions_of, st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_each_position_is_in_one_shard_after_each_change_and_as_it_was(
    positions: dict[str, int], counts: list[int]
) -> None:
    assignment = assign(Assignment(counts[0]), [f"{SOURCE}:{segment}" for segment in positions])
    stands = stands_of(assignment, positions)
    for count in counts[1:]:
        other = regroup(assignment, count)
        moves = moves_between(assignment, other, stands, unit_of)
        for shard, move in moves.items():
            received = dict(move.receipt[1].get(SOURCE, {}))
            assert received.items() <= positions.items()
            assert {**stands.get(shard, Stand()).positions.get(SOURCE, {})}.items() <= received.items()
        stands, assignment = after(stands, moves), other
        found = [
            (segment, at, shard) for shard, of in stands.items() for segment, at in of.positions.get(SOURCE, {}).items()
        ]
        assert sorted(found) == sorted(
            (segment, at, other.shards[f"{SOURCE}:{segment}"]) for segment, at in positions.items()
        )


@given(positions_of, st.integers(1, 5), st.integers(1, 5))
def test_there_and_back_leaves_each_shard_with_what_it_had(positions: dict[str, int], one: int, other: int) -> None:
    there = assign(Assignment(one), [f"{SOURCE}:{segment}" for segment in positions])
    stands = stands_of(there, positions)
    away = regroup(there, other)
    gone = after(stands, moves_between(there, away, stands, unit_of))
    back = after(gone, moves_between(away, regroup(away, one), gone, unit_of))
    assert {shard: of.positions for shard, of in back.items() if of.positions} == {
        shard: of.positions for shard, of in stands.items() if of.positions
    }


def test_what_is_of_no_segment_goes_along_and_the_least_holds() -> None:
    before = Assignment(3, {"rides:a": 0, "rides:b": 1, "rides:c": 1, "rides:d": 2})
    then = Assignment(2, {"rides:a": 0, "rides:b": 1, "rides:c": 0, "rides:d": 0})
    stands = {
        0: Stand(3, {SOURCE: {"a": 1, "@bound": 90}}),
        1: Stand(4, {SOURCE: {"b": 2, "c": 3, "@bound": 80, "log": 7}}),
        2: Stand(5, {SOURCE: {"d": 4, "@bound": 95}}),
    }
    moves = moves_between(before, then, stands, unit_of)
    assert moves[0].end == (4, {SOURCE: {"a": 1, "@bound": 80, "log": 7, "c": 3, "d": 4}})
    assert moves[1].end == (5, {SOURCE: {"b": 2, "@bound": 80, "log": 7}})
    assert moves[2].end == (6, {})


def test_a_segment_that_was_not_read_goes_on_where_the_source_was_read_before_it_was_divided() -> None:
    before, then = Assignment(1, {"rides:a": 0, "rides:b": 0}), Assignment(2, {"rides:a": 0, "rides:b": 1})
    moves = moves_between(before, then, {0: Stand(7, {SOURCE: {"log": 50}})}, unit_of)
    assert moves[1].end == (1, {SOURCE: {"log": 50}})
    assert moves[0].end == (7, {SOURCE: {"log": 50}})


def test_that_a_shard_has_read_everything_is_no_longer_true_when_it_gets_more() -> None:
    before, then = Assignment(2, {"rides:a": 0, "rides:b": 1}), Assignment(1, {"rides:a": 0, "rides:b": 0})
    stands = {0: Stand(2, {SOURCE: {"a": 1, "@ended": 1}}), 1: Stand(2, {SOURCE: {"b": 1, "@ended": 1}})}
    assert moves_between(before, then, stands, unit_of)[0].end == (3, {SOURCE: {"a": 1, "b": 1}})


def test_what_the_shard_with_the_rest_has_begun_or_planned_is_its() -> None:
    stands = {0: Stand(2, {SOURCE: {"a": 1}}), 1: Stand(3, {SOURCE: {"b": 2}}, {SOURCE: {"b": 2, "new": 1, "log": 3}})}
    noted = note_beginnings(Assignment(2, {"rides:a": 0}), stands, unit_of)
    assert noted.shards == {"rides:a": 0, "rides:b": 1, "rides:new": 1}


def test_a_position_of_a_segment_that_another_shard_has_is_an_error() -> None:
    with pytest.raises(Diverged, match="shard 1 has read 'rides:a', which is shard 0's"):
        note_beginnings(Assignment(2, {"rides:a": 0}), {1: Stand(3, {SOURCE: {"a": 2}})}, unit_of)


@pytest.mark.parametrize("move", [Move(3, {}), Move(3, {SOURCE: {"a": 1}}, {SOURCE: {"a": 1, "b": 2}}, {})])
def test_a_move_is_read_as_it_was_written(move: Move) -> None:
    assert Move.from_json(move.to_json()) == move


def test_what_sinks_hold_says_how_far_a_move_has_come() -> None:
    move = Move(3, {SOURCE: {"a": 1}}, {SOURCE: {"a": 1, "b": 2}}, {SOURCE: {"b": 2}})
    at = [move.at(epoch) for epoch in (0, 3, 4, 5, 6)]
    assert at == [move.positions, move.positions, move.receives, move.gives, None]
