"""A stateful operator that remembers by the clock: the batch time at which each key was first seen."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import cloudpickle

from holdfast.graph.naming import origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.shape import Shape
from holdfast.ports import SideRows
from holdfast.state import tables
from holdfast.state.step import Arrivals, Change, Result, StateTable, StepTime

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SEEN = pa.schema([("k", pa.string()), ("first_us", pa.int64()), ("epoch", pa.int64())])


@dataclass(frozen=True)
class Stamping:
    """Say of each key that arrives when it was first seen: batch time, and number of the epoch."""

    input_names: tuple[str, ...] = ("rows",)
    kind: str = field(default="stateful", init=False)
    side_outputs: ClassVar[Mapping[str, SideRows]] = {}
    time_columns: ClassVar[tuple[str | None, ...]] = (None,)

    def arguments(self) -> Mapping[str, Any]:
        return {}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape(tuple(SEEN.names))

    def step(self, inputs: Mapping[str, pa.Schema]) -> StampingStep:
        return StampingStep(dict(inputs))


@dataclass(frozen=True)
class StampingStep:
    inputs: Mapping[str, pa.Schema]

    @property
    def key(self) -> pa.Schema:
        return pa.schema([("k", pa.string())])

    @property
    def tables(self) -> Mapping[str, StateTable]:
        return {"seen": StateTable(SEEN, ("k",))}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {"rows": SEEN}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        known = {row["k"]: row for row in state["seen"].to_pylist()}
        keys = sorted(set(arrivals["rows"].rows.column("k").to_pylist()))
        new = [{"k": k, "first_us": at.batch_us, "epoch": at.epoch} for k in keys if k not in known]
        known |= {row["k"]: row for row in new}
        upserts = pa.Table.from_pylist(new, schema=SEEN)
        change = Change(upserts, tables.empty(pa.schema([SEEN.field("k")])))
        return Result({"rows": pa.Table.from_pylist([known[k] for k in keys], schema=SEEN)}, {"seen": change})


def stamping(stream: Stream, name: str) -> Stream:
    """Return when the keys of a stream were first seen."""
    return apply(Stamping(), (stream,), name=name, built_at=origin())
