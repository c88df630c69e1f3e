"""What a user's function over Arrow batches may give back; no JVM."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InvalidPipeline
from holdfast.plan.batches import BatchFunction, BranchFunction, forget
from holdfast.plan.routes import STEP

DECLARED = pa.schema([pa.field("a", pa.int64()), pa.field("k", pa.string(), nullable=False)])
GIVEN = pa.record_batch({"a": [1, 2], "k": ["x", "y"]})


def function(fn: Callable[[pa.RecordBatch], Any]) -> BatchFunction:
    return BatchFunction(fn, None, DECLARED, "shape", "token")


def called(fn: Callable[[pa.RecordBatch], Any]) -> list[pa.RecordBatch]:
    return list(function(fn)(iter([GIVEN])))


def test_columns_are_matched_by_name() -> None:
    (result,) = called(lambda batch: batch.select(["k", "a"]))
    assert result.schema == DECLARED
    assert result.to_pylist() == GIVEN.to_pylist()


def test_types_are_brought_to_the_declared_ones() -> None:
    narrow = pa.table({"a": pa.array([1], pa.int8()), "k": pa.array(["x"], pa.large_string())})
    (result,) = called(lambda batch: narrow)
    assert result.schema == DECLARED


@pytest.mark.parametrize(
    "given",
    [
        pa.table({"a": [1]}),
        pa.table({"a": [1], "k": ["x"], "more": [1]}),
        pa.table({"a": [1], "K": ["x"]}),
        pa.table([[1], ["x"], ["y"]], names=["a", "k", "k"]),
        pa.table({"a": ["no number"], "k": ["x"]}),
        "no batch",
    ],
    ids=["a column less", "a column more", "another name", "a name twice", "another type", "no batch"],
)
def test_what_is_not_declared_is_refused(given: Any) -> None:
    with pytest.raises(InvalidPipeline, match="do not have its declared schema"):
        called(lambda batch: given)


def test_a_null_where_none_is_declared_is_refused_and_not_taken_for_a_zero() -> None:
    with pytest.raises(InvalidPipeline, match="returned a row without 'k'") as caught:
        called(lambda batch: pa.table({"a": [1, 2], "k": ["x", None]}))
    assert "1 of 2 rows" in caught.value.why


def test_of_two_threads_that_need_a_set_up_one_runs_it() -> None:
    """Two clients would ask a service twice as much at once as is allowed."""
    both = threading.Barrier(2)
    made: list[object] = []

    def setup() -> object:
        made.append(object())
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # two that run at once meet here
        return made[-1]

    used: list[object] = []
    function = BatchFunction(lambda batch, ready: used.append(ready), setup, DECLARED, "shape", "two threads")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: list(function.apply(GIVEN)), range(2)))
    forget("two threads")
    assert (len(made), used) == (1, made * 2)


def test_rows_of_other_branches_pass_even_with_a_null_struct_of_a_member_that_is_not_null() -> None:
    exact = pa.struct([pa.field("q", pa.int32(), nullable=False)])
    loose = pa.struct([pa.field("q", pa.int32())])
    schema = pa.schema([(STEP, pa.int32()), ("c0", exact), ("o0", pa.int64()), ("o1", pa.string())])
    rows = pa.record_batch([pa.array([1, 1], pa.int32()), pa.array([None, {"q": 1}], loose)], names=[STEP, "c0"])
    branch = BranchFunction(function(lambda batch: None), 7, (("c", "c0"),), ("o0", "o1"), schema)
    (result,) = branch(iter([rows]))
    assert result.schema == schema
    assert result.column("c0").to_pylist() == [None, {"q": 1}]
