"""Where an expression that can raise is taken into an Arrow program, and where Spark may leave it out; no JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadRow
from holdfast.expressions.compile import columnar
from holdfast.graph.nodes import Stream
from holdfast.plan.program import Program
from holdfast.plan.program_build import build_program
from tests.graphs import paper as to
from tests.graphs import source

SCHEMA = pa.schema(
    [
        pa.field("i", pa.int32()),
        pa.field("j", pa.int32()),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("st", pa.struct([pa.field("a", pa.int32(), nullable=False)]), nullable=False),
    ]
)


def given() -> Stream:
    return source("rows", schema=SCHEMA, timestamp="at")


def program(*sinks: Any) -> Program | None:
    return build_program(hf.Pipeline("p", *sinks), lambda schema: schema, "token")


def as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _remainder(*items: str) -> Any:
    return hf.select(*items, r="i % n", name="remainder")


TAKEN: dict[str, Callable[[Stream], Any]] = {
    "a filter before": lambda g: g | hf.filter("n <> 0") | _remainder() | to("a"),
    "a filter alone": lambda g: g | hf.filter("i % n = 1") | to("a"),
    "passed on under another name": lambda g: g | _remainder("i") | hf.select("i", s="r") | to("a"),
    "read by a function, whatever comes then": lambda g: (
        g | _remainder() | hf.map_batches(as_it_is, "r INT") | hf.filter("r > 1") | hf.select(k="1") | to("a")
    ),
    "in a union": lambda g: (
        hf.union(g | hf.filter("n <> 0", name="f") | _remainder(), g | hf.select(r="n", name="n")) | to("a")
    ),
    "an item that cannot raise": lambda g: g | hf.select("n", k="coalesce(i, 0)") | hf.filter("n <> 0") | to("a"),
}
LEFT: dict[str, Callable[[Stream], Any]] = {
    "a filter behind": lambda g: g | _remainder("n") | hf.filter("n <> 0") | to("a"),
    "a clip behind": lambda g: g | _remainder("at") | hf.clip("2024-01-01") | to("a"),
    "a part of a split behind": lambda g: (g | _remainder("n") | hf.split(good="n <> 0", name="parts")).good | to("a"),
    "a filter behind a union": lambda g: (
        hf.union(g | _remainder("n"), g | hf.select("n", r="n", name="n")) | hf.filter("n <> 0") | to("a")
    ),
    "dropped": lambda g: g | _remainder("i") | hf.select("i") | to("a"),
    "read by a choice": lambda g: g | _remainder("n") | hf.select(k="if(n <> 0, r, 0)") | to("a"),
    "read by an expression": lambda g: g | hf.select(k="i + 1") | hf.select(m="k + -1") | to("a"),
    "of a column that is a literal": lambda g: g | hf.select("i", k="1") | hf.select(m="i + k + -1") | to("a"),
    "a filter of a computed column": lambda g: g | hf.select("i", k="1") | hf.filter("i + k + -1 > 0") | to("a"),
    "a filter with one behind": lambda g: g | hf.filter("i % n = 1") | hf.filter("j > 0", name="late") | to("a"),
    "a filter with one before": lambda g: g | hf.filter("n <> 0") | hf.filter("i % n = 1", name="late") | to("a"),
}


@pytest.mark.parametrize("build", TAKEN.values(), ids=TAKEN)
def test_what_spark_surely_evaluates_is_taken(build: Callable[[Stream], Any]) -> None:
    assert program(build(given())) is not None


@pytest.mark.slow
@pytest.mark.parametrize("build", LEFT.values(), ids=LEFT)
def test_what_spark_may_leave_out_is_left_to_it(build: Callable[[Stream], Any]) -> None:
    assert program(build(given())) is None


def test_a_value_that_only_some_sinks_read_is_left_to_spark() -> None:
    remainder = given() | _remainder("i")
    assert program(remainder | to("a"), remainder | hf.select("i") | to("b")) is None


def test_a_filter_keeps_the_rows_away_from_what_would_raise() -> None:
    taken = program(TAKEN["a filter before"](given()))
    assert taken is not None
    rows = [{"i": 7, "n": n, "st": {"a": 1}} for n in (0, 3)]
    found = list(pickle.loads(pickle.dumps(taken)).run("rows", pa.RecordBatch.from_pylist(rows, SCHEMA)))
    assert [(name, batch.to_pylist()) for name, batch in found] == [("a", [{"r": 1}])]
    alone = program(TAKEN["a filter alone"](given()))
    assert alone is not None
    with pytest.raises(BadRow, match="REMAINDER_BY_ZERO"):
        list(alone.run("rows", pa.RecordBatch.from_pylist(rows, SCHEMA)))


def test_behind_a_fan_out_every_column_may_be_null_as_in_sparks_plan() -> None:
    rows = given()
    one = program(rows | to("a"))
    several = program(rows | to("a"), rows | hf.filter("n > 0") | to("b"))
    assert one is not None
    assert several is not None
    assert one.routes.schemas == (SCHEMA,)
    for schema in several.routes.schemas:
        assert all(field.nullable for field in schema)
        assert schema.field("st").type.field("a").nullable


def test_a_border_that_is_no_bigint_is_left_to_spark() -> None:
    assert program(given() | hf.clip("2024-01-01") | to("a")) is not None
    assert program(given() | hf.clip(1, 2**70) | to("a")) is None


def test_an_expression_knows_what_it_reads() -> None:
    known = columnar("case when i in (1, 2) then coalesce(J, 0) else n end", SCHEMA)
    assert known is not None
    assert (known.reads, known.reference) == ({"i", "j", "n"}, None)
    column = columnar("J", SCHEMA)
    assert column is not None
    assert (column.reads, column.reference) == ({"j"}, "j")
