"""The loop that calls the function: what it answers to whom (design/0046)."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.models.computing import ModelLoop
from holdfast.testing import SimulatedClock


def doubled(batch: pa.RecordBatch) -> pa.Table:
    if 13 in batch["n"].to_pylist():
        raise ValueError("13 is unlucky")
    if 14 in batch["n"].to_pylist():
        raise ConnectionError("the service behind is away")
    return pa.table({"n": pc.multiply(batch["n"], 2)})


def loop_of(fn: Any = doubled, **more: Any) -> ModelLoop:
    """Return a loop that answers what waits, and ends."""
    declared = hf.shared(fn, "n BIGINT", idle="0 s", max_delay="0 s", name="model", **more)._declared
    return ModelLoop(declared, declared.load())


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def answers(loop: ModelLoop, *calls: tuple[str, list[int]], **more: Any) -> list[Any]:
    """Return the numbers that each call is answered with, or its error."""
    made = [loop.submit(caller, rows(*numbers), **more) for caller, numbers in calls]
    loop.run()
    assert all(call.done.is_set() for call in made)
    return [call.error or pa.concat_tables(call.answers)["n"].to_pylist() for call in made]


def test_each_caller_gets_the_answers_to_its_own_rows_in_their_order():
    loop = loop_of(max_batch=4)
    assert answers(loop, ("a", [1, 2, 3, 4, 5]), ("b", [6]), ("a", [7])) == [[2, 4, 6, 8, 10], [12], [14]]
    found = loop.stats()
    assert (found.call_count, found.row_count, found.failure_count, found.waiting_row_count) == (3, 7, 0, 0)
    assert found.batches_by_callers == {2: 1, 1: 1}
    assert (found.batch_count, found.mixed_batch_count, found.rows_per_batch, found.callers_per_batch) == (
        2,
        1,
        3.5,
        1.5,
    )


def test_an_error_is_that_of_the_call_which_it_belongs_to():
    loop = loop_of()
    good, bad, other = answers(loop, ("a", [1]), ("b", [13]), ("c", [2, 3]))
    assert (good, other) == ([2], [4, 6])
    assert isinstance(bad, hf.InvalidPipeline)
    assert bad.what == "Model 'model' failed: ValueError: 13 is unlucky"
    assert "test_computing.py" in bad.why
    assert (loop.stats().failure_count, loop.stats().call_count) == (1, 3)


def test_a_call_in_several_batches_fails_once_and_the_rest_of_it_is_not_computed():
    loop = loop_of(max_batch=2)
    bad, good = answers(loop, ("a", [1, 13, 2, 3, 4]), ("b", [5]))
    assert isinstance(bad, hf.InvalidPipeline)
    assert good == [10]
    assert loop.stats().row_count <= 2


def test_a_function_that_ends_its_process_the_usual_way_has_failed():
    (found,) = answers(loop_of(lambda batch: sys.exit(3)), ("a", [1]))
    assert found.what == "Model 'model' failed: SystemExit: 3"


def test_a_service_that_is_away_can_be_asked_again():
    (found,) = answers(loop_of(), ("a", [14]))
    assert isinstance(found, hf.Unavailable)


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda batch: batch.slice(1), "Model 'model' returned 1 rows for 2."),
        (lambda batch: [1, 2], "Model 'model' returned a list."),
        (lambda batch: pa.table({"m": [1, 2]}), "Model 'model' returned the columns m."),
    ],
)
def test_an_answer_that_fits_no_rows_is_an_error(fn, what):
    (found,) = answers(loop_of(fn), ("a", [1, 2]))
    assert isinstance(found, hf.InvalidPipeline)
    assert (found.what, found.participant) == (what, "model")


def test_an_answer_is_of_the_declared_types():
    loop = loop_of(lambda batch: pa.table({"more": batch["n"], "n": batch["n"].cast(pa.int8())}))
    call = loop.submit("a", rows(1, 2))
    loop.run()
    assert call.answers[0].schema == pa.schema([("n", pa.int64())])


def test_the_loop_ends_when_nobody_has_called_for_the_idle_time(monkeypatch):
    clock = SimulatedClock()
    declared = hf.shared(doubled, "n BIGINT", idle="10 s", max_delay="0 s")._declared
    slow_s = iter([15.0])

    def slow(batch: pa.RecordBatch) -> pa.Table:
        clock.sleep_s(next(slow_s))
        return doubled(batch)

    loop = ModelLoop(declared, slow, now_s=lambda: clock.now_us() / 1e6)
    call = loop.submit("a", rows(1))
    monkeypatch.setattr(loop._changed, "wait", clock.sleep_s)
    began_us = clock.now_us()
    loop.run()
    assert call.done.is_set()
    assert clock.now_us() - began_us == 25_000_000
    assert loop.submit("a", rows(1)) is None


def test_what_loads_a_model_is_given_its_device():
    class Adder:
        def __init__(self, device: int) -> None:
            self.device = device

        def __call__(self, batch: pa.RecordBatch) -> pa.Table:
            return pa.table({"n": pc.add(batch["n"], self.device)})

    assert answers(loop_of(Adder, device=100), ("a", [1])) == [[101]]
    loaded = loop_of(lambda batch, adder: adder(batch), setup=Adder, device=10)
    assert answers(loaded, ("a", [1])) == [[11]]
    assert answers(loop_of(lambda batch, loaded: pa.table({"n": [loaded]}), setup=lambda: 7), ("a", [1])) == [[7]]
