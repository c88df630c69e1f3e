"""The loop that forms batches and calls the function: in one thread, whoever waits for it.

Invariants: a call is done once, with all its rows or with an error; what a function raises for several calls is the
error of none of them until it is raised for that one alone.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence

import pyarrow as pa

from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.graph.building import a_type
from holdfast.models.batching import CallPart, CallQueue, ModelCall
from holdfast.models.declaration import Declaration, Rows
from holdfast.models.wire import ModelStats
from holdfast.types.casting import fitted_table


class ModelLoop:
    """Calls that come from any thread, and the one that computes.

    Parameters
    ----------
    declared : Declaration
        The model.
    function : callable
        What ``declared.load`` returned.
    restart_count : int
        For the counts.
    now_s : callable
        Time that only grows, seconds.
    """

    def __init__(
        self,
        declared: Declaration,
        function: Callable[[pa.RecordBatch], Rows],
        *,
        restart_count: int = 0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._declared = declared
        self._function = function
        self._restart_count = restart_count
        self._now_s = now_s
        self._queue = CallQueue(declared.max_batch, declared.max_delay_s)
        self._changed = threading.Condition()
        self._is_ending = False
        self._last_s = now_s()
        self._calls = self._rows = self._failures = 0
        self._batches: Counter[int] = Counter()

    def submit(
        self, caller: str, rows: pa.Table, *, is_apart: bool = False, is_cancelled: Callable[[], bool] = lambda: False
    ) -> ModelCall | None:
        """Add a call, which is done some time later; None where the loop ends, and answers no more."""
        with self._changed:
            if self._is_ending:
                return None
            call = ModelCall(caller, rows, self._now_s(), is_apart, is_cancelled)
            self._queue.add(call)
            self._changed.notify()
            return call

    def end(self) -> None:
        """Let the loop end after the batch that is computed now."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()

    def run(self) -> None:
        """Answer calls until none has come for the idle time, or :meth:`end` is called."""
        while (parts := self._next()) is not None:
            self._compute(parts)
            with self._changed:
                self._last_s = self._now_s()

    def stats(self) -> ModelStats:
        """Return the counts."""
        with self._changed:
            return ModelStats(
                os.getpid(),
                self._restart_count,
                self._calls,
                self._rows,
                self._failures,
                self._queue.waiting,
                dict(self._batches),
            )

    def _next(self) -> list[CallPart] | None:
        with self._changed:
            while not self._is_ending:
                now_s = self._now_s()
                due_in_s = self._queue.due_in_s(now_s)
                if due_in_s == 0:
                    return self._queue.take(now_s)
                idle_s = self._last_s + self._declared.idle_s - now_s
                if due_in_s is None and idle_s <= 0:
                    self._is_ending = True
                else:
                    self._changed.wait(idle_s if due_in_s is None else due_in_s)
            return None

    def _compute(self, parts: Sequence[CallPart]) -> None:
        parts = [part for part in parts if part.call.is_wanted()]
        if not parts:
            return
        calls = {id(part.call) for part in parts}
        try:
            answer = self._call(pa.concat_tables([part.rows for part in parts]))
        except BaseException as error:  # also sys.exit(): the process is that of others, too
            traceback.print_exc()
            if len(calls) > 1:
                for part in parts:
                    self._compute([part])
                return
            with self._changed:
                self._calls, self._failures = self._calls + 1, self._failures + 1
            parts[0].call.fail(failure(self._declared, "failed", error))
            return
        with self._changed:
            self._rows += answer.num_rows
            self._batches[len({part.call.caller for part in parts})] += 1
        at = 0
        for part in parts:
            part.call.answer(answer.slice(at, part.rows.num_rows))
            at += part.rows.num_rows
        with self._changed:
            self._calls += sum(part.call.done.is_set() for part in {id(part.call): part for part in parts}.values())

    def _call(self, rows: pa.Table) -> pa.Table:
        (batch,) = rows.combine_chunks().to_batches()
        found = self._function(batch)
        name, schema = self._declared.name, self._declared.schema
        is_rows = isinstance(found, pa.RecordBatch | pa.Table)
        if not is_rows or not set(schema.names) <= set(found.schema.names):
            returned = f"the columns {', '.join(found.schema.names)}" if is_rows else a_type(found)
            raise InvalidPipeline(
                f"Model {name!r} returned {returned}.",
                why=f"a RecordBatch or Table with the columns of its schema is expected: {', '.join(schema.names)}.",
                do="return these from fn, or change schema=.",
                participant=name,
            )
        if found.num_rows != rows.num_rows:
            raise InvalidPipeline(
                f"Model {name!r} returned {found.num_rows} rows for {rows.num_rows}.",
                why="rows of several callers are in one batch, and each gets the answers to its own, by their order.",
                do="return one row for each row from fn; an empty list, or null, where there is nothing.",
                participant=name,
            )
        found = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
        return fitted_table(found.select(schema.names), schema)


def failure(declared: Declaration, what: str, error: BaseException) -> HoldfastError:
    """Return what a caller is told of an error in the user's code; the whole trace is in the log."""
    if isinstance(error, HoldfastError):
        return error
    last = traceback.extract_tb(error.__traceback__)[-1]
    kind = Unavailable if isinstance(error, ConnectionError | TimeoutError) else InvalidPipeline
    return kind(
        f"Model {declared.name!r} {what}: {type(error).__name__}: {error}",
        why=f"its own code raised this, at {last.filename}, line {last.lineno}, in {last.name}.",
        do=f"mend it there; the whole trace is in {declared.place().log}.",
        participant=declared.name,
    )
