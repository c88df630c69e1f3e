"""The pipeline in words."""

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.explain import arguments_text, sinks_behind, warnings, ways_behind_state
from holdfast.plan import feeds
from holdfast.plan.cutting import build_stages
from holdfast.plan.program_build import as_it_is
from holdfast.ports import Guarantee
from tests.graphs import paper, source


def test_it_says_of_every_node_its_kind_arguments_line_and_guarantee():
    flights = source(timestamp="time_hour")
    late = flights | hf.filter("dep_delay > 15", name="late")
    pipeline = hf.Pipeline("departures", late | paper("late_table"))
    assert (
        pipeline.explain()
        == f"""\
pipeline 'departures', built at {pipeline.origin}, fingerprint {pipeline.fingerprint()}
  guarantee: exactly-once in every sink

sources
  flights: paper, exactly-once, built at {flights.origin}
      path="data/flights"
      columns origin, dest, dep_delay, arr_delay, time_hour; timestamp time_hour

operators
  late: filter, exactly-once, built at {late.origin}
      condition="dep_delay > 15"
      takes flights
      columns origin, dest, dep_delay, arr_delay, time_hour; timestamp time_hour

sinks
  late_table: paper_sink, exactly-once, built at {pipeline.sinks[0].origin}
      path="late_table"
      takes late
"""
    )


def test_it_says_what_several_sinks_share():
    flights = source()
    clean = flights | hf.filter("dep_delay is not null", name="clean")
    late = clean | hf.filter("dep_delay > 15", name="late")
    pipeline = hf.Pipeline("p", clean | paper("clean_table"), late | paper("late_table"))
    assert {node.name: sinks for node, sinks in sinks_behind(pipeline).items()} == {
        "flights": ("clean_table", "late_table"),
        "clean": ("clean_table", "late_table"),
        "late": ("late_table",),
    }
    assert pipeline.explain().count("shared by the sinks clean_table and late_table") == 2


@pytest.mark.slow
def test_it_says_where_spark_evaluates_behind_state():
    seen = source(timestamp="time_hour") | hf.distinct(by="origin", horizon="1 h", name="seen")
    branches = [
        seen | hf.filter("dep_delay > 15", name="plain") | hf.sql("select * from input", name="all"),
        seen | hf.sql("select origin, dep_delay * 2 as twice from input where dest is not null", name="computed"),
        seen | hf.sql("select upper(origin) as o from input", name="by_its_function") | hf.map(lambda df: df, name="m"),
        seen | hf.sql("select origin from (select * from input)", name="nested"),
        seen | hf.select("dest", x="hash(origin)", name="hashed") | hf.filter("dest > 'A'", name="filtered"),
        seen | hf.filter(lambda df: df.dep_delay > 15, name="called"),
        seen | hf.map(lambda df: df, name="mapped") | hf.sql("select origin from input", name="behind"),
    ]
    pipeline = hf.Pipeline("p", *(stream | paper(f"out{number}") for number, stream in enumerate(branches)))
    ways = {name: way.partition(",")[0] for name, way in ways_behind_state(pipeline).items()}
    assert ways == {
        "all": "evaluated in Arrow",
        "computed": "evaluated in Arrow",
        "by_its_function": "evaluated by Spark's plan",
        "m": "evaluated by Spark's plan",
        "nested": "evaluated by Spark's plan",
        "hashed": "evaluated by Spark's plan",
        "called": "evaluated by Spark's plan",
        "mapped": "evaluated by Spark's plan",
        "behind": "whether Arrow or Spark's plan evaluates it",
    }
    said = pipeline.explain()
    assert [said.count(f"      {way}\n") for way in set(ways_behind_state(pipeline).values())].count(0) == 0


def test_what_is_before_state_or_in_no_graph_with_state_has_no_way_to_be_told():
    flights = source(timestamp="time_hour")
    chosen = flights | hf.sql("select origin, time_hour from input", name="chosen")
    assert ways_behind_state(hf.Pipeline("p", chosen | paper("a"))) == {}
    seen = chosen | hf.distinct(by="origin", horizon="1 h", name="seen")
    behind = seen | hf.sql("select origin from input", name="behind") | hf.map(lambda df: df, name="mapped")
    ways = ways_behind_state(hf.Pipeline("p", behind | paper("a")))
    assert {name: way.partition(",")[0] for name, way in ways.items()} == {
        "behind": "whether Arrow or Spark's plan evaluates it",
        "mapped": "evaluated by Spark's plan",
    }


def test_it_refuses_what_a_start_would_refuse_in_the_same_words():
    flights = source(timestamp="time_hour")
    summed = flights | hf.aggregate(by="origin", window=hf.tumbling("1 hour"), total=hf.sum("dest"), name="summed")
    pipeline = hf.Pipeline("p", summed | paper("a"))
    with pytest.raises(InvalidPipeline, match=r"aggregate 'summed', built at .*test_explain.py:\d+") as said:
        pipeline.explain()
    with pytest.raises(InvalidPipeline) as at_a_start:
        build_stages(pipeline, as_it_is, "t", buckets=2, partitions=2, prefix=lambda part: [])
    assert str(said.value) == str(at_a_start.value)


