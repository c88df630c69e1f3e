"""A row below a bound declared before it is late, in every operator that knows time (design/0009, "Late rows")."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast.state.tables import decode
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import bound, close

pytestmark = pytest.mark.slow

SCHEMA = "k STRING, t BIGINT, v BIGINT"
FAR = 1000


def rows(name: str = "rows") -> hf.Stream:
    return hf.read.rows([], schema=SCHEMA, timestamp="t", name=name)


OPERATORS: dict[str, Callable[[], hf.Stream]] = {
    "sync": lambda: hf.sync({"rows": rows(), "other": rows("other")}, by="k", name="op"),
    "merge": lambda: hf.merge(rows(), {"other": rows("other")}, by="k", name="op"),
    "aggregate": lambda: rows() | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="op"),
    "distinct": lambda: rows() | hf.distinct(by="k", horizon=1, disorder=FAR, name="op"),
    "accumulate": lambda: rows() | hf.accumulate(by="k", n=hf.count(), name="op"),
    "over": lambda: rows() | hf.over(rows=9, by="k", n=hf.count(), name="op"),
    "limit_in_flight": lambda: rows() | hf.limit_in_flight(FAR, by="k", timeout=FAR, name="op"),
}


def row(k: str, t: int) -> dict[str, Any]:
    return {"k": k, "t": t, "v": 10 * t}


EVENTS = [
    row("a", 1),
    bound(10, {"k": "a"}),
    row("a", 7),  # late
    row("b", 7),
    bound(8, {"k": "a"}),  # goes back: changes nothing
    row("a", 9),  # late
    bound(20),
    row("b", 15),  # late
    row("c", 19),  # late: a key that was never seen
    row("a", 20),
    bound(30, {"k": "c"}),
    row("c", 29),  # late
    row("b", 29),
]
LATE = [("a", 7, 10), ("a", 9, 10), ("b", 15, 20), ("c", 19, 20), ("c", 29, 30)]


def sources(stream: hf.Stream, epochs: list[list[Any]]) -> dict[str, list[list[Any]]]:
    return {node.name: epochs if node.name == "rows" else [[] for _ in epochs] for node in stream.node.inputs}


def late_of(operator: str, epochs: list[list[Any]], buckets: int = 1) -> list[dict[str, Any]]:
    stream = OPERATORS[operator]()
    return [row for found in drive(stream.late, sources(stream, epochs), buckets=buckets) for row in found]


def cut(chance: random.Random) -> list[list[Any]]:
    borders = sorted(chance.randrange(len(EVENTS) + 1) for _ in range(3))
    return [EVENTS[start:end] for start, end in zip([0, *borders], [*borders, len(EVENTS)], strict=True)]


@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_below_a_bound_of_their_key_or_of_all_keys_are_late_and_counted(operator: str) -> None:
    stream = OPERATORS[operator]()
    found = Drive(stream, sources(stream, [EVENTS]))
    given = [row for table in found.tables() for row in table.to_pylist()]
    assert found.counts["op", "late"] == len(LATE)
    (late,) = drive(stream.late, sources(stream, [EVENTS]))
    assert [(row["k"], row["timestamp"]) for row in late] == [(k, t) for k, t, _ in LATE]
    assert [f"is below the bound {b}" in row["reason"] for row, (_, _, b) in zip(late, LATE, strict=True)] == [True] * 5
    if operator in ("distinct", "accumulate", "limit_in_flight"):
        assert [(row["k"], row["t"]) for row in given] == [("a", 1), ("b", 7), ("a", 20), ("b", 29)]
    if operator == "accumulate":
        assert [row["n"] for row in given] == [1, 1, 2, 2]


@pytest.mark.parametrize("operator", OPERATORS)
def test_late_rows_of_every_operator_look_alike(operator: str) -> None:
    first = late_of(operator, [EVENTS])[0]
    assert list(first)[:4] == ["k", "timestamp", "input", "reason"]
    of_input = "main" if operator == "merge" else "rows"
    assert (first["input"], first[of_input]) == (of_input, row("a", 7))


@pytest.mark.parametrize("operator", OPERATORS)
def test_who_is_late_does_not_depend_on_the_cut_into_epochs_nor_on_buckets(operator: str) -> None:
    chance = random.Random(operator)
    for _ in range(6):
        late = late_of(operator, cut(chance), chance.randint(1, 3))
        assert sorted((row["k"], row["timestamp"]) for row in late) == sorted((k, t) for k, t, _ in LATE)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_row_behind_the_end_of_its_input_is_late(operator: str) -> None:
    (late,) = late_of(operator, [[row("a", 1)], [close()], [row("a", 5)]])
    assert late["reason"] == "timestamp 5: the input has ended"


def test_bounds_that_one_for_all_keys_has_overtaken_are_forgotten() -> None:
    for operator in ("distinct", "accumulate", "limit_in_flight"):
        told = [bound(t, {"k": k}) for t, k in ((10, "a"), (20, "b"), (30, "c"))]
        stream = OPERATORS[operator]()
        found = Drive(stream, {"rows": [[*told, row("d", 1)], [bound(20)]]})
        found.tables()
        kept = decode(found.states["op"][0])["bounds"].to_pylist()
        assert sorted((row["k"] or "", row["__bound__"]) for row in kept) == [("", 20), ("c", 30)]


def test_a_forgotten_key_is_no_longer_held_to_its_bound() -> None:
    stream = rows() | hf.limit_in_flight(FAR, by="k", timeout=FAR, forget_after="1 s", name="op")
    epochs: list[Any] = [[bound(10, {"k": "a"}), row("a", 11)], [row("a", 5)], [row("b", 1)], [row("a", 5)]]
    found = Drive(stream, {"rows": epochs}, batch_times=[0, 1, 2, 2_000_000])
    assert [[row["t"] for row in table.to_pylist()] for table in found.tables()] == [[11], [], [1], [5]]


def test_a_late_row_moves_no_bound() -> None:
    """Of ``distinct``: the newest timestamp of the input would, if the row had been in time."""
    stream = rows() | hf.distinct(by="k", horizon=1, disorder=5, name="op")
    found = Drive(stream, {"rows": [[row("b", 10), bound(100, {"k": "a"}), row("a", 90), row("b", 20)]]})
    assert [row["t"] for table in found.tables() for row in table.to_pylist()] == [10, 20]


def test_without_a_timestamp_nothing_is_late() -> None:
    stream = hf.read.rows([], schema=SCHEMA, name="rows") | hf.accumulate(by="k", n=hf.count(), name="op")
    with pytest.raises(hf.InvalidPipeline, match="'op' has no late rows"):
        _ = stream.late
