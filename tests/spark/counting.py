"""A small stateful operator for the tests of its host: a running count per key; negative values are late."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from holdfast.graph.naming import origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.shape import Shape
from holdfast.ports import SideRows
from holdfast.state import tables
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Arrivals, Change, Result, StateTable, StepTime

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
CLOSED_INPUTS = pa.schema([("input", pa.string())])
OUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("inputs", pa.string()), ("epoch", pa.int64())])
LATE = pa.schema([("k", pa.string()), ("v", pa.int64()), ("input", pa.string())])


@dataclass(frozen=True)
class Counting:
    """Count the rows of each key; with ``at_end`` say so only when every input has ended."""

    input_names: tuple[str, ...] = ("rows",)
    at_end: bool = False
    wakes: bool = False
    fails_at: str = ""
    fails_once: str = ""
    """A file: until it exists, a task fails after it has created it."""
    kind: str = field(default="stateful", init=False)
    side_outputs: ClassVar[Mapping[str, SideRows]] = {"late": SideRows(("k", "v", "input"))}

    @property
    def time_columns(self) -> tuple[str | None, ...]:
        return (None,) * len(self.input_names)

    @property
    def watches_clock(self) -> bool:
        return self.wakes

    def arguments(self) -> Mapping[str, Any]:
        return {"inputs": list(self.input_names), "at_end": self.at_end}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape(tuple(OUT.names))

    def step(self, inputs: Mapping[str, pa.Schema]) -> CountingStep:
        return CountingStep(dict(inputs), self.at_end, self.wakes, self.fails_at, self.fails_once)


@dataclass(frozen=True)
class CountingStep:
    inputs: Mapping[str, pa.Schema]
    at_end: bool
    wakes: bool
    fails_at: str
    fails_once: str = ""
    for_all_keys: ClassVar[Mapping[str, str]] = {"closed": ""}

    @property
    def key(self) -> pa.Schema:
        return pa.schema([("k", pa.string())])

    @property
    def tables(self) -> Mapping[str, StateTable]:
        return {"counts": StateTable(COUNTS, ("k",)), "closed": StateTable(CLOSED_INPUTS, ("input",))}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {"rows": OUT, "late": LATE}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        parts, late = [], []
        places: list[int] = []
        for name, given in arrivals.items():
            rows = given.rows
            places += rows.column(PLACE).to_pylist() + given.bounds.column(PLACE).to_pylist()
            if self.fails_at and self.fails_at in rows.column("k").to_pylist():
                raise ValueError(f"no {self.fails_at} here")
            if self.fails_once and at.epoch > 1 and rows.num_rows and not Path(self.fails_once).exists():
                Path(self.fails_once).touch()
                raise ConnectionError("away for a moment")
            value = rows.column("v") if "v" in rows.schema.names else rows.column("n")
            too_late = pc.less(value, 0)
            named = pa.array([name] * rows.num_rows, pa.string())
            both = pa.Table.from_arrays([rows.column("k"), value, named], schema=LATE)
            late.append(both.filter(too_late))
            parts.append(both.filter(pc.invert(too_late)))
        assert sorted(places) == sorted(set(places))
        rows = pa.concat_tables(parts)
        new = rows.group_by("k").aggregate([("v", "count"), ("input", "list")]).sort_by("k")
        old = dict(zip(state["counts"]["k"].to_pylist(), state["counts"]["n"].to_pylist(), strict=True))
        assert len(old) == state["counts"].num_rows
        counts = [old.get(k, 0) + n for k, n in zip(new["k"].to_pylist(), new["v_count"].to_pylist(), strict=True)]
        upserts = pa.Table.from_arrays([new["k"], pa.array(counts, pa.int64())], schema=COUNTS)
        seen = ["".join(sorted(set(each)))[:40] for each in new["input_list"].to_pylist()]
        out = pa.Table.from_arrays(
            [new["k"], upserts["n"], pa.array(seen, pa.string()), pa.array([at.epoch] * len(counts), pa.int64())],
            schema=OUT,
        )
        changes = {"counts": Change(upserts, tables.empty(pa.schema([COUNTS.field("k")])))}
        bounds, closed = None, set(state["closed"]["input"].to_pylist())
        now = {name for name, given in arrivals.items() if CLOSED in given.bounds.column(BOUND).to_pylist()}
        if now - closed:
            ended = pa.table({"input": sorted(now - closed)}, schema=CLOSED_INPUTS)
            changes["closed"] = Change(ended, tables.empty(CLOSED_INPUTS))
        is_end = bool(now - closed) and closed | now == set(self.inputs)
        if is_end:
            row = {"k": None, ALL_KEYS: True, BOUND: CLOSED}
            bounds = pa.Table.from_pylist([row], schema=tables.bounds_schema(self.key))
        if self.at_end:
            held = tables.apply_changes(state, self.tables, changes)["counts"].sort_by("k")
            extra = [pa.array(["end"] * held.num_rows, pa.string()), pa.array([0] * held.num_rows, pa.int64())]
            out = pa.Table.from_arrays([held["k"], held["n"], *extra], schema=OUT) if is_end else tables.empty(OUT)
        lates = pa.concat_tables(late)
        due_us = at.batch_us + 1 if self.wakes else None
        return Result({"rows": out, "late": lates}, changes, bounds, {"late": lates.num_rows}, due_us)


def counting(*streams: Stream, name: str = "counted", **options: Any) -> Stream:
    """Return the counts of one stream, or of several under the names of their nodes."""
    names = ("rows",) if len(streams) == 1 else tuple(stream.name for stream in streams)
    return apply(Counting(names, **options), streams, name=name, built_at=origin())
