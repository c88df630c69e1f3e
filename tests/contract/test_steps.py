"""Every step keeps the contract of steps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.flow import Graph, node
from holdfast.operators.aggregate import aggregates, window
from holdfast.operators.aggregate.accumulate import accumulate
from holdfast.operators.aggregate.hyperloglog import approx_count_distinct
from holdfast.operators.aggregate.over import over
from holdfast.operators.aggregate.spec import aggregate
from holdfast.operators.aggregate.top import top
from holdfast.operators.flow.spec import flow
from holdfast.operators.join.spec import HOWS, join
from holdfast.operators.lookup.as_of import table
from holdfast.operators.lookup.look_up import lookup
from holdfast.operators.stateful.apply import apply
from holdfast.operators.stateful.distinct import distinct
from holdfast.operators.stateful.limit_in_flight import limit_in_flight
from holdfast.operators.stateful.merge import merge
from holdfast.operators.stateful.spec import stateful
from holdfast.operators.sync import policy
from holdfast.operators.sync.spec import sync
from holdfast.state.step import Arrivals, Change, Result, StateTable, StepTime
from holdfast.testing import step_contract
from holdfast.testing.given import Bound
from holdfast.testing.step_contract import StepCase
from tests.calculators import Batched, Both, Total
from tests.sim.operator_makers import calculators
from tests.unit.operators.test_custom_policy import bursts, quorum

SCHEMA = "k STRING, t BIGINT, v BIGINT"
ARROW = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])


def source(name="s"):
    return hf.read.rows([], schema=SCHEMA, timestamp="t", name=name)


def step_of(stream):
    spec = stream.node.spec
    return spec.step(dict.fromkeys(spec.input_names, ARROW))


def events_for(*inputs, disorder=0):
    """Return a function that gives rows of ascending time on each input, with bounds between and a close at the end."""

    def events(rng, count, keys):
        made: list[Any] = []
        for number in range(count):
            row = {"k": f"k{rng.randrange(keys)}", "t": number // 2 + rng.randint(0, disorder), "v": number}
            made.append((rng.choice(inputs), row))
            if rng.random() < 0.05:
                name = rng.choice(inputs)
                key = {"k": f"k{rng.randrange(keys)}"} if rng.random() < 0.5 else None
                made.append((name, Bound(number // 2, key)))
        return made

    return events


def with_flag(events, column):
    """Return the same events, whose rows have a Boolean column besides: that of a condition."""

    def more(rng, count, keys):
        made = events(rng, count, keys)
        return [(name, row | {column: row["v"] % 3 > 0} if isinstance(row, dict) else row) for name, row in made]

    return more


def with_end(events):
    """Return the same events, whose column v is the end of a range that begins at the row's time."""

    def more(rng, count, keys):
        made = events(rng, count, keys)
        return [
            (name, row | {"v": row["t"] + row["v"] % 9 - 1} if isinstance(row, dict) else row) for name, row in made
        ]

    return more


def with_retractions(events, column):
    """Return the same events as changes: each row with a value of three's multiples is retracted again."""

    def more(rng, count, keys):
        made = [
            (name, row | {column: False} if isinstance(row, dict) else row) for name, row in events(rng, count, keys)
        ]
        gone = [(name, row | {column: True}) for name, row in made if isinstance(row, dict) and row["v"] % 3 == 0]
        return [*made, *gone]

    return more


def with_few_values(events):
    """Return the same events, whose column v has twenty values: distinct counts of it are combined."""

    def more(rng, count, keys):
        made = events(rng, count, keys)
        return [(name, row | {"v": row["v"] % 20} if isinstance(row, dict) else row) for name, row in made]

    return more


