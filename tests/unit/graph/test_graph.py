"""Streams, operators, sink nodes and pipelines as values."""

import copy
import subprocess
import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest

import holdfast as hf
from holdfast.graph import naming
from holdfast.graph.nodes import Node
from holdfast.graph.shape import Shape
from holdfast.ports import Guarantee
from tests.graphs import paper, source


def small(name="late", condition="dep_delay > 15", sink="late_table", **options):
    late = source() | hf.filter(condition, name=name)
    return hf.Pipeline("departures", late | paper(sink, **options))


def test_a_stream_knows_its_columns_and_its_timestamp():
    flights = source(timestamp="time_hour")
    assert flights.columns == ("origin", "dest", "dep_delay", "arr_delay", "time_hour")
    assert flights.timestamp == "time_hour"
    assert (flights | hf.filter("dep_delay > 15")).shape == flights.shape


def test_a_node_remembers_the_line_that_built_it():
    flights = source()
    late = flights | hf.filter("dep_delay > 15")
    assert late.origin.file.endswith("test_graph.py")
    assert late.origin.line == test_a_node_remembers_the_line_that_built_it.__code__.co_firstlineno + 2
    assert late.origin.scope == "test_a_node_remembers_the_line_that_built_it"


def test_an_operator_can_stand_behind_several_streams():
    late = hf.filter("dep_delay > 15")
    left, right = source("left"), source("right")
    assert (left | late).node.inputs == (left.node,)
    assert (right | late).node.inputs == (right.node,)
    assert (left | late).name != (right | late).name


def test_values_of_the_graph_cannot_be_changed():
    pipeline = small()
    for value in (pipeline, pipeline.nodes[0], pipeline.sinks[0], source()):
        with pytest.raises(AttributeError):
            value.name = "other"


def test_a_stream_can_be_copied_and_compared():
    flights = source()
    assert copy.copy(flights) == flights
    assert source() != flights


def test_a_name_is_derived_from_kind_arguments_and_place():
    flights = source()
    names = [
        (flights | hf.filter("dep_delay > 15")).name,
        (flights | hf.filter("dep_delay > 16")).name,
        (source("other") | hf.filter("dep_delay > 15")).name,
        (flights | hf.select("origin")).name,
    ]
    assert len(set(names)) == 4
    assert all(name.startswith(("filter_", "select_")) for name in names)
    assert (flights | hf.filter("dep_delay > 15")).name == names[0]


@pytest.mark.slow
def test_derived_names_and_fingerprints_are_the_same_in_every_process():
    program = """
import holdfast as hf
from holdfast.ports import Guarantee
from tests.graphs import paper, source
wanted = {"JFK", "LGA", "EWR"}
flights = source()
kept = flights | hf.filter(lambda df: df.origin.isin({"JFK", "LGA", "EWR"}) if df else None) | hf.map(lambda df: df)
pipeline = hf.Pipeline("p", kept | paper(path="out"))
print([node.name for node in (*pipeline.nodes, *pipeline.sinks)], pipeline.fingerprint())
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": "src:.", "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_tuning_a_source_or_a_sink_keeps_its_derived_name():
    assert source(None).name == source(None, limit=5).name
    assert source(None).name != source(None, path="elsewhere").name
    assert paper(path="out").name == paper(path="out", batch=3).name
    assert paper(path="out").name != paper(path="elsewhere").name


@pytest.mark.parametrize(
    "built",
    [
        lambda path: hf.write.sqlite(path, table="t").name,
        lambda path: hf.write.files(path).name,
        lambda path: hf.read.files(path, schema="id INT").name,
        lambda path: hf.read.callback(hf.read.CallbackFeed(path, schema="id INT")).name,
    ],
)
def test_every_spelling_of_a_local_path_gives_the_same_derived_name(built, tmp_path, monkeypatch):
    """Another name would be another sink, which does not know that it holds the epochs of the first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = ["out.db", "./out.db", "x/../out.db", str(tmp_path / "out.db"), "~/out.db"]
    assert len({built(path) for path in spellings}) == 1
    assert built("out.db") != built("other.db")


