"""What Mermaid and a notebook show of a graph: names and kinds, escaped, and no argument of anything."""

import re
from typing import Any
from xml.etree import ElementTree

import holdfast as hf
from holdfast.display.drawing import NAME_MAX, Box, svg
from tests.graphs import paper, source


def rides():
    flights = source()
    late = flights | hf.filter("dep_delay > 15", name="late")
    return flights, late, hf.Pipeline("p", late | paper("end"), flights | paper("all"))


def boxes_of(html):
    """Return where each box stands: name -> (x, y)."""
    root = ElementTree.fromstring(html[html.index("<svg") :].replace(' xmlns="http://www.w3.org/2000/svg"', ""))
    return {
        group.findtext("text"): (float(group.find("rect").attrib["x"]), float(group.find("rect").attrib["y"]))
        for group in root.iter("g")
    }


def test_a_pipeline_draws_each_node_to_the_right_of_its_inputs():
    _, _, pipeline = rides()
    html = pipeline._repr_html_()
    at = boxes_of(html)
    assert set(at) == {"flights", "late", "end", "all"}
    assert at["flights"][0] < at["late"][0] < at["end"][0]
    assert at["all"][0] == at["end"][0], "sinks stand in the last column"
    assert at["all"][1] != at["end"][1]
    assert html.count("<path ") == 3


def test_a_stream_draws_what_leads_to_it_and_says_its_columns():
    _, late, _ = rides()
    html = late._repr_html_()
    assert set(boxes_of(html)) == {"flights", "late"}
    assert "origin, dest, dep_delay" in html
    assert "its columns are known at a start" in (late | hf.map(lambda df: df, name="m"))._repr_html_()


def test_a_short_repr_names_what_it_is():
    flights, late, pipeline = rides()
    assert repr(pipeline).startswith("<pipeline 'p' built at ")
    assert all("\n" not in repr(thing) and len(repr(thing)) < 300 for thing in (flights, late, pipeline))


def test_no_argument_of_a_sink_is_drawn():
    pipeline = hf.Pipeline("p", source() | hf.write.postgres("postgresql://app:hunter2@db/x", table="t", name="t"))
    html = pipeline._repr_html_()
    assert "hunter2" not in html
    assert "db/x" not in html


def test_texts_are_escaped_and_long_names_are_cut():
    name = "<script>" + "x" * 60
    html = svg([Box(name, '"&', "source"), Box("end", "files", "sink", (0,), note="<1 row>")], "a<b")
    assert "<script>" not in html
    assert max(map(len, re.findall(r">([^<]*)</text>", html))) <= NAME_MAX + len("&lt;&gt;")
    at = ElementTree.fromstring(html)
    assert [each.text for each in at.iter("{http://www.w3.org/2000/svg}title")][:2] == ["a<b", f'source {name}, "&']


def test_a_drawing_of_nothing_is_a_drawing():
    ElementTree.fromstring(svg([], "nothing"))


def test_a_drawing_of_many_nodes_is_made_at_once():
    stream = source()
    for step in range(200):
        stream = stream | hf.filter("dep_delay > 15", name=f"late{step}")
    assert stream._repr_html_().count("<rect ") == 201


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
