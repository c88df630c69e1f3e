"""The pipeline as a drawing."""

import itertools
import random
import xml.etree.ElementTree as ElementTree

import pytest

import holdfast as hf
from holdfast.graph.mermaid import _layout
from holdfast.ports import Guarantee
from tests.graphs import paper, source

SVG = "{http://www.w3.org/2000/svg}"


def diamond():
    flights = source("flights", rejects=True)
    clean = flights | hf.filter("dep_delay is not null", name="clean")
    parts = clean | hf.split(late="dep_delay > 15", otherwise="rest", name="delay")
    both = hf.union(parts.late, source("more"), name="both")
    return hf.Pipeline(
        "p",
        both | paper("both_table"),
        parts.rest | paper("rest_table", guarantee=Guarantee.AT_LEAST_ONCE),
        flights.rejects | paper("rejects_table"),
    )


def wild(seed):
    """A random graph with edges that pass over columns."""
    choose = random.Random(seed)
    streams = [source(f"s{number}") for number in range(3)]
    for number in range(12):
        if choose.random() < 0.4:
            streams.append(hf.union(*choose.sample(streams, 2), name=f"u{number}"))
        else:
            streams.append(choose.choice(streams) | hf.filter("dep_delay > 1", name=f"f{number}"))
    return hf.Pipeline("wild", *(stream | paper(f"{stream.name}_table") for stream in streams))


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


def test_the_svg_is_well_formed_names_every_node_and_refers_to_nothing_outside():
    pipeline = diamond()
    text = pipeline.diagram("svg")
    root = ElementTree.fromstring(text)
    shown = [element.text for element in root.iter(f"{SVG}text")]
    assert {node.name for node in (*pipeline.nodes, *pipeline.sinks)} <= set(shown)
    assert "paper_sink, at-least-once" in shown
    assert "href" not in text
    edges = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    assert len(edges) == sum(len(node.inputs) for node in (*pipeline.nodes, *pipeline.sinks))


def test_the_svg_escapes_what_users_write():
    kept = source() | hf.filter("dep_delay < 15 and origin <> '\"&'", name="early")
    root = ElementTree.fromstring(hf.Pipeline("p", kept | paper("out")).diagram("svg"))
    assert any("dep_delay < 15" in (title.text or "") for title in root.iter(f"{SVG}title"))


@pytest.mark.parametrize("seed", range(20))
def test_no_box_and_no_lane_lies_over_another(seed):
    pipeline = wild(seed)
    for column in _layout((*pipeline.nodes, *pipeline.sinks)):
        for above, below in itertools.pairwise(sorted(column, key=lambda place: place.y)):
            assert above.y + above.height < below.y


def test_edges_go_from_left_to_right_through_every_column():
    pipeline = wild(1)
    for column in _layout((*pipeline.nodes, *pipeline.sinks)):
        for place in column:
            assert all(following.column == place.column + 1 for following in place.after)
            if place.node is None:
                assert (len(place.before), len(place.after)) == (1, 1)


def test_the_same_pipeline_is_drawn_the_same_way():
    assert diamond().diagram("svg").count("<rect") == diamond().diagram("svg").count("<rect")
    pipeline = diamond()
    assert pipeline.diagram("svg") == pipeline.diagram("svg")


def test_another_format_is_refused():
    with pytest.raises(hf.InvalidPipeline, match="format='png'"):
        diamond().diagram("png")
