"""Every kind of operator with side outputs, what its sources give, and every way to read a side output."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.testing.simulation.levels import Event

FAR = 10**6
"""Disorder that nothing exceeds: what is read of a side output does not depend on the order of its rows."""

MARKED = "k STRING, t BIGINT, v BIGINT, is_bound BOOLEAN"


def source(name: str) -> Stream:
    return hf.read.rows([], schema=MARKED, timestamp="t", name=name, bounded=True, bounds="is_bound")


def _sync(policy: Any = None, timestamps: str = "ascending") -> Stream:
    inputs = {"rows": source("rows"), "other": source("other")}
    return hf.sync(inputs, by="k", policy=policy, timestamps=timestamps, name="op")


OPERATORS: Mapping[str, Callable[[], Stream]] = {
    "sync": _sync,
    "sync strict": lambda: _sync(timestamps="strict"),
    "sync within": lambda: _sync(hf.policy.within(2)),
    "sync barrier": lambda: _sync(hf.policy.barrier()),
    "merge": lambda: hf.merge(source("rows"), {"other": source("other")}, by="k", tolerance=3, name="op"),
    "join": lambda: hf.join(source("rows"), source("other"), on="k", within=3, how="full", disorder=FAR, name="op"),
    "aggregate": lambda: source("rows") | hf.aggregate(by="k", window=hf.tumbling(4), n=hf.count(), name="op"),
    "distinct": lambda: source("rows") | hf.distinct(by="k", horizon=1, disorder=FAR, name="op"),
    "accumulate": lambda: source("rows") | hf.accumulate(by="k", n=hf.count(), name="op"),
    "over": lambda: source("rows") | hf.over(rows=2, by="k", n=hf.count(), name="op"),
    "limit_in_flight": lambda: source("rows") | hf.limit_in_flight(1, by="k", timeout=3, name="op"),
}

SIDES = {
    **dict.fromkeys(("sync", "sync strict", "sync within", "sync barrier", "merge"), ("late", "unmatched")),
    "join": ("unmatched",),  # which rows are late that break the promise may depend on the number of buckets
    **dict.fromkeys(("aggregate", "distinct", "accumulate", "over"), ("late",)),
    "limit_in_flight": ("late", "shed"),
}

CASES = [(operator, side) for operator, sides in SIDES.items() for side in sides]


def side_of(stream: Stream, side: str) -> Stream:
    return getattr(stream, side)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    twice = pc.multiply(batch.column("at"), 2)
    return pa.RecordBatch.from_arrays([*batch.columns, twice], names=["k", "at", "twice"])


def _short(stream: Stream, name: str) -> Stream:
    return stream | hf.select("k", at=str(stream.timestamp), name=name)


READINGS: Mapping[str, Callable[[Stream, Stream], Stream]] = {
    "written": lambda main, side: side,
    "filter": lambda main, side: side | hf.filter("k <> 'c'", name="some"),
    "select": lambda main, side: _short(side, "short"),
    "map_batches": lambda main, side: (
        _short(side, "given") | hf.map_batches(doubled, schema="k STRING, at BIGINT, twice BIGINT", name="called")
    ),
    "union": lambda main, side: hf.union(_short(main, "one"), _short(side, "two"), name="both"),
    "aggregate": lambda main, side: (
        side | hf.aggregate(by="k", window=hf.tumbling(4), disorder=FAR, n=hf.count(), name="counted")
    ),
    "sync": lambda main, side: hf.sync(
        {"main": main, "side": side}, by="k", timestamps="ascending", disorder=FAR, name="aligned"
    ),
    "merge": lambda main, side: hf.merge(
        side, {"main_": main}, by="k", timestamps="ascending", disorder={"main": FAR, "main_": FAR}, name="seen"
    ),
    # A row's number is its place in the order, and no disorder is allowed for.
    "accumulate": lambda main, side: side | hf.accumulate(by="k", n=hf.count(), name="numbered"),
}


@dataclass(frozen=True)
class Reading:
    """A graph in which one side output is read in every way, each with a sink."""

    operator: str
    side: str

    def pipeline(self, name: str) -> hf.Pipeline:
        main = OPERATORS[self.operator]()
        side = side_of(main, self.side)
        sinks = [
            read(main, side) | hf.write.console(name=way) for way, read in READINGS.items() if self.is_possible(way)
        ]
        return hf.Pipeline(name, main | hf.write.console(name="main"), *sinks)

    def is_possible(self, way: str) -> bool:
        """Tell whether it makes sense.

        ``merge`` puts columns beside those of the side output, which has some; rows have numbers where their order is
        certain.
        """
        if way == "accumulate":
            spec: Any = side_of(OPERATORS[self.operator](), self.side).node.spec
            return bool(spec.rows.keeps_bounds)
        return way != "merge" or self.side != "shed"


def events(seed: int) -> list[Event]:
    """Return the rows of two sources of unlike pace, some of them late; the first one ends long before the other."""
    chance = random.Random(f"{seed} sides")
    lines: dict[str, list[Event]] = {}
    for name, steps, count in (("rows", (0, 1, 1, 2), 22), ("other", (1, 3), 14)):
        at = dict.fromkeys("abc", chance.randint(0, 3))
        lines[name] = []
        for number in range(count):
            key = chance.choice("abc")
            at[key] += chance.choice(steps)
            back = chance.randint(4, 7) if chance.random() < 0.25 else 0
            lines[name].append((name, {"k": key, "t": at[key] - back, "v": number, "is_bound": False}))
            if chance.random() < 0.3:
                key = chance.choice("abc")
                lines[name].append((name, {"k": key, "t": at[key], "v": None, "is_bound": True}))
        lines[name].append((name, None))
    other = lines["other"]
    first = [other.pop(0) for _ in range(len(other) // 2)]
    found: list[Event] = []
    left = [lines["rows"], first]
    while any(left):
        found.append(chance.choice([line for line in left if line]).pop(0))
    return found + other
