"""A graph for each operator that keeps state, whose mappings, lists of columns and NOT NULLs a test chooses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.operators.sync.policy import FixedSize, TimestampAlign
from holdfast.state.step import Change
from holdfast.testing.simulation.levels import Event, StatefulWorkload
from holdfast.testing.simulation.process import Process

COLUMNS = ("k STRING", "j STRING", "t BIGINT", "x BIGINT", "y BIGINT")
MEMBERS = ("a: BIGINT", "b: BIGINT")


class Order:
    """In which order a graph names things, turned around where it is asked to be; and what it says is NOT NULL.

    Parameters
    ----------
    turned : frozenset of str
        Places.
    required : frozenset of (str, str)
        Source, and column or member of a column that is NOT NULL there.
    """

    def __init__(
        self, turned: frozenset[str] = frozenset(), required: frozenset[tuple[str, str]] = frozenset()
    ) -> None:
        self.turned = turned
        self.required = required
        self.places: list[str] = []

    def of(self, place: str, *items: Any) -> list[Any]:
        """Return items of a place in a graph."""
        self.places.append(place)
        return list(reversed(items)) if place in self.turned else list(items)

    def named(self, place: str, **items: Any) -> dict[str, Any]:
        """Return a mapping."""
        return dict(self.of(place, *items.items()))

    def declared(self, source: str, column: str) -> str:
        """Return a column as a source declares it."""
        return f"{column} NOT NULL" if (source, column.partition(" ")[0].rstrip(":")) in self.required else column


def source(order: Order, name: str = "s", place: str = "") -> Stream:
    members = (order.declared(name, member) for member in order.of(f"part of {place or name}", *MEMBERS))
    columns = order.of(f"columns of {place or name}", *COLUMNS, f"part STRUCT<{', '.join(members)}>")
    columns = [order.declared(name, column) for column in columns]
    return hf.read.rows([], schema=", ".join(columns), timestamp="t", bounded=True, name=name)


def chosen(order: Order, name: str = "s") -> Stream:
    items = order.named(f"select of {name}", x="x", y="y", part="part")
    return source(order, name) | hf.select("k", "j", "t", **items, name=f"chosen_{name}")


AGGREGATES = {
    "a": hf.sum("x"), "b": hf.sum("y"), "n": hf.count(), "first": hf.first("x"), "last": hf.last("y"),
    "least": hf.min("x"), "most": hf.max("y"), "mean": hf.mean("x"), "spread": hf.variance("y"),
    "median": hf.quantile("x", 0.5), "all": hf.collect("x"), "some": hf.collect("y"),
    "kinds": hf.distinct_count("y"), "others": hf.distinct_count("x"),
    "large": hf.sum("x", where="y > 3"), "small": hf.count(where="y <= 3"),
    "x_of_y": hf.max_by("x", "y"), "y_of_x": hf.min_by("y", "x"), "few": hf.distinct_count("x", where="y > 3"),
    "about": hf.approx_count_distinct("y"),
}  # fmt: skip


def reduced(order: Order) -> Stream:
    return source(order) | hf.reduce(by=order.of("by", "k", "j"), **order.named("aggregates", **AGGREGATES), name="op")


def aggregated(order: Order) -> Stream:
    by, aggregates = order.of("by", "k", "j"), order.named("aggregates", **AGGREGATES)
    return source(order) | hf.aggregate(by=by, window=hf.tumbling(20), disorder=50, **aggregates, name="op")


def accumulated(order: Order) -> Stream:
    aggregates = order.named("aggregates", a=hf.sum("x"), b=hf.sum("y"), c=hf.max("x"), d=hf.max("y"))
    return chosen(order) | hf.accumulate(by=order.of("by", "k", "j"), **aggregates, name="op")


def over_last(order: Order) -> Stream:
    aggregates = {name: one for name, one in AGGREGATES.items() if one.kind not in ("quantiles", "collect")}
    aggregates = {name: one for name, one in aggregates.items() if "distinct" not in one.kind}
    named = order.named("aggregates", **aggregates)
    return chosen(order) | hf.over(rows=3, by=order.of("by", "k", "j"), disorder=50, **named, name="op")


def united(order: Order) -> Stream:
    streams = order.of("inputs", source(order, "p", "both"), source(order, "q", "both"))
    both = hf.union(*streams, name="both")
    return both | hf.reduce(by="k", **order.named("aggregates", a=hf.sum("x"), b=hf.sum("y")), name="op")


def latest(order: Order) -> Stream:
    return hf.latest(chosen(order), by=order.of("by", "k", "j"), name="op")


def ranked(order: Order) -> Stream:
    return hf.top(chosen(order), 2, by=order.of("by", "k", "j"), order="y desc, x", name="op")


def combined(order: Order) -> Stream:
    streams = order.of("inputs", source(order, "p", "both"), source(order, "q", "both"))
    return hf.combine(*streams, by=order.of("by", "k", "j"), name="op")


def synchronised(policy: Any = None, stamps: str = "ascending", *, disorder: bool = True) -> Callable[[Order], Stream]:
    def build(order: Order) -> Stream:
        inputs = {"p": chosen(order, "p"), "q": chosen(order, "q")}
        if not isinstance(
            policy, FixedSize | TimestampAlign
        ):  # which are about arrival, and rows of an epoch arrive input by input
            inputs = order.named("inputs", **inputs)
        by = order.of("by", "k", "j")
        late: dict[str, Any] = {"disorder": 40} if disorder else {}
        return hf.sync(inputs, by=by, policy=policy, timestamps=stamps, name="op", **late)

    return build


def merged(order: Order) -> Stream:
    slow = order.named("slow", p=chosen(order, "p"), q=chosen(order, "q"))
    by, disorder = order.of("by", "k", "j"), order.named("disorder", main=40, p=30, q=20)
    return hf.merge(chosen(order), slow, by=by, disorder=disorder, name="op")


def joined(how: str) -> Callable[[Order], Stream]:
    def build(order: Order) -> Stream:
        on, disorder = order.of("on", "k", "j"), order.named("disorder", left=40, right=30)
        return hf.join(chosen(order, "p"), chosen(order, "q"), on=on, within=(-9, 9), how=how, disorder=disorder,
                       name="op")  # fmt: skip

    return build


def joined_changes(order: Order) -> Stream:
    left, right = (chosen(order, side) | hf.select("* except (part)", name=f"flat_{side}") for side in ("p", "q"))
    return hf.join(left, right, on=order.of("on", "k", "j"), how="full", delete="gone", name="op")


def looked_up(order: Order) -> Stream:
    columns = order.named("columns", seen="x", other="y", both="part")
    keys = order.of("on", "k", "j")  # of both, pair by pair
    table = hf.table(chosen(order, "q"), key=keys, disorder=30)
    return hf.lookup(chosen(order), table, on=keys, columns=columns, disorder=40, name="op")


def once(order: Order) -> Stream:
    return chosen(order) | hf.distinct(by=order.of("by", "k", "x"), horizon=30, disorder=40, name="op")


def limited(order: Order) -> Stream:
    return chosen(order) | hf.limit_in_flight(1, by=order.of("by", "k", "j"), timeout=15, name="op")


def summed(key: Any, rows: Sequence[Mapping[str, Any]], state: Any) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        state.set(a=state.get("a", 0) + row["x"], b=state.get("b", 0) + row["y"])
        state.timer(row["t"] + 15)
    if rows:
        yield {"a": state.get("a"), "b": state.get("b"), "t": rows[-1]["t"], "fired": ""}
    if state.fired is not None:
        yield {"a": state.get("a"), "b": state.get("b"), "t": state.fired.at, "fired": state.fired.clock}


def applied(order: Order) -> Stream:
    state = ", ".join(order.of("state", "a BIGINT", "b BIGINT"))
    schema = ", ".join(order.of("schema", "a BIGINT", "b BIGINT", "t BIGINT", "fired STRING"))
    by, timers = order.of("by", "k", "j"), order.of("timers", "event", "batch")
    return chosen(order) | hf.apply(
        summed, by, state=state, schema=schema, timers=timers, event_time="t", disorder=40, name="op"
    )


SEEN = pa.schema([("k", pa.string()), ("x", pa.int64()), ("y", pa.int64())])


def noted(tables: Any, rows: pa.Table, at: Any) -> Any:
    """Keep sums of each key in two tables of like columns, and give them back."""
    known = {} if tables is None else {row["k"]: row for row in tables["sums"].to_pylist()}
    counts = {} if tables is None else {row["k"]: row for row in tables["counts"].to_pylist()}
    out = []
    for row in rows.to_pylist():
        k, before = row["k"], known.get(row["k"], {"x": 0, "y": 0})
        known[k] = {"k": k, "x": before["x"] + row["x"], "y": before["y"] + row["y"]}
        counts[k] = {"k": k, "x": counts.get(k, {"x": 0})["x"] + 1, "y": 7}
        out.append({**known[k], "n": counts[k]["x"], "seven": counts[k]["y"]})
    changes = {
        "sums": Change(pa.Table.from_pylist(list(known.values()), schema=SEEN), None),
        "counts": Change(pa.Table.from_pylist(list(counts.values()), schema=SEEN), None),
    }
    return changes, pa.Table.from_pylist(out, schema=NOTED)


NOTED = pa.schema([*SEEN, ("n", pa.int64()), ("seven", pa.int64())])


def stepped(order: Order) -> Stream:
    tables = order.named("state", **{
        name: ", ".join(order.of(f"state {name}", "k STRING", "x BIGINT", "y BIGINT")) for name in ("sums", "counts")
    })  # fmt: skip
    schema = ", ".join(order.of("schema", "k STRING", "x BIGINT", "y BIGINT", "n BIGINT", "seven BIGINT"))
    return chosen(order) | hf.stateful(noted, "k", state=tables, schema=schema, name="op")


def gated(order: Order) -> Stream:
    """Return rows that wait for pts before the sink."""
    return chosen(order, "p")


OPERATORS: dict[str, Callable[[Order], Stream]] = {
    "reduce": reduced, "aggregate": aggregated, "accumulate": accumulated, "union": united, "latest": latest,
    "top": ranked, "over": over_last,
    "combine": combined, "merge": merged, "lookup": looked_up, "distinct": once, "limit_in_flight": limited,
    "apply": applied, "stateful": stepped, "gate": gated,
    "join changes": joined_changes,
    **{f"join {how}": joined(how) for how in ("inner", "full", "semi", "anti")},
    "sync": synchronised(), "sync strict": synchronised(stamps="strict"),
    "sync within": synchronised(hf.policy.within(5, base="p")),
    "sync groups": synchronised(hf.policy.sync_sets([["p"], ["q"]])),
    **{f"sync {policy.kind}": synchronised(policy, "strict", disorder=False) for policy in (
        hf.policy.barrier(), hf.policy.fixed_size(), hf.policy.timestamp_align("p"), hf.policy.early_close(),
    )},
}  # fmt: skip


def pipeline_of(build: Callable[[Order], Stream], order: Order) -> hf.Pipeline:
    """Return the graph of an operator, with a sink for each of its outputs."""
    stream = build(order)
    sinks = {"rows": stream, **{name: getattr(stream, name) for name in getattr(stream.node.spec, "side_outputs", ())}}
    listed = order.of("sinks", *(each | hf.write.memory(name) for name, each in sinks.items()))
    return hf.Pipeline("p", *listed, commit_at="pts" if build is gated else None)


def events_of(pipeline: hf.Pipeline, count: int = 40) -> list[Event]:
    """Return rows for all sources, a few of them late; those of two sources may have one time, but not one key then."""
    chance = random.Random("events")
    names = sorted(node.name for node in pipeline.sources)
    events: list[Event] = []
    for number in range(count):
        row = {
            "k": "ab"[number % 2], "j": chance.choice("cd"), "t": 4 * (number // 2) + chance.choice((0, 0, 0, -8)),
            "x": number, "y": 1000 + number, "part": {"a": number, "b": 2000 + number},
        }  # fmt: skip
        events.append((chance.choice(names), row))
    return [*events, *((name, None) for name in names)]


def places_of(build: Callable[[Order], Stream]) -> list[str]:
    """Return everything that can be turned around in the graph of an operator."""
    order = Order()
    pipeline_of(build, order)
    return order.places


def run(work: StatefulWorkload, shown: dict[str, list[Any]], start: int, end: int, rows_per_epoch: int) -> None:
    """Run the events from one to another in epochs of so many; add what sinks are given, with its epoch."""
    names = frozenset(sink.name for sink in work.pipeline.sinks)
    evaluation = work.evaluation(Process(), random.Random(0), start // rows_per_epoch)
    for first in range(start, end, rows_per_epoch):
        epoch = first // rows_per_epoch + 1
        for sink, table in evaluation.carry(epoch, first, min(end, first + rows_per_epoch), names).items():
            rows = table.drop_columns([name for name in table.column_names if name == "reason"]).to_pylist()
            shown.setdefault(sink, []).extend(repr((epoch, canonical(row))) for row in rows)


def canonical(value: Any) -> Any:
    """Return a value in which the order of names does not count."""
    if isinstance(value, dict):
        return sorted((name, canonical(of)) for name, of in value.items())
    return [canonical(of) for of in value] if isinstance(value, list) else value
