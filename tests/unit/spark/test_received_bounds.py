"""Bounds that an operator has received, when their origin has another name or other buckets now (design/0011)."""

from __future__ import annotations

from holdfast.spark.state.transfer import ReceivedBounds

CLOSED = 2**63 - 1


def test_the_end_of_a_side_output_goes_by_the_name_of_its_operator() -> None:
    received = {"side": {"old/0": 7, "old.late/0": CLOSED, "source": 3}}
    assert ReceivedBounds({"old": "new"}, set(), 1, 1).renamed(received) == {
        "side": {"new/0": 7, "new.late/0": CLOSED, "source": 3}
    }


def test_the_end_of_a_side_output_holds_for_other_buckets_once_all_have_given_it() -> None:
    whole = {"side": {"op.late/0": CLOSED, "op.late/1": CLOSED}}
    assert ReceivedBounds({}, {"op"}, 2, 3).renamed(whole) == {"side": {f"op.late/{n}": CLOSED for n in range(3)}}
    assert ReceivedBounds({}, {"op"}, 2, 3).renamed({"side": {"op.late/1": CLOSED}}) == {"side": {}}
