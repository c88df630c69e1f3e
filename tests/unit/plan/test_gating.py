"""``commit_at="pts"`` in the graph: what stands before the sinks, and what is refused with its cure (design/0015)."""

from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Stream
from holdfast.operators.stateful.gate import NAME, Gate
from holdfast.plan.cutting import build_stages
from holdfast.plan.feeds import Unchanged
from holdfast.plan.stages import SparkPart, Stages

COLUMNS = "k STRING, t BIGINT, v BIGINT"


def source(name: str, schema: str = COLUMNS, timestamp: str | None = "t", **more: Any) -> Stream:
    return hf.read.rows([], schema=schema, timestamp=timestamp, name=name, **more)


def pipeline(*streams: Stream, commit_at: Any = "pts") -> hf.Pipeline:
    sinks = [stream | hf.write.memory(name=f"sink{number}") for number, stream in enumerate(streams)]
    return hf.Pipeline("trips", *sinks, commit_at=commit_at)


def gate(made: hf.Pipeline) -> Gate:
    (spec,) = [node.spec for node in made.nodes if node.name == NAME]
    assert isinstance(spec, Gate)
    return spec


def test_without_it_the_graph_is_what_it_was() -> None:
    assert [node.kind for node in pipeline(source("a"), commit_at=None).nodes] == ["rows"]


def test_one_gate_stands_before_all_sinks_and_takes_a_clock_of_every_source() -> None:
    a, b = source("a"), source("b")
    made = pipeline(a | hf.filter("v > 1"), hf.union(a, b, name="both"))
    assert gate(made).input_names == ("sink0", "sink1", "a", "b")
    assert [sink.name for sink in made.sinks] == ["sink0", "sink1"], "the ledgers keep their names"
    assert {sink.inputs[0].inputs[0].name for sink in made.sinks} == {NAME}


def test_operators_by_event_time_have_a_clock_and_those_of_users_have_none() -> None:
    a = source("a")
    counted = a | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counted")
    own = a | hf.stateful(
        lambda state, rows, at: (state, rows.select(["k", "t"])),
        by="k",
        state={"s": hf.StateTable(pa.schema([("k", pa.string())]), ("k",))},
        schema="k STRING, t BIGINT",
        timestamp="t",
        name="own",
    )
    clocks = gate(pipeline(counted, own)).clocks
    assert list(clocks) == ["a", "counted"]
    assert [clock.by_rows for clock in clocks.values()] == [True, False]


def test_a_source_with_bound_rows_says_it_by_these_alone() -> None:
    marked = source("m", "k STRING, t BIGINT, is_bound BOOLEAN", bounds="is_bound")
    clocks = gate(pipeline(source("a"), marked, commit_at=hf.pts(disorder=5))).clocks
    assert (clocks["a"].by_rows, clocks["a"].disorder) == (True, 5)
    assert (clocks["m"].by_rows, clocks["m"].disorder) == (False, 0)


def test_rows_without_a_place_in_time_are_taken_as_such() -> None:
    a, b = source("a"), source("b")
    late = hf.sync({"a": a, "b": b}, by="k", name="sets").late
    assert dict(gate(pipeline(late, a)).times) == {"sink0": None, "sink1": "t"}


def test_rows_without_a_partner_wait_for_pts_where_they_leave_in_order() -> None:
    a, b = source("a"), source("b")
    settled = hf.sync({"a": a, "b": b}, by="k", name="sets").unmatched
    barrier = hf.sync({"a": a, "b": b}, by="k", policy=hf.policy.barrier(), name="pairs").unmatched
    assert dict(gate(pipeline(settled, barrier)).times) == {"sink0": "timestamp", "sink1": None}


