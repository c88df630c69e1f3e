"""What an epoch compares follows from the keys that it touches and not from those that the state holds.

Counted in rows, not measured in time: every row of the state gets a cheap look (:mod:`holdfast.state.key_filter`),
and only candidates are compared.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.operators.sync import forget
from holdfast.operators.sync.step import SyncStep
from holdfast.state import joins, key_filter, tables
from holdfast.state.step import PLACE, Arrivals, Step, StepTime

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
TOUCHED = 100


def rows(name: str) -> hf.Stream:
    return hf.read.rows([], schema="k BIGINT, t BIGINT, v BIGINT", timestamp="t", name=name)


STREAMS: dict[str, Callable[[], hf.Stream]] = {
    "merge": lambda: hf.merge(rows("a"), {"x": rows("b")}, by="k", name="op"),
    "limit_in_flight": lambda: rows("a") | hf.limit_in_flight(2, by="k", timeout=5, name="op"),
    "limit_in_flight by done": lambda: rows("a") | hf.limit_in_flight(2, by="k", done=rows("b"), name="op"),
    "distinct": lambda: rows("a") | hf.distinct(by="k", horizon=1000, name="op"),
    "over": lambda: rows("a") | hf.over(rows=2, by="k", total=hf.sum("v"), name="op"),
    "accumulate": lambda: rows("a") | hf.accumulate(by="k", n=hf.count(), name="op"),
}


def arrivals(step: Step, keys: np.ndarray[Any, np.dtype[np.int64]], time: int) -> dict[str, Arrivals]:
    found, bounds = {}, tables.bounds_schema(step.key).append(pa.field(PLACE, pa.int64())).empty_table()
    for number, name in enumerate(step.inputs):
        places = np.arange(len(keys)) * len(step.inputs) + number
        columns = {"k": keys, "t": np.full(len(keys), time), "v": keys, PLACE: places}
        found[name] = Arrivals(pa.table(columns), bounds)
    return found


def compared(operator: str, key_count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many rows an epoch of some keys compares or looks up in a hash table, with so many keys of state."""
    node = STREAMS[operator]().node
    step = node.spec.step(dict.fromkeys(node.spec.input_names, SCHEMA))
    state, every = tables.empty_state(step), np.arange(key_count)
    for epoch in (1, 2):
        result = step.apply(state, arrivals(step, every, epoch), StepTime(epoch, epoch))
        state = tables.apply_changes(state, step.tables, result.changes)
    assert sum(table.num_rows for table in state.values()) >= key_count
    with counting(monkeypatch) as looked_up:
        step.apply(state, arrivals(step, every[:: key_count // TOUCHED][:TOUCHED], 3), StepTime(3, 3))
    return sum(looked_up)


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Note how many rows each call compares or looks up in a hash table."""
    looked_up: list[int] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(values: Any, *arguments: Any, **options: Any) -> Any:
            looked_up.append(len(values))
            return function(values, *arguments, **options)

        return called

    with monkeypatch.context() as patched:
        for name in ("is_in", "index_in", "unique"):
            patched.setattr(pc, name, counted(getattr(pc, name)))
        patched.setattr(joins, "key_codes", counting_tables := counted(joins.key_codes))
        assert counting_tables is joins.key_codes
        yield looked_up


@pytest.mark.slow
@pytest.mark.parametrize("operator", STREAMS)
def test_an_epoch_compares_what_it_touches(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (compared(operator, key_count, monkeypatch) for key_count in (10_000, 80_000))
    assert few > TOUCHED, "nothing was counted"
    assert many < 2 * few


def test_a_merge_without_an_idle_rule_does_not_look_at_the_rows_of_quiet_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due is asked of all that waits; without the rule nothing ever is."""
    step = STREAMS["merge"]().node.spec.step({"main": SCHEMA, "x": SCHEMA})
    state, every = tables.empty_state(step), np.arange(1000)
    state = tables.apply_changes(
        state, step.tables, step.apply(state, arrivals(step, every, 1), StepTime(1, 1)).changes
    )
    assert state["waiting"].num_rows == 1000
    seen: list[int] = []
    anti_join = joins.anti_join
    monkeypatch.setattr(joins, "anti_join", lambda rows, *on: (seen.append(rows.num_rows), anti_join(rows, *on))[1])
    step.apply(state, arrivals(step, every[:10], 2), StepTime(2, 2))
    assert max(seen, default=0) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("waiting_count", [10_000, 20], ids=["many wait", "few wait"])
def test_when_a_sync_forgets_next_is_found_among_few_keys(waiting_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys whose rows wait are neither the oldest nor the newest ones."""
    streams = {"a": rows("a"), "b": rows("b")}
    step = hf.sync(streams, by="k", forget_after="1 d", name="op").node.spec.step({"a": SCHEMA, "b": SCHEMA})
    assert isinstance(step, SyncStep)
    state, every = tables.empty_state(step), np.arange(20_000)
    none = arrivals(step, every[:0], 1)["b"]
    paired, waiting, touched = every[:500], every[500 : 500 + waiting_count], every[-TOUCHED:]
    for epoch, keys in enumerate((paired, waiting, every[500 + waiting_count :]), start=1):
        came = arrivals(step, keys, epoch)
        came = {**came, "b": none} if keys is waiting else came
        state = tables.apply_changes(state, step.tables, step.apply(state, came, StepTime(epoch, epoch)).changes)
    assert state["waiting_a"].num_rows == waiting_count
    changes = step.apply(state, arrivals(step, touched, 4), StepTime(4, 4)).changes
    with counting(monkeypatch) as looked_up:
        assert forget.forgetting_due(step, state, changes) == 2 + (step.forget_us or 0)
    assert sum(looked_up) < 5_000


VALUES: dict[pa.DataType, Callable[[int], Any]] = {
    pa.int64(): lambda n: n * 7919 - 10**9,
    pa.int8(): lambda n: n % 100,
    pa.string(): lambda n: "" if n % 50 == 0 else f"{n % 7:x}" * (n % 12) + str(n),
    pa.large_string(): lambda n: f"key number {n}",
    pa.binary(): lambda n: n.to_bytes(3, "little"),
    pa.timestamp("us", "UTC"): lambda n: dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n),
    pa.float64(): lambda n: n / 4,
    pa.bool_(): lambda n: n % 2 == 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_found_by_signature_as_without(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    kinds = chance.sample(list(VALUES), chance.randint(1, 3))
    numbers = [chance.randrange(9_000) for _ in range(20_000)]
    columns = [
        pa.array([None if chance.random() < 0.05 else VALUES[kind](n + place) for n in numbers], kind)
        for place, kind in enumerate(kinds)
    ]
    names = [f"c{place}" for place in range(len(kinds))]
    whole = pa.table(columns, names)
    table = pa.concat_tables([whole.slice(0, 7_001), whole.slice(7_001)])
    keys = table.take([chance.randrange(20_000) for _ in range(200)])
    found = joins.members(table, keys, names)
    with monkeypatch.context() as patched:
        patched.setattr(key_filter, "candidates", lambda *_: None)
        assert found.tolist() == joins.members(table, keys, names).tolist()
    assert len(found) >= 200 * 0.9 or len(set(map(repr, keys.to_pylist()))) < 200
