"""A graph that asks for late rows where there are none is refused while it is built, so ``explain`` refuses it too."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline

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
