"""Where operators stand on the line of levels (design/0010, section 1): as few subplans as there can be."""

from __future__ import annotations

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.operators.lowering import InArrow, lowering_of
from holdfast.plan.levels.line import Line, line_of
from tests.graphs import paper, source


def line(*streams: Stream) -> tuple[Line, dict[str, int], dict[int, list[str]]]:
    """Return the line of a graph, the depth of each operator, and what Spark evaluates in which level."""
    nodes = hf.Pipeline("p", *(stream | paper(f"out{n}") for n, stream in enumerate(streams))).nodes
    found = line_of(nodes, {node for node in nodes if lowering_of(node).in_arrow is InArrow.SPARK_ONLY})
    depth = {node.name: depth for node, depth in found.depth.items() if not node.is_source}
    return found, depth, {level: [node.name for node in of] for level, of in found.through_spark.items()}


def seen(stream: Stream, name: str) -> Stream:
    return stream | hf.distinct(by="origin", horizon="1 h", timestamp="time_hour", name=name)


def mapped(stream: Stream, name: str) -> Stream:
    return stream | hf.map(lambda frame: frame, name=name)


def filtered(stream: Stream, name: str) -> Stream:
    return stream | hf.filter("dep_delay > 1", name=name)


def test_operators_that_follow_each_other_share_one_subplan() -> None:
    first = seen(source(timestamp="time_hour"), "first")
    _, depth, in_spark = line(filtered(mapped(filtered(mapped(first, "a"), "between"), "b"), "z"))
    assert depth == {"first": 1, "a": 2, "between": 2, "b": 2, "z": 2}
    assert in_spark == {2: ["a", "between", "b"]}, "what stands behind the last of them is Arrow's"


def test_a_function_of_batches_parts_two_subplans() -> None:
    first = seen(source(timestamp="time_hour"), "first")
    called = mapped(first, "a") | hf.map_batches(lambda batch: batch, "origin STRING", name="called")
    _, depth, in_spark = line(mapped(called, "b"))
    assert (depth["called"], in_spark) == (2, {2: ["a"], 3: ["b"]})


def test_branches_share_levels_and_none_gets_more_state_than_it_has() -> None:
    given = source(timestamp="time_hour")
    first, plain = seen(given, "first"), seen(given, "plain")
    found, depth, in_spark = line(seen(mapped(first, "a"), "second"), seen(plain, "beside"), mapped(plain, "last"))
    assert depth == {"first": 1, "plain": 1, "a": 2, "last": 2, "second": 3, "beside": 3}
    assert (in_spark, found.levels) == ({2: ["a", "last"]}, 3)


def test_what_stands_before_all_state_is_no_subplan() -> None:
    _, depth, in_spark = line(seen(mapped(source(timestamp="time_hour"), "a"), "first"))
    assert (depth, in_spark) == ({"a": 0, "first": 1}, {})


def test_a_subplan_takes_rows_of_the_past_too() -> None:
    given = source(timestamp="time_hour")
    both = hf.union(mapped(seen(given, "first"), "a"), given, name="both")
    _, depth, in_spark = line(mapped(both, "b"))
    assert (depth, in_spark) == ({"first": 1, "a": 2, "both": 2, "b": 2}, {2: ["a", "both", "b"]})
