"""``unmatched``: the rows that left ``sync`` and ``merge`` without a row of another input (design/0009)."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import bound, close
from holdfast.testing.step_contract import step_of

SCHEMA = "k STRING, t BIGINT, v BIGINT"


def rows(name: str) -> hf.Stream:
    return hf.read.rows([], schema=SCHEMA, timestamp="t", name=name)


def row(t: int, k: str = "a") -> dict[str, Any]:
    return {"k": k, "t": t, "v": 10 * t}


def aligned(policy: Any = None, **arguments: Any) -> hf.Stream:
    return hf.sync({"camera": rows("camera"), "radar": rows("radar")}, by="k", policy=policy, name="op", **arguments)


def given(camera: list[list[Any]], radar: list[list[Any]]) -> dict[str, list[list[Any]]]:
    return {"camera": camera, "radar": radar}


BOTH = given([[row(1), row(2), row(3)], [close()]], [[row(2), row(4)], [close()]])


def unmatched(stream: hf.Stream, sources: Any) -> list[tuple[int, str]]:
    found = [row for epoch in drive(stream.unmatched, sources) for row in epoch]
    for each in found:
        assert each[each["input"]] == row(each["timestamp"], each["k"]), "the whole row"
    return [(each["timestamp"], each["input"]) for each in found]


@pytest.mark.slow
def test_a_row_alone_in_its_set_is_unmatched_and_in_the_output_as_before():
    assert unmatched(aligned(), BOTH) == [(1, "camera"), (3, "camera"), (4, "radar")]
    with_it, without = aligned(), aligned()
    _ = with_it.unmatched
    assert drive(with_it, BOTH) == drive(without, BOTH)


def test_the_reason_names_the_inputs_that_have_no_row():
    (first, *_), *_ = drive(aligned().unmatched, BOTH)
    assert first["reason"] == "alone in its set: no row of radar"


def test_rows_that_have_one_partner_of_two_are_matched():
    inputs = {name: rows(name) for name in ("camera", "radar", "lidar")}
    stream = hf.sync(inputs, by="k", name="op")
    sources = {"camera": [[row(1), row(2)], [close()]], "radar": [[row(1)], [close()]], "lidar": [[close()]]}
    assert unmatched(stream, sources) == [(2, "camera")]


POLICIES: dict[str, tuple[Any, list[tuple[int, str]]]] = {
    "within": (hf.policy.within(0), [(1, "camera"), (3, "camera"), (4, "radar")]),
    "barrier": (hf.policy.barrier(), [(3, "camera")]),
    "early_close": (hf.policy.early_close(), [(1, "camera"), (3, "camera"), (4, "radar")]),
    "sync_sets": (
        hf.policy.sync_sets([["camera"], ["radar"]]),
        [(1, "camera"), (2, "camera"), (3, "camera"), (2, "radar"), (4, "radar")],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_what_is_unmatched_follows_from_the_policy(name: str):
    policy, wanted = POLICIES[name]
    assert sorted(unmatched(aligned(policy), BOTH)) == sorted(wanted)


@pytest.mark.slow
def test_a_row_that_a_policy_drops_is_in_late_as_before_and_unmatched():
    stream = hf.sync({"camera": rows("camera"), "radar": rows("radar")}, by="k", policy=hf.policy.barrier(), name="op")
    late = [row for epoch in drive(stream.late, BOTH) for row in epoch]
    also = [row for epoch in drive(stream.unmatched, BOTH) for row in epoch]
    assert late == also != []


def test_rows_that_are_late_are_not_unmatched():
    sources = given([[row(5), row(3)], [close()]], [[row(5)], [close()]])
    assert unmatched(aligned(), sources) == []


def test_a_row_whose_key_is_forgotten_is_unmatched():
    stream = aligned(forget_after="1 s")
    driven = Drive(stream.unmatched, given([[row(1)], [], []], [[], [], []]), batch_times=[0, 1, 5_000_000])
    found = [each for table in driven.tables() for each in table.to_pylist()]
    assert [(each["timestamp"], each["input"]) for each in found] == [(1, "camera")]
    assert driven.reasons["op", "unmatched"] == {"its key was forgotten": 1}


@pytest.mark.slow
def test_a_main_row_without_any_slow_row_is_unmatched_and_in_the_output_with_nulls():
    stream = hf.merge(rows("camera"), {"radar": rows("radar")}, by="k", tolerance=1, name="op")
    sources = given([[row(1), row(3), row(9)], [close()]], [[row(2)], [close()]])
    found = [each for epoch in drive(stream.unmatched, sources) for each in epoch]
    assert [(each["timestamp"], each["input"], each["main"]) for each in found] == [
        (1, "main", row(1)),
        (9, "main", row(9)),
    ]
    assert found[0]["reason"] == "no row of radar at or before its timestamp, within the tolerance"
    assert [each["t"] for epoch in drive(stream, sources) for each in epoch] == [1, 3, 9]


@pytest.mark.slow
def test_nobody_looks_for_unmatched_rows_that_nobody_reads_and_state_is_the_same():
    for stream in (aligned(), hf.merge(rows("camera"), {"radar": rows("radar")}, by="k", name="op")):
        step: Any = step_of(stream)
        looking = step.giving({"unmatched"})
        assert list(step.outputs) == ["rows", "late"]
        assert list(looking.outputs) == ["rows", "late", "unmatched"]
        assert looking.tables == step.tables
        driven = Drive(stream, BOTH)
        driven.tables()
        assert ("op", "unmatched") not in driven.counts


@pytest.mark.slow
def test_bounds_of_settled_sets_hold_for_unmatched_rows_so_what_is_downstream_does_not_wait_for_the_end():
    counted = aligned().unmatched | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="counted")
    found = drive(counted, given([[row(1)], [bound(20)], []], [[row(2)], [bound(20)], []]))
    assert [[(each["window_start"], each["n"]) for each in epoch] for epoch in found] == [[], [(0, 2)], []]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, hf.policy.within(0)], ids=["settled", "within"])
def test_unmatched_rows_leave_in_the_order_of_time_of_both_inputs_wherever_epochs_end(policy: Any):
    """They came in another one, within the disorder that the inputs may have; and a bound let them wait."""
    stream = aligned(policy, timestamps="ascending", disorder=9)
    camera, radar = [row(8), row(2), row(5, "b"), row(4)], [row(6), row(1), row(20)]
    wanted = [(1, "radar"), (2, "camera"), (4, "camera"), (5, "camera"), (6, "radar"), (8, "camera"), (20, "radar")]
    whole = given([[*camera], [close()]], [[*radar], [close()]])
    at_once = given([[*camera, close()]], [[*radar, close()]])
    by_row = given([[each] for each in [*camera, close()]], [*([each] for each in [*radar, close()]), []])
    for sources in (whole, at_once, by_row):
        assert unmatched(stream, sources) == wanted
        counted = stream.unmatched | hf.aggregate(by="k", window=hf.tumbling(100), n=hf.count(), name="counted")
        assert sorted(each["n"] for epoch in drive(counted, sources) for each in epoch) == [1, 6], "some were late"


def test_unmatched_rows_of_a_forgotten_key_leave_in_the_order_of_time():
    stream = aligned(timestamps="ascending", disorder=9, forget_after="1 s")
    sources = given([[row(5), row(3)], [], []], [[row(4)], [], []])
    driven = Drive(stream.unmatched, sources, batch_times=[0, 1, 5_000_000])
    assert [each["timestamp"] for table in driven.tables() for each in table.to_pylist()] == [3, 4, 5]


@pytest.mark.slow
def test_downstream_of_late_rows_windows_close_by_their_own_promise_or_at_the_end_of_every_input():
    stream = hf.merge(rows("camera"), {"radar": rows("radar")}, by="k", name="op")
    counted = stream.late | hf.aggregate(by="k", window=hf.tumbling(5), disorder=99, n=hf.count(), name="counted")
    # The rows of merge have ended with the main input; those of the slow one are late still.
    camera: list[Any] = [[row(50), row(7)], [close()], [], []]
    radar = [[row(60)], [], [row(8)], [close()]]
    found = drive(counted, given(camera, radar))
    assert [[(each["window_start"], each["n"]) for each in epoch] for epoch in found] == [[], [], [], [(5, 2)]]


def test_only_join_sync_and_merge_have_unmatched_rows():
    with pytest.raises(hf.InvalidPipeline, match=r"has no unmatched rows.*\n.*only join, sync and merge"):
        _ = (rows("camera") | hf.distinct(by="k", horizon=1, name="op")).unmatched
