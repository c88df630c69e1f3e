"""Rows within the disorder of their own partition are never late, however partitions are read (design/0007, section 2).

A topic of orders is keyed by order, so the orders of one courier lie in several partitions.  A catch-up reads many
messages of one partition before it comes to the next; a run that keeps pace reads a few of each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.reading.bounds import OffsetRange, PartitionBounds, PartitionTimes
from holdfast.testing import bound, close, drive

Row = dict[str, Any]
DISORDER = 25
PARTITIONS = 3
COLUMNS = "id BIGINT, courier STRING, at BIGINT"


def orders(name: str = "orders") -> hf.Stream:
    return hf.read.kafka("h:9092", name, schema=COLUMNS, timestamp="at", disorder=DISORDER, name=name)


def positions() -> hf.Stream:
    return hf.read.rows([], schema="courier STRING, at BIGINT, place BIGINT", timestamp="at", name="positions")


def counting(courier: str, rows: Any, state: hf.KeyState) -> Iterator[Row]:
    """Count the orders of each span of ten ticks; a timer says that the span is over."""
    counts = {span: state.get(f"s{span}", 0) for span in range(0, 80, 10)}
    for row in rows:
        counts[row["at"] // 10 * 10] += 1
        state.timer(row["at"] // 10 * 10 + 10)
    for span, count in counts.items():
        state.set(**{f"s{span}": count})
    if state.fired is not None:
        yield {"courier": courier, "at": state.fired.at, "n": counts[state.fired.at - 10]}


OPERATORS: dict[str, Callable[[], hf.Stream]] = {
    "sync": lambda: hf.sync({"orders": orders(), "positions": positions()}, by="courier", disorder=5, name="op"),
    "merge": lambda: hf.merge(orders(), {"where": positions()}, by="courier", name="op"),
    "merge with its own disorder": lambda: hf.merge(
        orders(), {"where": positions()}, by="courier", disorder={"main": 5}, name="op"
    ),
    "aggregate": lambda: orders() | hf.aggregate(by="courier", window=hf.tumbling(10), n=hf.count(), name="op"),
    "over": lambda: orders() | hf.over(rows=3, by="courier", order="id", n=hf.sum("id"), name="op"),
    "distinct": lambda: orders() | hf.distinct(by="id", horizon=1, disorder=5, name="op"),
    "accumulate": lambda: orders() | hf.accumulate(by="courier", n=hf.count(), name="op"),
    "limit_in_flight": lambda: orders() | hf.limit_in_flight(1000, by="courier", timeout=1000, name="op"),
    "join": lambda: hf.join(orders(), positions(), on="courier", within=5, disorder=0, name="op"),
    "lookup": lambda: hf.lookup(
        orders(), hf.table(positions(), key="courier", disorder=0), on="courier", disorder=0, name="op"
    ),
    "apply": lambda: (
        orders()
        | hf.apply(
            counting,
            by="courier",
            schema="courier STRING, at BIGINT, n BIGINT",
            state=", ".join(f"s{span} BIGINT" for span in range(0, 80, 10)),
            timers="event",
            disorder=5,
            name="op",
        )
    ),
    "sync of sets": lambda: hf.sync(
        {"orders": orders(), "positions": positions()},
        by="courier",
        policy=hf.policy.within(base="orders", tolerance=2),
        disorder=DISORDER,
        name="op",
    ),
    "aggregate behind distinct": lambda: (
        orders()
        | hf.distinct(by="id", horizon=1, disorder=5, name="once")
        | hf.aggregate(by="courier", window=hf.tumbling(10), n=hf.count(), name="op")
    ),
    "merge behind accumulate": lambda: hf.merge(
        orders() | hf.accumulate(by="id", n=hf.count(), name="counted"),
        {"where": positions()},
        by="courier",
        name="op",
    ),
}


def topic(seed: int) -> list[list[Row]]:
    """Return what each partition holds: the orders of a minute, up to the disorder below those before them."""
    luck = random.Random(seed)
    rows = [{"id": at, "courier": luck.choice("abc"), "at": at} for at in range(72)]
    held: list[list[Row]] = [[] for _ in range(PARTITIONS)]
    for row in rows:
        held[luck.randrange(PARTITIONS)].append(row)
    return [sorted(part, key=lambda row: row["at"] + luck.randint(0, DISORDER)) for part in held]


def one_after_the_other(held: Sequence[Sequence[Row]]) -> Iterator[list[int]]:
    """Yield the positions after each epoch of a catch-up that finishes a partition before it begins the next."""
    at = [0] * len(held)
    for part, rows in enumerate(held):
        for _ in range(0, len(rows), 9):
            at[part] = min(len(rows), at[part] + 9)
            yield list(at)


def side_by_side(held: Sequence[Sequence[Row]]) -> Iterator[list[int]]:
    """Yield the positions after each epoch of a run that takes some of every partition."""
    for until in range(0, max(map(len, held)) + 4, 4):
        yield [min(len(rows), until) for rows in held]


def uneven(held: Sequence[Sequence[Row]]) -> Iterator[list[int]]:
    """Yield the positions after each epoch where one partition is read twice as fast as another."""
    for until in range(0, max(map(len, held)) + 3, 3):
        yield [min(len(rows), until * (part + 1)) for part, rows in enumerate(held)]


def everything(held: Sequence[Sequence[Row]]) -> Iterator[list[int]]:
    """Yield the positions after one epoch."""
    yield [len(rows) for rows in held]


def read(held: Sequence[Sequence[Row]], ways: Iterator[list[int]]) -> list[list[Any]]:
    """Return the epochs of a topic: rows, partition by partition, and the bound that the source gives after them."""

    def latest(ranges: Collection[OffsetRange]) -> dict[str, int]:
        times = {each.segment: held[int(each.segment)][each.first : each.last] for each in ranges}
        return {segment: max(row["at"] for row in rows) for segment, rows in times.items()}

    bounds = PartitionBounds(PartitionTimes(DISORDER, None), latest)
    ends = {str(part): len(rows) for part, rows in enumerate(held)}
    before, epochs, known = [0] * len(held), [], None
    for after in ways:
        rows = [row for part, of in enumerate(held) for row in of[before[part] : after[part]]]
        found = bounds.after({str(part): at for part, at in enumerate(after) if at}, ends, {}, 0)
        rises = found is not None and (known is None or found > known)
        epochs.append([*rows, bound(found)] if rises and found is not None else list(rows))
        known, before = found if rises else known, after
    return [*epochs, [close()]]


def sources(stream: hf.Stream, epochs: list[list[Any]]) -> dict[str, list[list[Any]]]:
    names, waiting = set(), [stream.node]
    while waiting:
        node = waiting.pop()
        waiting += node.inputs
        names |= {node.name} if node.is_source else set()
    where = [{"courier": of, "at": at, "place": at} for at in range(0, 72, 3) for of in "abc"]
    return {"orders": epochs} | ({"positions": [where, [close()]]} if "positions" in names else {})


WAYS = {one_after_the_other: 1, side_by_side: 3, uneven: 2, everything: 3}
"""How a topic is read -> into how many buckets keys are divided."""


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_no_row_within_the_disorder_of_its_partition_is_late(operator: str) -> None:
    found = []
    for way, buckets in WAYS.items():
        epochs, stream = read(topic(1), way(topic(1))), OPERATORS[operator]()
        if operator != "apply":
            late = drive(stream.late, sources(stream, epochs), buckets=buckets)
            assert not any(late), (way.__name__, late)
        out = [row for epoch in drive(stream, sources(stream, epochs), buckets=buckets) for row in epoch]
        found.append(sorted(out, key=repr))
    assert found[0]
    if "accumulate" not in operator:  # its numbers go by arrival
        assert all(rows == found[0] for rows in found)
