"""A small stateful operator for tests: passes rows on, and tells the bounds of single keys that stand among them.

So a test can say in its rows what an input promises, before an operator that waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from holdfast.graph import Shape, Stream, apply
from holdfast.naming import origin
from holdfast.operators import tables
from holdfast.operators.step import ALL_KEYS, BOUND, CLOSED, PLACE, Arrivals, Moment, Result, StateTable

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "k STRING, node INT, input STRING, what STRING, t BIGINT, v BIGINT"
"""What it reads: ``what`` is ``packet``, ``bound`` (at ``t``) or ``close``."""


@dataclass(frozen=True)
class Telling:
    """Key ``k``; gives the packets."""

    kind: str = field(default="telling", init=False)

    def arguments(self) -> Mapping[str, Any]:
        return {}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape(("k", "node", "t", "v"), "t")

    def step(self, inputs: Mapping[str, pa.Schema]) -> TellingStep:
        return TellingStep(dict(inputs))


@dataclass(frozen=True)
class TellingStep:
    inputs: Mapping[str, pa.Schema]

    @property
    def key(self) -> pa.Schema:
        return pa.schema([("k", pa.string())])

    @property
    def tables(self) -> Mapping[str, StateTable]:
        return {}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {"rows": pa.schema([self.inputs["rows"].field(name) for name in ("k", "node", "t", "v")])}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: Moment) -> Result:
        given = arrivals["rows"].rows.sort_by(PLACE)
        packets = given.filter(pc.equal(given["what"], "packet")).select(self.outputs["rows"].names)
        told = [
            {"k": row["k"], ALL_KEYS: False, BOUND: CLOSED if row["what"] == "close" else row["t"]}
            for row in given.to_pylist()
            if row["what"] != "packet"
        ]
        bounds = pa.Table.from_pylist(told, schema=tables.bounds_schema(self.key))
        return Result({"rows": packets}, {}, bounds, {})


def telling(stream: Stream, *, name: str) -> Stream:
    """Return the packets of a stream, and tell whoever stands behind its bounds."""
    return apply(Telling(), (stream,), name=name, built_at=origin())
