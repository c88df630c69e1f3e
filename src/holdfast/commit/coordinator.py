"""The coordinator: makes epochs visible in every sink, exactly once, whatever dies and whenever (design/0002).

Invariants.  Epochs become visible in each sink in ascending order.  At most one decision of an epoch counts, across
generations.  A sink that holds an epoch is never asked to write it again.  After a failure nothing further is
published by this run: the next run asks every sink first.

What only grows: the generation; in each sink, the epoch it holds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from holdfast import faults
from holdfast.commit.checks import (
    check_commit,
    check_known_sinks,
    check_no_gap,
    check_parts,
    check_same_positions,
    needs,
)
from holdfast.commit.commit_thread import CommitThread, ThreadLane
from holdfast.commit.delivery import Delivery, Published, Resolution
from holdfast.commit.group import CommitGroup, Underway
from holdfast.commit.ledger import Ledger, Takeover
from holdfast.commit.records import Decided, Done
from holdfast.commit.recovery import Decision, Verdict
from holdfast.commit.retry import Patience, PatientStore, Retry, one_line
from holdfast.commit.story import Stories
from holdfast.commit.takeover import Resumption, confirm_done, ledgers_word, open_decisions, take_over
from holdfast.commit.transaction import Event, State, Transition
from holdfast.errors import BadRow, HoldfastError, InternalError
from holdfast.ports import Clock, EpochRecord, Held, Part, Publication, Refused, RunIdentity, Sink, Store
from holdfast.positions import Positions, covers_all

__all__ = ["Coordinator", "Published", "Resolution", "Resumption", "Retry", "Statistics"]

log = logging.getLogger("holdfast.commit")

T = TypeVar("T")

OnRefused = Callable[[str, EpochRecord, Sequence[Refused]], None]
OnBehind = Callable[[Collection[str], Mapping[str, Held]], None]


@dataclass(frozen=True)
class Statistics:
    """The coordinator at one moment.

    Parameters
    ----------
    retries : int
        Failed attempts that were followed by another one.
    published : mapping of str to Published
        Per sink: highest epoch it holds, and rows published by this run.
    queue_length : int
        Jobs of the commit thread, the one at work included.
    decided_unpublished : int
        Epochs whose decision is open: waiting for the commit thread or for their group.
    last_error : str, optional
        Message of the last failure, whether it was retried or not.
    waits_for : str
        What failed and is tried again after a wait; empty while nothing is waited for.
    """

    retries: int
    published: Mapping[str, Published]
    queue_length: int
    decided_unpublished: int
    last_error: str | None
    waits_for: str = ""


class Coordinator:
    """Decides, publishes and forgets the epochs of one pipeline.  Lives on the driver.

    Parameters
    ----------
    pipeline : str
        Its name.
    store : Store
        The checkpoint.
    sinks : sequence of Sink
        Connected, not opened.  They publish in this order.
    clock : Clock
        For waiting and for the story.
    retry : Retry
        For whatever raises ``Unavailable``.
    commit_every_ticks : int, optional
        Publish several epochs in one transaction of each sink, once the minimum timestamp over the inputs has moved by
        so much since the last time.  Every epoch is decided as it comes.  While an input has not had a timestamp yet,
        epochs are published at once.
    commit_thread : bool
        Publish in the background where that is safe: the epoch has a decision and all its parts are staged.  A pipeline
        with one sink and without grouping needs no decisions, and so has no thread either.
    queue_size : int
        Epochs (or groups) that may wait for the commit thread.
    carried_limit_bytes : int
        A group is published at the latest when the driver holds so many bytes of its rows.
    ledger_keep : int
        Finished epochs that stay readable in the ledger.
    on_transition : callable, optional
        Called with every :class:`Transition`, also from the commit thread.
    lane : CommitThread, optional
        Instead of the commit thread: simulation.
    backfilled : collection of str
        Sinks that, while they hold nothing, are given what others hold already.

    Notes
    -----
    ``open`` first, ``close`` last.  Everything except the commit thread's own work runs in the caller's thread, one
    call at a time.  Holds the rows of carried epochs only until they are published.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        store: Store,
        sinks: Sequence[Sink],
        clock: Clock,
        retry: Retry | None = None,
        commit_every_ticks: int | None = None,
        commit_thread: bool = True,
        queue_size: int = 4,
        carried_limit_bytes: int = 64_000_000,
        ledger_keep: int = 100,
        on_transition: Callable[[Transition], None] | None = None,
        lane: CommitThread | None = None,
        backfilled: Collection[str] = (),
    ) -> None:
        self._pipeline = pipeline
        self._backfilled = frozenset(backfilled)
        self._sinks = {sink.name: sink for sink in sinks}
        if len(self._sinks) != len(sinks):
            raise InternalError(f"two sinks of pipeline {pipeline!r} have the same name.", pipeline=pipeline)
        self._clock = clock
        self._is_closing = False
        self._retry_count = 0
        self._last_error: str | None = None
        self._patience = Patience(
            retry or Retry(), clock, on_retry=self._note_retry, may_go_on=lambda: not self._is_closing
        )
        self._ledger = Ledger(PatientStore(store, self._patience), pipeline, keep=ledger_keep)
        self._stories = Stories(clock, on_transition)
        self._delivery = Delivery(
            pipeline, self._sinks, self._patience, self._stories, is_grouped=commit_every_ticks is not None
        )
        self._lane = lane or (ThreadLane(f"holdfast-commit-{pipeline}", queue_size) if commit_thread else None)
        self._generation = 0
        self._last_epoch = 0
        self._newest_done: Done | None = None
        self._missing: tuple[int, frozenset[str]] = (0, frozenset())
        self._continued: set[str] = set()
        self._before: dict[str, int] = {}
        """Per sink that remembers, the last epoch decided for it; until there is one, what it held."""
        self._behind: frozenset[str] = frozenset()
        self._group = CommitGroup(commit_every_ticks, carried_limit_bytes)
        self._trying: frozenset[str] = frozenset()
        """Sinks whose last word on an epoch's rows depended on what they held."""
        self._unpublished: set[int] = set()
        self._unpublished_lock = threading.Lock()
        self._failure: BaseException | None = None

    # --- takeover and recovery ------------------------------------------------------------------------------------

    def open(self, on_refused: OnRefused | None = None, on_behind: OnBehind | None = None) -> Resumption:
        """Take over: fence every older run, resolve what it left, sweep, and say where the pipeline stands.

        Parameters
        ----------
        on_refused : callable, optional
            Given the sink, the epoch's record and the rows, it keeps rows of decided epochs that the sink refuses;
            durable when it returns.  Then they are published without them.  None: a refused row is an error.
        on_behind : callable, optional
            Given the sinks that have lost what is done in them, and what all sinks hold, before anything is resolved.
            What is decided for those sinks is not published in them, and forgotten: it raises where a replay cannot
            give it to them.

        Raises
        ------
        Fenced
            If a higher generation takes over meanwhile.
        Corrupt, Diverged, InDoubt, InvalidPipeline
            If a person has to look first.  Nothing was dropped.
        Unavailable
            If a sink or the store does not answer, after the last attempt.

        Notes
        -----
        Durable writes: the generation, one fence per sink, the ledger's fence, and what is left of dead runs' epochs.
        Each may be repeated: a crash anywhere in here is followed by another ``open`` with a higher generation.
        """
        with self._stopping_at_failure():
            self._ledger.identify()
            self._generation = take_over(self._ledger, self._delivery, self._patience, self._clock, self._run)
            self._stories.generation = self._generation
            takeover = self._ledger.fence()
            self._newest_done = takeover.done
            known = [held.epoch for held in self._delivery.held.values()] + [key.epoch for key in takeover.open]
            self._last_epoch = max([*known, takeover.done.record.epoch if takeover.done else 0])
            confirmed = tuple(confirm_done(self._ledger, self._delivery, takeover))
            self._behind = frozenset(each.sink for each in confirmed if each.verdict is Verdict.REPLAY)
            if self._behind and on_behind is not None:
                on_behind(self._behind, dict(self._delivery.held))
            resolved = (*confirmed, *self._resolve(takeover, on_refused))
            self._group.begin(h.pts for h in self._delivery.held.values())
            remembering = ((name, held) for name, held in self._delivery.held.items() if self._delivery.remembers(name))
            self._before = {name: held.epoch for name, held in remembering}
            # Only now: a decision that recovery found may have named what a dead run staged.
            self._delivery.sweep(self._last_epoch + 1)
            faults.reach("recovery-resolved", self._last_epoch)
        return Resumption(self._generation, dict(self._delivery.held), resolved, self._last_epoch)

    def _resolve(self, takeover: Takeover, on_refused: OnRefused | None) -> Iterator[Resolution]:
        """Carry out what dead runs had decided, oldest first."""
        for key, decided in open_decisions(self._ledger, self._delivery, takeover):
            check_known_sinks(decided, self._sinks, self._run)
            self._stories.take(key.epoch, Event.FIND, detail=f"of generation {decided.record.generation}")
            names = [name for name in self._sinks if name in decided.parts]
            if decided.record.rewound_to is None:
                # In a sink that lacks earlier epochs this one would hide the gap: it gets all of them again, by replay.
                names = [name for name in names if name not in self._behind]
            found = [self._delivery.judge(name, key.epoch, Decision.COMMIT) for name in names]
            wanted = {each.sink for each in found if each.verdict is Verdict.PUBLISH}
            may_reject = on_refused if decided.record.rewound_to is None else None
            for _ in self._carry_out([Underway(decided, key)], wanted, may_reject):
                pass
            yield from found

    def _without_refused(self, entry: Underway, name: str, on_refused: OnRefused) -> Underway:
        """Take the rows out of a decision that a sink refuses which is to publish it now.

        Durable writes, before it publishes without the rows: 1. ``on_refused`` keeps them.  A crash right after leaves
        the decision whole: the same rows are found again, and kept under the same names.  2. the decision without them.
        A crash right after: any start publishes it.
        """
        decided = entry.decided
        if entry.key is None or name not in decided.parts:
            return entry
        publication, refused = self._delivery.reject(name, Publication(decided.record, decided.parts[name]))
        if not refused:
            return entry
        rejected = decided.as_decided(name, refused)
        on_refused(name, decided.record, rejected)
        faults.reach("rejected-kept", decided.record.epoch)
        amended = decided.without(name, publication.parts, rejected)
        self._ledger.amend(entry.key, amended)
        faults.reach("rejected-decided", decided.record.epoch)
        return Underway(amended, entry.key)

    @property
    def _run(self) -> RunIdentity:
        return RunIdentity(self._pipeline, self._generation)

    # --- one epoch ------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation of this run; 0 before :meth:`open`."""
        return self._generation

    def missing(self, epoch: int, positions: Positions | None = None, start: Positions | None = None) -> frozenset[str]:
        """Return the sinks for which an epoch still has to be produced; empty when every sink holds it.

        Parameters
        ----------
        epoch : int
            The one that the engine is about to evaluate.
        positions : Positions, optional
            Its end positions.  Where given, a sink that holds the epoch by its number must hold all before them too.
        start : Positions, optional
            Its start positions.  Where given, a sink that joins here must hold exactly what lies before them, or
            everything up to the end: then it holds the epoch, under whatever number it came.  One that holds nothing
            joins with the first epoch that no other sink holds.

        Raises
        ------
        Diverged
            If a sink and the ledger contradict each other, a sink holds the epoch by its number alone, or one lacks
            what lies before it.
        """
        with self._stopping_at_failure():
            names = frozenset(self._sinks)
            if epoch <= self._last_epoch:
                # Only what Spark replays comes here, one epoch whenever its query begins, in a start or again within a
                # run: every other one is new to everybody.
                self._publish_rest()
                judged = [
                    self._delivery.judge(name, epoch, ledgers_word(self._newest_done, name, epoch))
                    for name in self._sinks
                ]
                names = frozenset(each.sink for each in judged if each.verdict in (Verdict.ABORT, Verdict.REPLAY))
                if positions is not None:
                    holders = {
                        name: self._delivery.held[name]
                        for name in self._sinks
                        if name not in names and self._delivery.remembers(name)
                    }
                    check_same_positions(epoch, holders, positions, self._run)
            if positions is not None and start is not None:
                names = frozenset(name for name in names if self._joins(name, epoch, start, positions))
            self._missing = (epoch, names)
            return names

    def _joins(self, name: str, epoch: int, start: Positions, end: Positions) -> bool:
        """Tell whether a sink needs an epoch, by the positions that its own ledger holds."""
        held = self._delivery.held[name]
        if name in self._continued:
            return True  # this run's own epochs follow each other
        if held.epoch == 0:  # it is new, and begins where the others go on: what they hold was before its time
            return name in self._backfilled or not self._is_held_elsewhere(name, end)
        if not needs(name, epoch, held, start, end, self._run):
            return False
        self._continued.add(name)
        return True

    def _is_held_elsewhere(self, name: str, end: Positions) -> bool:
        """Tell whether another sink holds an epoch, and this one would remember it too."""
        others = [other for other in self._sinks if other != name and self._delivery.remembers(other)]
        return self._delivery.remembers(name) and any(
            self._delivery.held[other].epoch > 0 and covers_all(self._delivery.held[other].positions, end)
            for other in others
        )

    def commit(self, record: EpochRecord, parts: Mapping[str, Sequence[Part]]) -> None:
        """Make an epoch visible, or make sure that it will be.

        Parameters
        ----------
        record : EpochRecord
            Of this generation; epochs ascend.
        parts : mapping of str to sequence of Part
            For exactly the sinks that :meth:`missing` named.

        Raises
        ------
        Fenced
            If a higher generation owns the pipeline.  The parts are that one's business now.
        BadRow
            If a sink refuses a row.  Nothing is decided, and no sink has anything of the epoch.
        Unavailable, InDoubt
            If a sink does not answer, after the last attempt.  The next run asks it first.

        Notes
        -----
        Durable writes: with one sink, one (its own).  Otherwise the three numbered here and in ``_carry_out``.
        """
        before = {name: epoch for name, epoch in self._before.items() if name in parts}
        decided = Decided(record, {name: tuple(several) for name, several in parts.items()}, before=before)
        self._check_commit(decided)
        with self._stopping_at_failure(record.epoch):
            if self._stories.state(record.epoch) is State.ABORTED:
                self._stories.take(record.epoch, Event.AGAIN)
            self._stories.take(record.epoch, Event.STAGE, detail=_row_counts(decided))
            self._last_epoch = record.epoch
            self._missing = (0, frozenset())
            self._continued.update(parts)
            self._before.update(dict.fromkeys(before, record.epoch))
            key = None
            if len(parts) > 1 or self._group.is_used:
                self._admit(decided)
                # 1. decide.  A crash right after leaves the decision with every handle and every carried row: the next
                #    run publishes from it, and Spark's replay finds every sink holding the epoch.  A crash before
                #    leaves orphans: presumed abort, they are swept by name and Spark replays the epoch.
                key = self._ledger.decide(decided)
                with self._unpublished_lock:
                    self._unpublished.add(record.epoch)
                self._stories.take(record.epoch, Event.DECIDE)
                faults.reach("after-decide", record.epoch)
            group = self._group.due(Underway(decided, key))
            if not group:
                return
            if self._lane is not None and all(entry.key and entry.decided.is_staged for entry in group):
                self._lane.submit(self._carry_out(group))
            else:
                self._wait_for_lane()
                for _ in self._carry_out(group):
                    pass

    def admit(self, record: EpochRecord, parts: Mapping[str, Sequence[Part]]) -> None:
        """Ask the sinks whether they take an epoch's rows, and do no more: what a trial of rows ends with.

        Raises
        ------
        BadRow
            If a sink refuses a row.
        """
        self._delivery.admit({name: Publication(record, tuple(several)) for name, several in parts.items()})

    def _admit(self, decided: Decided) -> None:
        """Ask before the decision, which nothing can take back.  Nothing durable: a crash leaves what it found.

        A sink that tries rows against what it holds is asked when the epochs before this one are published: their rows
        may be what this one's collide with, or point to.  Epochs that wait for their group are not there yet.
        """
        publications = {name: Publication(decided.record, parts) for name, parts in decided.parts.items()}
        if self._trying:
            self._wait_for_lane()
        # Looked at before: what is published while the sinks are asked was not there when the first one tried.
        is_busy = self._lane is not None and self._lane.length > 0
        try:
            self._trying = self._delivery.admit(publications)
            is_final = not (is_busy and self._trying)
        except BadRow:
            if not is_busy:
                raise
            is_final = False
        if not is_final:
            self._wait_for_lane()
            self._trying = self._delivery.admit(publications)

    def rewind(self, record: EpochRecord) -> None:
        """Take back what every sink published behind some positions.

        Parameters
        ----------
        record : EpochRecord
            Of this generation, with ``rewound_to``; its epoch is above all others, its positions are those to go back
            to.

        Notes
        -----
        The durable writes of an epoch that is decided, numbered in :meth:`commit` and ``_carry_out``: its parts are
        what the sinks withdraw.  A crash before the decision leaves everything as it was; after it, the next ``open``
        carries it through.
        """
        named = [name for name, held in self._delivery.held.items() if held.epoch > 0]
        decided = Decided(record, dict.fromkeys(named, ()))
        with self._stopping_at_failure(record.epoch):
            if record.rewound_to is None or record.epoch <= self._last_epoch:
                raise InternalError(f"epoch {record.epoch} is no rewind.", pipeline=self._pipeline, epoch=record.epoch)
            check_commit(decided, self._sinks, self._last_epoch, self._run)
            self._publish_rest()
            self._stories.take(record.epoch, Event.STAGE, detail=f"a rewind to epoch {record.rewound_to}")
            self._last_epoch = record.epoch
            key = self._ledger.decide(decided)
            self._stories.take(record.epoch, Event.DECIDE)
            faults.reach("after-decide", record.epoch)
            for _ in self._carry_out([Underway(decided, key)]):
                pass

    def _carry_out(
        self, group: Sequence[Underway], wanted: set[str] | None = None, on_refused: OnRefused | None = None
    ) -> Iterator[None]:
        """Publish epochs together, sink by sink, and forget their decisions; one durable write per step.

        ``wanted`` are the sinks that recovery found without the epoch; None: every sink that has parts.  Where
        ``on_refused`` is given, each is asked what it refuses when those before it have the epoch: their rows may be
        what its foreign keys point to, or what its own collide with.
        """
        last = group[-1].record.epoch
        decision = Decision.COMMIT if group[-1].key else Decision.LIVE
        try:
            for entry in group:
                self._stories.take(entry.record.epoch, Event.PUBLISH)
            for name in (name for name in self._sinks if wanted is None or name in wanted):
                if on_refused is not None:
                    group = [self._without_refused(entry, name, on_refused) for entry in group]
                publications = [
                    Publication(entry.record, entry.decided.parts[name])
                    for entry in group
                    if name in entry.decided.parts
                ]
                if not publications:
                    continue
                faults.reach("before-publish", last)
                # 2. publish.  A crash right after leaves this sink holding the epochs and the next ones not: recovery
                #    asks each, skips those that hold them, and publishes the others from the decisions.  With one sink
                #    there is no decision: its own commit was it, and Spark's replay finds the sink holding the epoch.
                self._delivery.publish(name, publications, decision)
                faults.reach("after-publish", last)
                yield
            for entry in group:
                self._stories.take(entry.record.epoch, Event.COMPLETE)
                if entry.key is None:
                    continue
                faults.reach("before-forget", entry.record.epoch)
                # 3. forget.  A crash right after leaves "done", of which Spark's commit log knows nothing: it replays
                #    the epoch, every sink holds it, nothing is evaluated.  A crash before: recovery asks, then forgets.
                done = Done(entry.record, _counts(entry.decided), entry.decided.rejected)
                self._ledger.forget(entry.key, done)
                self._newest_done = done
                with self._unpublished_lock:
                    self._unpublished.discard(entry.record.epoch)
                self._stories.take(entry.record.epoch, Event.FORGET)
                faults.reach("after-forget", entry.record.epoch)
                yield
        except GeneratorExit:
            raise  # dropped by the lane at close: the decisions stay in the ledger for the next run
        except BaseException as failure:
            self._note_failure(failure, last)
            raise

    def abort(self, epoch: int, parts: Mapping[str, Sequence[Part]]) -> None:
        """Give an epoch up that was not committed: its parts are discarded now, or swept later.

        Raises
        ------
        InternalError
            If the epoch is decided: it will become visible.
        """
        self._stories.take(epoch, Event.ABORT)
        for name, several in parts.items():
            self._delivery.discard(name, several)

    def flush(self) -> None:
        """Publish everything that is decided; returns when every sink holds it."""
        with self._stopping_at_failure():
            self._publish_rest()

    def _publish_rest(self) -> None:
        self._wait_for_lane()
        group = self._group.take()
        if group:
            for _ in self._carry_out(group):
                pass

    def check_published(self) -> None:
        """Raise what the commit thread failed of, if it did: while no epoch is committed, nobody else hears of it."""
        if self._lane is not None:
            self._lane.check()

    def check_fenced(self) -> None:
        """Raise ``Fenced`` if a higher generation has taken over: one look into the store."""
        self._ledger.check_fenced()

    def sweep(self, below_epoch: int) -> int:
        """Drop orphans of lower generations, and of this one's epochs below ``below_epoch``; returns how many.

        Nothing that a decision still names is touched, whatever ``below_epoch`` says.
        """
        with self._unpublished_lock:
            bound = min([below_epoch, *self._unpublished])
        return self._delivery.sweep(bound)

    def close(self) -> None:
        """End the commit thread after the job at work, and close the sinks.  Flushes nothing; may be called again."""
        self._is_closing = True
        if self._lane is not None:
            self._lane.stop()
        self._delivery.close()

    # --- what is told ---------------------------------------------------------------------------------------------

    def retry(self, call: Callable[[], T], *, doing: str) -> T:
        """Call something until it does not raise ``Unavailable``, with this coordinator's patience."""
        return self._patience.call(call, doing)

    def wait_after(self, attempt: int, doing: str, error: HoldfastError) -> bool:
        """Wait after a failed attempt (the first is 1) with this coordinator's patience; False when that is over."""
        return self._patience.wait_after(attempt, doing, error)

    @property
    def has_failed(self) -> bool:
        """Whether something failed here: then nothing further is published, and the next run asks every sink first."""
        return self._failure is not None

    def story(self, epoch: int) -> list[Transition]:
        """Return the last transitions of a recent epoch, oldest first."""
        return self._stories.story(epoch)

    def statistics(self) -> Statistics:
        """Return the coordinator's figures at this moment.  May be called from any thread."""
        with self._unpublished_lock:
            unpublished = len(self._unpublished)
        queue_length = self._lane.length if self._lane else 0
        return Statistics(
            self._retry_count,
            dict(self._delivery.published),
            queue_length,
            unpublished,
            self._last_error,
            self._patience.waits_for,
        )

    def _note_retry(self, doing: str, attempt: int, error: HoldfastError) -> None:
        self._retry_count += 1
        self._last_error = error.what
        log.warning("attempt %d to %s failed, trying again: %s", attempt, doing, one_line(error))

    def _note_failure(self, failure: BaseException, epoch: int | None) -> None:
        if self._failure is None:
            self._failure = failure
            self._last_error = failure.what if isinstance(failure, HoldfastError) else repr(failure)
            note = self._stories.note(epoch) if epoch is not None else ""
            if note:
                failure.add_note(note)

    @contextmanager
    def _stopping_at_failure(self, epoch: int | None = None) -> Iterator[None]:
        """Refuse to go on after a failure, of this thread or the commit thread: what it left is the next run's."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except BaseException as failure:
            self._note_failure(failure, epoch)
            raise

    def _wait_for_lane(self) -> None:
        if self._lane is not None:
            self._lane.wait()

    def _check_commit(self, decided: Decided) -> None:
        record = decided.record
        check_commit(decided, self._sinks, self._last_epoch, self._run)
        missing = self._missing[1] if self._missing[0] == record.epoch else self.missing(record.epoch, record.positions)
        check_parts(decided, missing, self._run)
        new = {name: self._delivery.held[name] for name in decided.parts if name not in self._continued}
        check_no_gap(record.epoch, new, self._run)


def _counts(decided: Decided) -> dict[str, int]:
    return {name: sum(part.row_count for part in parts) for name, parts in decided.parts.items()}


def _row_counts(decided: Decided) -> str:
    return ", ".join(f"{count} rows for {name!r}" for name, count in _counts(decided).items())