def test_a_url_is_named_as_it_is_written():
    assert naming.where({"path": "s3://bucket/a//b", "limit": 3}) == {"path": "s3://bucket/a//b"}
    assert naming.where({"path": "file:///data/./in"}) == {"path": "/data/in"}


def test_mending_an_operator_keeps_the_derived_name_of_the_sink_behind_it():
    left = source() | hf.filter("dep_delay > 15") | paper(path="out")
    right = source() | hf.filter("dep_delay > 20") | paper(path="out")
    assert left.name == right.name


def test_a_function_is_known_by_its_name_its_code_and_what_it_closes_over():
    def scaled(factor):
        return lambda df: df * factor

    def other(df):
        return df + 1

    assert naming.callable_text(scaled(2)) == naming.callable_text(scaled(2))
    assert naming.callable_text(scaled(2)) != naming.callable_text(scaled(3))
    assert naming.callable_text(partial(other)).startswith("partial(test_a_function")
    assert naming.callable_text(other) != naming.callable_text(scaled(2))
    assert naming.callable_text(len).startswith("len#")


def test_a_function_that_closes_over_objects_is_known_without_their_addresses():
    class Model:
        pass

    def using(model):
        return lambda df: model and df

    assert naming.callable_text(using(Model())) == naming.callable_text(using(Model()))


def test_a_name_that_grows_too_long_is_cut_and_stays_itself():
    long = "n" * 60
    assert len(naming.extended(long, "rejects")) <= 60
    assert naming.extended(long, "rejects") != naming.extended("n" * 59, "rejects")


@pytest.mark.parametrize("name", ["a", "A9_b", "n" * 60])
def test_allowed_names(name):
    assert source(name).name == name


def test_nodes_come_inputs_first_in_the_order_of_the_sinks():
    flights, weather = source("flights"), source("weather")
    late = flights | hf.filter("dep_delay > 15", name="late")
    both = hf.union(weather, late, name="both")
    pipeline = hf.Pipeline("p", both | paper("both_table"), flights | paper("all_table"))
    assert [node.name for node in pipeline.nodes] == ["weather", "flights", "late", "both"]
    assert [node.name for node in pipeline.sources] == ["weather", "flights"]
    assert [sink.name for sink in pipeline.sinks] == ["both_table", "all_table"]


@pytest.mark.slow
def test_a_chain_of_thousands_of_nodes_is_no_depth_problem():
    stream = source()
    for number in range(3000):
        stream = stream | hf.filter("dep_delay > 15", name=f"f{number}")
    assert len(hf.Pipeline("deep", stream | paper("out")).nodes) == 3001


def test_the_rejects_of_a_source_are_a_stream_of_their_own():
    flights = source(rejects=True)
    rejects = flights.rejects
    assert rejects.columns == ("reason", "raw", "position")
    assert rejects.name == "flights_rejects"
    assert rejects.node.inputs == (flights.node,)
    assert flights.rejects == rejects


def test_the_fingerprint_changes_with_the_graph_and_not_with_lines_or_order():
    assert small().fingerprint() == small().fingerprint()
    different = [small(condition="dep_delay > 16"), small(name="very_late"), small(sink="other"), small(batch=2)]
    assert len({pipeline.fingerprint() for pipeline in (small(), *different)}) == 5
    flights = source()
    left, right = flights | paper("left"), flights | paper("right")
    assert hf.Pipeline("p", left, right).fingerprint() == hf.Pipeline("p", right, left).fingerprint()


def test_the_spec_holds_names_kinds_arguments_and_edges():
    assert small().spec() == {
        "pipeline": "departures",
        "format": 1,
        "nodes": [
            {"name": "flights", "kind": "paper", "arguments": {"path": "data/flights", "limit": None}, "inputs": []},
            {
                "name": "late",
                "kind": "filter",
                "arguments": {"condition": "dep_delay > 15"},
                "inputs": ["flights"],
            },
            {
                "name": "late_table",
                "kind": "paper_sink",
                "arguments": {"path": "late_table", "key": []},
                "inputs": ["late"],
            },
        ],
        "sinks": ["late_table"],
    }


