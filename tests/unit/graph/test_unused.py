"""Streams and sinks that were built beside a pipeline and forgotten (design/0006, section 5)."""

import threading

import pytest

import holdfast as hf
from holdfast.graph import checks as forgotten
from tests.graphs import paper, source

shared = source("shared")


def names(pipeline):
    return [node.name for node in forgotten.find(pipeline)]


@pytest.mark.slow
def test_a_stream_that_leads_to_no_sink_is_an_error_when_the_pipeline_starts():
    flights = source()
    late = flights | hf.filter("dep_delay > 15", name="late")
    pipeline = hf.Pipeline("p", flights | paper("table"))
    with pytest.raises(hf.InvalidPipeline) as caught:
        pipeline.start(checkpoint="unused")
    assert f"filter 'late', built at {late.origin}, leads to no sink" in caught.value.what
    assert "unused=[stream]" in caught.value.do


@pytest.mark.slow
def test_a_sink_that_was_given_to_no_pipeline_is_an_error_when_the_pipeline_starts():
    flights = source()
    other = flights | paper("other_table")
    pipeline = hf.Pipeline("p", flights | paper("table"))
    with pytest.raises(hf.InvalidPipeline, match=r"sink 'other_table'.*given to no pipeline"):
        forgotten.check(pipeline)
    assert other.stream == flights


@pytest.mark.slow
def test_only_the_end_of_a_forgotten_branch_is_named():
    flights = source()
    first = flights | hf.filter("dep_delay > 15", name="first")
    last = first | hf.select("origin", name="last")
    assert names(hf.Pipeline("p", flights | paper("table"))) == ["last"]
    assert last.node.inputs == (first.node,)


@pytest.mark.slow
def test_a_stream_of_another_pipeline_is_not_forgotten_once_that_is_built():
    flights = source()
    late = flights | hf.filter("dep_delay > 15", name="late")
    first = hf.Pipeline("first", flights | paper("table"))
    assert names(first) == ["late"]
    second = hf.Pipeline("second", late | paper("late_table"))
    assert names(first) == names(second) == []


def test_a_stream_that_python_has_freed_is_not_forgotten():
    flights = source()
    late = flights | hf.filter("dep_delay > 15", name="late")
    del late
    flights | hf.filter("dep_delay > 16", name="thrown_away")
    assert names(hf.Pipeline("p", flights | paper("table"))) == []


@pytest.mark.slow
def test_a_stream_in_a_cycle_of_dead_objects_is_not_forgotten():
    flights = source()
    cycle = [flights | hf.filter("dep_delay > 15", name="late")]
    cycle.append(cycle)
    del cycle
    assert names(hf.Pipeline("p", flights | paper("table"))) == []


def test_a_listed_stream_is_not_forgotten():
    flights = source()
    late = flights | hf.filter("dep_delay > 15", name="late")
    assert names(hf.Pipeline("p", flights | paper("table"), unused=[late])) == []


def test_a_stream_that_another_function_built_is_not_forgotten():
    def explore(stream):
        return stream | hf.filter("dep_delay > 15", name="late")

    flights = source()
    kept = explore(flights)
    assert names(hf.Pipeline("p", flights | paper("table"))) == []
    assert kept.name == "late"


def test_a_function_that_is_called_again_is_not_accused_of_its_last_call():
    def build():
        late = shared | hf.filter("dep_delay > 15", name="late")
        return late, hf.Pipeline("p", late | paper("table"))

    kept = []
    for _ in range(3):
        late, pipeline = build()
        kept.append(late)
        assert names(pipeline) == []


def test_a_part_of_a_split_that_was_only_looked_at_is_not_forgotten():
    flights = source()
    parts = flights | hf.split(late="dep_delay > 15", otherwise="rest", name="delay")
    assert parts.rest.columns == flights.columns
    assert names(hf.Pipeline("p", parts.late | paper("table"))) == []


def test_what_another_thread_built_is_not_forgotten():
    flights = source()
    kept = []
    thread = threading.Thread(target=lambda: kept.append(flights | hf.filter("dep_delay > 15", name="late")))
    thread.start()
    thread.join()
    assert names(hf.Pipeline("p", flights | paper("table"))) == []


def test_what_was_typed_at_a_prompt_is_not_forgotten():
    typed = {"hf": hf, "flights": source()}
    exec(compile("late = flights | hf.filter('dep_delay > 15', name='late')", "<stdin>", "exec"), typed)
    assert names(hf.Pipeline("p", typed["flights"] | paper("table"))) == []


def test_streams_of_other_sources_are_no_business_of_a_pipeline():
    flights, weather = source("flights"), source("weather")
    wet = weather | hf.filter("dep_delay > 15", name="wet")
    assert names(hf.Pipeline("p", flights | paper("table"))) == []
    assert wet.name == "wet"


@pytest.mark.slow
def test_explain_says_what_was_forgotten():
    flights = source()
    late = flights | hf.filter("dep_delay > 15", name="late")
    text = hf.Pipeline("p", flights | paper("table")).explain()
    assert "filter 'late'" in text
    assert "will not start" in text
    assert late.name == "late"
