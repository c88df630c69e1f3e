"""filter, map and select as declarations: what they hold, and what is known of their rows."""

import pytest

import holdfast as hf
from holdfast.operators.filter import Filter
from holdfast.operators.map import Map
from holdfast.operators.select import Select
from tests.graphs import source

FLIGHTS_COLUMNS = ("origin", "dest", "dep_delay", "arr_delay", "time_hour")


def test_filter_keeps_columns_and_timestamp():
    kept = source(timestamp="time_hour") | hf.filter("dep_delay > 15")
    assert kept.node.spec == Filter("dep_delay > 15")
    assert (kept.columns, kept.timestamp) == (FLIGHTS_COLUMNS, "time_hour")


def test_filter_takes_a_function_of_the_dataframe():
    def late(df):
        return df.dep_delay > 15

    kept = source() | hf.filter(late)
    assert kept.node.spec == Filter(late)
    assert kept.node.arguments()["condition"].startswith("test_filter_takes_a_function")


def test_columns_are_compared_as_spark_does_without_regard_to_case():
    assert (source() | hf.filter("DEP_DELAY > 15")).columns == FLIGHTS_COLUMNS


def test_map_makes_columns_and_timestamp_unknown():
    def unchanged(df):
        return df

    mapped = source(timestamp="time_hour") | hf.map(unchanged)
    assert mapped.node.spec == Map(unchanged)
    assert (mapped.columns, mapped.timestamp) == (None, None)
    assert (mapped | hf.filter("anything > 1")).columns is None
    assert list(mapped.node.arguments()) == ["fn"], "what is not said is no argument: derived names stay"


def test_map_knows_the_timestamp_that_is_named():
    mapped = source(timestamp="time_hour") | hf.map(lambda df: df, timestamp="hour")
    assert (mapped.columns, mapped.timestamp) == (None, "hour")
    assert mapped.node.arguments()["timestamp"] == "hour"
    assert (mapped | hf.filter("anything > 1")).timestamp == "hour"
    counted = mapped | hf.aggregate(by="origin", window=hf.tumbling("1 hour"), n=hf.count())
    assert counted.node.spec.timestamp == "hour"


def test_select_renders_named_items_as_expressions_with_a_name():
    chosen = source() | hf.select("origin", "dep_delay / 60 as hours", gain="dep_delay - arr_delay")
    assert chosen.node.spec == Select(("origin", "dep_delay / 60 as hours", "dep_delay - arr_delay AS `gain`"))
    assert chosen.columns == ("origin", "hours", "gain")


def test_a_comment_in_an_expression_does_not_swallow_its_name():
    chosen = source() | hf.select(gain="dep_delay -- in minutes")
    assert chosen.node.spec.items == ("dep_delay -- in minutes\n AS `gain`",)
    assert chosen.columns == ("gain",)


@pytest.mark.parametrize(
    ("items", "columns"),
    [
        (["*"], FLIGHTS_COLUMNS),
        (["* except (dest, ARR_DELAY)"], ("origin", "dep_delay", "time_hour")),
        (["*", "1 as one", "one + 1 as two"], (*FLIGHTS_COLUMNS, "one", "two")),
        (["dep_delay + 1"], None),
        (["explode(array(1, 2)) as copy", "origin"], ("copy", "origin")),
        (["inline(array())"], None),
    ],
)
def test_the_columns_of_a_select(items, columns):
    assert (source() | hf.select(*items)).columns == columns


@pytest.mark.parametrize(
    ("items", "timestamp"),
    [
        (["*"], "time_hour"),
        (["origin", "time_hour"], "time_hour"),
        (["time_hour as at", "origin"], "at"),
        (["origin"], None),
        (["* except (time_hour)"], None),
        (["* except (time_hour)", "time_hour + interval 1 hour as time_hour"], None),
    ],
)
def test_the_timestamp_stays_where_it_is_passed_on_unchanged(items, timestamp):
    assert (source(timestamp="time_hour") | hf.select(*items)).timestamp == timestamp


def test_a_select_behind_unknown_columns_is_known_when_its_items_are():
    unknown = source() | hf.map(lambda df: df)
    assert (unknown | hf.select("a", "b as c")).columns == ("a", "c")
    assert (unknown | hf.select("*", "b as c")).columns is None


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        (lambda: hf.select("origin", "dep_delay as origin"), "second column 'origin'"),
        (lambda: hf.select("*", dep_delay="0"), "second column 'dep_delay'"),
        (lambda: hf.select("origni"), "did you mean 'origin'"),
        (lambda: hf.select("*", __holdfast_x="1"), "reserved"),
        (lambda: hf.select("count(*) as n"), "several rows together"),
        (lambda: hf.select(), "no item"),
        (lambda: hf.select(3), "is not a text"),
        (lambda: hf.filter("max(dep_delay) > 15"), "several rows together"),
        (lambda: hf.filter("  "), "is empty"),
        (lambda: hf.filter(True), "is not a text"),
        (lambda: hf.map("origin"), "is not a function"),
        (lambda: hf.map(lambda: 1), r"cannot be called with \(df\)"),
        (lambda: hf.map(lambda df: df, timestamp=""), "timestamp='' is no name of a column"),
    ],
)
def test_what_cannot_work_is_refused(operator, text):
    with pytest.raises(hf.InvalidPipeline, match=text):
        source() | operator()
