"""Expectations: what is counted, what becomes of rows that fail, and when an epoch is stopped (design/0049, 9)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.expect import Expectation
from holdfast.plan.counts import Counts, Observed
from holdfast.plan.expectations import Expectations, is_broken
from holdfast.plan.program_build import as_it_is, build_program
from holdfast.testing.drive import drive
from holdfast.values import EpochRecord, ExpectationCount

SCHEMA = "id BIGINT, speed BIGINT"
WITHIN = "speed between 0 and 120"

speeds = st.lists(st.one_of(st.none(), st.integers(-50, 200)), max_size=12)
fractions = st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 1.0])


def meets(speed: int | None) -> bool:
    return speed is not None and 0 <= speed <= 120


def rides() -> Any:
    return hf.read.rows([], schema=SCHEMA, name="rides")


def rows_of(values: Sequence[int | None]) -> list[dict[str, Any]]:
    return [{"id": number, "speed": speed} for number, speed in enumerate(values)]


@given(epochs=st.lists(speeds, min_size=1, max_size=3), on_fail=st.sampled_from(["warn", "drop", "reject", "stop"]))
def test_rows_go_where_plain_python_says(epochs: list[list[int | None]], on_fail: Any) -> None:
    checked = rides() | hf.expect(WITHIN, name="valid", on_fail=on_fail, max_fraction=1)
    given_rows = {"rides": [rows_of(values) for values in epochs]}
    passes = (lambda speed: True) if on_fail in ("warn", "stop") else meets
    expected = [[row for row in rows_of(values) if passes(row["speed"])] for values in epochs]
    assert drive(checked, given_rows) == expected
    if on_fail == "reject":
        rejected = [[row for row in rows_of(values) if not meets(row["speed"])] for values in epochs]
        assert drive(checked.rejects, given_rows) == rejected


@given(epochs=st.lists(speeds, min_size=1, max_size=4), on_fail=st.sampled_from(["warn", "drop"]), fraction=fractions)
def test_counts_are_those_of_plain_python(epochs: list[list[int | None]], on_fail: Any, fraction: float) -> None:
    import pyarrow as pa

    checked = rides() | hf.expect(WITHIN, name="valid", on_fail=on_fail, max_fraction=fraction)
    pipeline = hf.Pipeline("rides", checked | hf.write.memory("met"))
    program = build_program(pipeline, as_it_is, "")
    assert program is not None
    run = Expectations.of(pipeline, None)
    rows = failed = 0
    last: list[int | None] = []
    for epoch, values in enumerate(epochs, start=1):
        counts = Counts({})
        batch = pa.RecordBatch.from_pylist(rows_of(values), program.schemas["rides"])
        list(program.run("rides", batch, counts))
        found = run.look(epoch, counts.report().observed, is_new=True)
        assert found == run.look(epoch, counts.report().observed, is_new=True), "nothing is taken in"
        run.note(epoch, found)
        rows, failed = rows + len(values), failed + sum(not meets(speed) for speed in values)
        assert found["valid"] == (len(values), sum(not meets(speed) for speed in values), rows, failed)
        last = values or last
    (status,) = run.statuses()
    assert (status.rows, status.failed, status.rows_total, status.failed_total) == (rows, failed, rows, failed)
    assert status.is_broken == (sum(not meets(speed) for speed in last) > fraction * len(last))


def declared(**options: Any) -> Mapping[str, Expectation]:
    return {"valid": Expectation(WITHIN, **{"on_fail": "warn", "max_fraction": 0.1, **options})}


def test_a_broken_one_that_stops_names_itself_the_epoch_and_the_counts() -> None:
    run = Expectations("rides", declared(on_fail="stop"), {"valid": ExpectationCount(0, 0, 0, 0)})
    run.look(1, {"valid": Observed(10, 1)}, is_new=True)
    with pytest.raises(BadRow, match=r"'valid' .* in epoch 2: 2 of 10 rows") as stopped:
        run.look(2, {"valid": Observed(10, 2)}, is_new=True)
    assert (stopped.value.participant, stopped.value.epoch, stopped.value.is_expected) == ("valid", 2, True)
    assert run.counted["valid"].rows_total == 0, "nothing is decided"


@pytest.mark.parametrize(("epoch", "is_new"), [(4, True), (3, True), (5, False)])
def test_an_epoch_that_was_decided_before_is_not_counted_again(epoch: int, is_new: bool) -> None:
    """It is replayed to sinks that have lost it: in its record it is counted, in the totals it is already."""
    before = EpochRecord("rides", 4, 1, {}, expected={"valid": ExpectationCount(10, 1, 70, 5)})
    graph = hf.Pipeline("rides", rides() | hf.expect(WITHIN, name="valid") | hf.write.memory("again"))
    run = Expectations.of(graph, before)
    assert run.look(epoch, {"valid": Observed(6, 2)}, is_new=is_new)["valid"] == (6, 2, 70, 5)
    assert run.look(5, {"valid": Observed(6, 2)}, is_new=True)["valid"] == (6, 2, 76, 7)


def test_a_broken_one_is_logged_once_until_an_epoch_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    run = Expectations("rides", declared(), {"valid": ExpectationCount(0, 0, 0, 0)})
    with caplog.at_level(logging.WARNING):
        for epoch, failed in enumerate([1, 0, 5, 5, 0, 5], start=1):
            run.note(epoch, {"valid": ExpectationCount(10, failed, 0, 0)})
            run.note(epoch, {"valid": ExpectationCount(0, 0, 0, 0)})  # no row: it says nothing
    assert [f"epoch {number}" in record.getMessage() for number, record in zip((3, 6), caplog.records, strict=True)]


@given(rows=st.integers(0, 1000), data=st.data(), fraction=fractions)
def test_it_is_broken_by_more_than_its_fraction(rows: int, data: st.DataObject, fraction: float) -> None:
    failed = data.draw(st.integers(0, rows))
    assert (
        is_broken(fraction, rows, failed) == (rows > 0 and failed / rows > fraction)
        or abs(failed - fraction * rows) < 1e-9
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"within": "rand() < 0.5"}, "uses rand"),
        ({"within": ""}, "is empty"),
        ({"within": "sum(speed) > 1"}, "several rows together"),
        ({"on_fail": "ignore"}, "on_fail='ignore' is none of warn, drop, reject, stop"),
        ({"max_fraction": 1.5}, "max_fraction=1.5 is no number from 0 to 1"),
        ({"max_fraction": True}, "max_fraction=True is no number"),
    ],
)
def test_what_is_none_is_refused_where_it_is_built(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidPipeline, match=said.replace("(", r"\(")):
        hf.expect(**{"within": WITHIN, "name": "valid", **arguments})


def test_a_column_that_is_not_there_is_refused_where_it_is_attached() -> None:
    with pytest.raises(InvalidPipeline, match="pace"):
        rides() | hf.expect("pace > 0", name="valid")


def test_rejected_rows_that_go_nowhere_are_said() -> None:
    valid = rides() | hf.expect(WITHIN, name="valid", on_fail="reject")
    assert "Give valid.rejects a sink" in hf.Pipeline("rides", valid | hf.write.memory("met")).explain()
    kept = hf.Pipeline("rides", valid | hf.write.memory("met"), valid.rejects | hf.write.memory("bad"))
    assert "Give valid" not in kept.explain()


def test_only_one_that_rejects_has_rejects() -> None:
    valid = rides() | hf.expect(WITHIN, name="valid", on_fail="drop")
    with pytest.raises(InvalidPipeline, match="has no rejects"):
        valid.rejects  # noqa: B018


@pytest.mark.parametrize("text", ["0 s", "-5 min", "soon"])
def test_a_freshness_is_a_duration_above_0(text: str) -> None:
    with pytest.raises(InvalidPipeline, match="freshness"):
        hf.write.memory("met", freshness=text)
