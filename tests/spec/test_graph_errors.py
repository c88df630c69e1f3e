"""A mistake in a graph is an error before anything runs that names the node and the line (design/0006, section 4)."""

import re
import sys
from functools import partial

import pytest

import holdfast as hf
from tests.graphs import FLIGHTS

read, memory = partial(hf.read.files, "data/flights", schema=FLIGHTS), hf.write.memory


def here():
    """The line of the caller, as errors name it."""
    frame = sys._getframe(1)
    return f"test_graph_errors.py:{frame.f_lineno}"


def refused(build, *texts):
    with pytest.raises(hf.InvalidPipeline) as caught:
        build()
    for text in texts:
        assert text in str(caught.value)
    return caught.value


def test_two_nodes_of_one_name():
    left, first = read(name="flights"), here()
    right, second = hf.read.files("elsewhere", schema=FLIGHTS, name="flights"), here()
    both = hf.union(left, right, name="both")
    refused(lambda: hf.Pipeline("p", both | memory("out")), "two nodes", "'flights'", first, second)


def test_two_nodes_whose_names_differ_in_case_alone():
    flights = read(name="flights")
    refused(lambda: hf.Pipeline("p", flights | memory("Flights")), "two nodes", "'Flights'")


def test_two_unnamed_nodes_that_nothing_tells_apart():
    flights = read(name="flights")
    (left, right), line = (flights | hf.select("origin"), flights | hf.select("origin")), here()
    error = refused(lambda: hf.Pipeline("p", left | memory("a"), right | memory("b")), "two nodes", line)
    assert 'name="..."' in error.do


def test_an_unknown_column_in_a_filter():
    flights = read(name="flights")
    late, line = hf.filter("dep_dealy > 15", name="late"), here()
    refused(
        lambda: flights | late,
        "filter 'late', built at ",
        line,
        "'dep_dealy', which does not exist",
        "did you mean 'dep_delay'",
        "origin, dest, dep_delay",
    )


def test_an_unknown_column_in_a_sinks_key():
    flights = read(name="flights")
    table, line = hf.write.sqlite("x.db", table="t", mode="upsert", key=["fligth"], name="table"), here()
    refused(lambda: flights | table, "sink 'table'", line, "'fligth'")


def test_an_unknown_timestamp_column():
    error = refused(lambda: read(timestamp="time", name="flights"), "source 'flights'", here(), "timestamp=", "'time'")
    assert "time_hour" in error.why + error.do


def test_a_timestamp_column_that_holds_no_time():
    error = refused(lambda: read(timestamp="origin", name="flights"), here(), "'origin'", "string")
    assert "TIMESTAMP" in error.why


def test_a_stream_where_a_sink_belongs():
    late, line = read(name="flights") | hf.filter("dep_delay > 15", name="late"), here()
    refused(lambda: hf.Pipeline("p", late), here(), "'late'", line, "wrong: hf.Pipeline('p', stream)")


def test_something_else_where_a_sink_belongs():
    flights = read(name="flights")
    refused(lambda: hf.Pipeline("p", print), here(), "the function 'print'")
    refused(lambda: hf.Pipeline("p", [flights | memory("a")]), here(), "a list", "*sinks")
    refused(lambda: hf.Pipeline("p", hf.filter("a > 1")), here(), "an Operator")


def test_a_sink_without_a_stream():
    table, line = memory("table"), here()
    refused(lambda: hf.Pipeline("p", table), "sink 'table'", line, "takes no stream")


def test_no_sink_at_all():
    refused(lambda: hf.Pipeline("p"), here(), "has no sink")


def test_a_pipeline_without_a_name():
    flights = read(name="flights")
    refused(lambda: hf.Pipeline(flights | memory("table")), here(), "has no name", "name first")


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "ä", "_a", "n" * 61, 5])
def test_a_name_that_spark_does_not_allow(name):
    flights = read(name="flights")
    line = here().split(":")[0]
    for build in (
        lambda: hf.Pipeline(name, flights | memory("table")) if isinstance(name, str) else read(name=name),
        lambda: read(name=name),
        lambda: flights | hf.filter("dep_delay > 15", name=name),
        lambda: flights | hf.write.files("x", name=name),
        lambda: hf.union(flights, read(name="other"), name=name),
        lambda: flights | hf.split(late="dep_delay > 15", name=name),
    ):
        error = refused(build, "is not allowed", line)
        proposal = re.search(r'name="(\w+)"', error.do)
        assert proposal is not None
        assert read(name=proposal[1]).name == proposal[1]


