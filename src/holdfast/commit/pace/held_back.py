"""The epochs that wait for sinks with a pace of their own, which every other sink has got (design/0019).

Invariants.  An epoch that waits has a decision: the driver may die while it does, and the next start publishes it.  For
each sink epochs leave in ascending order, all that wait for it together.  What waits is bounded: in bytes that the
driver holds, in rows, in epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.commit.group import Underway
from holdfast.commit.pace.folding import folded
from holdfast.errors import invariant
from holdfast.graph.pace import SinkPace

WAITING_EPOCHS_MAX = 1000
"""A sink commits at the latest when it lacks so many: each is an object in the ledger, and a start reads them all."""

WAITING_ROWS_MAX = 10_000_000
"""And so many rows: of those that executors have staged the bytes are not known.  Large for a transaction, not huge."""


@dataclass(frozen=True)
class SinkBacklog:
    """What waits for one sink.

    Parameters
    ----------
    epochs, rows, size_bytes : int
        How much; the bytes are those of rows that the driver holds.
    since_us : int
        Since when the oldest of them has waited, microseconds of Unix time; 0 when nothing does.
    """

    epochs: int = 0
    rows: int = 0
    size_bytes: int = 0
    since_us: int = 0


@dataclass
class _Queue:
    pace: SinkPace
    entries: list[Underway] = field(default_factory=list)
    waiting: SinkBacklog = SinkBacklog()
    is_new: bool = False

    def is_due(self, now_us: int) -> bool:
        waiting, pace = self.waiting, self.pace
        return bool(waiting.epochs) and (
            self.is_new
            or (pace.every_us is not None and now_us - waiting.since_us >= pace.every_us)
            or (pace.every_epochs is not None and waiting.epochs >= pace.every_epochs)
            or waiting.epochs >= WAITING_EPOCHS_MAX
            or waiting.rows >= WAITING_ROWS_MAX
        )


class HeldBack:
    """What waits, for each sink that has a pace.  Without such sinks every epoch passes through.

    Parameters
    ----------
    paces : mapping of str to SinkPace
        The sinks that have one.
    limit_bytes : int
        When the driver holds so many bytes of what waits, the sink that most of them wait for commits.
    now_us : callable
        The clock.
    """

    def __init__(self, paces: Mapping[str, SinkPace], limit_bytes: int, now_us: Callable[[], int]) -> None:
        self._queues = {name: _Queue(pace) for name, pace in paces.items()}
        self._limit_bytes = limit_bytes
        self._now_us = now_us
        self._hurried: frozenset[str] = frozenset()
        self.took_staged = True
        """Whether the driver held no row of what was taken last."""
        self.took_first = False
        """Whether some of what was taken last is the first that a sink gets."""

    @property
    def sinks(self) -> frozenset[str]:
        """The sinks that have a pace."""
        return frozenset(self._queues)

    @property
    def waiting(self) -> dict[str, SinkBacklog]:
        """What waits for each sink that has a pace.  May be asked from any thread."""
        return {name: queue.waiting for name, queue in self._queues.items()}

    def begin(self, new: Collection[str]) -> None:
        """Let the first epoch of sinks that hold nothing pass at once.

        Without the checkpoint a sink that holds nothing is taken for one that was added, and begins where others are:
        what it has waited for would be lost to it.
        """
        for name, queue in self._queues.items():
            queue.is_new = name in new

    def add(self, group: Sequence[Underway]) -> None:
        """Take epochs that all other sinks get now."""
        for entry in group:
            number = entry.record.epoch
            held = entry.narrowed([name for name in self._queues if name in entry.decided.parts])
            invariant(
                entry.key is not None or not held.decided.parts,
                f"epoch {number} is to wait for {sorted(held.decided.parts)} without a decision.",
                epoch=number,
            )
            for name in held.decided.parts:
                self._put(self._queues[name], name, held)

    def _put(self, queue: _Queue, name: str, held: Underway) -> None:
        before = queue.waiting
        queue.entries.append(held)
        queue.waiting = SinkBacklog(
            before.epochs + 1,
            before.rows + held.row_counts[name],
            before.size_bytes + held.decided.carried_bytes_of(name),
            before.since_us or self._now_us(),
        )

    def hurry(self, sinks: Collection[str]) -> None:
        """Let these be due, the next time that anything is taken."""
        self._hurried = self._hurried.union(sinks)

    @property
    def is_due(self) -> bool:
        """Whether a sink is to commit now."""
        return bool(self._due())

    def _due(self) -> list[str]:
        now = self._now_us()
        due = [name for name, of in self._queues.items() if of.entries and (name in self._hurried or of.is_due(now))]
        rest = {name: of.waiting.size_bytes for name, of in self._queues.items() if name not in due}
        while sum(rest.values()) >= self._limit_bytes and (most := max(rest, key=rest.__getitem__, default=None)):
            if not rest.pop(most):
                break
            due.append(most)
        return due

    def take(self) -> dict[str, list[Underway]]:
        """Return what sinks commit now, each in one transaction; of rows with one key only the last."""
        taken = {}
        due = self._due()
        self.took_staged = not any(self._queues[name].waiting.size_bytes for name in due)
        self.took_first = any(self._queues[name].is_new for name in due)
        for name in due:
            queue = self._queues[name]
            entries, queue.entries, queue.waiting = queue.entries, [], SinkBacklog()
            queue.is_new = False
            taken[name] = folded(name, entries, queue.pace.key)
        self._hurried = frozenset()
        return taken
