"""The pipeline as a drawing."""

from typing import Any

import holdfast as hf
from tests.graphs import paper, source


def test_mermaid_has_a_line_for_every_node_and_edge():
    flights = source()
    late = flights | hf.filter("dep_delay > 15", name="late")
    pipeline = hf.Pipeline("p", late | paper("end"), flights | paper("all"))
    assert (
        pipeline.diagram()
        == """\
flowchart LR
  n0[("flights<br/>paper")]
  n1["late<br/>filter"]
  n2[/"end<br/>paper_sink"/]
  n3[/"all<br/>paper_sink"/]
  n0 --> n1
  n1 --> n2
  n0 --> n3
"""
    )


def test_an_operator_with_several_inputs_and_outputs_has_an_edge_for_each():
    flights = source("flights", rejects=True)
    parts = flights | hf.split(late="dep_delay > 15", otherwise="rest", name="delay")
    both = hf.union(parts.late, source("more"), name="both")
    pipeline = hf.Pipeline(
        "p", both | paper("both_table"), parts.rest | paper("rest_table"), flights.rejects | paper("rejects_table")
    )
    edges = [line for line in pipeline.diagram().splitlines() if "-->" in line]
    everything: list[Any] = [*pipeline.nodes, *pipeline.sinks]
    assert len(edges) == sum(len(node.inputs) for node in everything)
