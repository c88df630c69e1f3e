"""``limit_in_flight`` against cases recorded from a running flow limiter (docs/operators/limit_in_flight.md).

Those apply in which nothing waits in the flow limiter's queue (here there is none: what is not admitted at once is
shed) and no auxiliary input is throttled.  Once with an epoch for each event, once with all events in one epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.operators.stateful.limit_in_flight import limit_in_flight
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import StepTime
from holdfast.testing.given import Bound, bound, close
from holdfast.testing.step_contract import Event, arrivals_of

CASES = json.loads((Path(__file__).parent / "oracle" / "cases.json").read_text())["cases"]
INPUTS = {"in": "rows", "finished": "done"}


def decisions(case: dict[str, Any]) -> dict[int, tuple[int, bool]]:
    """Return for each timestamp the event at which the flow limiter decided, and how."""
    outputs = case["expected"]["outputs"]
    return {
        time: (event, admits) for event, stream, time, admits in outputs if stream == "allow" and admits is not None
    }


def applies(case: dict[str, Any]) -> bool:
    if case.get("kind") != "flow_limiter" or "aux" in case["streams"]:
        return False
    arrived = {event[2]: number for number, event in enumerate(case["events"]) if event[:2] == ["in", "packet"]}
    return {time: event for time, (event, _) in decisions(case).items()} == arrived


ASKED = [case for case in CASES if applies(case)]


def events_of(case: dict[str, Any]) -> list[Event]:
    found: list[Event] = []
    for stream, kind, *rest in case["events"]:
        if kind == "packet":
            item: Mapping[str, Any] | Bound = {"k": "a", "t": rest[0], "v": rest[1]}
        else:
            item = bound(rest[0]) if kind == "bound" else close()
        found.append((INPUTS[stream], item))
    return found


def limited(case: dict[str, Any], epochs: Sequence[Sequence[Event]]) -> dict[str, list[int]]:
    """Return the times of the rows admitted, shed and late."""
    options = {"max_in_flight": 1, "in_flight_timeout": 0, **case["flow_limiter"]}
    frames, done = (
        hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name=name) for name in ("frames", "done")
    )
    limit = limit_in_flight(options["max_in_flight"], "k", done=done, timeout=options["in_flight_timeout"] or None)
    spec: Any = (frames | limit).node.spec
    schemas = {name: stream.node.spec.schema for name, stream in (("rows", frames), ("done", done))}
    step = spec.step(schemas)
    state = tables.empty_state(step)
    found: dict[str, list[int]] = {"rows": [], "shed": [], "late": []}
    for epoch, events in enumerate(epochs):
        result = call(step, state, arrivals_of(step, events), StepTime(epoch, 0), operator="limit")
        state = tables.apply_changes(state, step.tables, result.changes)
        for name, rows in result.outputs.items():
            found[name] += rows.column("timestamp" if name == "late" else "t").to_pylist()
    return found


def test_the_cases_that_apply_are_as_many_as_were_counted() -> None:
    names = {case["id"].removeprefix("flow_limiter-") for case in ASKED}
    assert names == {"h1-defaults", "h4-main-bound", "r-012", "r-013", "r-018"}


@pytest.mark.slow
@pytest.mark.parametrize("case", ASKED, ids=lambda case: case["id"])
@pytest.mark.parametrize("is_whole", [False, True], ids=["an epoch each", "one epoch"])
def test_what_the_flow_limiter_admits_and_drops_is_admitted_and_shed(case: dict[str, Any], is_whole: bool) -> None:
    events = events_of(case)
    found = limited(case, [events] if is_whole else [[event] for event in events])
    for output, admits in (("rows", True), ("shed", False)):
        assert found[output] == [time for time, (_, decided) in sorted(decisions(case).items()) if decided is admits]
    assert found["late"] == []
