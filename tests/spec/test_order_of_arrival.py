"""The order of arrival, within what each input promises, changes no operator's output (design/0009, goals; 0007, 0008).

Varied at once: how the inputs interleave, how the keys of an input do, by how much rows of a key stand behind newer
ones (up to its ``disorder``, where the operator goes by event time), where epochs begin, how many buckets there are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.operators.aggregate.accumulate import accumulate
from holdfast.operators.aggregate.aggregates import count, max, sum
from holdfast.operators.aggregate.over import over
from holdfast.operators.aggregate.spec import aggregate, reduce
from holdfast.operators.aggregate.window import count_window, session, sliding, total, tumbling
from holdfast.operators.lookup.as_of import table
from holdfast.operators.lookup.look_up import lookup
from holdfast.operators.stateful.apply import apply
from holdfast.operators.stateful.distinct import distinct
from holdfast.operators.stateful.limit_in_flight import limit_in_flight
from holdfast.operators.stateful.merge import merge
from holdfast.operators.stateful.spec import stateful
from holdfast.operators.sync import policy
from holdfast.operators.sync.spec import sync
from holdfast.testing.drive import drive
from holdfast.testing.given import close

pytestmark = pytest.mark.slow

Row = dict[str, Any]
DISORDER = 6
FAR = 10**6


@dataclass(frozen=True)
class Case:
    """An operator on one or two sources.

    Parameters
    ----------
    name : str
        For messages.
    build : callable
        Puts the operator behind the sources ``s0`` and ``s1`` (or the first alone).
    disorder : int
        How far rows of a key may stand behind newer ones.  0 where the order within a key counts.
    upsert : tuple of str
        The columns by which rows replace earlier ones; without any, all rows count.
    inputs : int
        How many sources there are.
    """

    name: str
    build: Callable[..., Stream]
    disorder: int = DISORDER
    upsert: tuple[str, ...] = ()
    inputs: int = 1


def _growth(key: Any, rows: Sequence[Mapping[str, Any]], state: Any) -> list[Row]:
    made = []
    for row in rows:
        made.append({"k": row["k"], "t": row["t"], "v": row["v"] - (state.get("last") or 0)})
        state.set(last=row["v"])
    return made


def _seen(tables: Any, rows: Any, at: Any) -> Any:
    known = {} if tables is None else {row["k"]: row["n"] for row in tables["seen"].to_pylist()}
    made = []
    for row in rows.to_pylist():
        known[row["k"]] = known.get(row["k"], 0) + 1
        made.append({"k": row["k"], "t": row["t"], "n": known[row["k"]]})
    table = pl.DataFrame([{"k": key, "n": n} for key, n in known.items()], schema={"k": pl.String, "n": pl.Int64})
    return {"seen": table}, pl.DataFrame(made, schema={"k": pl.String, "t": pl.Int64, "n": pl.Int64})


def _windows(window: Any, emit: str = "settled", upsert: tuple[str, ...] = (), disorder: int = DISORDER) -> Case:
    def build(rows: Stream) -> Stream:
        return rows | aggregate(
            by="k", window=window, emit=emit, disorder=disorder or None, n=count(), sum_v=sum("v"), top=max("v"),
            name="windows",
        )  # fmt: skip

    return Case(f"aggregate-{type(window).__name__}-{emit}", build, disorder, upsert)


def _synced(name: str, chosen: Any) -> Case:
    def build(a: Stream, b: Stream) -> Stream:
        return sync({"a": a, "b": b}, by="k", policy=chosen, disorder=DISORDER, name="synced")

    return Case(f"sync-{name}", build, inputs=2)


CASES = (
    _synced("settled", policy.settled()),
    _synced("sync_sets", policy.sync_sets([["a"], ["b"]])),
    _synced("within", policy.within(3)),
    Case(
        "merge",
        lambda a, b: merge(a, {"m": b}, by="k", tolerance=9, disorder=DISORDER, name="merged"),
        inputs=2,
    ),
    Case(
        "lookup as of",
        lambda a, b: lookup(a, table(b, key="k", disorder=FAR), on="k", disorder=FAR, columns={"w": "v"}, name="known"),
        inputs=2,
    ),
    _windows(tumbling(5)),
    _windows(tumbling(5), "changes", ("k", "window_start")),
    _windows(sliding(6, every=2)),
    _windows(session(3)),
    _windows(total(), disorder=0),
    _windows(count_window(3), disorder=0),
    Case("reduce", lambda rows: rows | reduce(by="k", n=count(), top=max("v"), name="reduced"), FAR, ("k",)),
    Case("accumulate", lambda rows: rows | accumulate(by="k", n=count(), sum_v=sum("v"), name="running"), 0),
    Case("over", lambda rows: rows | over(rows=3, by="k", order="v", n=sum("v"), disorder=DISORDER, name="over")),
    Case("distinct", lambda rows: rows | distinct(by="k", horizon=4, disorder=FAR, name="once"), 0),
    Case("limit_in_flight", lambda rows: rows | limit_in_flight(2, by="k", timeout=5, name="entry"), 0),
    Case(
        "apply",
        lambda rows: rows | apply(_growth, by="k", schema="k STRING, t BIGINT, v BIGINT", state="last BIGINT"),
        0,
    ),
    Case(
        "stateful",
        lambda rows: (
            rows | stateful(_seen, "k", schema="k STRING, t BIGINT, n BIGINT", state={"seen": "k STRING, n BIGINT"})
        ),
        0,
    ),
)


def rows_of(chance: random.Random, source: int) -> dict[str, list[Row]]:
    """Return each key's rows, ascending, with gaps and no time twice."""
    found = {}
    for key in "abc":
        at = chance.randint(0, 4)
        found[key] = [
            {"k": key, "t": (at := at + chance.choice((1, 1, 2, 3, 8))), "v": chance.randint(0, 99) + 100 * source}
            for _ in range(chance.randint(0, 6))
        ]
    return found


