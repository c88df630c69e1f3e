"""Side outputs as a graph declares them: who has which, with which columns, time and bounds (design/0009)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.plan.feeds import feeds_of
from holdfast.testing.drive import drive
from holdfast.testing.given import bound, close, malformed

ROWS = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="rows")

WITHOUT = {
    "count_window": hf.aggregate(by="k", window=hf.count_window(3), n=hf.count(), name="counted"),
    "timer": hf.aggregate(by="k", window=hf.timer("1 s"), n=hf.count(), name="timed"),
    "total": hf.aggregate(by="k", window=hf.total(), n=hf.count(), name="total"),
    "reduce": hf.reduce(by="k", n=hf.count(), name="reduced"),
}


@pytest.mark.parametrize("kind", WITHOUT)
def test_windows_that_follow_from_arrival_have_no_late_rows(kind):
    with pytest.raises(InvalidPipeline, match="has no late rows"):
        _ = (ROWS | WITHOUT[kind]).late


@pytest.mark.parametrize("window", [hf.tumbling(5), hf.sliding(10, 5), hf.session(5)])
def test_windows_of_event_time_have(window):
    assert (ROWS | hf.aggregate(by="k", window=window, n=hf.count(), name="windows")).late.node.kind == "late"


@pytest.mark.parametrize(
    "operator",
    [
        hf.distinct(by="k", horizon=1, name="op"),
        hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="op"),
        hf.accumulate(by="k", n=hf.count(), name="op"),
        hf.over(rows=2, by="k", n=hf.count(), some=hf.count(where="t > 1"), name="op"),
        hf.limit_in_flight(2, by="k", timeout=5, name="op"),
    ],
    ids=lambda operator: operator.spec.kind if hasattr(operator, "spec") else type(operator).__name__,
)
def test_columns_and_time_of_late_rows_are_known_before_anything_runs_and_are_what_comes(operator: Any):
    late = (ROWS | operator).late
    assert late.timestamp == "timestamp"
    (row,) = [row for epoch in drive(late, {"rows": [[bound(9), {"k": "a", "t": 3}]]}) for row in epoch]
    assert tuple(row) == late.columns == ("k", "timestamp", "input", "reason", "rows")


def test_a_column_that_late_rows_do_not_have_is_refused_while_the_graph_is_built():
    with pytest.raises(InvalidPipeline, match="'nothing'"):
        _ = (ROWS | hf.distinct(by="k", horizon=1, name="op")).late | hf.select("nothing")


def bounds_downstream(stream: hf.Stream) -> tuple[str, str]:
    (feed,) = feeds_of((stream | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="after")).node, 0)
    return feed.bounds, feed.output


def test_bounds_hold_downstream_of_rows_that_leave_in_order_and_only_the_end_of_others():
    limited = ROWS | hf.limit_in_flight(1, by="k", timeout=5, name="op")
    other = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="other")

    def aligned(policy: Any) -> hf.Stream:
        return hf.sync({"a": ROWS, "b": other}, by="k", policy=policy, name="aligned")

    assert bounds_downstream(limited.shed) == ("every", "rows")
    assert bounds_downstream(limited.late) == ("closed", "late")
    assert bounds_downstream(hf.merge(ROWS, {"b": other}, by="k", name="seen").unmatched) == ("every", "rows")
    for policy in (hf.policy.settled(), hf.policy.within(2)):
        assert bounds_downstream(aligned(policy).unmatched) == ("every", "rows")
    for closing in (hf.policy.barrier(), hf.policy.early_close(), hf.policy.fixed_size()):
        assert bounds_downstream(aligned(closing).unmatched) == ("closed", "unmatched")


def test_explain_says_that_the_bounds_of_an_operator_do_not_hold_for_late_rows():
    late = (ROWS | hf.distinct(by="k", horizon=1, name="op")).late
    counted = late | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="counted")
    said = hf.Pipeline("trips", counted | hf.write.console(name="shown")).explain()
    assert "bounds end here, but for the end itself: late rows can have any timestamp" in said


def test_downstream_of_shed_rows_windows_close_by_the_bounds_of_the_operator():
    shed = (ROWS | hf.limit_in_flight(1, by="k", timeout=50, name="op")).shed
    counted = shed | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="counted")
    items: list[Any] = [{"k": "a", "t": 1}, {"k": "a", "t": 2}, {"k": "a", "t": 3}, bound(9)]
    found = drive(counted, {"rows": [items, [close()]]})
    assert [[row["n"] for row in epoch] for epoch in found] == [[2], []]


def read_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    times = pc.cast(pc.utf8_slice_codeunits(batch.column("raw"), 0, 1), pa.int64())
    keys = pa.array(["a"] * batch.num_rows)
    return pa.RecordBatch.from_arrays([keys, times, batch.column("raw")], names=["k", "t", "raw"])


def test_rejected_rows_are_synchronised_by_a_time_that_is_read_from_them():
    frames = hf.read.files(
        "x", format="json", schema="k STRING, t BIGINT", timestamp="t", on_bad_row="reject", name="f"
    )
    bad = frames.rejects | hf.map_batches(read_time, "k STRING, t BIGINT, raw STRING", timestamp="t", name="timed")
    assert bad.timestamp == "t"
    both = hf.sync({"good": frames, "bad": bad}, by="k", name="both")
    items: list[Any] = [{"k": "a", "t": 1}, malformed("2 {"), {"k": "a", "t": 3}, malformed("3 {")]
    found = [row for epoch in drive(both, {"f": [items, [close()]]}) for row in epoch]
    assert [(row["timestamp"], row["good"] is not None, (row["bad"] or {}).get("raw")) for row in found] == [
        (1, True, None),
        (2, False, "2 {"),
        (3, True, "3 {"),
    ]


def test_a_time_that_a_function_does_not_give_is_refused():
    for name in ("v", "raw"):
        with pytest.raises(InvalidPipeline, match=f"timestamp='{name}' is no event time"):
            _ = ROWS | hf.map_batches(read_time, "k STRING, t BIGINT, raw STRING", timestamp=name)
