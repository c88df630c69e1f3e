"""Publishing of decided epochs: sink by sink, together where they form a group, then forgotten.

Invariants.  An epoch is forgotten when every sink that it has parts for holds it.  The commit thread gets only epochs
that have a decision and all of whose parts are staged: then the driver's death costs nothing.  What is published here
waits until the commit thread has nothing more to do: no epoch overtakes another.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from holdfast import faults
from holdfast.commit.commit_thread import CommitThread, Step
from holdfast.commit.delivery import Delivery
from holdfast.commit.group import CommitGroup, Underway
from holdfast.commit.ledger import Key, Ledger
from holdfast.commit.records import Decided, Done
from holdfast.commit.recovery import Decision
from holdfast.commit.story import RunFailures, Stories
from holdfast.commit.transaction import Event
from holdfast.errors import BadRow, invariant
from holdfast.ports import Publication


class Publisher:
    """Publishes what is decided, here or by the commit thread.

    Parameters
    ----------
    delivery : Delivery
        The sinks.
    ledger : Ledger
        Where decisions are forgotten.
    stories, failures : Stories, RunFailures
        Where events are recorded.
    group : CommitGroup
        Says which epochs are published together.
    lane : CommitThread, optional
        The commit thread, if there is one.
    """

    def __init__(
        self,
        delivery: Delivery,
        ledger: Ledger,
        stories: Stories,
        failures: RunFailures,
        group: CommitGroup,
        lane: CommitThread | None,
    ) -> None:
        self._delivery = delivery
        self._ledger = ledger
        self._stories = stories
        self._failures = failures
        self._group = group
        self._lane = lane
        self._trying: frozenset[str] = frozenset()
        """Sinks whose last word on an epoch's rows depended on what they held."""
        self._unpublished: set[int] = set()
        self._unpublished_lock = threading.Lock()

    # --- before the decision --------------------------------------------------------------------------------------

    def admit(self, decided: Decided) -> None:
        """Ask before the decision, which nothing can take back.  Nothing durable: a crash leaves what it found.

        A sink that tries rows against what it holds is asked when the epochs before this one are published: their rows
        may be what this one's collide with, or point to.  Epochs that wait for their group are not there yet.
        """
        publications = {name: Publication(decided.record, parts) for name, parts in decided.parts.items()}
        if self._trying:
            self.wait()
        # Read first: what is published while the sinks are asked was not there when the first one tried.
        is_busy = self.queue_length > 0
        try:
            self._trying = self._delivery.admit(publications)
            is_final = not (is_busy and self._trying)
        except BadRow:
            if not is_busy:
                raise
            is_final = False
        if not is_final:
            self.wait()
            self._trying = self._delivery.admit(publications)

    # --- after the decision --------------------------------------------------------------------------------------

    def expect(self, epoch: int) -> None:
        """Record that an epoch is decided: it counts as unpublished until its decision is forgotten."""
        with self._unpublished_lock:
            self._unpublished.add(epoch)

    def take(self, decided: Decided, key: Key | None) -> None:
        """Publish an epoch when it is its time: now, with its group, or in the commit thread."""
        group = self._group.due(Underway(decided, key))
        if not group:
            return
        if self._lane is not None and all(entry.key and entry.decided.is_staged for entry in group):
            self._lane.submit(self._steps(group))
        else:
            self.wait()
            self.carry_out(group)

    def flush(self) -> None:
        """Publish what waits, here or in the commit thread; returns when every sink holds it."""
        self.wait()
        group = self._group.take()
        if group:
            self.carry_out(group)

    def carry_out(self, group: Sequence[Underway]) -> None:
        """Publish epochs together, and forget their decisions, in this thread."""
        for step in self._steps(group):
            step()

    def _steps(self, group: Sequence[Underway]) -> list[Step]:
        """Return what there is to do for a group, in order: at most one durable write per step.

        Dropped between any two of them (by the commit thread at close), or cut off by a crash: the decisions stay in
        the ledger for the next run.
        """
        names = [name for name in self._delivery.names if any(name in entry.decided.parts for entry in group)]
        return [
            partial(self.begin, group),
            *(partial(self.publish, name, group) for name in names),
            *(partial(self.complete, entry) for entry in group),
        ]

    def begin(self, group: Sequence[Underway]) -> None:
        """Begin to publish epochs."""
        with self._failures.noting(group[-1].record.epoch):
            for entry in group:
                self._stories.take(entry.record.epoch, Event.PUBLISH)

    def publish(self, name: str, group: Sequence[Underway]) -> None:
        """Publish, in one transaction of a sink, what epochs have for it; one durable write."""
        last, decision = group[-1].record.epoch, Decision.COMMIT if group[-1].key else Decision.LIVE
        publications = [
            Publication(entry.record, entry.decided.parts[name]) for entry in group if name in entry.decided.parts
        ]
        with self._failures.noting(last):
            faults.reach("before-publish", last)
            # 2. publish.  A crash right after leaves this sink holding the epochs and the next ones not: recovery
            #    asks each, skips those that hold them, and publishes the others from the decisions.  With one sink
            #    there is no decision: its own commit was it, and Spark's replay finds the sink holding the epoch.
            self._delivery.publish(name, publications, decision)
            faults.reach("after-publish", last)

    def complete(self, entry: Underway, left_out: Collection[str] = ()) -> None:
        """Forget an epoch that every sink holds; one durable write, or none where nothing was decided.

        ``left_out`` are sinks that get it by the replay of what they have lost.
        """
        record, decided = entry.record, entry.decided
        with self._failures.noting(record.epoch):
            self._check_held(entry, left_out)
            self._stories.take(record.epoch, Event.COMPLETE)
            if entry.key is None:
                return
            faults.reach("before-forget", record.epoch)
            # 3. forget.  A crash right after leaves "done", of which Spark's commit log knows nothing: it replays
            #    the epoch, every sink holds it, nothing is evaluated.  A crash before: recovery asks, then forgets.
            done = Done(replace(record, explanations=()), decided.row_counts, decided.rejected)
            self._ledger.forget(entry.key, done)
            with self._unpublished_lock:
                self._unpublished.discard(record.epoch)
            self._stories.take(record.epoch, Event.FORGET)
            faults.reach("after-forget", record.epoch)

    def _check_held(self, entry: Underway, left_out: Collection[str]) -> None:
        epoch, delivery = entry.record.epoch, self._delivery
        asked = [name for name in entry.decided.parts if delivery.remembers(name) and name not in left_out]
        lacking = [name for name in asked if delivery.held[name].epoch < epoch]
        invariant(
            not lacking,
            f"epoch {epoch} of pipeline {entry.record.pipeline!r} is to be forgotten, and {lacking} lack it.",
            why="an epoch is forgotten when every sink that it has parts for holds it.",
            pipeline=entry.record.pipeline,
            epoch=epoch,
            generation=entry.record.generation,
        )

    # --- the commit thread ----------------------------------------------------------------------------------------

    @property
    def queue_length(self) -> int:
        """Jobs of the commit thread, the one at work included."""
        return self._lane.length if self._lane is not None else 0

    @property
    def unpublished(self) -> frozenset[int]:
        """Epochs that are decided, and neither published everywhere nor forgotten."""
        with self._unpublished_lock:
            return frozenset(self._unpublished)

    def wait(self) -> None:
        """Wait until the commit thread has nothing more to do.  Raises its failure."""
        if self._lane is not None:
            self._lane.wait()

    def check(self) -> None:
        """Raise the failure of the commit thread, if it has failed."""
        if self._lane is not None:
            self._lane.check()

    def stop(self) -> None:
        """End the commit thread after the job at work."""
        if self._lane is not None:
            self._lane.stop()
