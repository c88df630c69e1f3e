"""A graph whose nodes name executors runs where there is one for all: over given packets, and in a pipeline."""

from __future__ import annotations

import holdfast as hf
from holdfast.testing import drive


def twice(x: int) -> int:
    return 2 * x


def graph_on_a_named_executor() -> hf.flow.Graph:
    graph = hf.flow.Graph()
    graph.output("out", graph.input("x", int) | hf.flow.node(twice, executor="model"))
    return graph


def test_it_runs_over_given_packets() -> None:
    assert graph_on_a_named_executor().run({"x": [(1, 5)]}) == {"out": [(1, 10)]}


def test_it_runs_in_a_pipeline() -> None:
    rows = hf.read.rows([], schema="k STRING, t BIGINT, x INT", timestamp="t", name="rows")
    doubled = rows | hf.flow(graph_on_a_named_executor(), by="k", inputs={"x": "x"}, schema="out INT", name="doubled")
    assert drive(doubled, {"rows": [[{"k": "a", "t": 1, "x": 5}]]}) == [[{"k": "a", "t": 1, "out": 10}]]