def arrival(
    chance: random.Random, inputs: Mapping[str, Mapping[str, Sequence[Row]]], disorder: int
) -> dict[str, list[list[Any]]]:
    """Return all rows in some order that the inputs may promise, in some epochs, each input with its end."""
    lines = []
    for name, keys in inputs.items():
        waiting = [sorted(rows, key=lambda row: row["t"] + chance.randint(0, disorder)) for rows in keys.values()]
        lines.append([*((name, row) for row in merged(chance, waiting)), (name, close())])
    events = merged(chance, lines)
    borders = sorted(chance.randint(0, len(events)) for _ in range(chance.randint(0, 5)))
    epochs = [events[start:end] for start, end in pairwise([0, *borders, len(events)])]
    return {name: [[item for of, item in epoch if of == name] for epoch in epochs] for name in inputs}


def merged(chance: random.Random, lines: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the items of all lines; each line keeps its order."""
    left = [list(line) for line in lines]
    found = []
    while any(left):
        found.append(chance.choice([line for line in left if line]).pop(0))
    return found


def shown(case: Case, rows: Sequence[Row]) -> Any:
    """Return the output as far as it must be the same: the rows of each key in their order; upserts as a table."""
    if case.upsert:
        return {tuple(row[name] for name in case.upsert): row for row in rows}
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row["k"], []).append(row)
    if case.name == "sync-sync_sets":  # only within each group
        return {key: sorted(map(repr, of)) for key, of in by_key.items()}
    return by_key


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=8)
@given(chance=st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(case: Case, chance: random.Random) -> None:
    names = [f"s{number}" for number in range(case.inputs)]
    sources = [
        hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name=name, bounded=True)
        for name in names
    ]
    stream = case.build(*sources)
    inputs = {name: rows_of(chance, number) for number, name in enumerate(names)}
    found = []
    for buckets in (1, chance.randint(1, 3)):
        epochs = drive(stream, arrival(chance, inputs, case.disorder), buckets=buckets)
        found.append(shown(case, [row for epoch in epochs for row in epoch]))
    assert found[0] == found[1]
    assert not any(rows for keys in inputs.values() for rows in keys.values()) or case.inputs == 2 or found[0]


def test_more_disorder_than_was_promised_does_change_something() -> None:
    """Else the test above could not fail."""
    chance = random.Random(1)
    case = next(case for case in CASES if case.name == "aggregate-Tumbling-settled")
    stream = case.build(hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name="s0", bounded=True))
    inputs = {"s0": rows_of(chance, 0)}
    outputs = []
    for disorder in (0, 4 * DISORDER):
        epochs = drive(stream, arrival(chance, inputs, disorder))
        outputs.append(shown(case, [row for epoch in epochs for row in epoch]))
    assert outputs[0] != outputs[1]
