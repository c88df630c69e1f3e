"""Commit grouping: which decided epochs are published together, in one transaction of each sink.

Invariants.  Epochs of a group ascend.  One that waits has a decision: the driver may die while it does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from holdfast.commit.ledger import Key
from holdfast.commit.records import Decided, Done
from holdfast.errors import invariant
from holdfast.ports import EpochRecord

GROUP_EPOCHS_MAX = 1000
"""A group is published at the latest with this many epochs: a source whose timestamps do not advance must not let open
decisions pile up without end."""


@dataclass(frozen=True)
class Underway:
    """One epoch on its way; ``key`` is None on the fast path, where nothing is written in the checkpoint.

    ``of_all`` is what will be left of its decision, where the rows of sinks that have it are let go already.
    """

    decided: Decided
    key: Key | None
    of_all: Done | None = None

    @property
    def record(self) -> EpochRecord:
        """What is known of the epoch apart from its rows."""
        return self.decided.record

    @property
    def done(self) -> Done:
        """What is left of its decision once every sink holds it."""
        if self.of_all is not None:
            return self.of_all
        decided = self.decided
        return Done(replace(decided.record, explanations=()), decided.row_counts, decided.rejected)

    @property
    def row_counts(self) -> Mapping[str, int]:
        """Rows for each sink of its decision."""
        return self.done.row_counts

    def narrowed(self, sinks: Collection[str]) -> Underway:
        """Return it with the rows of some of its sinks alone: the others have theirs."""
        parts = {name: self.decided.parts[name] for name in sinks}
        return Underway(replace(self.decided, parts=parts), self.key, self.done)


class CommitGroup:
    """The epochs that wait to be published together; without ``every_ticks`` each is due at once.

    Parameters
    ----------
    every_ticks : int, optional
        A group is due when the minimum timestamp over the inputs has advanced by this much since the last one.
    carried_limit_bytes : int
        And at the latest when the driver holds this many bytes of its rows.
    is_at_pts : bool
        Whether epochs in which pts has not changed have no rows: then they wait for one in which it has.
    """

    def __init__(self, every_ticks: int | None, carried_limit_bytes: int, *, is_at_pts: bool = False) -> None:
        self._every_ticks = 1 if every_ticks is None and is_at_pts else every_ticks
        self._is_at_pts = is_at_pts
        self._carried_limit_bytes = carried_limit_bytes
        self._waiting: list[Underway] = []
        self._waiting_bytes = 0
        self._published_pts: int | None = None

    @property
    def is_used(self) -> bool:
        """Whether epochs are grouped: each then needs a decision, for it may wait."""
        return self._every_ticks is not None

    def begin(self, held_pts: Iterable[int | None]) -> None:
        """Measure from what the sinks hold."""
        self._published_pts = min((pts for pts in held_pts if pts is not None), default=None)

    def due(self, epoch: Underway) -> list[Underway]:
        """Add an epoch; return what must be published now: the whole group, or nothing yet."""
        if self._every_ticks is None:
            return [epoch]
        number, last = epoch.record.epoch, self._waiting[-1].record.epoch if self._waiting else 0
        invariant(epoch.key is not None, f"epoch {number} is to wait for its group without a decision.", epoch=number)
        invariant(number > last, f"epoch {number} joins its group after epoch {last}.", epoch=number)
        self._waiting.append(epoch)
        self._waiting_bytes += epoch.decided.carried_bytes
        pts = epoch.record.pts
        is_due = (
            self._has_moved(pts, self._every_ticks)
            or self._waiting_bytes >= self._carried_limit_bytes
            or len(self._waiting) >= GROUP_EPOCHS_MAX
        )
        return self.take() if is_due else []

    def _has_moved(self, pts: int | None, every_ticks: int) -> bool:
        if pts is None:  # some input has not had a row yet: there is nothing to measure by
            return not self._is_at_pts
        return self._published_pts is None or pts - self._published_pts >= every_ticks

    def take(self) -> list[Underway]:
        """Return the epochs that wait, and begin a new group."""
        group, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if group and group[-1].record.pts is not None:
            self._published_pts = group[-1].record.pts
        return group
