"""One sink at a time: open it, ask it, publish into it, with bounded retries and without ever guessing.

What a sink holds is asked of the sink.  *Failed* (``Unavailable``: nothing was changed) is retried; *unknown*
(``InDoubt``: a connection that broke during COMMIT) is asked about first.  Every question and answer is logged.

Invariants.  Each generation that opens a sink is above those before it.  Epochs are published in a sink in ascending
order, and none that it holds.  A sink serves one thread at a time: its lock is here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from holdfast.capabilities import offers
from holdfast.commit.busy import BusyTimes
from holdfast.commit.recovery import VERDICTS, Decision, Verdict
from holdfast.commit.story import Stories
from holdfast.commit.transaction import Event
from holdfast.errors import BadRow, Diverged, InDoubt, InvalidPipeline, Unavailable, invariant
from holdfast.ports import (
    Early,
    EpochRecord,
    Evolving,
    Expiring,
    Guarantee,
    Held,
    Outcome,
    Part,
    Publication,
    Refused,
    Rejecting,
    RunIdentity,
    Sink,
    Staged,
    Volatile,
)
from holdfast.retry import Retrier, one_line

log = logging.getLogger("holdfast.commit")

_LATER = (Unavailable, InDoubt, InvalidPipeline)
"""Why an orphan may stay for now: it is invisible, and no reason to stop a run, even if it cannot be removed."""


@dataclass(frozen=True)
class Resolution:
    """What recovery found of one epoch in one sink, and what it did.

    Parameters
    ----------
    epoch, sink : int, str
        Of which epoch, in which sink.
    decision : Decision
        What the ledger said.
    outcome : Outcome
        What the sink said.
    verdict : Verdict
        What was done.
    """

    epoch: int
    sink: str
    decision: Decision
    outcome: Outcome
    verdict: Verdict


@dataclass(frozen=True)
class Published:
    """Progress of one sink: highest epoch it holds, and rows published by this run."""

    epoch: int = 0
    row_count: int = 0


class Delivery:
    """The sinks of one pipeline, as one generation of it reaches them.

    Parameters
    ----------
    pipeline : str
        Its name.
    sinks : mapping of str to Sink
        By name, in the order in which they publish.
    retrier : Retrier
        How often a sink is tried.
    stories : Stories
        Where doubts and answers are recorded.
    is_grouped : bool
        Whether epochs wait for their group.
    paced : collection of str
        Sinks for which they wait even so.
    """

    def __init__(
        self,
        pipeline: str,
        sinks: Mapping[str, Sink],
        retrier: Retrier,
        stories: Stories,
        *,
        is_grouped: bool = False,
        paced: Collection[str] = (),
    ) -> None:
        self._pipeline = pipeline
        self._sinks = sinks
        self._retrier = retrier
        self._stories = stories
        self._locks = {name: threading.RLock() for name in sinks}
        self._is_grouped = is_grouped
        self._paced = frozenset(paced)
        self._generation = 0
        self.busy = BusyTimes()
        """How long each sink takes: asked for rows, sent them, or publishing."""
        self.held: dict[str, Held] = {}
        self.published: dict[str, Published] = dict.fromkeys(sinks, Published())
        self._telling = threading.Lock()
        self._tell_held: Callable[[Mapping[str, Held]], object] = lambda held: None

    def open(self, generation: int) -> None:
        """Open every sink, which fences lower generations, and note what each holds."""
        invariant(
            generation > self._generation,
            f"generation {generation} is to open the sinks after generation {self._generation}.",
            pipeline=self._pipeline,
            generation=generation,
        )
        self._generation = generation
        for name, sink in self._sinks.items():
            run = RunIdentity(self._pipeline, generation, self._is_grouped or name in self._paced)
            self.held[name] = self._retrier.call(partial(sink.open, run), f"open sink {name!r}")
        self.published = {name: Published(held.epoch) for name, held in self.held.items()}

    def add_columns(self) -> None:
        """Let each sink add to its target what it lacks of the rows' columns.

        Raises
        ------
        Unavailable
            If one does not answer, or its target is in use, after the last attempt.
        """
        for name, sink in self._sinks.items():
            if offers(sink, Evolving):
                doing = f"add columns to the target of sink {name!r}"
                added = self._retrier.call(sink.add_columns, doing)
                if added:
                    log.info("sink %r: added %s; rows that were there have null in it", name, ", ".join(added))

    @property
    def explained(self) -> dict[str, Mapping[str, int]]:
        """Sink -> source -> the number of explanations that it keeps; without the sinks that keep none."""
        return {name: held.explained for name, held in self.held.items() if held.explained is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """The sinks, in the order in which they publish."""
        return tuple(self._sinks)

    @property
    def paced(self) -> frozenset[str]:
        """The sinks with a pace of their own."""
        return self._paced

    def ask(self, name: str, epoch: int) -> Outcome:
        """Ask a sink whether it holds an epoch, until it knows.

        Raises
        ------
        InDoubt
            If it does not know, or does not answer, after the last attempt.
        """

        def ask() -> Outcome:
            try:
                with self._locks[name]:
                    outcome = self._sinks[name].outcome(epoch)
            except (Unavailable, InDoubt) as silence:
                log.info("asked sink %r whether it holds epoch %d: no answer (%s)", name, epoch, silence.what)
                raise Unavailable(silence.what, why=silence.why, do=silence.do) from silence
            log.info("asked sink %r whether it holds epoch %d: answered %s", name, epoch, outcome.name)
            if outcome is Outcome.UNKNOWN:  # its server is back and has not yet settled what was interrupted
                raise Unavailable(f"sink {name!r} cannot tell yet whether it holds epoch {epoch}.")
            return outcome

        try:
            return self._retrier.call(ask, f"ask sink {name!r} about epoch {epoch}")
        except Unavailable as silence:
            raise InDoubt(
                f"epoch {epoch} of pipeline {self._pipeline!r} may or may not be visible in sink {name!r}.",
                why=f"it was asked {self._retrier.policy.attempts} times; last: {one_line(silence)}",
                do="start the pipeline again when the sink answers: it asks first. Delete nothing until then.",
                pipeline=self._pipeline,
                participant=name,
                epoch=epoch,
                generation=self._generation,
            ) from silence

    def remembers(self, name: str) -> bool:
        """Return whether a sink's answer on what another process published is reliable."""
        return remembers(self._sinks[name])

    def judge(self, name: str, epoch: int, decision: Decision) -> Resolution:
        """Ask a sink about an epoch, and take the verdict from the table.

        Raises
        ------
        Diverged
            If it contradicts the ledger.
        """
        if decision is Decision.DONE and not self.remembers(name):
            # It cannot be asked about what another process published: the ledger's answer counts.
            return Resolution(epoch, name, decision, Outcome.UNKNOWN, Verdict.SKIP)
        outcome = self.ask(name, epoch)
        verdict = VERDICTS[decision, outcome]
        log.info("epoch %d: ledger %s, sink %r %s: %s", epoch, decision.name, name, outcome.name, verdict.name)
        if verdict is Verdict.DIVERGED:
            raise Diverged(
                f"the ledger says that sink {name!r} has published epoch {epoch}, and it answers {outcome.value!r}.",
                why="the sink was restored to the middle of an epoch that it had published.",
                do=f"restore sink {name!r} to a state that holds epoch {epoch}; or start over with a new checkpoint "
                "and an empty target.",
                pipeline=self._pipeline,
                participant=name,
                epoch=epoch,
                generation=self._generation,
            )
        return Resolution(epoch, name, decision, outcome, verdict)

    def expired(self, name: str, parts: Sequence[Part]) -> Sequence[str]:
        """Return the names of the parts of an epoch, which a sink lacks, whose staged rows it no longer has."""
        sink, staged = self._sinks[name], [part for part in parts if isinstance(part, Staged)]
        if not staged or not offers(sink, Expiring):
            return ()
        return self._retrier.call(lambda: sink.expired(staged), f"ask sink {name!r} what is staged there")

    def admit(self, publications: Mapping[str, Publication], later: Collection[str] = ()) -> frozenset[str]:
        """Ask every sink of an epoch whether it takes its rows; return those whose answer depends on what they hold.

        Sinks that publish it ``later`` than the others lack its rows then, where one has been asked for theirs.

        Raises
        ------
        BadRow
            If a sink refuses a row.
        Unavailable
            If one does not answer, after the last attempt.
        """
        earlier: list[tuple[Sink, Publication]] = []
        tried: set[str] = set()
        for name in (name for name in self._sinks if name in publications):
            publication = publications[name]

            def ask(name: str = name, publication: Publication = publication) -> bool:
                # Without the lock: an epoch before may be with the commit thread, in the sink's publish.
                return self._sinks[name].admit(publication, tuple(earlier))

            with self.busy.at(name):
                if self._retrier.call(ask, f"try epoch {publication.record.epoch} in sink {name!r}"):
                    tried.add(name)
            if name not in later:
                earlier.append((self._sinks[name], publication))
        return frozenset(tried)

    def send(self, publications: Mapping[str, Publication]) -> None:
        """Give an epoch that is not decided to the sinks that take it early.

        Raises
        ------
        BadRow
            If one refuses a row.
        Unavailable
            If one does not answer, after the last attempt.
        """
        for name, sink in self._sinks.items():
            if name not in publications or not offers(sink, Early) or not sink.is_early:
                continue

            def send(name: str = name, sink: Early = sink) -> None:
                with self._locks[name]:  # an epoch before may be with the commit thread
                    sink.send(publications[name])

            with self.busy.at(name):
                self._retrier.call(send, f"send epoch {publications[name].record.epoch} to sink {name!r}")

    def reject(self, name: str, publication: Publication) -> tuple[Publication, Sequence[Refused]]:
        """Return an epoch without the rows that a sink refuses, and the rows; none where it cannot say."""
        sink = self._sinks[name]
        if not offers(sink, Rejecting):
            return publication, ()
        doing = f"find what sink {name!r} refuses of epoch {publication.record.epoch}"
        return self._retrier.call(lambda: sink.reject(publication), doing)

    def publish(self, name: str, publications: Sequence[Publication], decision: Decision) -> None:
        """Publish epochs in one transaction of the sink; returns when the sink holds them.

        Raises
        ------
        Unavailable, InDoubt
            After the last attempt.
        Fenced
            If a higher generation has opened the sink.
        Diverged
            If the sink holds less than it last reported: it went back during the run.
        BadRow
            If the sink refuses a row that it would have taken when it was asked (:meth:`admit`).
        """
        last = publications[-1].record
        self._check_ascending(name, publications)
        attempts = 0

        def attempt() -> None:
            nonlocal attempts
            attempts += 1
            try:
                with self._locks[name]:
                    self._sinks[name].publish(publications, self.held[name])
            except InDoubt as doubt:  # the connection broke, or the server died, before the COMMIT was answered
                self._tell(publications, Event.DOUBT, name, one_line(doubt))
                outcome = self.ask(name, last.epoch)
                self._tell(publications, Event.ANSWER, name, outcome.name)
                if VERDICTS[decision, outcome] is Verdict.PUBLISH:
                    raise Unavailable(doubt.what, why=doubt.why, do=doubt.do) from doubt

        try:
            with self.busy.at(name):
                self._retrier.call(attempt, f"publish epoch {last.epoch} in sink {name!r}")
        except BadRow as refusal:
            if decision is Decision.LIVE:
                raise
            raise _decided(refusal, last) from refusal
        except Unavailable as failure:
            raise Unavailable(
                f"epoch {last.epoch} of pipeline {self._pipeline!r} could not be published in sink {name!r}: "
                f"{attempts} attempts failed.",
                why=one_line(failure),
                do="start the pipeline again when the sink answers: it continues here, nothing is lost or duplicated.",
                pipeline=self._pipeline,
                participant=name,
                epoch=last.epoch,
                generation=self._generation,
            ) from failure
        row_count = sum(publication.row_count for publication in publications)
        self._tell(publications, Event.HOLD, name, f"{row_count} rows, {attempts} attempts")
        before = self.held[name]
        explained = before.explained
        if explained is not None:
            numbers = {each.source: each.number for of in publications for each in of.record.explanations}
            explained = {**explained, **{of: max(number, explained.get(of, 0)) for of, number in numbers.items()}}
        held = Held(last.epoch, before.generation, last.positions, last.pts, explained, recent_ends=last.recent_ends)
        self.held[name] = held
        self.published[name] = Published(last.epoch, self.published[name].row_count + row_count)
        self._told()

    def follow(self, tell: Callable[[Mapping[str, Held]], object]) -> None:
        """Let somebody be told what each sink holds: now, and whenever one has published; on whichever thread that is.

        It returns at once, and does not raise.
        """
        self._tell_held = tell
        self._told()

    def _told(self) -> None:
        with self._telling:  # sinks publish on several threads: what is told last is the newest
            self._tell_held(dict(self.held))

    def _check_ascending(self, name: str, publications: Sequence[Publication]) -> None:
        held, epochs = self.held[name].epoch, [publication.record.epoch for publication in publications]
        invariant(
            all(one < next_ for one, next_ in pairwise(epochs)),
            f"sink {name!r} is to publish {epochs}.",
            why="epochs become visible in ascending order, each once.",
            pipeline=self._pipeline,
            participant=name,
            epoch=epochs[-1],
            generation=self._generation,
            story=lambda: self._stories.note(epochs[-1]),
        )
        if epochs[0] > held:
            return
        # What a sink had begun to publish is complete since its ``open``, which completes it before it returns what it
        # holds: see the port.
        went_back = Diverged(
            f"sink {name!r} said that it holds epoch {held}, and then that it lacks epoch {epochs[0]}.",
            why="it failed over to a lagging replica, or was restored, in between.",
            do="start the pipeline again: it first asks what the sink holds now.",
            pipeline=self._pipeline,
            participant=name,
            epoch=epochs[0],
            generation=self._generation,
        )
        went_back.is_mended_by_start = True
        raise went_back

    def sweep(self, below_epoch: int, needed: Mapping[str, int] | None = None, left_out: Collection[str] = ()) -> int:
        """Drop orphans in every sink that is not busy publishing, nor left out; returns how many.

        ``needed`` has, for sinks that lack something decided, the first such epoch: nothing from there on is dropped.
        """
        count = 0
        for name, sink in self._sinks.items():
            if name in left_out or not self._locks[name].acquire(blocking=False):
                continue  # the commit thread is at work there: next time
            try:
                count += sink.sweep(below_epoch=min(below_epoch, (needed or {}).get(name, below_epoch)))
            except _LATER as failure:
                log.info("sink %r could not be swept now: %s", name, failure.what)
            finally:
                self._locks[name].release()
        return count

    def close(self) -> None:
        """Close every sink.  An error is logged: what the sink published it holds."""
        for name, sink in self._sinks.items():
            try:
                with self._locks[name]:
                    sink.close()
            except Exception:  # it must not raise; the others have connections too
                log.warning("sink %r could not be closed", name, exc_info=True)

    def _tell(self, publications: Sequence[Publication], event: Event, name: str, detail: str) -> None:
        for publication in publications:
            self._stories.take(publication.record.epoch, event, name, detail)


def remembers(sink: Sink) -> bool:
    """Return whether a sink knows what another process published: not one that lives in a process, or never knows."""
    return sink.guarantee is Guarantee.EXACTLY_ONCE and not (offers(sink, Volatile) and sink.is_volatile)


def _decided(refusal: BadRow, record: EpochRecord) -> BadRow:
    """Return a sink's refusal of rows whose epoch is decided: no start can leave them out, whatever it changes."""
    error = BadRow(
        refusal.what,
        why=f"{refusal.why} Epoch {record.epoch} is decided: other sinks have it, or will.",
        do="make the sink accept the row (undo the change of its table), and start again; or: holdfast resolve TARGET "
        "--checkpoint DIR --reject-rows   (the rows that it refuses become dead letters, the others are published)",
        pipeline=record.pipeline,
        participant=refusal.participant,
    )
    error.is_decided = True
    return error
