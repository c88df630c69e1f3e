"""Where a statement is evaluated: in Arrow behind state, if ``select`` and ``filter`` could do it; else by Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadRow
from holdfast.graph.nodes import Stream
from holdfast.plan.cutting import build_stages, first_in_spark
from holdfast.plan.derived_part import stages_without_spark
from holdfast.plan.feeds import Unchanged
from holdfast.plan.program_build import Builder, as_it_is
from holdfast.plan.stages import SparkPart, Stages
from holdfast.testing.drive import drive
from holdfast.types.casting import nullable_field
from tests.graphs import source

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("t", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("x", pa.string()),
        pa.field("money", pa.decimal128(10, 2)),
        pa.field("st", pa.struct([pa.field("a", pa.int32(), nullable=False)])),
    ]
)


def lowered(query: str, *, is_behind_state: bool = True) -> Builder | None:
    """Return what a statement was added to; None where it is Spark's."""
    rows = source("rows", schema=SCHEMA, timestamp="t")
    builder = Builder(as_it_is, "", is_behind_state=is_behind_state)
    builder.head(rows.node, SCHEMA)
    return builder if builder.add((rows | hf.sql(query, name="s")).node) else None


@pytest.mark.parametrize(
    ("query", "passed", "names"),
    [
        ("select * from input", {name: name for name in SCHEMA.names}, SCHEMA.names),
        ("select K, t as at, t from input", {"K": "k", "at": "t", "t": "t"}, ["K", "at", "t"]),
        ("select k, v * 2 + n % 1000 as v from input", {"k": "k"}, ["k", "v"]),
        (
            "select * except (money, x), st.a as a from input where v > 0",
            {name: name for name in ("k", "t", "n", "v", "st")},
            ["k", "t", "n", "v", "st", "a"],
        ),
    ],
)
def test_it_is_computed_as_select_and_filter_are(query: str, passed: Mapping[str, str], names: Sequence[str]) -> None:
    """All of its columns may be null, however the input is declared: as where Spark's plan evaluates it."""
    found = lowered(query)
    assert found is not None
    output = found.steps[-1].schema
    assert output.names == list(names)
    assert output.equals(pa.schema([nullable_field(field) for field in output]))
    assert found.unchanged == {"s": Unchanged(tuple(passed.items()), tuple(names))}


@pytest.mark.parametrize(
    "query",
    [
        "select upper(k) as k from input",  # a function that Arrow lacks
        "select money / 3 as money from input",  # a quotient of decimals
        "select k from input where money in (1, 2)",
        "select k from input where t > '2024-01-01'",  # a cast that nobody wrote
        "select k from input where v = x",
        "select cast(x as bigint) as n from input",
        "select k, v + 1 from input",  # Spark chooses the name
        "select v, V from input",  # two columns of one name
        "select v v2 from input",
        "select cast(v as bigint) as v from input",  # passed on, and computed to Spark
        "select (t) as t from input",  # computed in its text, and passed on to Spark
        "select k from input where v",  # no condition
        "select v % n as r from input where v % n > v - n",  # it raises where Spark may not
        "select n + 1 as m, m + 1 as o from input",  # a name of an item before
        "select current_date as d from input",
        "select count(*) over () as c from input",
        "select nowhere from input",
        "select k from input where exists (select 1)",
    ],
)
def test_whatever_they_leave_to_spark_is_sparks(query: str) -> None:
    try:
        found = lowered(query)
    except hf.InvalidPipeline:  # it is refused before
        return
    assert found is None


def test_upstream_of_state_it_is_sparks_as_all_of_that_stage_is() -> None:
    assert lowered("select k from input", is_behind_state=False) is None
    chosen = source("rows", schema=SCHEMA, timestamp="t") | hf.sql("select * from input", name="chosen")
    seen = chosen | hf.distinct(by="k", horizon="1 h", name="seen")
    assert first_in_spark(hf.Pipeline("p", seen | hf.write.console(name="out"))) is not None


def stages(between: Any) -> Stages | None:
    """Return the stages of a graph with something between two operators with state; None where Spark has a part."""
    rows = source("rows", schema=SCHEMA, timestamp="t")
    first = rows | hf.distinct(by="k", horizon="1 h", name="first")
    second = first | between | hf.distinct(by="k", horizon="1 h", timestamp="t", name="second")
    pipeline = hf.Pipeline("p", second | hf.write.console(name="out"))
    if first_in_spark(pipeline) is not None:
        return None
    return stages_without_spark(pipeline, as_it_is, "", is_columnar=True)


def test_it_has_no_level_of_its_own_and_bounds_pass_it_as_by_sparks_plan() -> None:
    found = stages(hf.sql("select *, v + n as w from input where v > 0", name="between"))
    assert found is not None
    assert (found.levels, dict(found.subplans)) == (2, {})
    feeds = found.stages[2].hosted["second"].feeds["rows"]
    assert [(feed.source, feed.bounds, feed.times) for feed in feeds] == [("first", "every", ("t",))]
    assert found.bounds_end == {}
    computed = stages(hf.sql("select k, coalesce(t, t) as t from input", name="between"))
    assert computed is not None
    assert computed.bounds_end == {"between": "'t' is computed"}
    assert stages(hf.sql("select upper(k) as k, t from input", name="between")) is None


def test_behind_what_spark_evaluates_it_is_arrows_and_between_two_of_these_sparks() -> None:
    rows = source("rows", schema=SCHEMA, timestamp="t") | hf.distinct(by="k", horizon="1 h", name="seen")
    one = rows | hf.map(lambda frame: frame, name="a") | hf.sql("select k, t, v from input", name="s")
    two = one | hf.map(lambda frame: frame, name="b") | hf.sql("select k, t from input", name="z")

    def parts(stream: Stream) -> list[list[str]]:
        asked: list[list[str]] = []

        def through_spark(part: SparkPart) -> Sequence[pa.Schema]:
            asked.append([node.name for node in part.nodes])
            return [SCHEMA for _ in part.sinks]

        pipeline = hf.Pipeline("p", stream | hf.write.console(name="out"))
        build_stages(pipeline, as_it_is, "", buckets=1, partitions=1, prefix=through_spark)
        return asked

    assert parts(one) == [["a"]]
    assert parts(two) == [["a", "s", "b"]]


def test_a_driven_graph_needs_no_stand_in_for_it() -> None:
    rows = hf.read.rows([], schema="k STRING, v BIGINT", name="rows")
    counted = rows | hf.accumulate(by="k", total=hf.sum("v"), name="counted")
    chosen = counted | hf.sql("select k, 10 % total as r from input where total <> 3", name="chosen")
    epochs = [[{"k": "a", "v": 1}], [{"k": "a", "v": 2}, {"k": "a", "v": 3}]]
    assert drive(chosen, {"rows": epochs}) == [[{"k": "a", "r": 0}], [{"k": "a", "r": 4}]]
    with pytest.raises(BadRow, match="REMAINDER_BY_ZERO"):
        drive(chosen, {"rows": [[{"k": "a", "v": 0}]]})
