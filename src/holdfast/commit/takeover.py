"""The start of a run: take a generation that fences all others, find what dead runs left, and carry it out.

Invariants.  The order: generation, then fences in the sinks, then reading the ledger.  After the fences no older
run can publish, so what the sinks answer stays true; the ledger's own fence (``ledger.py``) stops older decisions.
Every sink is asked for what is done in it before anything is published: a later epoch would hide what it has lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast import faults
from holdfast.commit.checks import check_known_sinks
from holdfast.commit.delivery import Delivery, Resolution
from holdfast.commit.group import Underway
from holdfast.commit.ledger import Key, Ledger, Takeover
from holdfast.commit.pace.backlog import Backlog
from holdfast.commit.publishing import Publisher
from holdfast.commit.records import Decided
from holdfast.commit.recovery import Decision, Verdict
from holdfast.commit.retry import Patience
from holdfast.commit.story import Stories
from holdfast.commit.transaction import Event
from holdfast.errors import Corrupt, Fenced, InDoubt
from holdfast.ports import Clock, EpochRecord, Held, Publication, Refused, RunIdentity

log = logging.getLogger("holdfast.commit")

OnRefused = Callable[[str, EpochRecord, Sequence[Refused]], None]

_TRIES_MAX = 40
"""Tries to find a generation above a sink's.  The step doubles each time: 40 of them exceed any number in use."""


@dataclass(frozen=True)
class Resumption:
    """The state of the pipeline after ``Coordinator.open``.

    Parameters
    ----------
    generation : int
        The new one.
    held : mapping of str to Held
        Sink name -> what it holds now, after recovery.
    resolved : tuple of Resolution
        In the order in which it was done.
    last_epoch : int
        Highest epoch that any sink or the ledger knows; 0 when none.
    """

    generation: int
    held: Mapping[str, Held]
    resolved: tuple[Resolution, ...]
    last_epoch: int


def take_over(ledger: Ledger, delivery: Delivery, patience: Patience, clock: Clock, run: RunIdentity) -> int:
    """Take a generation above the checkpoint's and every sink's, open every sink with it, and return it.

    A sink that refuses knows a higher one.  If the checkpoint knows that one too, another run has just taken over.  If
    not, the checkpoint is younger than the sink (it was lost, or restored): go above.

    A sink in doubt (the reply was lost, or it cannot finish what it had begun) may or may not have taken the number:
    after a wait the next one settles it.

    Raises
    ------
    Fenced
        If another run has taken over meanwhile.
    InDoubt
        The sink's own, after the last attempt: it says what to do.
    """
    floor = refusals = doubts = 0
    while refusals < _TRIES_MAX:
        generation = ledger.take_generation(floor, clock.now_us())
        try:
            delivery.open(generation)
        except Fenced as refusal:
            ledger.check_fenced()
            log.info("generation %d is refused: %s", generation, refusal.what)
            floor = max(refusal.generation or 0, generation + 2**refusals - 1)
            refusals += 1
        except InDoubt as doubt:  # the connection broke, or the sink's server died, while it was opened
            ledger.check_fenced()
            doubts += 1
            if not patience.wait_after(doubts, f"open the sinks with generation {generation}", doubt):
                raise
        else:
            return generation
    raise Fenced(
        f"no generation of pipeline {run.pipeline!r} is high enough for its sinks.",
        why=f"{_TRIES_MAX} were refused: a run with another checkpoint keeps taking over.",
        do="stop other runs of this pipeline, then start again.",
        pipeline=run.pipeline,
    )


def confirm_done(ledger: Ledger, delivery: Delivery, takeover: Takeover) -> list[Resolution]:
    """Ask every sink whether it still holds the newest epoch that the ledger knows to be done in it; older ones follow.

    Before anything is published: a later epoch would move the sink's ledger over the gap and hide it.
    """
    resolved = []
    before = _before_open(ledger, delivery, takeover)
    for name, held in delivery.held.items():
        done = takeover.done
        if takeover.open and done is not None and name not in done.sinks:
            done = ledger.newest_done_of(name)  # it was ahead of the others, and they caught up with it alone
        of_done = done.record.epoch if done and name in done.sinks else 0
        epoch = max(of_done, before.get(name, 0))
        if held.epoch < epoch:  # it failed over to a copy that lagged, or was restored from a backup
            resolved.append(delivery.judge(name, epoch, Decision.DONE))
    return resolved


