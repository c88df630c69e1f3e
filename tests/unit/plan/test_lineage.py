"""Column lineage against what operators do: other values of a column change exactly what is said to be made of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.metrics.lineage import Derivation
from holdfast.plan.lineage import lineage_of
from holdfast.testing import drive

LEFT, RIGHT = "k STRING, t BIGINT, a BIGINT, b BIGINT", "k STRING, t BIGINT, a BIGINT, c BIGINT"
VALUES = {"left": ("a", "b"), "right": ("a", "c")}
"""Columns by which no graph here chooses its rows, their order or their windows."""

Rows = dict[str, list[list[dict[str, Any]]]]
Lineage = Mapping[str, frozenset[tuple[str, str]]]


def left() -> Stream:
    return hf.read.rows([], schema=LEFT, timestamp="t", name="left")


def right() -> Stream:
    return hf.read.rows([], schema=RIGHT, timestamp="t", name="right")


def joined(how: str) -> Callable[[], Stream]:
    return lambda: hf.join(left(), right(), on="k", within=3, how=how, disorder=0, name="joined")


def expected() -> Stream:
    return left() | hf.expect("t > 5", name="valid", on_fail="reject")


def over(window: Any, **options: Any) -> Callable[[], Stream]:
    aggregates: dict[str, Any] = {
        "n": hf.count(),
        "known": hf.count("b"),
        "total": hf.sum("a"),
        "highest": hf.max("b"),
        "mean": hf.mean("b"),
        "first": hf.first("a"),
        "last": hf.last("b", ignore_nulls=True),
        "kinds": hf.distinct_count("a"),
        "all": hf.collect("a"),
        "half": hf.quantile("b", 0.5),
        "at_highest": hf.max_by("a", "b"),
        "some": hf.sum("a", where="b > 50"),
    }
    return lambda: left() | hf.aggregate(by="k", window=window, name="sums", **options, **aggregates)


def of_both() -> Stream:
    pairs = hf.join(left(), right(), on="k", within=3, disorder=0, name="pairs")
    chosen = pairs | hf.select("k AS Key", "joined_time", "a + c AS ac", "a_right", "b", name="chosen")
    return chosen | hf.reduce(by="key", AC=hf.sum("ac"), B=hf.max("b"), n=hf.count(), name="reduced")


GRAPHS: dict[str, Callable[[], Stream]] = {
    "running": lambda: left() | hf.accumulate(by="k", n=hf.count(), known=hf.count("a"), high=hf.max("b"), name="run"),
    "last rows": lambda: left() | hf.over(rows=3, by="k", n=hf.count(), high=hf.max("b"), name="last"),
    "tumbling": over(hf.tumbling(5)),
    "sliding": over(hf.sliding(6, 2)),
    "sessions": over(hf.session(2)),
    "by number": over(hf.count_window(4)),
    "totals": over(hf.total(), emit="changes"),
    **{f"join {how}": joined(how) for how in ("inner", "left", "right", "full", "semi", "anti")},
    "join of unlike keys": lambda: hf.join(
        left(),
        right() | hf.select("k AS key", "a", "t", "c", name="renamed"),
        on={"k": "key"},
        within=3,
        how="full",
        disorder=0,
        suffix="_2",
        name="pairs",
    ),
    "table of a stream": lambda: hf.lookup(
        left(), hf.table(right(), key="k"), on="k", columns={"was": "a", "c": "c"}, name="l"
    ),
    "all of a table of a stream": lambda: hf.lookup(
        left() | hf.select("k", "t", "b", name="few"), hf.table(right(), key="k"), on="k", name="l"
    ),
    "table": lambda: hf.lookup(left(), pa.table({"k": ["x", "y"], "more": [1, 2]}), on="k", name="looked_up"),
    "rejects": lambda: expected().rejects,
    "expected": expected,
    "once": lambda: left() | hf.distinct(by=["k", "t"], horizon=100, disorder=0, name="once"),
    "admitted": lambda: left() | hf.limit_in_flight(1, by="k", timeout=2, name="entry"),
    "identified": lambda: left() | hf.row_id("a", "b", into="id", name="ids"),
    "union": lambda: hf.union(left(), right() | hf.select("k", "t", "c AS a", "a AS b", name="as_left"), name="both"),
    "joined, computed and reduced": of_both,
}


def rows_of(seed: int) -> Rows:
    chance = random.Random(seed)
    return {
        side: [
            [
                {
                    "k": chance.choice("wxyz" if side == "left" else "xyz"),
                    "t": 4 * epoch + number // 3,
                    values[0]: chance.randrange(100),
                    values[1]: 7 * number,
                }
                for number in range(12)
            ]
            for epoch in range(3)
        ]
        for side, values in VALUES.items()
    }


def with_others(rows: Rows, side: str, column: str) -> Rows:
    """Return the rows with other values in a column, and with nulls."""
    chance = random.Random(column)
    changed = [
        [{**row, column: None if chance.random() < 0.2 else 1000 + chance.randrange(10**6)} for row in epoch]
        for epoch in rows[side]
    ]
    return {**rows, side: changed}


def told(stream: Stream) -> dict[str, dict[tuple[str, str], Derivation]]:
    """Return output column -> (source, column) -> how."""
    graph = lineage_of(hf.Pipeline("trips", stream | hf.write.memory(name="out")))
    (output,) = graph.outputs
    names = [each.name.removeprefix("trips.") for each in graph.inputs]
    return {
        name: {(names[each.dataset], each.column): each.how for each in columns}
        for name, columns in output.columns.items()
    }


def columns_of(stream: Stream, rows: Rows) -> dict[str, list[Any]]:
    sources = {each.name for each in hf.Pipeline("trips", stream | hf.write.memory(name="out")).sources}
    found = [row for epoch in drive(stream, {side: rows[side] for side in sources}) for row in epoch]
    assert len(found) > 3
    return {name: [row[name] for row in found] for name in found[0]}


def values_of(rows: Rows, columns: Iterable[tuple[str, str]]) -> set[Any]:
    return {row[column] for side, column in columns for epoch in rows[side] for row in epoch}


@pytest.mark.parametrize("name", GRAPHS)
def test_other_values_of_a_column_change_exactly_what_is_made_of_it(name: str) -> None:
    stream, rows = GRAPHS[name](), rows_of(len(name))
    lineage, before = told(stream), columns_of(stream, rows)
    assert lineage
    sources = {side for made_of in lineage.values() for side, _ in made_of}
    for side in sources:
        for column in VALUES[side]:
            after = columns_of(stream, with_others(rows, side, column))
            changed = {each for each in before if before[each] != after[each]}
            assert changed == {each for each, of in lineage.items() if (side, column) in of}, (side, column)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_passed_on_has_the_values_of_its_columns(name: str) -> None:
    stream, rows = GRAPHS[name](), rows_of(len(name))
    before = columns_of(stream, rows)
    for column, made_of in told(stream).items():
        if set(made_of.values()) == {Derivation.IDENTITY}:
            assert {*before[column]} <= {*values_of(rows, made_of), None}, column


def test_what_is_aggregated_or_computed_is_said_to_be() -> None:
    of = told(GRAPHS["joined, computed and reduced"]())
    assert of == {
        "Key": {("left", "k"): Derivation.IDENTITY},
        "AC": {("left", "a"): Derivation.AGGREGATION, ("right", "c"): Derivation.AGGREGATION},
        "B": {("left", "b"): Derivation.AGGREGATION},
    }
    of = told(GRAPHS["tumbling"]())
    assert of["window_start"] == of["window_end"] == {("left", "t"): Derivation.TRANSFORMATION}
    assert "n" not in of
    of = told(GRAPHS["join full"]())
    assert of["joined_time"] == dict.fromkeys([("left", "t"), ("right", "t")], Derivation.TRANSFORMATION)
    assert of["k"] == dict.fromkeys([("left", "k"), ("right", "k")], Derivation.IDENTITY)
    assert told(GRAPHS["join left"]())["k"] == {("left", "k"): Derivation.IDENTITY}


def test_what_is_not_followed_has_no_lineage() -> None:
    late = (left() | hf.distinct(by="k", horizon=100, disorder=0, name="once")).late
    for stream in (late, left() | hf.map_batches(lambda rows: rows, LEFT, name="by_function")):
        assert told(stream) == {}
