"""Barriers: epochs in which the workers write their own part of a snapshot, and what the driver knows of each bucket.

When a snapshot is due the checkpointer *wishes* for a barrier.  The next epoch that begins becomes the barrier: its job
says so to the workers, and each bucket that is called passes its tables to a thread of its worker (:mod:`holdfast.plan.
levels.parts`).  In every epoch each called bucket reports its version, its digest and, where they moved, the bounds of
its feeds.  So at the end of a barrier the driver knows of every bucket whether its files are those of the last
snapshot, are being written by a worker, or have to be read out of the journal: :func:`taken_from` decides
that.

Invariants.  What a bucket reported counts once the epoch is decided, and for that epoch only: :meth:`Barriers.as_of`
contributes nothing where it is not sure, and then the store is read.  A version with its digest names one content,
whatever wrote it, in whichever attempt: a manifest can name no other.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.checkpoint.manifest import BucketState, Manifest, OperatorState
from holdfast.errors import invariant, present
from holdfast.state.bucket_report import BucketReport, Feeds

At = tuple[str, int]
"""A bucket: operator and number."""


@dataclass(frozen=True)
class KnownBucket:
    """What a bucket last reported about its state.

    Parameters
    ----------
    epoch : int
        In which, as the steps count.
    version, digest
        As in :class:`~holdfast.checkpoint.manifest.BucketState`.
    feeds : mapping, optional
        The bounds of its feeds; None where it has not reported them: they did not move since the run began.
    """

    epoch: int
    version: int
    digest: str
    feeds: Feeds | None


@dataclass(frozen=True)
class Knowledge:
    """What is known of all buckets at the end of one epoch.

    Parameters
    ----------
    reports : mapping of At to KnownBucket
        What buckets reported.
    is_complete : bool
        Whether a bucket that reported nothing has the state of the directory's seed, or none.
    written : frozenset of At
        Whose tables a worker writes: those that were called in a barrier.
    """

    reports: Mapping[At, KnownBucket] = field(default_factory=dict)
    is_complete: bool = False
    written: frozenset[At] = frozenset()


NOTHING = Knowledge()


class Barriers:
    """Which epochs are barriers, and what buckets reported.  Called by the stream thread and by the checkpointer's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_wished = False
        self._is_barrier = False
        self._is_running = False
        self._epoch = 0
        self._forgot = 0
        self._now = NOTHING
        self._newest: tuple[int, Knowledge] = (0, NOTHING)
        self._barrier: tuple[int, Knowledge] = (0, NOTHING)

    # --- the checkpointer -------------------------------------------------------------------------------------------

    def wish(self) -> None:
        """Let the next epoch that begins be a barrier."""
        with self._lock:
            self._is_wished = True

    def withdraw(self) -> bool:
        """Withdraw the wish if no epoch runs; return whether that was so."""
        with self._lock:
            if self._is_running:
                return False
            self._is_wished = False
            return True

    def learn(self, manifest: Manifest) -> None:
        """Take in what a snapshot of this run says: it knows every bucket at the end of its epoch."""
        with self._lock:
            epoch = manifest.ended.step_epoch
            if epoch < self._forgot:
                return  # what was evaluated without a report since then is not in it
            reports = dict(self._now.reports)
            for name, operator in manifest.operators.items():
                for number, bucket in operator.buckets.items():
                    before = reports.get((name, number))
                    if before is None or before.epoch <= epoch:
                        reports[name, number] = KnownBucket(epoch, bucket.version, bucket.digest, bucket.feeds)
                    elif before.feeds is None:  # they have not moved since
                        reports[name, number] = replace(before, feeds=bucket.feeds)
            self._now = replace(self._now, reports=reports, is_complete=True)

    def as_of(self, epoch: int) -> Knowledge:
        """Return what was known at the end of an epoch (as the steps count); nothing where that is not kept."""
        with self._lock:
            return next((known for at, known in (self._barrier, self._newest) if at == epoch), NOTHING)

    # --- the stream thread ------------------------------------------------------------------------------------------

    def begin(self, epoch: int) -> bool:
        """Record that an epoch begins; return whether it is a barrier."""
        with self._lock:
            invariant(
                epoch >= self._epoch,
                f"epoch {epoch} begins after epoch {self._epoch}.",
                why="epochs ascend, and only the last one is repeated: a barrier would be of another epoch.",
                epoch=epoch,
            )
            self._epoch, self._is_running = epoch, True
            self._is_barrier, self._is_wished = self._is_wished, False
            return self._is_barrier

    def take(self, reported: Mapping[str, BucketReport]) -> dict[str, BucketReport]:
        """Take in what buckets (``operator/number``) reported in the epoch; return the reports without it."""
        with self._lock:
            reports, called = dict(self._now.reports), set()
            rest = {}
            for bucket, report in reported.items():
                kept = present(
                    report.kept,
                    f"bucket {bucket} has not reported its version.",
                    why="where snapshots are made, each bucket that is called does.",
                    epoch=self._epoch,
                )
                invariant(
                    kept.version <= self._epoch,
                    f"bucket {bucket} reports version {kept.version} in epoch {self._epoch}.",
                    why="a version is the epoch that last changed the bucket.",
                    epoch=self._epoch,
                )
                rest[bucket] = replace(report, kept=None)
                operator, _, number = bucket.rpartition("/")
                at = (operator, int(number))
                before = reports.get(at)
                feeds = before.feeds if kept.feeds is None and before is not None else kept.feeds
                reports[at] = KnownBucket(self._epoch, kept.version, kept.digest, feeds)
                called.add(at)
            self._now = Knowledge(reports, self._now.is_complete, frozenset(called if self._is_barrier else ()))
            return rest

    def forget(self) -> None:
        """Forget what was known: the epoch was evaluated for its state alone, and no bucket reported."""
        with self._lock:
            self._now, self._forgot = NOTHING, self._epoch

    def end(self, epoch: int) -> bool:
        """Record that an epoch is decided; return whether it was a barrier.

        What is known of it is kept until the next one ends; what is known of a barrier, until the next barrier ends.
        """
        with self._lock:
            invariant(
                epoch == self._epoch,
                f"epoch {epoch} ends, and epoch {self._epoch} has begun.",
                why="what buckets have reported is of the epoch that has begun.",
                epoch=epoch,
            )
            was_barrier = self._is_barrier
            self._is_running = False
            self._newest = (epoch, self._now)
            if was_barrier:
                self._barrier = self._newest
            self._now = replace(self._now, written=frozenset())
            return was_barrier