def test_an_operator_downstream_of_late_rows_has_no_bounds_and_is_refused() -> None:
    a = source("a")
    late = (a | hf.distinct(by="k", horizon=1, name="once")).late
    with pytest.raises(InvalidPipeline, match="cannot know the progress of 'once'"):
        pipeline(late | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counted"))


def test_the_same_pipeline_has_the_same_fingerprint_and_another_promise_another_one() -> None:
    assert pipeline(source("a")).fingerprint() == pipeline(source("a")).fingerprint()
    of = {pipeline(source("a"), commit_at=at).fingerprint() for at in (None, "pts", hf.pts(disorder=1))}
    assert len(of) == 3


def test_explain_says_what_is_promised() -> None:
    assert "commits at pts" in pipeline(source("a")).explain()
    assert "commits at pts" not in pipeline(source("a"), commit_at=None).explain()


def clear(batch: Any) -> Any:
    return batch


def test_what_lies_behind_by_promise_holds_pts_back_by_as_much() -> None:
    """``timestamp_offset`` of a function before a sink: pts must not pass a row that it may still give."""
    back = hf.map_batches(clear, schema=COLUMNS, timestamp_offset=-5, name="back")
    ahead = hf.map_batches(clear, schema=COLUMNS, timestamp_offset=3, name="ahead")
    clocks = gate(pipeline(source("a") | back, source("b") | ahead, source("c"))).clocks
    assert {name: clock.below for name, clock in clocks.items()} == {"a": 5, "b": 0, "c": 0}
    two_ways = source("d")
    assert gate(pipeline(two_ways | back, two_ways)).clocks["d"].below == 5, "the furthest back of all sinks"


def test_functions_with_state_that_promise_how_far_they_go_back_have_a_clock() -> None:
    given: Any = {"by": "k", "state": "n BIGINT", "schema": "k STRING, t BIGINT", "timestamp": "t"}
    promising = source("a") | hf.apply(lambda key, rows, state: rows, **given, timestamp_offset=-2, name="promising")
    silent = source("b") | hf.apply(lambda key, rows, state: rows, **given, name="silent")
    clocks = gate(pipeline(promising, silent)).clocks
    assert list(clocks) == ["a", "promising", "b"]
    counted = promising | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counted")
    assert list(gate(pipeline(counted)).clocks) == ["a", "promising", "counted"]


def mapped(stream: Stream, timestamp: str | None = "t") -> Stream:
    return stream | hf.map(lambda df: df, timestamp=timestamp, name="mapped")


def cut(made: hf.Pipeline, said: Unchanged) -> Stages:
    """Cut a graph as if Spark had said this of its operator ``mapped``."""
    row = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])

    def by_spark(part: SparkPart) -> list[pa.Schema]:
        return [pa.schema([row.field("t")]) if sink.node.kind == "clock" else row for sink in part.sinks]

    same: Any = {"normal": lambda schema: schema, "token": "test", "buckets": 1, "partitions": 1}
    return build_stages(made, **same, prefix=by_spark, analysis={"mapped": said})


SAME = Unchanged((("k", "k"), ("t", "t"), ("v", "v")), ("k", "t", "v"))
COUNTED = hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counted")


def test_a_function_of_a_frame_may_stand_before_operators_and_sinks_where_its_plan_keeps_the_timestamp() -> None:
    rows = mapped(source("a"))
    stages = cut(pipeline(rows, rows | COUNTED), SAME)
    (row_bounds,) = stages.row_bounds.values()
    assert [stages.routing.targets[target].operator for target, _ in row_bounds.targets] == ["counted"]


def test_rows_of_a_source_give_bounds_to_joins_of_the_whole_of_it_and_to_no_join_of_a_part() -> None:
    right = source("b") | hf.select("k", "t", name="fewer")
    whole = hf.join(source("a"), right, on="k", within=3, disorder={"right": 2}, name="whole")
    part = hf.join(source("c") | hf.filter("v > 1", name="some"), source("d"), on="k", within=3, name="part")
    sinks = [stream | hf.write.console(name=f"{stream.name}_out") for stream in (whole, part)]
    same: Any = {"normal": lambda schema: schema, "token": "test", "buckets": 1, "partitions": 1, "prefix": None}
    stages = build_stages(hf.Pipeline("p", *sinks), **same)
    inputs = {number: (target.operator, target.input) for number, target in enumerate(stages.routing.targets)}
    found = {
        name: [(*inputs[target], offset) for target, offset in bounds.targets]
        for name, bounds in stages.row_bounds.items()
    }
    assert found == {"a": [("whole", "left", 0)], "b": [("whole", "right", -2)], "d": [("part", "right", 0)]}


@pytest.mark.parametrize(
    ("streams", "says"),
    [
        (
            lambda: [mapped(source("a"))],
            "row of sink 'sink0' is below pts.*'mapped'.*'t' is computed.*map_batches with",
        ),
        (
            lambda: [mapped(source("a")) | COUNTED],
            "'counted'.*cannot know the progress of 'a'.*'mapped': 't' is computed",
        ),
    ],
)
def test_one_that_computes_the_timestamp_is_refused_at_the_start(streams: Any, says: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"(?s){says}"):
        cut(pipeline(*streams()), Unchanged((("k", "k"),), ("k", "t", "v")))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: pipeline(source("a"), source("b", timestamp=None)), "source 'b'.*declares none.*declare timestamp="),
        (lambda: pipeline(source("a"), source("b", "k STRING, t TIMESTAMP")), "others TIMESTAMPs"),
        (
            lambda: pipeline(source("a") | hf.map(lambda df: df, name="hidden")),
            "hidden.*name it with map.timestamp=",
        ),
        (
            lambda: pipeline(
                source("a")
                | hf.map_batches(clear, schema=COLUMNS, name="between")
                | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counted")
            ),
            "'counted'.*cannot know the progress of 'a'.*move it downstream of 'counted'",
        ),
        (lambda: pipeline(source("a"), commit_at="frames"), "commit_at='frames'.*write hf.Pipeline"),
        (lambda: pipeline(source("a"), commit_at=hf.pts(disorder={"x": 1})), "disorder= names 'x'.*sources are a"),
        (lambda: hf.pts(disorder=-1), "is no duration"),
        (lambda: hf.pts(max_waiting_rows=0), "no number of rows"),
    ],
)
def test_what_could_not_keep_the_promise_is_refused_with_the_cure(build: Any, says: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"(?s){says}"):
        build()
