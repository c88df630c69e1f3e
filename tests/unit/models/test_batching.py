"""Which rows are in a batch together, and when it leaves (design/0046)."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidPipeline
from holdfast.models import batching
from holdfast.models.batching import CallPart, CallQueue, ModelCall

DELAY_S = 0.005


def call(caller: str, count: int, arrived_s: float = 0.0, *, column: str = "n", is_apart: bool = False) -> ModelCall:
    rows = pa.table({"caller": [caller] * count, column: pa.array(range(count), pa.int64())})
    return ModelCall(caller, rows, arrived_s, is_apart)


def queue_of(*calls: ModelCall, most: int = 4) -> CallQueue:
    queue = CallQueue(most, DELAY_S)
    for each in calls:
        queue.add(each)
    return queue


def shares(parts: list[CallPart]) -> Counter[str]:
    return Counter(value for part in parts for value in part.rows["caller"].to_pylist())


def test_a_full_batch_leaves_at_once_and_another_after_the_delay_of_its_oldest_call():
    queue = queue_of(call("a", 1, 1.0), call("b", 1, 1.002))
    assert queue.due_in_s(1.002) == pytest.approx(0.003)
    assert queue.due_in_s(1.006) == 0
    queue.add(call("c", 2, 1.003))
    assert queue.due_in_s(1.003) == 0
    assert shares(queue.take(1.003)) == {"a": 1, "b": 1, "c": 2}
    assert queue.due_in_s(9.0) is None


def test_a_caller_of_many_rows_takes_no_room_from_one_of_few():
    queue = queue_of(call("large", 1000), call("small", 1), call("other", 1))
    assert shares(queue.take(0)) == {"large": 2, "small": 1, "other": 1}
    assert shares(queue.take(0)) == {"large": 4}


def test_more_callers_than_room_come_in_turn():
    queue = queue_of(*(call(caller, 2) for caller in "abcdef"))
    assert [sorted(shares(queue.take(0))) for _ in range(3)] == [list("abcd"), list("abef"), list("cdef")]


def test_a_caller_of_many_calls_has_one_share():
    queue = queue_of(*(call("busy", 1) for _ in range(10)), call("rare", 3))
    assert shares(queue.take(0)) == {"busy": 2, "rare": 2}


def test_the_delay_is_that_of_the_oldest_call_with_rows_left():
    queue = queue_of(call("a", 2, 1.0), call("b", 5, 1.004))
    assert shares(queue.take(1.004)) == {"a": 2, "b": 2}
    assert queue.due_in_s(1.006) == pytest.approx(0.003)


def test_rows_of_other_columns_are_in_other_batches_the_oldest_first():
    queue = queue_of(call("a", 1, 2.0), call("b", 1, 1.0, column="m"), call("c", 1, 3.0))
    assert [sorted(shares(queue.take(5.0))) for _ in range(2)] == [["b"], ["a", "c"]]


def test_a_repeated_call_is_alone():
    queue = queue_of(call("a", 1, 1.0), call("b", 1, 0.0, is_apart=True), call("c", 1, 2.0, is_apart=True))
    assert [sorted(shares(queue.take(5.0))) for _ in range(3)] == [["b"], ["a"], ["c"]]


def test_what_nobody_waits_for_is_dropped():
    alive, gone, failed = call("alive", 1), call("gone", 9), call("failed", 9)
    gone.is_cancelled = lambda: True
    queue = queue_of(gone, alive, failed)
    failed.fail(InvalidPipeline("of an earlier part"))
    assert shares(queue.take(0)) == {"alive": 1}
    assert gone.done.is_set()
    assert (gone.error, queue.due_in_s(0)) == (None, None)


def test_a_batch_is_full_with_so_many_bytes_too(monkeypatch: pytest.MonkeyPatch):
    large = ModelCall("a", pa.table({"caller": ["a"] * 8, "frame": [b"." * 1000] * 8}), 0.0)
    monkeypatch.setattr(batching, "BATCH_BYTES_MAX", 2500)
    queue = queue_of(large, most=100)
    assert [shares(queue.take(1))["a"] for _ in range(3)] == [2, 2, 2]
    monkeypatch.setattr(batching, "BATCH_BYTES_MAX", 10)
    assert shares(queue.take(1)) == {"a": 1}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=12), st.integers(1, 7))
def test_every_row_leaves_once_in_its_order_and_no_caller_falls_behind(calls, most):
    made = [call(caller, count) for caller, count in calls]
    queue, left = queue_of(*made, most=most), Counter()
    left.update({caller: 0 for caller, _ in calls})
    for caller, count in calls:
        left[caller] += count
    while queue.due_in_s(1.0) is not None:
        parts = queue.take(1.0)
        taken = shares(parts)
        assert 0 < taken.total() <= most
        assert taken.total() == most or taken == +left
        for caller, count in left.items():
            fair = most // len(+left)
            assert taken[caller] >= min(count, fair)
        left -= taken
        for part in parts:
            part.call.answer(part.rows)
    for each in made:
        assert pa.concat_tables(each.answers).equals(each.rows)
        assert each.done.is_set()
