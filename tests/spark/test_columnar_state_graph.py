"""A graph cut into stages, and the side output ``late`` (design/0010, section 1); no JVM."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.plan.cutting import build_stages
from holdfast.plan.stages import Stages
from tests.spark.counting import counting

SCHEMA = "k STRING, v BIGINT"


def cut(pipeline: hf.Pipeline) -> Stages:
    def never(part: object) -> list[pa.Schema]:
        raise AssertionError("stage 0 is Arrow's")

    return build_stages(pipeline, lambda schema: schema, "test", buckets=2, partitions=2, prefix=never)


def test_late_rows_are_one_node_however_often_they_are_asked_for() -> None:
    counted = counting(hf.read.rows([], schema=SCHEMA, name="given"))
    late = counted.late
    assert counted.late.node is late.node
    assert late.name == "counted_late"
    gc.collect()


def test_a_stateless_operator_has_no_late_rows() -> None:
    stream = hf.read.rows([], schema=SCHEMA, name="given") | hf.filter("v > 1", name="some")
    with pytest.raises(InvalidPipeline, match="'some' has no late rows"):
        _ = stream.late


def test_every_operator_is_hosted_once_at_its_depth() -> None:
    given = hf.read.rows([], schema=SCHEMA, name="given")
    first = counting(given, name="first")
    beside = counting(given | hf.filter("v > 1", name="some"), name="beside")
    last = counting(first, given, name="last")
    stages = cut(
        hf.Pipeline(
            "deep",
            first | hf.write.console(name="a"),
            beside | hf.write.console(name="b"),
            last | hf.write.console(name="c"),
            first.late | hf.write.console(name="d"),
            given | hf.write.console(name="e"),
        )
    )
    assert [sorted(stage.hosted) for stage in stages.stages] == [[], ["beside", "first"], ["last"]]
    levels = {(target.operator, target.input): target.level for target in stages.routing.targets}
    assert levels[("last", "given")] == levels[("last", "first")] == 2
    assert {levels["", name] for name in "abcde"} == {3}


def test_rows_that_go_past_a_level_are_computed_behind_it() -> None:
    given = hf.read.rows([], schema="k STRING, n BIGINT, inputs STRING, epoch BIGINT", name="given")
    both = hf.union(counting(given), given, name="both")
    stages = cut(hf.Pipeline("past", both | hf.write.console(name="out")))
    assert list(stages.stages[1].relays.values()) == ["relay/given"]


def test_bounds_reach_an_operator_only_where_they_hold() -> None:
    given = hf.read.rows([], schema=SCHEMA, name="given")
    first = counting(given, name="first")
    near = counting(first | hf.filter("n > 1", name="many"), name="near")
    far = counting(first | hf.select("k", "n", name="chosen"), name="far")
    pipeline = hf.Pipeline("bounds", near | hf.write.console(name="a"), far | hf.write.console(name="b"))
    stages = cut(pipeline)
    onward = dict(stages.stages[1].hosted["first"].onward)
    assert {stages.routing.targets[number].operator: passes for number, passes in onward.items()} == {
        "near": "every",
        "far": "closed",
    }