def test_two_sinks_with_one_target():
    flights = read(name="flights")
    first, line = flights | hf.write.files("out", name="a"), here()
    second = flights | hf.write.files("./out", name="b")
    refused(lambda: hf.Pipeline("p", first, second), "'a'", line, "'b'", "the same target", "hf.union")


def test_one_sink_given_twice():
    table = read(name="flights") | memory("table")
    refused(lambda: hf.Pipeline("p", table, table), "sink 'table'", "is given twice")


def test_a_function_behind_the_bar():
    flights, line = read(name="flights"), here()
    refused(lambda: flights | print, line, here(), "hf.write.console()", "wrong: stream | print")
    refused(lambda: flights | (lambda df: df), "hf.map(function)")


def test_an_expression_behind_the_bar():
    flights = read(name="flights")
    refused(lambda: flights | "dep_delay > 15", here(), "hf.filter('dep_delay > 15')")


def test_a_stream_behind_the_bar():
    flights = read(name="flights")
    refused(lambda: flights | read(name="other"), "hf.union(left, right)")


def test_a_method_of_dataframe_on_a_stream():
    with pytest.raises(AttributeError, match=r"hf\.filter"):
        read(name="flights").filter("dep_delay > 15")


def test_a_column_where_an_expression_belongs():
    class Column:
        pass

    refused(lambda: hf.filter(Column()), here(), "a Column was given", "hf.filter(lambda df: df.dep_delay > 15)")


def test_rejects_of_a_source_that_stops_at_a_malformed_row():
    flights, line = read(name="flights"), here()
    refused(lambda: flights.rejects, line, here(), 'on_bad_row="reject"')


def test_rejects_of_an_operator():
    late = read(on_bad_row="reject", name="flights") | hf.filter("dep_delay > 15", name="late")
    refused(lambda: late.rejects, "'late'", here(), "ask the source for it")


def test_a_stream_that_leads_to_no_sink():
    flights = read(name="flights")
    late, line = flights | hf.filter("dep_delay > 15", name="late"), here()
    pipeline = hf.Pipeline("p", flights | memory("table"))
    refused(lambda: pipeline.start(checkpoint="unused"), "filter 'late'", line, "leads to no sink")
    assert late.name == "late"


def test_an_error_in_a_graph_has_no_second_traceback():
    flights = read(name="flights")
    error = refused(lambda: flights | hf.filter("dep_dealy > 15"))
    assert error.__suppress_context__


@pytest.mark.parametrize(
    ("build", "head"),
    [
        (lambda: hf.read.files(3, schema="x INT", name="rides"), "source 'rides', built at"),
        (lambda: hf.read.rate(0, name="ticks"), "source 'ticks', built at"),
        (lambda: hf.read.rows([{"y": 1}], schema="x INT"), "source, built at"),
        (lambda: hf.read.callback("feed", name="clicks"), "source 'clicks', built at"),
        (lambda: hf.read.spark("", name="clicks"), "source 'clicks', built at"),
        (lambda: hf.write.sqlite("x.db", table="", name="trips"), "sink 'trips', built at"),
        (lambda: hf.write.files("hdfs://host/out", name="trips"), "sink 'trips', built at"),
        (lambda: hf.write.console(limit=0), "sink, built at"),
        (lambda: hf.write.foreach_batch("no function", name="trips"), "sink 'trips', built at"),
    ],
)
def test_a_wrong_argument_of_a_source_or_sink_names_node_and_line(build, head):
    error = refused(build, f"test_graph_errors.py:{build.__code__.co_firstlineno}")
    assert error.what.startswith(head)
