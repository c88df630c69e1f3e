"""SidePacketToStream: side inputs as packets, once or at each tick."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import flow
from holdfast.errors import InvalidPipeline
from holdfast.flow import ABSENT, POST_STREAM, PRE_STREAM, UNSET
from holdfast.flow.calculators import Merge, SidePacketToStream
from tests.unit.flow.histories import seen


@pytest.mark.parametrize("at", [PRE_STREAM, POST_STREAM, 0, 77])
def test_a_side_input_is_sent_once_and_the_stream_ends(at: int) -> None:
    assert seen(SidePacketToStream, SidePacketToStream.Options(at=at), ()) == [[("value", at, "value")]]
    graph = flow.Graph()
    graph.side_input("model")
    made = graph.add(flow.node(SidePacketToStream, SidePacketToStream.Options("model", at=at)))
    graph.output("out", {"a": made} | flow.node(Merge, Merge.Options("a")))
    run = graph.start(executor=flow.Application(), side_inputs={"model": "m"})
    found = run.collect("out")
    run.wait_until_idle()
    assert found == [(at, "m")]
    assert all(node.is_closed for node in run.engine.nodes)


def test_a_side_input_is_sent_at_each_tick() -> None:
    options = SidePacketToStream.Options(("model", "scale"), at="tick")
    assert seen(SidePacketToStream, options, ("tick", 3, "t"), ("tick", 8), ("tick", 8, None)) == [
        [("model", 3, "model"), ("scale", 3, "scale")],
        [("model", 7, ABSENT), ("scale", 7, ABSENT)],
        [("model", 8, "model"), ("scale", 8, "scale")],
    ]


@pytest.mark.parametrize("at", [UNSET, "tock", 1.5, None, True])
def test_what_is_no_time_is_refused(at: Any) -> None:
    with pytest.raises(InvalidPipeline, match="no time of a packet"):
        SidePacketToStream.Options(at=at)
