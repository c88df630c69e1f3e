"""Who waits on whom, in the state of sync and merge."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.operators.waits import longest_waits
from holdfast.state.step import StepTime
from holdfast.state.tables import decode
from holdfast.testing import bound
from holdfast.testing.drive import Drive

MAIN, SLOW = "k STRING, t BIGINT, v INT", "k STRING, at BIGINT, w INT"


def source(name: str, schema: str, timestamp: str) -> hf.Stream:
    return hf.read.rows([], schema=schema, timestamp=timestamp, name=name)


def merged(**more: Any) -> hf.Stream:
    weather, tide = source("weather", SLOW, "at"), source("tide", SLOW, "at")
    return hf.merge(source("main", MAIN, "t"), {"weather": weather, "tide": tide}, by="k", name="seen", **more)


def aligned(**more: Any) -> hf.Stream:
    return hf.sync({"a": source("a", MAIN, "t"), "b": source("b", MAIN, "t")}, name="seen", **more)


def waits_of(stream: hf.Stream, most: int = 10, /, **sources: Any) -> list[dict[str, Any]]:
    return seen_of(stream, most, **sources)[0]


def seen_of(stream: hf.Stream, most: int = 10, /, **sources: Any) -> tuple[list[dict[str, Any]], int | None]:
    """Return the longest waits, and how many keys wait, after all epochs, which come at batch times 0, 10, 20, ..."""
    names = [node.name for node in stream.node.inputs]
    count = max(map(len, sources.values()))
    drive = Drive(stream, {n: sources.get(n, []) for n in names}, batch_times=[10 * n for n in range(count)])
    drive.tables()
    spec: Any = stream.node.spec
    step = spec.step({name: node.spec.schema for name, node in zip(spec.input_names, stream.node.inputs, strict=True)})
    return longest_waits(step, decode(drive.states["seen"][0]), StepTime(count, 10 * count), most)


def row(t: int, k: str = "x") -> dict[str, Any]:
    return {"k": k, "t": t, "v": 0}


def slow(at: int, k: str = "x") -> dict[str, Any]:
    return {"k": k, "at": at, "w": 0}


def told(waits: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(w["key"]["k"], w["input"], w["since_us"], w["bound"], w["waiting_rows"]) for w in waits]


def test_a_merge_names_each_input_that_a_key_waits_on_and_since_when() -> None:
    found = waits_of(
        merged(),
        main=[[row(5, "y")], [row(5), row(7)], [row(8)]],
        weather=[[], [slow(6)]],
        tide=[[], [], [slow(9), slow(3, "y")]],
    )
    assert told(found) == [("y", "weather", 0, None, 1), ("y", "tide", 0, 3, 1), ("x", "weather", 10, 6, 2)]


def test_a_bound_for_all_keys_is_a_word_of_the_input() -> None:
    found = waits_of(merged(), main=[[row(5), row(7)]], weather=[[bound(6)]], tide=[[bound(9)]])
    assert told(found) == [("x", "weather", 0, 6, 1)]


def test_a_main_row_may_wait_on_its_own_input() -> None:
    found = waits_of(merged(disorder={"main": 5}), main=[[row(5)]], weather=[[bound(9)]], tide=[[bound(9)]])
    assert told(found) == [("x", "main", 0, 0, 1)]


def test_nothing_waits_where_everything_has_left() -> None:
    assert waits_of(merged(), main=[[row(5)]], weather=[[bound(9)]], tide=[[bound(9)]]) == []
    assert waits_of(merged(), main=[[]]) == []


def test_a_sync_names_the_silent_input() -> None:
    assert told(waits_of(aligned(by="k"), a=[[row(5)], [row(5, "y"), row(6)]])) == [
        ("x", "b", 0, None, 2),
        ("y", "b", 10, None, 1),
    ]


def test_without_a_key_everything_waits() -> None:
    assert waits_of(aligned(), a=[[row(5)]]) == [
        {"is_time": False, "key": {}, "input": "b", "since_us": 0, "bound": None, "waiting_rows": 1}
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [merged(), aligned(by="k")], ids=["merge", "sync"])
def test_a_report_is_bounded_and_keeps_the_longest_waits(stream: hf.Stream) -> None:
    first = stream.node.inputs[0].name
    found, keys = seen_of(stream, 3, **{first: [[row(1, f"k{n}")] for n in range(5)]})
    assert sorted({w["since_us"] for w in found})[0] == 0
    assert [w["since_us"] for w in found] == sorted(w["since_us"] for w in found)
    assert len(found) == 3
    assert keys == 5  # a key that waits for two inputs is one


def test_an_operator_that_waits_for_nobody_has_no_waits() -> None:
    once = source("a", MAIN, "t") | hf.distinct(by="k", horizon=5, name="seen")
    assert seen_of(once, a=[[row(5)]]) == ([], None)


POLICIES = [
    hf.policy.settled(),
    hf.policy.sync_sets([["a"], ["b"]]),
    hf.policy.immediate(),
    hf.policy.barrier(),
    hf.policy.early_close(),
    hf.policy.fixed_size(),
    hf.policy.timestamp_align(base="a"),
    hf.policy.within(2, base="a"),
]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
@pytest.mark.parametrize("epochs", [[[]], [[row(5)]], [[row(5), row(6, "y")], [row(9), bound(20)]]], ids=len)
def test_every_policy_can_be_asked(policy: Any, epochs: Any) -> None:
    for word in ([], [[row(6)]], [[bound(7)]]):
        for wait in waits_of(aligned(by="k", policy=policy), a=epochs, b=word):
            assert wait["input"] in ("a", "b")
            assert wait["waiting_rows"] > 0