@dataclass(frozen=True)
class Taken:
    """Where the files of all buckets come from.

    Parameters
    ----------
    there : mapping of At to BucketState
        Those that have them: they did not change since the last snapshot or the seed, or are empty.
    written : mapping of At to BucketState
        Those whose worker writes them, without files.
    read : frozenset of At
        Those that have to be read out of the store.
    """

    there: Mapping[At, BucketState]
    written: Mapping[At, BucketState]
    read: frozenset[At]


def taken_from(
    operators: Collection[str], buckets: int, known: Knowledge, last: Manifest | None, seed: Manifest | None
) -> Taken:
    """Decide for each bucket where its files come from.

    Parameters
    ----------
    operators : collection of str
        All stateful operators.
    buckets : int
        Of each.
    known : Knowledge
        At the end of the epoch that the snapshot is of.
    last : Manifest, optional
        The last snapshot of this run.
    seed : Manifest, optional
        The snapshot that the directory began with.
    """
    there: dict[At, BucketState] = {}
    written: dict[At, BucketState] = {}
    read: set[At] = set()
    for name in operators:
        for number in range(buckets):
            at = (name, number)
            report = known.reports.get(at)
            began = _bucket(seed, at)
            if report is None:
                if not known.is_complete:
                    read.add(at)
                elif began is not None:
                    there[at] = began
                continue
            if report.feeds is None:
                read.add(at)
                continue
            if not report.version and not report.feeds:
                continue  # it was called and has kept nothing: there is no record of it
            state = BucketState(report.version, report.digest, report.feeds, {})
            wanted = (report.version, report.digest)
            same = [of for of in (_bucket(last, at), began) if of and (of.version, of.digest) == wanted]
            if same:
                there[at] = replace(state, files=same[0].files)
            elif not report.version:
                there[at] = state
            elif at in known.written:
                written[at] = state
            else:
                read.add(at)
    return Taken(there, written, frozenset(read))


def gathered(state_schemas: Mapping[str, Any], found: Mapping[At, BucketState]) -> dict[str, OperatorState]:
    """Return what a manifest says of all operators, from what was found of each bucket."""
    return {
        name: OperatorState(
            of, {number: state for (operator, number), state in sorted(found.items()) if operator == name}
        )
        for name, of in state_schemas.items()
    }


def _bucket(manifest: Manifest | None, at: At) -> BucketState | None:
    of = None if manifest is None else manifest.operators.get(at[0])
    return None if of is None else of.buckets.get(at[1])