def test_arguments_that_are_no_json_are_our_fault_or_the_specs():
    with pytest.raises(hf.InternalError, match="no JSON"):
        small(batch=object()).fingerprint()


@pytest.mark.slow
def test_starting_hands_the_pipeline_to_the_engine(monkeypatch):
    engine: Any = ModuleType("holdfast.controller.start")
    engine.start = lambda pipeline, **options: (pipeline.name, options)
    monkeypatch.setitem(sys.modules, "holdfast.controller.start", engine)
    trigger = hf.available_now()
    assert small().start(checkpoint="c", trigger=trigger, session=1) == (
        "departures",
        {"checkpoint": "c", "trigger": trigger, "session": 1},
    )
    assert small().start(checkpoint="c")[1]["trigger"] == hf.every("100 ms")


def test_what_a_graph_shows_of_itself_names_node_and_line():
    pipeline = small()
    assert repr(pipeline).startswith("<pipeline 'departures' built at ")
    assert repr(pipeline.nodes[1]).startswith("<filter 'late' built at ")
    assert repr(pipeline.sinks[0]).startswith("<sink paper_sink 'late_table' built at ")
    assert "dep_delay" in repr(source())
    assert "unknown columns" in repr(source() | hf.map(lambda df: df))


def test_a_source_without_a_schema_has_unknown_columns():
    unknown = source(schema=None)
    assert unknown.columns is None
    assert (unknown | hf.filter("anything > 1")).columns is None


def test_a_node_takes_what_its_spec_promises():
    class Weak:
        kind = "weak"
        guarantee = Guarantee.AT_LEAST_ONCE

    node = Node(Weak(), (), "weak", True, naming.origin(), Shape())
    assert node.guarantee.value == "at-least-once"


# --- side outputs ---------------------------------------------------------------------------------------------------


def timed(name="frames"):
    return hf.read.rows([], schema="camera STRING, t TIMESTAMP", timestamp="t", name=name)


def untimed():
    return hf.read.rows([], schema="camera STRING", name="frames")


def limited():
    return timed() | hf.limit_in_flight(2, by="camera", per="1 s", name="entry")


@pytest.mark.parametrize("output", ["late", "shed"])
def test_a_side_output_is_a_stream_of_its_own_and_the_same_one_when_asked_for_again(output):
    entry = limited()
    side = getattr(entry, output)
    assert (side.name, side.node.kind, side.node.inputs) == (f"entry_{output}", output, (entry.node,))
    assert getattr(entry, output).node is side.node


def test_shed_rows_have_the_columns_of_the_rows_and_late_rows_have_their_own():
    entry = limited()
    assert entry.shed.columns == entry.columns
    assert (entry.late.columns, entry.late.timestamp) == (
        ("camera", "timestamp", "input", "reason", "rows"),
        "timestamp",
    )


@pytest.mark.parametrize(
    ("stream", "output", "cure"),
    [
        (lambda: timed() | hf.filter("camera = 'a'", name="some"), "late", "aligned.late"),
        (lambda: timed() | hf.filter("camera = 'a'", name="some"), "shed", "limit_in_flight"),
        (lambda: timed() | hf.distinct(by="camera", horizon="1 s", name="some"), "shed", "limit_in_flight"),
        (lambda: untimed() | hf.accumulate(by="camera", n=hf.count(), name="some"), "late", "leave .late out"),
    ],
    ids=["stateless-late", "stateless-shed", "distinct-shed", "accumulate-late"],
)
def test_a_side_output_that_a_node_has_not_is_refused_with_the_cure(stream, output, cure):
    with pytest.raises(hf.InvalidPipeline, match=f"'some' has no {output} rows") as refused:
        getattr(stream(), output)
    assert cure in str(refused.value)
    assert "test_graph.py" in str(refused.value)
