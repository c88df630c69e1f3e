"""The coordinator: makes epochs visible in every sink, exactly once, whichever process dies and whenever (design/0002).

Invariants, and where each is asserted.  Epochs become visible in each sink in ascending order, and a sink that holds an
epoch is never asked to write it again (``delivery.py``).  At most one decision of an epoch counts, across generations
(``ledger.py``).  An epoch is committed once, by a claim that says which sinks lack it (``claims.py``).  After a failure
no further epoch is committed by this run (``story.py``); what the commit thread has to do after a failure in it is
left as it is (``commit_thread.py``): the next run asks every sink first.

What only grows: the generation; in each sink, the epoch it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from holdfast import faults
from holdfast.commit.busy import LEDGER, Busy
from holdfast.commit.checks import check_commit, demand
from holdfast.commit.claims import Claim, Claims
from holdfast.commit.commit_thread import CommitThread, ThreadLane
from holdfast.commit.delivery import Delivery, Published, Resolution
from holdfast.commit.group import CommitGroup, Underway
from holdfast.commit.ledger import Ledger
from holdfast.commit.paced import HeldBack, HeldFloor, SinkBacklog
from holdfast.commit.publishing import Publisher
from holdfast.commit.records import Decided
from holdfast.commit.recovery import Verdict
from holdfast.commit.story import RunFailures, Stories
from holdfast.commit.takeover import (
    OnExpired,
    OnRefused,
    OpenDecisions,
    Resumption,
    confirm_done,
    find_expired,
    still_revoked,
    take_over,
)
from holdfast.commit.transaction import Event, Transition
from holdfast.errors import HoldfastError, invariant
from holdfast.graph.trigger import SinkPace
from holdfast.ports import Clock, EpochRecord, Held, Part, Publication, RunIdentity, Sink, Store
from holdfast.positions import Positions
from holdfast.retry import RetriedStore, Retrier, RetryPolicy

__all__ = [
    "Claim",
    "Coordinator",
    "OnRefused",
    "Published",
    "Resolution",
    "Resumption",
    "Statistics",
]

T = TypeVar("T")

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
    waiting : mapping of str to SinkBacklog
        Sinks with a pace of their own -> what waits for them.
    """

    retries: int
    published: Mapping[str, Published]
    queue_length: int
    decided_unpublished: int
    last_error: str | None
    waits_for: str = ""
    waiting: Mapping[str, SinkBacklog] = field(default_factory=dict)


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
    retry : RetryPolicy
        For whatever raises ``Unavailable``.
    commit_every_ticks : int, optional
        Publish several epochs in one transaction of each sink, once the minimum timestamp over the inputs has moved by
        this much since the last time.  Every epoch is decided immediately.  While an input has not had a timestamp yet,
        epochs are published immediately.
    commit_at_pts : bool
        Publish only when that minimum, pts, has changed: epochs in which it has not have no rows.
    commit_thread : bool
        Publish in the background where that is safe: the epoch has a decision and all its parts are staged.  A pipeline
        with one sink and without grouping needs no decisions, and so has no thread either.
    queue_size : int
        Epochs (or groups) that may wait for the commit thread.
    carried_limit_bytes : int
        A group is published at the latest when the driver holds this many bytes of its rows.
    ledger_keep : int
        Finished epochs that stay readable in the ledger.
    on_transition : callable, optional
        Called with every :class:`Transition`, also from the commit thread.
    lane : CommitThread, optional
        Instead of the commit thread: simulation.
    backfilled : collection of str
        Sinks that, while they hold nothing, get what others already hold.
    paces : mapping of str to SinkPace, optional
        Sinks that commit less often than the others.
    held_limit_bytes : int
        One of these commits at the latest when the driver holds this many bytes of rows that wait for them.
    paced_lane : CommitThread, optional
        Instead of their commit thread: simulation.

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
        retry: RetryPolicy | None = None,
        commit_every_ticks: int | None = None,
        commit_at_pts: bool = False,
        commit_thread: bool = True,
        queue_size: int = 4,
        carried_limit_bytes: int = 64_000_000,
        ledger_keep: int = 100,
        on_transition: Callable[[Transition], None] | None = None,
        lane: CommitThread | None = None,
        backfilled: Collection[str] = (),
        paces: Mapping[str, SinkPace] | None = None,
        held_limit_bytes: int = 64_000_000,
        paced_lane: CommitThread | None = None,
    ) -> None:
        by_name = {sink.name: sink for sink in sinks}
        what = f"two sinks of pipeline {pipeline!r} have the same name."
        invariant(len(by_name) == len(sinks), what, pipeline=pipeline)
        self._pipeline = pipeline
        self._generation = 0
        self._clock = clock
        self._is_closing = False
        self.last_decided: EpochRecord | None = None
        """Of the newest decision: it says what was counted of expectations."""
        self._stories = Stories(clock, on_transition)
        self._failures = RunFailures(self._stories)
        self._retrier = Retrier(
            retry or RetryPolicy(), clock, on_retry=self._failures.note_retry, may_go_on=lambda: not self._is_closing
        )
        retried = RetriedStore(store, self._retrier)
        self._ledger = Ledger(retried, pipeline, keep=ledger_keep)
        self._group = CommitGroup(commit_every_ticks, carried_limit_bytes, is_at_pts=commit_at_pts)
        self._paced = frozenset(paces or ())
        self._delivery = Delivery(
            pipeline, by_name, self._retrier, self._stories, is_grouped=self._group.is_used, paced=self._paced
        )
        lane = lane or (ThreadLane(f"holdfast-commit-{pipeline}", queue_size) if commit_thread else None)
        self._held_back = HeldBack(paces or {}, held_limit_bytes, clock.now_us)
        self._publisher = Publisher(
            self._delivery,
            self._ledger,
            self._stories,
            self._failures,
            self._group,
            lane,
            self._held_back,
            HeldFloor(retried),
            paced_lane or (ThreadLane(f"holdfast-paces-{pipeline}", 0) if commit_thread else None),
        )
        self._claims = Claims(pipeline, self._delivery, self._ledger, backfilled)

    # --- takeover and recovery ------------------------------------------------------------------------------------

    def open(
        self,
        on_refused: OnRefused | None = None,
        on_behind: OnBehind | None = None,
        understood: Callable[[Mapping[str, Held]], Mapping[str, Held]] | None = None,
        on_expired: OnExpired | None = None,
    ) -> Resumption:
        """Take over: fence every older run, resolve what it left, sweep, and return the state of the pipeline.

        Parameters
        ----------
        on_refused : callable, optional
            Receives the sink, the epoch's record and the rows, and keeps rows of decided epochs that the sink refuses;
            durable when it returns.  Then they are published without them.  None: a refused row is an error.
        on_behind : callable, optional
            Receives the sinks that have lost what is done in them, and what all sinks hold, before anything is
            resolved. What is decided for those sinks is not published in them, and forgotten: it raises where a replay
            cannot to replay it to them.
        understood : callable, optional
            Receives what all sinks answered, and returns what that means by the checkpoint; None: what they say.
        on_expired : callable, optional
            Receives what is decided and no longer staged, and what all sinks hold, before anything is resolved.  It is
            not published in those sinks, and forgotten: it raises where the sources cannot give it to them again.

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
        Durable writes: the generation, one fence per sink, the ledger's fence, what is left of dead runs' epochs, and
        columns that targets lack.
        Each may be repeated: a crash anywhere in here is followed by another ``open`` with a higher generation.
        """
        with self._failures.stopping():
            self._ledger.identify()
            self._generation = take_over(self._ledger, self._delivery, self._retrier, self._clock, self._run)
            self._stories.generation = self._generation
            if understood is not None:
                self._delivery.held.update(understood(dict(self._delivery.held)))
            takeover = self._ledger.fence([held.epoch for held in self._delivery.held.values()])
            known = [held.epoch for held in self._delivery.held.values()] + [key.epoch for key in takeover.open]
            last_epoch = max([*known, takeover.done.record.epoch if takeover.done else 0])
            self._delivery.held.update(still_revoked(takeover.done, self._delivery.held))
            confirmed = confirm_done(self._ledger, self._delivery, takeover)
            behind = frozenset(each.sink for each in confirmed if each.verdict is Verdict.REPLAY)
            if behind and on_behind is not None:  # their servers failed over to lagging replicas, or were restored
                on_behind(behind, dict(self._delivery.held))
            expired = find_expired(self._ledger, self._delivery, takeover, behind)
            if expired and on_expired is not None:
                on_expired([*expired.values()], dict(self._delivery.held))
            decisions = OpenDecisions(self._ledger, self._delivery, self._publisher, self._stories, self._run)
            resolved = (*confirmed, *decisions.resolve(takeover, behind, expired, on_refused))
            self.last_decided = decisions.newest or (None if takeover.done is None else takeover.done.record)
            self._group.begin(held.pts for held in self._delivery.held.values())
            self._held_back.begin([name for name, held in self._delivery.held.items() if held.epoch == 0])
            self._claims.begin(self._run, last_epoch)
            # Only now: a decision that recovery found may have named what a dead run staged.
            self._delivery.sweep(last_epoch + 1)
            self._delivery.add_columns()
            faults.reach("recovery-resolved", last_epoch, self._pipeline)
        return Resumption(self._generation, dict(self._delivery.held), resolved, last_epoch)

    @property
    def _run(self) -> RunIdentity:
        return RunIdentity(self._pipeline, self._generation)

    # --- one epoch ------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation of this run; 0 before :meth:`open`."""
        return self._generation

    @property
    def explained(self) -> Mapping[str, Mapping[str, int]]:
        """Sink -> source -> the number of explanations that it keeps; without the sinks that keep none."""
        return self._delivery.explained

    def missing(self, epoch: int, positions: Positions | None = None, start: Positions | None = None) -> Claim:
        """Return a claim with the sinks for which an epoch still has to be produced; none when every sink holds it.

        Parameters
        ----------
        epoch : int
            The one that the engine is about to evaluate.
        positions : Positions, optional
            Its end positions.  If given, a sink that holds the epoch by its number must hold all before them too.
        start : Positions, optional
            Its start positions.  If given, a sink that joins here must hold exactly what is before them, or
            everything up to the end: then it holds the epoch, under any number.  One that holds nothing
            joins with the first epoch that no other sink holds.

        Returns
        -------
        Claim
            What :meth:`commit` takes.  It replaces the claim before it, whether that was used or not.

        Raises
        ------
        Diverged
            If a sink and the ledger contradict each other, a sink holds the epoch by its number alone, or one lacks
            what is before it.
        """
        with self._failures.stopping():
            if self._claims.is_known(epoch):  # a crash or a failure preceded Spark's log of its end: it replays
                self._publisher.flush()
            return self._claims.make(epoch, positions, start)

    def commit(self, claim: Claim, record: EpochRecord, parts: Mapping[str, Sequence[Part]]) -> None:
        """Make an epoch visible, or make sure that it will be.

        Parameters
        ----------
        claim : Claim
            What :meth:`missing` returned for this epoch; it is consumed.
        record : EpochRecord
            Of this generation; epochs ascend.
        parts : mapping of str to sequence of Part
            For exactly the sinks that the claim names.

        Raises
        ------
        Fenced
            If a higher generation owns the pipeline.  The parts are that one's business now.
        BadRow
            If a sink refuses a row.  Nothing is decided, and no sink has anything of the epoch.
        Unavailable, InDoubt
            If a sink does not answer, after the last attempt.  The next run asks it first.
        InternalError
            If the claim is for another epoch, or was used or replaced.  Nothing was changed.

        Notes
        -----
        Durable writes: with one sink, one (its own), unless expectations were counted.  Otherwise the three numbered
        here and in ``publishing.py``.
        """
        several = {name: tuple(of) for name, of in parts.items()}
        decided = Decided(record, several, before=self._claims.before(several), start=self._claims.start(several))
        self._claims.check(claim, decided)
        with self._failures.stopping(record.epoch):
            counts = ", ".join(f"{count} rows for {name!r}" for name, count in decided.row_counts.items())
            self._stories.take(record.epoch, Event.STAGE, detail=counts)
            self._claims.use(decided)
            key = None
            if len(several) > 1 or self._group.is_used or record.expected or not self._paced.isdisjoint(several):
                self._publisher.admit(decided)
                # Behind what can refuse a row.  A crash right after, or within: those sinks have rows of an epoch that
                # nobody has decided.  Spark replays it, and they get the same rows again (design/0025).
                self._delivery.send({name: Publication(record, of) for name, of in several.items()})
                # 1. decide.  A crash right after leaves the decision with every handle and every carried row: the next
                #    run publishes from it, and Spark's replay finds every sink holding the epoch.  A crash before
                #    leaves orphans: presumed abort, they are swept by name and Spark replays the epoch.
                with self._delivery.busy.at(LEDGER):
                    key = self._ledger.decide(decided)
                self.last_decided = record
                self._publisher.expect(decided)
                self._stories.take(record.epoch, Event.DECIDE)
                faults.reach("after-decide", record.epoch, record.pipeline)
            self._publisher.take(decided, key)

    def admit(self, record: EpochRecord, parts: Mapping[str, Sequence[Part]]) -> None:
        """Ask the sinks whether they take an epoch's rows, and do no more: what a trial of rows ends with.

        Raises
        ------
        BadRow
            If a sink refuses a row.
        """
        self._delivery.admit({name: Publication(record, tuple(several)) for name, several in parts.items()})

    def rewind(self, record: EpochRecord, left_out: Collection[str] = ()) -> None:
        """Withdraw what every sink published after some positions.

        Parameters
        ----------
        record : EpochRecord
            Of this generation, with ``rewound_to``; its epoch is above all others, its positions are those to go back
            to.
        left_out : collection of str
            Sinks that keep what they hold.

        Notes
        -----
        The durable writes of an epoch that is decided, numbered in :meth:`commit` and ``publishing.py``: its parts are
        what the sinks withdraw.  A crash before the decision leaves everything as it was; after it, the next ``open``
        carries it through.
        """
        with self._failures.stopping(record.epoch):
            self._publisher.flush()
            demand(record.rewound_to is not None, record, self._run, "it is not a rewind")
            named = [name for name, each in self._delivery.held.items() if each.epoch > 0 and name not in left_out]
            self._carry_out(record, named, f"a rewind to epoch {record.rewound_to}")

    def hand_over(self, record: EpochRecord) -> None:
        """Give the sinks other positions than those that they hold, without rows: segments move between shards.

        Parameters
        ----------
        record : EpochRecord
            Of this generation; its epoch is above all others.

        Notes
        -----
        As :meth:`rewind`.  Sinks that do not remember what they hold are left out.
        """
        with self._failures.stopping(record.epoch):
            self._publisher.flush()
            named = [name for name in self._delivery.names if self._delivery.remembers(name)]
            if named:
                self._carry_out(record, named, "a hand-over")

    def _carry_out(self, record: EpochRecord, sinks: Sequence[str], what: str) -> None:
        """Decide an epoch that is none of the engine's, and publish it."""
        before = {} if self.last_decided is None else self.last_decided.expected
        counts = {name: of._replace(rows=0, failed=0) for name, of in before.items()}
        decided = Decided(replace(record, expected=counts), dict.fromkeys(sinks, ()))
        last_epoch = self._claims.last_epoch
        demand(record.epoch > last_epoch, record, self._run, f"it is {what}, and the last epoch is {last_epoch}")
        check_commit(decided, self._delivery.names, last_epoch, self._run)
        self._stories.take(record.epoch, Event.STAGE, detail=what)
        self._claims.note_rewind(record.epoch)
        key = self._ledger.decide(decided)
        self.last_decided = decided.record
        self._stories.take(record.epoch, Event.DECIDE)
        faults.reach("after-decide", record.epoch, record.pipeline)
        self._publisher.carry_out([Underway(decided, key)])

    def flush(self) -> None:
        """Publish everything that is decided; returns when every sink holds it."""
        with self._failures.stopping():
            self._publisher.flush()

    def publish_due(self) -> None:
        """Publish what has waited for as long as its sink allows: while no epoch arrives, nothing else looks.

        From any thread; returns at once where an epoch is being published.
        """
        with self._failures.stopping():
            self._publisher.publish_due()

    def publish_held(self, sinks: Collection[str] | None = None) -> None:
        """Publish what waits for sinks with a pace of their own, or for some of them; returns when they hold it.

        From any thread.
        """
        if self._paced:
            with self._failures.stopping():
                self._publisher.publish_held(self._paced if sinks is None else sinks)

    def check_published(self) -> None:
        """Raise the error of the commit thread, if it failed: while no epoch is committed, nothing else reports it."""
        self._publisher.check()

    def check_fenced(self) -> None:
        """Raise ``Fenced`` if a higher generation has taken over: one look into the store."""
        self._ledger.check_fenced()

    def check_before_epoch(self) -> None:
        """Raise ``Fenced`` if a higher generation has taken over; a decision of the epoch before has looked."""
        self._ledger.check_since_decision()

    def sweep(self, below_epoch: int) -> int:
        """Drop orphans of lower generations, and of this one's epochs below ``below_epoch``; returns how many.

        Nothing that a decision still names is touched, whatever ``below_epoch`` says.
        """
        return self._delivery.sweep(below_epoch, self._publisher.needed())

    def close(self) -> None:
        """End the commit thread after the job at work, and close the sinks.  Flushes nothing; may be called again."""
        self._is_closing = True
        self._publisher.stop()
        self._delivery.close()

    # --- observation ---------------------------------------------------------------------------------------------

    def retry(self, call: Callable[[], T], *, doing: str) -> T:
        """Call something until it does not raise ``Unavailable``, by this coordinator's policy."""
        return self._retrier.call(call, doing)

    def wait_after(self, attempt: int, doing: str, error: HoldfastError) -> bool:
        """Wait after a failed attempt (the first is 1) by this coordinator's policy; False when that is over."""
        return self._retrier.wait_after(attempt, doing, error)

    @property
    def has_failed(self) -> bool:
        """Whether something failed here: then nothing further is published, and the next run asks every sink first."""
        return self._failures.first is not None

    def follow(self, tell: Callable[[Mapping[str, Held]], object]) -> None:
        """Let somebody be told what each sink holds, now and whenever one has published; see ``Delivery.follow``."""
        self._delivery.follow(tell)

    def story(self, epoch: int) -> list[Transition]:
        """Return the last transitions of a recent epoch, oldest first."""
        return self._stories.story(epoch)

    @property
    def holdings(self) -> Mapping[str, Held]:
        """Sink -> what it holds.  May be asked from any thread."""
        return dict(self._delivery.held)

    @property
    def busy(self) -> Busy:
        """How long sinks and ledger have been busy."""
        return self._delivery.busy.seconds()

    def statistics(self) -> Statistics:
        """Return the coordinator's figures at this moment.  May be called from any thread."""
        return Statistics(
            self._failures.retry_count,
            dict(self._delivery.published),
            self._publisher.queue_length,
            len(self._publisher.unpublished),
            self._failures.last_error,
            self._retrier.waits_for,
            self._held_back.waiting,
        )