def _before_open(ledger: Ledger, delivery: Delivery, takeover: Takeover) -> dict[str, int]:
    """Return, for each sink that lacks an open epoch, the one before the first of them: it was done in that sink.

    An epoch that one sink got alone has no "done".  It was published before the next one was decided; an epoch of a
    group is open itself, and is found here first.
    """
    found: dict[str, int] = {}
    for key in takeover.open:
        lack_it = {name for name, held in delivery.held.items() if held.epoch < key.epoch}
        if lack_it <= found.keys():
            continue
        try:
            content = ledger.read(key)
        except Corrupt:  # a power cut, or a disk, has damaged it
            break  # nothing from here on is published
        if isinstance(content, Decided):
            for name in lack_it.intersection(content.parts) - found.keys():
                found[name] = content.before.get(name, 0) if delivery.remembers(name) else 0
    return found


class OpenDecisions:
    """What dead runs had decided, carried out by the next start.

    Parameters
    ----------
    ledger, delivery, publisher, stories
        Of this run.
    run : RunIdentity
        This run, whose generation has fenced theirs.
    """

    def __init__(
        self, ledger: Ledger, delivery: Delivery, publisher: Publisher, stories: Stories, run: RunIdentity
    ) -> None:
        self._ledger = ledger
        self._delivery = delivery
        self._publisher = publisher
        self._stories = stories
        self._run = run

    def resolve(
        self, takeover: Takeover, behind: Collection[str], on_refused: OnRefused | None = None
    ) -> list[Resolution]:
        """Publish what is open wherever it lacks, oldest first, and forget it; return what was found.

        Parameters
        ----------
        takeover : Takeover
            What is open.
        behind : collection of str
            Sinks that have lost what is done in them.
        on_refused : callable, optional
            Keeps rows that a sink refuses; see ``Coordinator.open``.

        Notes
        -----
        Where ``on_refused`` is given, each sink is asked what it refuses when those before it have the epoch: their
        rows may be what its foreign keys point to, or what its own collide with.
        """
        resolved: list[Resolution] = []
        backlog = Backlog(self._delivery, self._publisher, max((key.epoch for key in takeover.open), default=0))
        for key, decided in self._read(takeover):
            check_known_sinks(decided, self._delivery.names, self._run)
            self._stories.take(key.epoch, Event.FIND, detail=f"of generation {decided.record.generation}")
            is_rewind = decided.record.rewound_to is not None
            # In a sink that lacks earlier epochs this one would hide the gap: it gets all of them again, by replay.
            left_out = () if is_rewind else behind
            names = [name for name in self._delivery.names if name in decided.parts and name not in left_out]
            found = [backlog.judge(name, key.epoch) for name in names]
            entry = Underway(decided, key)
            self._publisher.begin([entry])
            if on_refused is None and not left_out and not is_rewind and backlog.takes(entry, found):
                resolved += found
                continue
            backlog.publish()
            for each in found:
                if each.verdict is not Verdict.PUBLISH:
                    continue  # the dead run's publish had succeeded in this sink
                if on_refused is not None and not is_rewind:
                    entry = self._without_refused(entry, key, each.sink, on_refused)
                self._publisher.publish(each.sink, [entry])
            self._publisher.complete(entry, left_out)
            resolved += found
        backlog.publish()
        return resolved

    def _read(self, takeover: Takeover) -> Iterator[tuple[Key, Decided]]:
        """Yield what is open, oldest first, one at a time: each may hold many rows.

        Raises
        ------
        Corrupt
            If a decision cannot be read and some sink lacks its epoch.
        """
        for key in takeover.open:
            try:
                content = self._ledger.read(key)
            except Corrupt:  # a power cut, or a disk, has damaged it
                if any(held.epoch < key.epoch for held in self._delivery.held.values()):
                    raise
                self._ledger.settle_damaged(key)
                continue
            if isinstance(content, Decided):  # else a run that is fenced by now has forgotten it after our look
                yield key, content

    def _without_refused(self, entry: Underway, key: Key, name: str, on_refused: OnRefused) -> Underway:
        """Remove from a decision the rows that a sink refuses which must publish it now.

        Durable writes, before it publishes without the rows: 1. ``on_refused`` keeps them.  A crash right after leaves
        the decision whole: the same rows are found again, and kept under the same names.  2. the decision without them.
        A crash right after: any start publishes it.
        """
        decided = entry.decided
        publication, refused = self._delivery.reject(name, Publication(decided.record, decided.parts[name]))
        if not refused:
            return entry
        rejected = decided.as_decided(name, refused)
        on_refused(name, decided.record, rejected)
        faults.reach("rejected-kept", decided.record.epoch)
        amended = decided.without(name, publication.parts, rejected)
        self._ledger.amend(key, amended)
        faults.reach("rejected-decided", decided.record.epoch)
        return Underway(amended, key)
