"""The pipeline that is killed to show that what depends on time is exact: policies of ``sync``, timers, given state.

Recorded cases of the reference share one part of it (:mod:`tests.spec.oracle_cases`); two sources of its own feed the
policies that the reference does not have, the timers, and the counts that begin with state.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from tests.spec.oracle_cases import SharedRun

WORK = Path(os.environ.get("CRASH_WORK", "."))

RUN = SharedRun(
    (
        "immediate-h1-out-of-order-streams",
        "immediate-h2-late-same-stream",
        "immediate-r-each-009",
        "barrier-h1-index-join",
        "fixed_size-h1-each",
        "fixed_size-h3-trigger3-min",
        "mux-r-each-003",
        "mux-h2-data-closed",
        "timestamp_align-u1",
    )
)

EPOCHS = 12
GAP = 4
"""Rows less than this apart are one burst."""

ALARM_US = 300_000
GIVEN = {"a": 100, "b": 200, "z": 300}
"""Key -> its count before the pipeline begins."""


# --- the input --------------------------------------------------------------------------------------------------------


def rows_of(side: str) -> list[list[dict[str, Any]]]:
    """Return the rows of a source, epoch by epoch: times of a key ascend, and the sides hardly ever have the same."""
    chance, now = random.Random(side), {"a": 0, "b": 0, "c": 0}
    epochs = []
    for epoch in range(EPOCHS):
        rows = []
        for number in range(4):
            key = chance.choice("abc")
            now[key] += chance.choice((1, 2, 2, 7))
            rows.append({"k": key, "t": now[key], "v": 10 * epoch + number})
        epochs.append(rows)
    return epochs


# --- what runs --------------------------------------------------------------------------------------------------------


def bursts(waiting: hf.policy.WaitingRows) -> Any:
    """Make one set of rows of any inputs that follow each other closely, once nothing can belong to it any more."""
    begins = np.ones(len(waiting.at), bool)
    begins[1:] = (np.diff(waiting.key) != 0) | (np.diff(waiting.at) >= GAP)
    ends = np.append(np.flatnonzero(begins), len(begins))[1:] - 1
    last = waiting.at[ends][np.cumsum(begins) - 1]
    return np.where(last + GAP <= waiting.settled[waiting.key], last, hf.policy.WAITS)


def alarm(key: str, rows: Sequence[Any], state: hf.KeyState) -> Iterator[dict[str, Any]]:
    """Set a timer of each clock for each row; tell which one fired, in which epoch, and how many rows there were."""
    state.set(n=state.get("n", 0) + len(rows))
    for row in rows:
        state.timer(row["t"] + 3)
        state.timer(state.at.batch_us + ALARM_US, clock="batch")
    if state.fired is not None:
        fired = {"clock": state.fired.clock, "fired_at": state.fired.at, "batch_us": state.at.batch_us}
        yield {"k": key, **fired, "n": state.get("n")}


def running(key: str, rows: Sequence[Any], state: hf.KeyState) -> list[dict[str, Any]]:
    """Count the rows of a key."""
    state.set(n=state.get("n", 0) + len(rows))
    return [{"k": key, "n": state.get("n")}]


def told(sets: pa.RecordBatch) -> pa.RecordBatch:
    """Return sets of any inputs as rows of the same columns; ``holds`` is JSON."""
    rows = [
        {
            "k": row.pop("k"),
            "t": row.pop("timestamp"),
            "holds": json.dumps({name: held for name, held in row.items() if held is not None}, sort_keys=True),
        }
        for row in sets.to_pylist()
    ]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema({"k": pa.string(), "t": pa.int64(), "holds": pa.string()}))


def told_late(late: pa.RecordBatch) -> pa.RecordBatch:
    """Return late rows of any inputs as rows of the same columns."""
    return pa.RecordBatch.from_arrays(
        [late.column("k"), late.column("timestamp"), late.column("input")], names=["k", "t", "input"]
    )


def parts() -> dict[str, hf.Stream]:
    """Return the streams that the two sources of its own lead to."""
    schema = "k STRING, t BIGINT, v BIGINT"
    left, right = (
        hf.read.rows(rows_of(side), schema=schema, timestamp="t", bounded=True, name=side) for side in ("left", "right")
    )
    sides = {"left": left, "right": right}
    close = hf.policy.custom(bursts, delay=GAP, many=True)
    alarms = "k STRING, clock STRING, fired_at BIGINT, batch_us BIGINT, n BIGINT"
    clocks = ["event", "batch"]
    return {
        "near": hf.sync(sides, by="k", policy=hf.policy.within(1, base="left"), name="near"),
        "bursts": hf.sync(sides, by="k", policy=close, timestamps="ascending", name="bursts"),
        "alarms": left
        | hf.apply(alarm, by="k", timers=clocks, disorder=0, state="n BIGINT", schema=alarms, name="alarms"),
        "counts": right | hf.apply(running, by="k", state="n BIGINT", schema="k STRING, n BIGINT", name="counts"),
    }


def pipeline_of() -> hf.Pipeline:
    """Return the pipeline."""
    own = parts()
    nodes = {f"node_{number}": aligned for number, _, aligned in RUN.nodes(RUN.sources())}
    nodes |= {name: own[name] for name in ("near", "bursts")}
    sets, late = [], []
    for name, aligned in nodes.items():
        rows = aligned | hf.map_batches(told, "k STRING, t BIGINT, holds STRING", name=f"told_{name}")
        sets.append(rows | hf.select("*", node=f"'{name}'", name=f"sets_{name}"))
        late.append(aligned.late | hf.map_batches(told_late, "k STRING, t BIGINT, input STRING", name=f"late_{name}"))
    return hf.Pipeline(
        "timed",
        hf.union(*sets, name="every_set") | hf.write.sqlite(WORK / "out.db", table="sets", name="sets_table"),
        hf.union(*late, name="every_late") | hf.write.files(WORK / "late", name="late_files"),
        own["alarms"] | hf.write.files(WORK / "alarms", name="alarm_files"),
        own["counts"] | hf.write.sqlite(WORK / "out.db", table="counts", name="counts_table"),
    )


pipeline = pipeline_of()