def of_many_keys(events):
    """Return the same events, of at most some fifty rows a key: each meets all others of its key."""
    return lambda rng, count, keys: events(rng, count, max(keys, count // 50))


def running(key, rows, state):
    for row in rows:
        state.set(n=state.get("n", 0) + row["v"])
        yield {"k": key, "n": state.get("n")}


def bounding(key, rows, state):
    state.bound(rows[-1]["t"] - 1)
    return rows


def quiet(key, rows, state):
    """Say when a key had no row for five ticks; what rows behind a timer do must not show when it fires."""
    for row in rows:
        state.timer(row["t"] + 5)
    if state.fired is not None:
        yield {"k": key, "t": state.fired.at}


def pairs():
    """Return a graph that keeps packets waiting, a batch that is not full, and a total."""
    graph = Graph("pairs")
    both = {"left": graph.input("a"), "right": graph.input("b")} | node(Both)
    graph.output("n", both | node(Batched) | node(Total))
    return graph


def newest(tables, rows, at):
    """Keep the newest row of each key, and give rows that are newer than those before."""
    known = {} if tables is None else {row["k"]: row for row in tables["newest"].to_pylist()}
    out, changed = [], {}
    for row in rows.to_pylist():
        if row["k"] not in known or known[row["k"]]["t"] < row["t"]:
            known[row["k"]] = changed[row["k"]] = row
            out.append(row)
    upserts = pa.Table.from_pylist(list(changed.values()), schema=ARROW)
    return {"newest": Change(upserts, None)}, pa.Table.from_pylist(out, schema=ARROW)


OF_VALUES: dict[str, Any] = {
    "rows": aggregates.count(), "total": aggregates.sum("v"), "mean": aggregates.mean("v"),
    "spread": aggregates.variance("v"), "first": aggregates.first("v"), "most": aggregates.max("v"),
    "median": aggregates.quantile("v", 0.5), "different": aggregates.distinct_count("v"),
    "all": aggregates.collect("v"), "latest": aggregates.max_by("v", "t"), "earliest": aggregates.min_by("v", "t"),
    "about": approx_count_distinct("v", relative_error=0.26),
}  # fmt: skip
OF_CHANGES = {name: OF_VALUES[name] for name in ("rows", "total", "mean", "most", "different")}
ORDERED = ("first", "all", "latest", "earliest")
BY_TIME: dict[str, Any] = {
    "tumbling": window.tumbling(10),
    "sliding": window.sliding(10, 4),
    "session": window.session(3),
}


def aggregations():
    """Return a case for each kind of window; a timer's output depends on batch time, which is the same here."""
    by_time = {name: (cut, {"disorder": 4}, 4) for name, cut in BY_TIME.items()}
    by_arrival = {"count_window": (window.count_window(3), {}, 0), "total": (window.total(), {}, 0)}
    by_arrival["timer"] = (window.timer("10 s", count_trigger=4), {}, 0)
    for name, (cut, options, disorder) in (by_time | by_arrival).items():
        step = step_of(source() | aggregate(by="k", window=cut, **options, **OF_VALUES))
        yield StepCase(f"aggregate {name}", step, events_for("rows", disorder=disorder))
    changes = aggregate(by="k", window=BY_TIME["tumbling"], emit="changes", **OF_VALUES)
    yield StepCase("aggregate changes", step_of(source() | changes), events_for("rows"), depends_on_cut=True)
    told = replace(changes.spec, delete="is_deleted", aggregates=tuple(OF_VALUES.items()))
    yield StepCase("aggregate retractions", step_of(source() | replace(changes, spec=told)), events_for("rows"),
                   depends_on_cut=True)  # fmt: skip
    taking = (source() | aggregate(by="k", window=window.total(), **OF_CHANGES)).node.spec
    step = replace(taking, retracted="gone").step({"rows": ARROW.append(pa.field("gone", pa.bool_()))})
    yield StepCase("aggregate over changes", step, with_retractions(events_for("rows"), "gone"))
    step = replace(step, on_change=True, delete="gone")
    yield StepCase("aggregate over changes, as changes", step, with_retractions(events_for("rows"), "gone"),
                   depends_on_cut=True)  # fmt: skip
    ranking: Any = top(source(), 3, by="k", order="v desc, t").node.spec
    ranking = replace(ranking, retracted="gone", delete="gone", ranking=replace(ranking.ranking, keeps_all=True))
    step = ranking.step({"rows": ARROW.append(pa.field("gone", pa.bool_()))})
    yield StepCase("aggregate top over changes", step, with_retractions(events_for("rows"), "gone"),
                   depends_on_cut=True)  # fmt: skip
    some = {name: replace(one, where="v % 3 > 0") for name, one in OF_VALUES.items()}
    condition = some["rows"].condition
    spec = (
        source() | aggregate(by="k", window=BY_TIME["tumbling"], disorder=4, **OF_VALUES, some=some["rows"])
    ).node.spec
    spec = replace(spec, aggregates=(*spec.aggregates[:1], *((f"{name}_of_some", one) for name, one in some.items())))
    step = spec.step({"rows": ARROW.append(pa.field(condition, pa.bool_()))})
    orderless = {name: one for name, one in OF_VALUES.items() if name not in ORDERED}
    of_some = {f"{name}_of_some": some[name] for name in orderless}
    for kind, emit in ((window.total(), "changes"), (window.total(), "settled"), (window.timer("10 s"), "settled")):
        combining = (source() | aggregate(by="k", window=kind, emit=emit, **orderless)).node.spec
        combining = replace(combining, aggregates=(*combining.aggregates, *of_some.items()))
        made = combining.step({"rows": ARROW.append(pa.field(condition, pa.bool_()))})
        yield StepCase(f"aggregate combined, {kind.kind}, {emit}", made,
                       with_few_values(with_flag(events_for("rows"), condition)), depends_on_cut=True)  # fmt: skip
    ranked = {"order": "v desc", "by": "k", "window": BY_TIME["tumbling"]}
    settled = step_of(top(source(), 3, **ranked, emit="settled", disorder=4))
    yield StepCase("aggregate top", settled, events_for("rows", disorder=4))
    ranks = step_of(top(source(), 3, **ranked))
    yield StepCase("aggregate top changes", ranks, events_for("rows"), depends_on_cut=True)
    yield StepCase("aggregate where", step, with_flag(events_for("rows", disorder=4), condition))
    last: dict[str, Any] = {"n": aggregates.count(), "total": aggregates.sum("v"), "most": aggregates.max_by("t", "v")}
    came, ordered = over(rows=3, by="k", **last), over(rows=3, by="k", order="v desc", disorder=4, **last)
    yield StepCase("over", step_of(source() | ordered), events_for("rows", disorder=4))
    yield StepCase("over as rows come", step_of(source() | came), events_for("rows"))
    yield StepCase("accumulate", step_of(source() | accumulate(by="k", n=aggregates.sum("v"))), events_for("rows"))


UNMATCHED = ["unmatched"]
CASES = [
    StepCase("distinct", step_of(source() | distinct("k", 3, disorder=4)), events_for("rows", disorder=4)),
    StepCase(
        "merge",
        step_of(merge(source("a"), {"x": source("b"), "y": source("c")}, by="k", disorder={"x": 2}, tolerance=20)),
        events_for("main", "x", "y", disorder=1),
    ),
    *(
        StepCase(
            f"join {how}",
            step_of(join(source("a"), source("b"), on="k", within=(-3, 9), how=how, disorder=2)).giving(["unmatched"]),
            events_for("left", "right", disorder=2),
        )
        for how in HOWS
    ),
    *(
        StepCase(
            f"join without a limit, {how}",
            step_of(join(source("a"), source("b"), on="k", how=how, disorder=2, forget_after=None)).giving(UNMATCHED),
            of_many_keys(events_for("left", "right", disorder=2)),
        )
        for how in ("inner", "full")
    ),
    *(
        StepCase(
            f"join by the row's range, {how}",
            step_of(join(source("a"), source("b"), on="k", how=how, disorder=2, within=("t", "v"))).giving(UNMATCHED),
            with_end(events_for("left", "right", disorder=2)),
        )
        for how in ("full", "semi")
    ),
    *(
        StepCase(
            f"join_changes {how}",
            replace(
                step_of(join(source("a"), source("b"), on="k", how=how, delete="is_deleted")),
                inputs=dict.fromkeys(("left", "right"), ARROW.append(pa.field("gone", pa.bool_()))),
                retracted=dict.fromkeys(("left", "right"), "gone"),
            ),
            with_retractions(of_many_keys(events_for("left", "right")), "gone"),
            depends_on_cut=True,
        )
        for how in HOWS
    ),
    StepCase(
        "lookup_as_of",
        step_of(lookup(source("a"), table(source("b"), key="k", disorder=4), on="k", disorder=4, columns={"w": "v"})),
        events_for("main", "table", disorder=4),
    ),
    StepCase(
        "limit_in_flight",
        step_of(source("a") | limit_in_flight(2, "k", done=source("b"), timeout=6)),
        events_for("rows", "done"),
    ),
    StepCase("apply", step_of(source() | apply(running, "k", state="n BIGINT", schema="k STRING, n BIGINT")),
             events_for("rows")),
    StepCase("apply with event timers",
             step_of(source() | apply(quiet, "k", state="last BIGINT", schema="k STRING, t BIGINT", timers="event")),
             events_for("rows")),
    StepCase("apply with timers of its own rows",
             step_of(source() | apply(quiet, "k", schema="k STRING, t BIGINT", timers=["event", "batch"], disorder=4,
                                      state="last BIGINT")),
             events_for("rows", disorder=3)),
    StepCase("flow", step_of(flow({"a": source("a"), "b": source("b")}, pairs(), by="k", inputs={"a": "v", "b": "v"},
             schema="n BIGINT", disorder=2)), events_for("a", "b", disorder=2)),
    StepCase("flow with a loop and a decoder", step_of(flow({"rows": source()}, calculators(), by="k",
             inputs={"rows": "v"}, outputs={"both": "n BIGINT", "odd": "n BIGINT"})["both"]), events_for("rows")),
    StepCase("stateful", step_of(source() | stateful(newest, "k", schema=SCHEMA, state={"newest": SCHEMA})),
             events_for("rows")),
    StepCase("apply with bounds", step_of(source() | apply(bounding, "k", schema=SCHEMA, timestamp="t",
             timestamp_offset=-1)), events_for("rows")),
    *aggregations(),
    StepCase("sync custom, by time", step_of(sync({"a": source("a"), "b": source("b")}, by="k", timestamps="ascending",
             policy=policy.custom(bursts, delay=6, many=True))), events_for("a", "b")),
    StepCase("sync custom, by arrival", step_of(sync({name: source(name) for name in "abc"}, by="k",
             timestamps="ascending", policy=policy.custom(quorum, many=True))), events_for("a", "b", "c"),
             depends_on_cut=True),
]  # fmt: skip


ALIKE = {
    "aggregate sliding", "aggregate session", "aggregate count_window", "join left", "join right", "join semi",
    "join without a limit, inner", "join by the row's range, semi", "lookup_as_of", "apply with event timers",
}  # fmt: skip
"""Like another in most (tumbling windows, other joins, merge, all timers): at night."""
EVERYDAY = [case for case in CASES if case.name not in ALIKE]

LARGE = (step_contract.check_one_huge_key, step_contract.check_many_keys)
"""What takes many rows: at night."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=[pytest.mark.nightly] * (check in LARGE)) for check in step_contract.CHECKS],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("case", EVERYDAY, ids=lambda case: case.name)
def test_a_step_keeps_the_contract(case, check):
    check(case)


@pytest.mark.nightly
@pytest.mark.parametrize("check", step_contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", [case for case in CASES if case.name in ALIKE], ids=lambda case: case.name)
def test_so_does_one_that_is_like_another_in_most(case, check):
    check(case)


class Broken:
    """Passes rows on; breaks the contract in one way."""

    key = pa.schema([("k", pa.string())])
    inputs = {"rows": ARROW}  # noqa: RUF012
    outputs = {"rows": ARROW}  # noqa: RUF012
    tables = {"seen": StateTable(ARROW, ("k",))}  # noqa: RUF012

    def __init__(self, way):
        self.way = way

    def apply(self, state, arrivals, at):
        given: Arrivals = arrivals["rows"]
        rows = given.rows.drop_columns(["__place__"])
        nothing = pa.schema([ARROW.field("k")]).empty_table()
        if self.way == "random":
            rows = rows.take(pa.array(random.sample(range(rows.num_rows), rows.num_rows), pa.int64()))
        if self.way == "last of the epoch":
            rows = rows.slice(max(0, rows.num_rows - 1))
        if self.way == "order of state":
            rows = pa.concat_tables([state["seen"].slice(0, min(1, rows.num_rows)), rows])
        if self.way == "empty":
            rows = rows if rows.num_rows else pa.table({"k": ["x"], "t": [1], "v": [1]})
        changes = {"seen": Change(rows, nothing)}
        if self.way == "all of the state":
            changes = {"seen": Change(pa.concat_tables([state["seen"], rows]), nothing)}
        if self.way == "order of state":
            last = rows.slice(max(0, rows.num_rows - 5))
            changes = {"seen": Change(last, nothing)}
        return Result({"rows": rows}, changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "check", "says"),
    [
        ("random", step_contract.check_replay, "a replay gives other bytes"),
        ("order of state", step_contract.check_replay, "depends on the order of the state's rows"),
        ("last of the epoch", step_contract.check_cuts, "gives? other rows"),
        ("twice", step_contract.check_serialisation, "holds a key twice"),
        ("empty", step_contract.check_empty_epochs, "an empty epoch gives rows"),
        ("last of the epoch", step_contract.check_one_huge_key, "other rows in two epochs"),
        ("all of the state", step_contract.check_many_keys, "rows of state"),
    ],
)
def test_a_step_that_breaks_it_is_found(way, check, says):
    with pytest.raises(AssertionError, match=says):
        check(StepCase("broken", Broken(way), events_for("rows")))


def test_the_batch_time_is_the_same_however_epochs_are_cut():
    seen = set()

    class Watching(Broken):
        def apply(self, state, arrivals, at: StepTime):
            seen.add(at.batch_us)
            return Result()

    step_contract.check_cuts(StepCase("watching", Watching(""), events_for("rows")))
    assert seen == {0}
