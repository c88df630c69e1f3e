"""The input policies against cases recorded from a running implementation of the reference (design/0007, section 4).

One epoch for each event where the node could run after each; the whole case as one epoch where all was fed first.

The one difference (design/0007, section 5): where the reference ends its run with an error, at a row below its bound or
a bound that goes back, Holdfast diverts the row (a bound that goes back changes nothing) and goes on.  Up to and
with that event the sets are the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast.operators.sync import policy as policies
from holdfast.state.step import CLOSED, UNBOUNDED
from tests.spec.oracle_cases import ASKED, expected_sets, policy_of
from tests.unit.operators.sync_driver import Event, run, step_of

COUNTS = {
    "default": 45,
    "sync_set": 21,
    "immediate": 22,
    "barrier": 20,
    "early_close": 19,
    "fixed_size": 22,
    "mux": 12,
    "timestamp_align": 8,
}


def events_of(case: dict[str, Any], key: str | None) -> list[Event]:
    events: list[Event] = []
    for name, what, *rest in case["events"]:
        if what == "packet":
            events.append((name, "row", key, *rest))
        else:
            events.append((name, "bound", key, rest[0] if what == "bound" else CLOSED))
    return events


EVERYDAY = 40
"""Every so many of the cases is quick to have; all of them are in ``make test``."""
EACH = [
    pytest.param(case, id=case["id"], marks=[pytest.mark.slow] * (number % EVERYDAY > 0))
    for number, case in enumerate(ASKED)
]


@pytest.mark.parametrize("key", [None, "x"], ids=["no_key", "one_key"])
@pytest.mark.parametrize("case", EACH)
def test_the_sets_and_their_order_are_those_of_the_reference(case: dict[str, Any], key: str | None) -> None:
    events, error = events_of(case, key), case["expected"]["error"]
    step = step_of(case["streams"], policy_of(case), by=() if key is None else ("k",))
    fed = events if error is None else events[: error["event"] + 1]
    drive = run(step, [[event] for event in fed] if case["drain"] == "each" else [fed])
    sets = [
        (row["timestamp"], {name: row[name]["v"] for name in case["streams"] if row[name] is not None})
        for row in drive.rows
    ]
    assert sets == expected_sets(case)
    if error is not None and error["kind"] == "late_packet":
        assert [row["timestamp"] for row in drive.late[-1:]] == [events[error["event"]][3]]
        assert drive.counts["late"] == 1
    else:
        # The reference drops in silence what comes after the node has closed; here it is in the side output too.
        closed = case["expected"]["close_after_event"]
        after = events[closed + 1 :] if isinstance(closed, int) else []
        assert drive.counts["late"] <= sum(event[1] == "row" for event in after)


def closed_early(streams: list[str], events: list[Event]) -> list[tuple[int, dict[str, Any]]]:
    """Return the sets of ``early_close`` when a node first runs after all events, by the rules of the reference."""
    queues: dict[str, list[tuple[int, Any]]] = {name: [] for name in streams}
    bounds = dict.fromkeys(streams, UNBOUNDED)
    for name, what, _, time, *value in events:
        if what == "row":
            queues[name].append((time, value[0]))
        bounds[name] = max(bounds[name], time + 1 if what == "row" else time)
    sets: list[tuple[int, dict[str, Any]]] = []
    while all(queues[name] or bounds[name] < CLOSED for name in streams):
        heads = [queue[0][0] for queue in queues.values() if queue]
        if not heads or any(not queues[name] and bounds[name] <= min(heads) for name in streams):
            break
        at = min(heads)
        sets.append((at, {name: queue.pop(0)[1] for name, queue in queues.items() if queue and queue[0][0] == at}))
    return sets


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, "x"], ids=["no_key", "one_key"])
def test_a_bound_and_then_the_end_in_one_epoch_release_nothing_beyond_the_rows(key: str | None) -> None:
    """Fed at once, the input is empty and has ended when the node first runs; fed one by one, the bound counts."""
    events: list[Event] = [("b", "row", key, 5, 1), ("a", "bound", key, 10), ("a", "bound", key, CLOSED)]
    step = step_of(["a", "b"], policies.early_close(), by=() if key is None else ("k",))
    assert [row["timestamp"] for row in run(step, [events]).rows] == []
    assert [row["timestamp"] for row in run(step, [[event] for event in events]).rows] == [5]
    for case in (case for case in ASKED if case["policy"] == "early_close" and case["expected"]["error"] is None):
        events = events_of(case, key)
        step = step_of(case["streams"], policies.early_close(), by=() if key is None else ("k",))
        found = [
            (row["timestamp"], {name: row[name]["v"] for name in case["streams"] if row[name] is not None})
            for row in run(step, [events]).rows
        ]
        assert found == closed_early(case["streams"], events), case["id"]


def test_every_case_that_is_asked_runs() -> None:
    assert Counter(case["policy"] for case in ASKED) == COUNTS


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ASKED if case["expected"]["error"]], ids=lambda case: case["id"])
def test_after_a_late_row_the_run_goes_on(case: dict[str, Any]) -> None:
    events = events_of(case, "x")
    step = step_of(case["streams"], policy_of(case))
    at = case["expected"]["error"]["event"]
    whole = run(step, [[event] for event in events])
    without = run(step, [[event] for place, event in enumerate(events) if place != at])
    assert whole.rows == without.rows
