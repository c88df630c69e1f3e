"""Which rows of which calls are in the next batch: when one leaves, and how its room is shared between callers.

Pure: no threads, no clock.  Invariants: the parts of a call leave in the order of its rows; in each batch every caller
that has rows waiting gets an equal share of the room, as far as it can use it; only rows of one schema are together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import HoldfastError

BATCH_BYTES_MAX = 1 << 30
"""A batch is full with so many bytes, too: one column of it must stay below 2 GiB."""


@dataclass(eq=False)
class ModelCall:
    """Rows of one caller, and what becomes of them.

    Parameters
    ----------
    caller : str
        Who calls.
    rows : pa.Table
        Not empty.
    arrived_s : float
        When it was whole, by a clock that only grows.
    is_apart : bool
        Whether its batches are its own: it is repeated after a death, and may be the reason.
    is_cancelled : callable
        Whether its caller is gone.  Asked only before the call is done.
    """

    caller: str
    rows: pa.Table
    arrived_s: float
    is_apart: bool = False
    is_cancelled: Callable[[], bool] = lambda: False
    answers: list[pa.Table] = field(default_factory=list)
    error: HoldfastError | None = None
    done: threading.Event = field(default_factory=threading.Event)
    _taken: int = 0

    @property
    def waiting(self) -> int:
        """Rows that are in no batch yet."""
        return int(self.rows.num_rows) - self._taken

    def fitting(self, size_bytes: int) -> int:
        """Return how many rows have so many bytes, by their mean size."""
        return int(size_bytes * self.rows.num_rows // max(1, self.rows.nbytes))

    def take(self, rows: int) -> CallPart:
        """Take the next rows, as many at most."""
        part = self.rows.slice(self._taken, rows)
        self._taken += part.num_rows
        return CallPart(self, part)

    def answer(self, rows: pa.Table) -> None:
        """Take the answer to the next part."""
        self.answers.append(rows)
        if sum(each.num_rows for each in self.answers) == self.rows.num_rows:
            self.done.set()

    def fail(self, error: HoldfastError | None) -> None:
        """End it: with an error, or because nobody wants it."""
        self.error, self._taken = error, self.rows.num_rows
        self.done.set()

    def is_wanted(self) -> bool:
        """Return whether there is somebody to answer; a call without is done."""
        if not self.done.is_set() and self.is_cancelled():
            self.fail(None)
        return not self.done.is_set()


class CallPart(NamedTuple):
    """Rows of a call that are in one batch."""

    call: ModelCall
    rows: pa.Table


class CallQueue:
    """Calls that wait.

    Parameters
    ----------
    max_rows : int
        Rows of a batch.
    max_delay_s : float
        A batch leaves when a call has waited for so long, full or not.

    Examples
    --------
    >>> queue = CallQueue(4, 0.005)
    >>> for caller, count in (("a", 9), ("b", 1)):
    ...     queue.add(ModelCall(caller, pa.table({"n": range(count)}), arrived_s=7.0))
    >>> queue.due_in_s(7.0)
    0.0
    >>> [(part.call.caller, part.rows.num_rows) for part in queue.take(7.0)]
    [('a', 2), ('b', 1), ('a', 1)]
    """

    def __init__(self, max_rows: int, max_delay_s: float) -> None:
        self._max_rows = max_rows
        self._max_delay_s = max_delay_s
        self._lanes: dict[Hashable, _Lane] = {}

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return sum(lane.waiting for lane in self._lanes.values())

    def add(self, call: ModelCall) -> None:
        """Let a call wait for its turn."""
        kind = (call.rows.schema, id(call) if call.is_apart else None)
        self._lanes.setdefault(kind, _Lane()).add(call)

    def due_in_s(self, now_s: float) -> float | None:
        """Return in how many seconds a batch leaves; None where nothing waits."""
        return min((self._due_in_s(lane, now_s) for lane in self._lanes.values()), default=None)

    def take(self, now_s: float) -> list[CallPart]:
        """Return the rows of the batch that is due first, and has waited longest; empty where nobody wants any."""
        kind = min(self._lanes, key=lambda each: (self._due_in_s(self._lanes[each], now_s), self._lanes[each].oldest_s))
        parts = self._lanes[kind].take(self._max_rows)
        if not self._lanes[kind].waiting:
            del self._lanes[kind]
        return parts

    def _due_in_s(self, lane: _Lane, now_s: float) -> float:
        return 0.0 if lane.waiting >= self._max_rows else max(0.0, lane.oldest_s + self._max_delay_s - now_s)


class _Lane:
    """Calls that may be in a batch together: of each caller in their order, and the callers in turn."""

    def __init__(self) -> None:
        self._calls: dict[str, deque[ModelCall]] = {}
        self._turns: deque[str] = deque()

    @property
    def waiting(self) -> int:
        return sum(call.waiting for calls in self._calls.values() for call in calls)

    @property
    def oldest_s(self) -> float:
        return min(calls[0].arrived_s for calls in self._calls.values())

    def add(self, call: ModelCall) -> None:
        if call.caller not in self._calls:
            self._calls[call.caller] = deque()
            self._turns.append(call.caller)
        self._calls[call.caller].append(call)

    def take(self, room: int) -> list[CallPart]:
        parts: list[CallPart] = []
        room_bytes = BATCH_BYTES_MAX
        while self._turns and room > 0:
            share = max(1, room // len(self._turns))
            for _ in range(min(len(self._turns), room)):
                caller, left = self._turns.popleft(), share
                while left and (call := self._first(caller)) is not None:
                    fitting = call.fitting(room_bytes)
                    if not fitting and parts:
                        self._turns.append(caller)
                        return parts
                    parts.append(call.take(max(1, min(left, fitting))))
                    left -= parts[-1].rows.num_rows
                    room_bytes = max(0, room_bytes - parts[-1].rows.nbytes)
                room -= share - left
                if caller in self._calls and self._first(caller) is not None:
                    self._turns.append(caller)
        return parts

    def _first(self, caller: str) -> ModelCall | None:
        """Return the first call of a caller that has rows left; None, and forget the caller, where there is none."""
        calls = self._calls[caller]
        while calls and not (calls[0].is_wanted() and calls[0].waiting):
            calls.popleft()
        if not calls:
            del self._calls[caller]
            return None
        return calls[0]
