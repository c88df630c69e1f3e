"""The start of a run: take a generation that fences all others, find what dead runs left, and carry it out.

Invariants.  The order: generation, then fences in the sinks, then reading the ledger.  After the fences no older
run can publish, so what the sinks answer stays true; the ledger's own fence (``ledger.py``) stops older decisions.
Every sink is asked for what is done in it before anything is published: a later epoch would hide what it has lost.
And for what is staged in it: a decision of which rows are gone is revoked for that sink, with all that follow it, and
only if the sources can give the rows again (design/0002, "Expiry").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast import faults
from holdfast.commit.backlog import Backlog
from holdfast.commit.checks import check_known_sinks
from holdfast.commit.delivery import Delivery, Resolution
from holdfast.commit.group import Underway
from holdfast.commit.ledger import Key, Ledger, Takeover
from holdfast.commit.publishing import Publisher
from holdfast.commit.records import Decided, Done
from holdfast.commit.recovery import VERDICTS, Decision, Verdict
from holdfast.commit.story import Stories
from holdfast.commit.transaction import Event
from holdfast.errors import BadRow, Corrupt, Diverged, Fenced, HoldfastError, InDoubt, Unavailable
from holdfast.ports import Clock, EpochRecord, Held, Outcome, Publication, Refused, RunIdentity
from holdfast.positions import Positions
from holdfast.retry import Retrier

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


def take_over(ledger: Ledger, delivery: Delivery, retrier: Retrier, clock: Clock, run: RunIdentity) -> int:
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
            if not retrier.wait_after(doubts, f"open the sinks with generation {generation}", doubt):
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


@dataclass(frozen=True)
class Expired:
    """What is decided for a sink that has published nothing of it, and of which staged rows are gone.

    Parameters
    ----------
    sink : str
        Its name.
    epochs : tuple of int
        Those that are revoked for it: the first of which rows are gone, and all that are decided after it.
    names : tuple of str
        The staged parts of the first that are gone.
    row_count : int
        Rows of all these epochs for the sink.
    after, until : Positions
        Where the first of these epochs begins, and where the last one ends.
    """

    sink: str
    epochs: tuple[int, ...]
    names: tuple[str, ...]
    row_count: int
    after: Positions
    until: Positions

    def __str__(self) -> str:
        several = len(self.epochs) > 1
        return (
            f"epoch {self.epochs[0]}{f' to {self.epochs[-1]}' if several else ''}: rows staged for sink "
            f"{self.sink!r} are gone ({', '.join(self.names[:3])}{', ...' if len(self.names) > 3 else ''})"
        )


OnExpired = Callable[[Sequence[Expired], Mapping[str, Held]], None]


def still_revoked(done: Done | None, held: Mapping[str, Held]) -> dict[str, Held]:
    """Return what sinks hold, where an epoch was revoked for one that holds nothing: it is no new one.

    A start has revoked it, and died before the replay.  The newest epoch that is done says so as long as it matters:
    before the sink holds something, nothing else is decided and done without it.
    """
    revoked = {} if done is None else done.revoked
    return {
        name: replace(each, positions=revoked[name], stops=(done.record.positions,))
        for name, each in held.items()
        if done is not None and name in revoked and each.is_empty
    }


def find_expired(ledger: Ledger, delivery: Delivery, takeover: Takeover, behind: Collection[str]) -> dict[str, Expired]:
    """Ask every sink whether it still has what is staged for it of the open decisions; nothing is changed.

    Parameters
    ----------
    ledger, delivery, takeover : Ledger, Delivery, Takeover
        Of this run: sinks are opened, so each has completed what it had begun to publish.
    behind : collection of str
        Sinks that have lost what is done in them: they get everything by a replay anyway.

    Raises
    ------
    Diverged
        If nobody knows where the first epoch of a sink begins: a version that did not note it has decided it.
    """
    found: dict[str, Expired] = {}
    after = {name: held.positions for name, held in delivery.held.items()}
    for key in takeover.open:
        try:
            decided = ledger.read(key)
        except Corrupt:  # whether it matters is found when it is resolved
            continue
        if not isinstance(decided, Decided) or decided.record.rewound_to is not None:
            continue
        epoch, ends = decided.record.epoch, decided.record.positions
        for name, parts in decided.parts.items():
            if name not in delivery.held or name in behind or epoch <= delivery.held[name].epoch:
                continue
            if name in found:
                before, more = found[name], decided.row_counts[name]
                found[name] = replace(
                    before, epochs=(*before.epochs, epoch), row_count=before.row_count + more, until=ends
                )
            elif gone := delivery.expired(name, parts):
                begins = _begins(decided, name, after[name], delivery)
                found[name] = Expired(name, (epoch,), tuple(gone), decided.row_counts[name], begins, ends)
            else:
                after[name] = ends
    return found


def _begins(decided: Decided, name: str, after: Positions, delivery: Delivery) -> Positions:
    """Return where an epoch begins for a sink."""
    if after or not delivery.held[name].is_empty:
        return after
    if decided.start is not None:
        return decided.start
    record = decided.record
    raise Diverged(
        f"rows staged for epoch {record.epoch} of sink {name!r} are gone, and the sink holds nothing yet.",
        why="an earlier version decided the epoch, and did not note where it begins.",
        do="bring back what was staged, and start again; or give the sink another name and backfill=True; or start "
        "over with a new checkpoint and empty targets.",
        pipeline=record.pipeline,
        participant=name,
        epoch=record.epoch,
    )


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
        self.newest: EpochRecord | None = None
        """Of the newest of them."""

    def resolve(
        self,
        takeover: Takeover,
        behind: Collection[str],
        expired: Mapping[str, Expired],
        on_refused: OnRefused | None = None,
    ) -> list[Resolution]:
        """Publish what is open wherever it lacks, oldest first, and forget it; return what was found.

        Parameters
        ----------
        takeover : Takeover
            What is open.
        behind : collection of str
            Sinks that have lost what is done in them.
        expired : mapping of str to Expired
            Sinks for which decisions are revoked.
        on_refused : callable, optional
            Keeps rows that a sink refuses; see ``Coordinator.open``.

        Notes
        -----
        Where ``on_refused`` is given, each sink is asked what it refuses when those before it have the epoch: their
        rows may be what its foreign keys point to, or what its own collide with.

        One that does not answer holds up none of the others that remember what they hold: they get what is decided,
        and are swept, before it is raised.  A transaction that stays open would hide what other shards write.
        """
        away: dict[str, HoldfastError] = {}
        resolved: list[Resolution] = []
        backlog = Backlog(self._delivery, self._publisher, max((key.epoch for key in takeover.open), default=0))
        for key, decided in self._read(takeover):
            check_known_sinks(decided, self._delivery.names, self._run)
            self.newest = decided.record
            self._stories.take(key.epoch, Event.FIND, detail=f"of generation {decided.record.generation}")
            is_rewind = decided.record.rewound_to is not None
            # In a sink that lacks earlier epochs this one would hide the gap: it gets all of them again, by replay.
            revoked = {} if is_rewind else {n: of for n, of in expired.items() if key.epoch in of.epochs}
            left_out = frozenset() if is_rewind else frozenset({*behind, *revoked})
            names = [name for name in self._delivery.names if name in decided.parts and name not in left_out]
            found = [backlog.judge(name, key.epoch) for name in names]
            found += [_revoked(name, key.epoch) for name in revoked]
            entry = Underway(decided, key)
            self._publisher.begin([entry])
            if on_refused is None and not left_out and not is_rewind and not away and backlog.takes(entry, found, away):
                resolved += found
                continue
            backlog.publish(away)
            for each in found:
                if each.verdict is not Verdict.PUBLISH or each.sink in away:
                    continue  # the dead run's publish had succeeded in this sink; or it lacks an earlier epoch
                if away and not self._delivery.remembers(each.sink):
                    away[each.sink] = next(iter(away.values()))  # it would get the epoch again with each start
                    continue
                try:
                    if on_refused is not None and not is_rewind and not away:  # see below: such rows are none to reject
                        entry = self._without_refused(entry, key, each.sink, on_refused)
                    self._publisher.publish(each.sink, [entry])
                except (Unavailable, BadRow, Diverged, InDoubt) as error:
                    if not away and not isinstance(error, Unavailable):
                        raise
                    away[each.sink] = error  # what it refuses may point to what the first one lacks
            if away:
                continue  # the next start finds it, and those after it, in the sinks that have it
            # NB from here on only the sources have what is revoked: ``open`` has asked whether they can give it.
            self._publisher.complete(entry, left_out, self._done(entry, left_out, revoked))
            if revoked:
                self._stories.take(key.epoch, Event.REVOKE, detail=f"for {sorted(revoked)}")
            resolved += found
        backlog.publish(away)
        if away:
            self._delivery.sweep(0, left_out=away)
            raise next(iter(away.values()))
        self._note_revoked(expired)
        return resolved

    def _done(self, entry: Underway, left_out: Collection[str], revoked: Mapping[str, Expired]) -> Done:
        """Return what is left of a decision that some sinks do not get, or get by a replay.

        One that remembers what it holds stays among them: it is then behind what is done.  One that does not is none of
        them: that it has the epoch would be believed.
        """
        forgetful = [name for name in revoked if not self._delivery.remembers(name)]
        counts = {name: count for name, count in entry.done.row_counts.items() if name not in forgetful}
        new = [name for name in left_out if name in counts and not self._delivery.held[name].epoch]
        held = self._delivery.held
        starts = {name: revoked[name].after if name in revoked else held[name].positions for name in new}
        return replace(entry.done, row_counts=counts, revoked=starts)

    def _note_revoked(self, expired: Mapping[str, Expired]) -> None:
        for name, of in expired.items():
            log.warning("%s: revoked for it, and read again", of)
            held = self._delivery.held[name]
            if held.is_empty:
                self._delivery.held[name] = replace(held, positions=of.after, stops=(of.until,))

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
        faults.reach("rejected-kept", decided.record.epoch, decided.record.pipeline)
        amended = decided.without(name, publication.parts, rejected)
        self._ledger.amend(key, amended)
        faults.reach("rejected-decided", decided.record.epoch, decided.record.pipeline)
        return Underway(amended, key)


def _revoked(name: str, epoch: int) -> Resolution:
    verdict = VERDICTS[Decision.COMMIT, Outcome.EXPIRED]
    return Resolution(epoch, name, Decision.COMMIT, Outcome.EXPIRED, verdict)