@pytest.mark.slow
@pytest.mark.parametrize("has_state", [False, True])
def test_it_says_what_it_could_not_check_without_spark(has_state):
    flights = source(timestamp="time_hour")
    mapped = flights | hf.map(lambda df: df, name="mapped")
    if has_state:
        mapped = mapped | hf.accumulate(by="origin", n=hf.count(), name="counted")
    checked = hf.Pipeline("p", flights | hf.filter("dep_delay > 15", name="late") | paper("a"))
    assert "not checked" not in checked.explain()
    assert "Spark's plan evaluates mapped. Whether it can," in hf.Pipeline("q", mapped | paper("b")).explain()


def test_it_warns_of_derived_names_of_sources_and_sinks():
    pipeline = hf.Pipeline("p", source(None) | paper(path="out"))
    assert [text.split(" ")[0] for text in warnings(pipeline)] == ["source", "sink"]
    assert all('Write name="..."' in text for text in warnings(pipeline))
    assert "(derived name)" in pipeline.explain()


def test_it_warns_where_rows_can_come_twice():
    flights = source()
    pipeline = hf.Pipeline("p", flights | paper("a"), flights | paper("b", guarantee=Guarantee.AT_LEAST_ONCE))
    assert "exactly-once, except at-least-once where b takes part" in pipeline.explain()
    assert any("sink 'b'" in text and "at-least-once" in text for text in warnings(pipeline))


def test_it_warns_when_rejects_are_written_nowhere():
    flights = source(rejects=True)
    silent = hf.Pipeline("p", flights | paper("a"))
    assert any("flights.rejects" in text for text in warnings(silent))
    kept = hf.Pipeline("p", flights | paper("a"), flights.rejects | paper("b"))
    assert warnings(kept) == []


def test_long_arguments_are_cut():
    assert len(arguments_text({"query": "x" * 500})) < 120


def test_it_says_who_keeps_state_and_minds_a_derived_name_for_it():
    flights = source(timestamp="time_hour")
    named = flights | hf.accumulate(by="origin", n=hf.count(), name="running")
    assert "keeps state under its name" in hf.Pipeline("p", named | paper("table")).explain()
    assert warnings(hf.Pipeline("p", named | paper("table"))) == []
    unnamed = flights | hf.accumulate(by="origin", n=hf.count())
    (warning,) = warnings(hf.Pipeline("p", unnamed | paper("table")))
    assert "keeps state and has no name of its own" in warning
    assert str(unnamed.origin) in warning


def test_it_says_what_becomes_of_rows_and_timers_that_fail_behind_state():
    flights = source(timestamp="time_hour")
    running = flights | hf.accumulate(by="origin", n=hf.count(), name="running")
    alone, followed = (hf.Pipeline("p", rows | paper("table")) for rows in (running, running | hf.filter("n > 1")))
    assert "is left out there" not in alone.explain()
    assert followed.explain().count('is left out there (on_poison="isolate"), not replayed') == 1
    alarms = flights | hf.apply(
        lambda key, rows, state: None, by="origin", schema="n INT", timers="event", name="alarms"
    )
    assert "a timer whose call fails stops the run each time" in hf.Pipeline("p", alarms | paper("table")).explain()


MARKED = hf.read.rows(
    [], schema="origin STRING, time_hour TIMESTAMP, dep_delay INT, said BOOLEAN",
    timestamp="time_hour", bounds="said", name="flights",
)  # fmt: skip


def _same(batch):
    return batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("through", "why"),
    [
        (hf.filter("dep_delay > 1"), None),
        (hf.select("origin", "time_hour"), None),
        (hf.select("origin", time_hour="time_hour + interval 1 hour"), "'time_hour' is left out or computed"),
        (hf.sql("select * from input where dep_delay > 1"), None),
        (hf.sql("select origin from input"), "'time_hour' is left out or computed"),
        (
            hf.map_batches(_same, "origin STRING, time_hour TIMESTAMP"),
            "fn may do anything to the timestamp; timestamp_offset=0 says that it keeps it",
        ),
        (hf.map_batches(_same, "origin STRING, time_hour TIMESTAMP", timestamp_offset=0), None),
    ],
)
def test_it_says_where_bounds_end_and_why(through, why):
    running = MARKED | through | hf.accumulate(by="origin", n=hf.count(), name="n")
    said = [
        line.strip()
        for line in hf.Pipeline("p", running | paper("table")).explain().splitlines()
        if "bounds end" in line
    ]
    assert said == ([] if why is None else [f"bounds end here, but for the end itself: {why}"])
    (feed,) = feeds.feeds_of(running.node, 0)
    assert (feed.bounds == "closed") == (why is not None)


@pytest.mark.parametrize(
    "through",
    [
        hf.map(lambda df: df),
        hf.map(lambda df: df.withColumnRenamed("time_hour", "hour"), timestamp="hour"),
        hf.sql("select * from (select * from input)"),
    ],
)
def test_it_says_where_only_spark_knows_whether_bounds_hold(through):
    running = MARKED | through | hf.accumulate(by="origin", n=hf.count(), name="n")
    said = hf.Pipeline("p", running | paper("table")).explain()
    assert said.count("whether bounds hold downstream of it is decided at the start, by Spark's plan of it") == 1
    (feed,) = feeds.feeds_of(running.node, 0)
    assert feed.bounds == "every", "it has no plan yet"


def test_nobody_is_told_of_bounds_that_nobody_hears():
    mapped = MARKED | hf.map_batches(_same, "origin STRING, time_hour TIMESTAMP")
    assert "bounds end" not in hf.Pipeline("p", mapped | paper("table")).explain()
