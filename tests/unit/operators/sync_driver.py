"""Drives a step of ``sync`` over epochs of plain rows, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.operators.sync import policy as policies
from holdfast.operators.sync.spec import Sync
from holdfast.operators.sync.step import SyncStep
from holdfast.state import checks, joins, tables
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Arrivals, StepTime

# Events: (input, "row", key, time, value) · (input, "bound", key or None for all keys, bound)
Event = tuple[Any, ...]


def step_of(names: Sequence[str], policy: Any = None, *, by: Sequence[str] = ("k",), **more: Any) -> SyncStep:
    chosen = policies.settled() if policy is None else policy
    count = len(names)
    spec = Sync(
        tuple(names),
        tuple(by),
        ("t",) * count,
        chosen,
        more.pop("timestamps", ("strict",) * count),
        more.pop("disorder", (None,) * count),
        **more,
    )
    kinds: dict[str, pa.DataType] = {"k": pa.string(), "t": pa.int64(), "v": pa.int64()}
    columns = [pa.field(name, kinds[name]) for name in (*by, "t", "v")]
    return spec.step({name: pa.schema(columns) for name in names})


def arrivals_of(step: SyncStep, events: Sequence[Event], first_place: int = 0) -> dict[str, Arrivals]:
    by = step.key.names
    bounds_schema = pa.schema([*tables.bounds_schema(step.key), pa.field(PLACE, pa.int64())])
    found = {}
    for name, schema in step.inputs.items():
        rows, bounds = [], []
        for place, event in enumerate(events, start=first_place):
            if event[0] != name:
                continue
            key = dict.fromkeys(by, event[2])
            if event[1] == "row":
                rows.append({**key, "t": event[3], "v": event[4], PLACE: place})
            else:
                bounds.append({**key, ALL_KEYS: event[2] is None, BOUND: event[3], PLACE: place})
        found[name] = Arrivals(
            pa.Table.from_pylist(rows, schema=schema.append(pa.field(PLACE, pa.int64()))),
            pa.Table.from_pylist(bounds, schema=bounds_schema),
        )
    return found


class Drive:
    """State and outputs over epochs; every result is checked against the step's declarations."""

    def __init__(self, step: SyncStep) -> None:
        self.step = step
        self.state = tables.empty_state(step)
        self.epoch = 0
        self.rows: list[dict[str, Any]] = []
        self.late: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.bounds: list[dict[str, Any]] = []

    def epoch_of(self, events: Sequence[Event], at_us: int = 0) -> list[dict[str, Any]]:
        result = self.step.apply(self.state, arrivals_of(self.step, events), StepTime(self.epoch, at_us))
        result = checks.check_result("sync", self.step, result)
        for name, change in result.changes.items():
            declared = self.step.tables[name]
            there = joins.member_mask(self.state[name], change.deletes, declared.key)
            assert sum(there.to_pylist()) == change.deletes.num_rows, f"{name}: deletes a row that is not there"
        self.state = tables.apply_changes(self.state, self.step.tables, result.changes)
        self.state = tables.decode(tables.encode(self.state))
        self.epoch += 1
        rows = result.outputs["rows"].to_pylist()
        self.rows += rows
        self.late += result.outputs["late"].to_pylist()
        self.bounds += result.bounds.to_pylist() if result.bounds is not None else []
        for name, count in result.counts.items():
            self.counts[name] = count if name == "waiting_rows" else self.counts.get(name, 0) + count
        return rows


def run(step: SyncStep, epochs: Sequence[Sequence[Event]]) -> Drive:
    drive = Drive(step)
    for events in epochs:
        drive.epoch_of(events)
    return drive


def close(name: str) -> Event:
    return (name, "bound", None, CLOSED)


def by_key(rows: Sequence[Mapping[str, Any]]) -> dict[Any, list[Mapping[str, Any]]]:
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row.get("k"), []).append(row)
    return found
