"""Publishing of decided epochs: sink by sink, together where they form a group, then forgotten.

Invariants.  An epoch is forgotten when every sink that it has parts for holds it, and the ones before it are.  The
commit thread gets only epochs that have a decision and all of whose parts are staged: then the driver's death costs
nothing.  What is published here waits until the commit thread has nothing more to do: no epoch overtakes another in a
sink.  One thread at a time hands over: the engine's, or one that finds a sink due while no epoch arrives.  Sinks with a
pace of their own have another thread, and get what was published in the others before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from holdfast import faults
from holdfast.commit.busy import LEDGER
from holdfast.commit.commit_thread import CommitThread, Step
from holdfast.commit.delivery import Delivery
from holdfast.commit.group import CommitGroup, Underway
from holdfast.commit.ledger import Key, Ledger
from holdfast.commit.paced import HeldBack, HeldFloor
from holdfast.commit.records import Decided, Done
from holdfast.commit.recovery import Decision
from holdfast.commit.story import RunFailures, Stories
from holdfast.commit.transaction import Event
from holdfast.errors import BadRow, invariant
from holdfast.ports import Publication

FORGOTTEN_AT_A_TIME = 8
"""Of the epochs that a sink with a pace got at once, so many are forgotten with each new one: nobody waits for that."""


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
    held_back : HeldBack, optional
        What waits for sinks with a pace of their own; without, there are none.
    floor : HeldFloor, optional
        Where it is noted what all of these hold.
    paced_lane : CommitThread, optional
        A thread of their own: while one of them commits, the other sinks get their epochs.
    """

    def __init__(
        self,
        delivery: Delivery,
        ledger: Ledger,
        stories: Stories,
        failures: RunFailures,
        group: CommitGroup,
        lane: CommitThread | None,
        held_back: HeldBack | None = None,
        floor: HeldFloor | None = None,
        paced_lane: CommitThread | None = None,
    ) -> None:
        self._delivery = delivery
        self._ledger = ledger
        self._stories = stories
        self._failures = failures
        self._group = group
        self._lane = lane
        self._held_back = held_back or HeldBack({}, 0, lambda: 0)
        self._floor = floor
        self._paced_lane = paced_lane if self._held_back.sinks else None
        self._turn = threading.RLock()
        self._forgetting = threading.Lock()
        self._unforgotten: deque[Underway] = deque()
        """Epochs that were handed over, oldest first, without their rows."""
        self._trying: frozenset[str] = frozenset()
        """Sinks whose last word on an epoch's rows depended on what they held."""
        self._unpublished: dict[int, set[str]] = {}
        """Epoch that is decided and not forgotten -> the sinks that lack it."""
        self._unpublished_lock = threading.Lock()

    # --- before the decision --------------------------------------------------------------------------------------

    def admit(self, decided: Decided) -> None:
        """Ask before the decision, which nothing can take back.  Nothing durable: a crash leaves what it found.

        A sink that tries rows against what it holds is asked when the epochs before this one are published: their rows
        may be what this one's collide with, or point to.  Epochs that wait for their group are not there yet.
        """
        publications = {name: Publication(decided.record, parts) for name, parts in decided.parts.items()}
        if self._trying:
            self._wait_for_the_rest()
        # Read first: what is published while the sinks are asked was not there when the first one tried.
        is_busy = self.queue_length > 0
        try:
            self._trying = self._delivery.admit(publications, later=self._held_back.sinks)
            is_final = not (is_busy and self._trying)
        except BadRow:
            if not is_busy:
                raise
            is_final = False
        if not is_final:
            self._wait_for_the_rest()
            self._trying = self._delivery.admit(publications, later=self._held_back.sinks)

    # --- after the decision --------------------------------------------------------------------------------------

    def expect(self, decided: Decided) -> None:
        """Record that an epoch is decided: it counts as unpublished until its decision is forgotten."""
        with self._unpublished_lock:
            self._unpublished[decided.record.epoch] = set(decided.parts)

    def take(self, decided: Decided, key: Key | None) -> None:
        """Publish an epoch when it is its time: now, with its group, or in the commit thread."""
        with self._at_turn():
            group = self._group.due(Underway(decided, key))
            if group or self._has_something_due:
                self._hand_over(group)

    def publish_due(self) -> None:
        """Publish what has waited for long enough; return at once if another thread publishes, which looks too."""
        if self._has_something_due and self._turn.acquire(blocking=False):
            try:
                with self._at_turn():
                    self._hand_over([])
            finally:
                self._turn.release()

    def publish_held(self, sinks: Collection[str]) -> None:
        """Publish whatever waits for sinks with a pace of their own; returns when these hold it."""
        with self._at_turn():
            self._held_back.hurry(sinks)
            self._hand_over([])
        self.wait()  # epochs go on meanwhile

    def flush(self) -> None:
        """Publish what waits, here or in the commit thread; returns when every sink holds it."""
        with self._at_turn():
            self.wait()
            self.carry_out(self._group.take())

    def carry_out(self, group: Sequence[Underway]) -> None:
        """Publish epochs together, and all that waits, and forget their decisions."""
        self._held_back.hurry(self._held_back.sinks)
        for step in self._steps(group):
            step()
        self.wait()
        while self._unforgotten and self._has_finished:
            self._forget_next()

    @contextmanager
    def _at_turn(self) -> Iterator[None]:
        with self._turn:
            if self._failures.first is not None:  # of another thread: what it left is the next run's
                raise self._failures.first
            yield

    @property
    def _has_something_due(self) -> bool:
        return self._held_back.is_due or (bool(self._held_back.sinks) and self._has_finished)

    def _hand_over(self, group: Sequence[Underway]) -> None:
        """Publish in the commit thread where that is safe, else here."""
        steps = self._steps(group)
        is_staged = all(entry.key and entry.decided.is_staged for entry in group)
        is_first = self._held_back.took_first
        if self._lane is not None and is_staged and (self._paced_lane is not None or self._held_back.took_staged):
            self._lane.submit(steps)
        else:
            self._wait_for_the_rest()
            for step in steps:
                step()
        if is_first:  # until it holds something it is taken for a sink that was added, if the checkpoint is lost
            self.wait()

    def _steps(self, group: Sequence[Underway]) -> list[Step]:
        """Return what there is to do, in order: at most one durable write per step.

        A group becomes visible in the sinks without a pace of their own; then, in one with a pace, what waits for it,
        if it is due: in a thread of its own, where there is one, so that the others need not wait for that.

        Dropped between any two of them (by the commit thread at close), or cut off by a crash: the decisions stay in
        the ledger for the next run.
        """
        paced = self._held_back.sinks
        self._held_back.add(group)
        due = self._held_back.take()
        self._unforgotten.extend(entry.narrowed(()) for entry in group)
        of_sinks = {name: [entry for entry in group if name in entry.decided.parts] for name in self._delivery.names}
        steps: list[Step] = [partial(self.begin, group)]
        if paced:
            self.begin(group)  # now: the other thread may be faster than the one that takes these steps
            steps = []
        steps += [partial(self.publish, name, of) for name, of in of_sinks.items() if of and name not in paced]
        steps += [partial(self._note_given, entry) for entry in group if self._is_to_be_noted(entry)]
        late: list[Step] = [partial(self.publish, name, due[name]) for name in self._delivery.names if name in due]
        if late:
            late.append(self._move_floor)
        if self._paced_lane is None:
            steps += late
        elif late:
            steps.append(partial(self._paced_lane.submit, late))
        return [*steps, *([self._forget_next] * (len(group) + (FORGOTTEN_AT_A_TIME if paced else 0)))]

    def begin(self, group: Sequence[Underway]) -> None:
        """Begin to publish epochs."""
        with self._failures.noting(group[-1].record.epoch if group else None):
            for entry in group:
                self._stories.take(entry.record.epoch, Event.PUBLISH)

    def publish(self, name: str, group: Sequence[Underway]) -> None:
        """Publish, in one transaction of a sink, what epochs have for it; one durable write."""
        last, decision = group[-1].record.epoch, Decision.COMMIT if group[-1].key else Decision.LIVE
        publications = [
            Publication(entry.record, entry.decided.parts[name]) for entry in group if name in entry.decided.parts
        ]
        with self._failures.noting(last):
            faults.reach("before-publish", last, group[-1].record.pipeline)
            # 2. publish.  A crash right after leaves this sink holding the epochs and the next ones not: recovery
            #    asks each, skips those that hold them, and publishes the others from the decisions.  With one sink
            #    there is no decision: its own commit was it, and Spark's replay finds the sink holding the epoch.
            self._delivery.publish(name, publications, decision)
            faults.reach("after-publish", last, group[-1].record.pipeline)
        with self._unpublished_lock:
            for entry in group:
                self._unpublished.get(entry.record.epoch, set()).discard(name)

    def _is_to_be_noted(self, entry: Underway) -> bool:
        """Whether an epoch that waits for a sink went to one that cannot be asked whether it has it."""
        parts, paced = entry.decided.parts, self._held_back.sinks
        return not paced.isdisjoint(parts) and not all(map(self._delivery.remembers, parts))

    def _note_given(self, entry: Underway) -> None:
        """Take out of a decision the sinks that have its rows and cannot say so; one durable write.

        A crash before gives them the epoch again, as they must expect of their guarantee; without this write each crash
        would give them everything that waits for other sinks.
        """
        assert entry.key is not None
        decided = entry.decided
        left = {name: parts for name, parts in decided.parts.items() if self._delivery.remembers(name)}
        with self._failures.noting(entry.record.epoch), self._delivery.busy.at(LEDGER):
            self._ledger.amend(entry.key, replace(decided, parts=left))

    def _move_floor(self) -> None:
        """Note what all sinks with a pace of their own hold; one durable write.  A crash before leaves it too low."""
        if self._floor is not None:
            with self._failures.noting():
                self._floor.move(self._delivery.held[name] for name in sorted(self._held_back.sinks))

    def complete(self, entry: Underway, left_out: Collection[str] = (), done: Done | None = None) -> None:
        """Forget an epoch that every sink holds; one durable write, or none where nothing was decided.

        ``left_out`` are sinks that get it by the replay of what they have lost; ``done`` is then what is left of the
        decision.
        """
        record = entry.record
        with self._failures.noting(record.epoch):
            self._check_held(entry, left_out)
            self._stories.take(record.epoch, Event.COMPLETE)
            if entry.key is None:
                return
            faults.reach("before-forget", record.epoch, record.pipeline)
            # 3. forget.  A crash right after leaves "done", of which Spark's commit log knows nothing: it replays
            #    the epoch, every sink holds it, nothing is evaluated.  A crash before: recovery asks, then forgets.
            with self._delivery.busy.at(LEDGER):
                self._ledger.forget(entry.key, done or entry.done)
            with self._unpublished_lock:
                self._unpublished.pop(record.epoch, None)
            self._stories.take(record.epoch, Event.FORGET)
            faults.reach("after-forget", record.epoch, record.pipeline)

    @property
    def _has_finished(self) -> bool:
        """Whether the oldest epoch that is not forgotten is in all of its sinks."""
        try:
            oldest = self._unforgotten[0].record.epoch
        except IndexError:
            return False
        with self._unpublished_lock:
            return not self._unpublished.get(oldest)

    def _forget_next(self) -> None:
        """Forget the oldest epoch, if every sink holds it; one durable write."""
        with self._forgetting:
            if self._has_finished:
                self.complete(self._unforgotten.popleft())

    def _check_held(self, entry: Underway, left_out: Collection[str]) -> None:
        epoch, delivery = entry.record.epoch, self._delivery
        asked = [name for name in entry.done.sinks if delivery.remembers(name) and name not in left_out]
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

    def needed(self) -> dict[str, int]:
        """Return, for each sink that lacks something decided, the first such epoch: its staged rows are needed."""
        found: dict[str, int] = {}
        with self._unpublished_lock:
            for epoch, sinks in self._unpublished.items():
                for name in sinks:
                    found[name] = min(epoch, found.get(name, epoch))
        return found

    def wait(self) -> None:
        """Wait until the commit threads have nothing more to do.  Raises the failure of one."""
        self._wait_for_the_rest()
        if self._paced_lane is not None:
            self._paced_lane.wait()

    def _wait_for_the_rest(self) -> None:
        """Wait until the sinks without a pace of their own have what was handed over for them."""
        if self._lane is not None:
            self._lane.wait()

    def check(self) -> None:
        """Raise the failure of a commit thread, if one has failed."""
        for lane in self._lanes:
            lane.check()

    def stop(self) -> None:
        """End the commit threads after the job at work."""
        for lane in self._lanes:
            lane.stop()

    @property
    def _lanes(self) -> list[CommitThread]:
        return [lane for lane in (self._lane, self._paced_lane) if lane is not None]
