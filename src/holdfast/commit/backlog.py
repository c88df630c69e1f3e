"""What a start finds waiting for sinks with a pace of their own: published together, and asked for once (design/0019).

A dead run may leave hundreds of such epochs.  A sink holds all epochs before one that it holds, so its answers on few
of them say enough.  Where a sink without a pace lacks an epoch, too, that one is published by itself, after what waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.commit.delivery import Delivery, Resolution
from holdfast.commit.group import Underway
from holdfast.commit.publishing import Publisher
from holdfast.commit.recovery import VERDICTS, Decision, Verdict
from holdfast.errors import HoldfastError, Unavailable
from holdfast.ports import Outcome

TOGETHER_BYTES_MAX = 64_000_000
"""So many bytes of rows are read from decisions before they are published: what a run may hold, too."""


class Backlog:
    """Open decisions that only sinks with a pace lack, until they are published.

    Parameters
    ----------
    delivery, publisher : Delivery, Publisher
        Of the run that takes over.
    newest : int
        The newest epoch that is open.
    """

    def __init__(self, delivery: Delivery, publisher: Publisher, newest: int) -> None:
        self._delivery = delivery
        self._publisher = publisher
        self._newest = newest
        self._answers: dict[str, dict[Outcome, int]] = {}
        self._waiting: list[Underway] = []
        self._size_bytes = 0

    def judge(self, name: str, epoch: int) -> Resolution:
        """Return the verdict on a decided epoch in a sink; where there are paces, from few answers.

        Raises
        ------
        Diverged, InDoubt
            As :meth:`Delivery.judge`.
        """
        if not self._delivery.paced or not self._delivery.remembers(name):
            return self._delivery.judge(name, epoch, Decision.COMMIT)
        if name not in self._answers:
            self._answers[name] = {}
            self._note(name, self._delivery.judge(name, self._newest, Decision.COMMIT))
        known = self._answers[name]
        outcome = None
        if epoch <= known.get(Outcome.PUBLISHED, 0):
            outcome = Outcome.PUBLISHED
        elif epoch >= known.get(Outcome.ABSENT, epoch + 1):
            outcome = Outcome.ABSENT
        if outcome is None:
            found = self._delivery.judge(name, epoch, Decision.COMMIT)
            self._note(name, found)
            return found
        return Resolution(epoch, name, Decision.COMMIT, outcome, VERDICTS[Decision.COMMIT, outcome])

    def _note(self, name: str, found: Resolution) -> None:
        """Keep an answer: what is before a held epoch is held, what is after one that is not is not."""
        known = self._answers[name]
        if found.outcome is Outcome.PUBLISHED:
            known[Outcome.PUBLISHED] = max(found.epoch, known.get(Outcome.PUBLISHED, 0))
        elif found.outcome is Outcome.ABSENT:
            known[Outcome.ABSENT] = min(found.epoch, known.get(Outcome.ABSENT, found.epoch))

    def takes(self, entry: Underway, found: Sequence[Resolution], away: dict[str, HoldfastError]) -> bool:
        """Take an epoch that is to be published in sinks with a pace alone; False: it is not one.

        ``away`` as for :meth:`publish`, which follows where much has been taken.
        """
        lacking = [each.sink for each in found if each.verdict is Verdict.PUBLISH]
        if not lacking or not self._delivery.paced.issuperset(lacking):
            return False
        held = entry.narrowed(lacking)
        self._waiting.append(held)
        self._size_bytes += held.decided.carried_bytes
        if self._size_bytes >= TOGETHER_BYTES_MAX:
            self.publish(away)
        return True

    def publish(self, away: dict[str, HoldfastError]) -> None:
        """Publish what was taken, in one transaction of each sink, and forget it where none is away.

        ``away`` gets the sinks that do not answer, and why; those that are in it are left out.

        Durable writes, and what a crash right after each leaves: 1. each sink's own: the next start finds it there.
        2. each "done": the next start forgets the others.
        """
        taken, self._waiting, self._size_bytes = self._waiting, [], 0
        for name in self._delivery.names:
            entries = [entry for entry in taken if name in entry.decided.parts]
            if not entries or name in away or (away and not self._delivery.remembers(name)):
                continue  # one that remembers nothing would get it again with each start
            try:
                self._publisher.publish(name, entries)
            except Unavailable as error:
                away[name] = error
        for entry in () if away else taken:
            self._publisher.complete(entry)
