"""Bounds of sources where Spark's plan computes stage 0: they follow all rows of a task; no JVM."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import BadRow
from holdfast.plan.bounds import Bounding, BoundTarget
from holdfast.plan.chunks import BOUNDS, ROWS, Chunk, ChunkTarget, Routing, decode, from_batch
from holdfast.plan.levels.packing import PlanPacking, SourceClock
from holdfast.plan.routes import TAG, Routes, struct_name
from holdfast.plan.stages import BOUND_ROWS, RowBounds
from holdfast.state.step import ALL_KEYS, BOUND

ROW = pa.schema([("k", pa.string()), ("t", pa.int64())])
TIME = pa.schema([("t", pa.int64())])
KEY = pa.schema([("k", pa.string())])
TARGETS = (
    ChunkTarget(0, 1, "sums", "rows", ROW, KEY),
    ChunkTarget(1, 2, "commit_at_pts", "a", TIME, pa.schema([])),
    ChunkTarget(2, 2, "commit_at_pts", "m", TIME, pa.schema([])),
)
ROUTES = Routes(("0", "1", "2", f"{BOUND_ROWS}m", f"{BOUND_ROWS}nobody"), (ROW, TIME, TIME, ROW, ROW))
TASK = PlanPacking(
    ROUTES,
    Routing(TARGETS, 1, 1),
    {"m": Bounding("is_bound", "t", (BoundTarget(0, ("k",)), BoundTarget(2, ())), ("k",))},
    {1: SourceClock("a", True, RowBounds(((0, -3),))), 2: SourceClock("m", False, None)},
)


def tagged(*rows: tuple[int, Any, int | None]) -> pa.RecordBatch:
    """Return rows as Spark's plan gives them: (end, key, time)."""
    columns: dict[str, Any] = {TAG: pa.array([end for end, _, _ in rows], pa.int32())}
    for index, schema in enumerate(ROUTES.schemas):
        of = [{"k": k, "t": t} if end == index else None for end, k, t in rows]
        columns[struct_name(index)] = pa.array(of, pa.struct(list(schema)))
    return pa.RecordBatch.from_pydict(columns)


def packed(*batches: pa.RecordBatch) -> list[Chunk]:
    return [chunk for batch in TASK.packed(0, iter(batches)) for chunk in from_batch(batch)]


def said(chunks: list[Chunk], target: int, kind: int) -> list[dict[str, Any]]:
    return [
        row
        for chunk in chunks
        if (chunk.target, chunk.kind) == (target, kind)
        for row in decode(chunk.data).to_pylist()
    ]


def test_the_times_of_a_source_become_the_latest_of_them_and_a_bound_for_all_keys() -> None:
    chunks = packed(tagged((0, "a", 4), (1, None, 4), (1, None, None)), tagged((1, None, 9), (0, "a", 9), (1, None, 7)))
    assert said(chunks, 0, ROWS) == [{"k": "a", "t": 4}, {"k": "a", "t": 9}]
    assert said(chunks, 1, ROWS) == [{"t": 9}], "all that a clock wants"
    assert said(chunks, 0, BOUNDS) == [{"k": None, ALL_KEYS: True, BOUND: 6}], "less the disorder, and moved on the way"
    assert [chunk.source for chunk in chunks if chunk.kind == BOUNDS] == ["a"]


def test_bound_rows_become_bounds_for_whom_they_hold() -> None:
    chunks = packed(tagged((3, "a", 5), (0, "a", 1), (3, "a", 7), (2, None, 3)), tagged((3, None, 2), (4, "a", 99)))
    told = said(chunks, 0, BOUNDS)
    assert {"k": "a", ALL_KEYS: False, BOUND: 7} in told
    assert {"k": None, ALL_KEYS: True, BOUND: 2} in told
    assert said(chunks, 2, BOUNDS) == [{ALL_KEYS: True, BOUND: 2}]
    assert said(chunks, 2, ROWS) == [], "its bound rows alone say how far it is"


def test_a_task_without_times_says_nothing() -> None:
    assert packed(tagged((1, None, None))) == []
    assert packed() == []


def test_a_bound_row_without_a_timestamp_is_an_error_there_too() -> None:
    with pytest.raises(BadRow, match="a bound row has no 't'"):
        packed(tagged((3, "a", None)))
