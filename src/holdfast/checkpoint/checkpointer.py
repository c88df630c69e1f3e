"""The checkpointer: makes snapshots while the run continues, one at a time, and keeps the progress records.

Epochs never wait for it: they record their end.  What is due is decided by :meth:`Checkpointer.turn`, which
its thread calls repeatedly, and a simulation calls directly.

Where there are barriers (:mod:`holdfast.checkpoint.barriers`), a snapshot that is due waits for one: the next epoch,
whose workers write their own part.  When no epoch begins, the last one that ended is taken after a while.

Invariants.  At most one snapshot at a time; one that is due meanwhile is skipped and counted.  Nothing is written by a
run that was fenced.  A snapshot that fails does not affect the run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast import faults
from holdfast.checkpoint import named, progress
from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.manifest import EpochEnd, Manifest, OperatorState, SnapshotKey
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.replay_floor import write_floor
from holdfast.checkpoint.snapshot import commit, prune, read_manifest
from holdfast.errors import Corrupt, Fenced, HoldfastError, invariant
from holdfast.ports import Clock, Store
from holdfast.positions import Positions
from holdfast.status import CheckpointStatus

log = logging.getLogger("holdfast.checkpoint")

_IDLE_US = 30_000_000
"""So long no epoch begins before a snapshot is made without a barrier; or thrice the interval, where that is less."""

_LOOK_US = 50_000
"""How often is looked whether the epoch still runs that a snapshot waits for."""

Reading = Callable[[EpochEnd, "Manifest | None"], Mapping[str, OperatorState]]
"""Writes the files of all operators as of an epoch's end, given the last snapshot; returns what the manifest says."""


LetGo = Callable[[], None]
"""Ends what :data:`Holding` began; may be called again."""

Holding = Callable[[EpochEnd], LetGo]
"""Keeps what the state at an epoch's end needs, until it is let go."""


@dataclass(frozen=True)
class Intervals:
    """How often what is done.

    Parameters
    ----------
    snapshot_us : int
        Between two snapshots; 0: only when asked, and no progress records.
    progress_us : int
        Between two progress records.
    keep : int
        Snapshots that stay.
    """

    snapshot_us: int
    progress_us: int
    keep: int


@dataclass(frozen=True)
class _Moment:
    """The end of a barrier, and the value of ``on_checkpoint`` then: later ones may be there before the snapshot is.

    Its state is held: a snapshot that somebody asked for may be at work for long before the one of the barrier is made.
    """

    ended: EpochEnd
    user_data: Mapping[str, Any] | None
    let_go: LetGo


class Checkpointer:
    """Makes the snapshots of one run.  ``note`` and the requests may be called from any thread.

    Parameters
    ----------
    pipeline, graph : str
        Its name, and the fingerprint of its graph's state.
    generation : int
        Of this run.
    buckets : int
        Into how many the state of each operator is divided.
    store : Store
        The checkpoint.
    clock : Clock
        For the intervals.
    read : callable
        Writes the files: the engine's business.
    check_fenced : callable
        Raises ``Fenced`` if this run is no longer the owner.
    intervals : Intervals
        How often.
    seed : Manifest, optional
        The snapshot that the state of this directory began with; it is not pruned.
    tidy : callable, optional
        Called when a snapshot is there: removes what it makes needless.
    user_data : callable, optional
        Returns what the manifest says of the value of ``on_checkpoint``.
    barriers : Barriers, optional
        Lets epochs be barriers; without, every snapshot is of the last epoch that ended.
    hold : callable, optional
        Keeps the state that is to be read, from the moment on at which its epoch is chosen.
    publish : callable, optional
        Returns when every sink holds what is decided for it, however seldom it commits: no snapshot is ahead of a sink
        that may have to be replayed to.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        graph: str,
        generation: int,
        buckets: int,
        store: Store,
        clock: Clock,
        read: Reading,
        check_fenced: Callable[[], None],
        intervals: Intervals,
        seed: Manifest | None = None,
        tidy: Callable[[], None] = lambda: None,
        user_data: Callable[[], Mapping[str, Any] | None] = lambda: None,
        barriers: Barriers | None = None,
        hold: Holding = lambda ended: lambda: None,
        publish: Callable[[], None] = lambda: None,
    ) -> None:
        self._pipeline = pipeline
        self._graph = graph
        self._generation = generation
        self._buckets = buckets
        self._store = store
        self._clock = clock
        self._read = read
        self._check_fenced = check_fenced
        self._intervals = intervals
        self._seed = seed
        self._tidy = tidy
        self._user_data = user_data
        self._barriers = barriers
        self._hold_state = hold
        self._publish = publish
        self._waits_since_us: int | None = None
        self._at_barrier: _Moment | None = None
        self._last: Manifest | None = None
        self._lock = threading.Lock()
        self._gathered: list[EpochSpan] = []
        self._newest: EpochEnd | None = None
        self._due_us = self._written_us = clock.now_us()
        self._status = CheckpointStatus()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_ending = False
        self._working = threading.Lock()
        self._recording = threading.Lock()

    # --- reports of the run -----------------------------------------------------------------------------------------

    def note(self, start: Positions, ended: EpochEnd) -> None:
        """Record the end of an epoch, of which every sink's part is decided or published.

        Raises
        ------
        Fenced, Unavailable
            If as many ends are gathered as epochs can take along, and they cannot be written.  To be called again.
        """
        if len(self._gathered) >= progress.GATHERED:
            self.write_progress()  # here: the thread may be at work on a snapshot for long
        was_barrier = self._barriers is not None and self._barriers.end(ended.step_epoch)
        with self._lock:
            last = self._newest
            invariant(
                last is None or (ended.epoch, ended.step_epoch) >= (last.epoch, last.step_epoch),
                f"epoch {ended.epoch} of pipeline {self._pipeline!r} ends after epoch {last and last.epoch}.",
                why="epochs ascend, and only the last one is repeated.",
                pipeline=self._pipeline,
                epoch=ended.epoch,
                generation=self._generation,
            )
            self._newest = ended
            if was_barrier and self._waits_since_us is not None:
                self._at_barrier = _Moment(ended, self._user_data(), self._hold_state(ended))
            elif self._waits_since_us is not None:
                self._waits_since_us = self._clock.now_us()
            if self._gathered and self._gathered[-1].ended.epoch == ended.epoch:
                del self._gathered[-1]
            self._gathered.append(EpochSpan(start, ended))
        if was_barrier:
            self._wake.set()

    def unrecorded(self) -> Sequence[EpochSpan]:
        """Return the ends of epochs that were noted and are in no progress record yet."""
        with self._lock:
            return tuple(self._gathered)

    @property
    def status(self) -> CheckpointStatus:
        """What was done so far."""
        with self._lock:
            return self._status

    # --- snapshots --------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do what is due: write progress records, make a snapshot."""
        now = self._clock.now_us()
        if now - self._written_us >= self._intervals.progress_us:
            self._written_us = now
            self._guarded(self.write_progress)
        every = self._intervals.snapshot_us
        if every and now - self._due_us >= every:
            missed = (now - self._due_us) // every - 1
            self._due_us += every * (missed + 1)
            with self._lock:
                is_waiting = self._waits_since_us is not None
                self._status = replace(self._status, dropped=self._status.dropped + missed + is_waiting)
                if not is_waiting and self._barriers is not None and self._has_new():
                    self._waits_since_us, self._at_barrier = now, None
                    self._barriers.wish()
            if self._barriers is None:
                self._guarded(self.snapshot)
        if self._waits_since_us is not None:
            self._look_for_barrier(now)

    def _look_for_barrier(self, now: int) -> None:
        """Make the snapshot that waits for a barrier if that has ended, or if none seems to follow."""
        assert self._barriers is not None
        if self._at_barrier is None:
            idle_us = now - (self._waits_since_us or now)
            if idle_us < self._patience_us or not self._barriers.withdraw():
                return
        at = self._taken_barrier()
        self._guarded(lambda: self._made(at))

    def _taken_barrier(self) -> _Moment | None:
        """Wait for no barrier any more; return the one that has ended."""
        with self._lock:
            at, self._at_barrier, self._waits_since_us = self._at_barrier, None, None
        return at

    @property
    def _patience_us(self) -> int:
        return min(3 * self._intervals.snapshot_us, _IDLE_US)

    def _has_new(self) -> bool:
        return self._newest is not None and (self._last is None or self._last.ended != self._newest)

    def snapshot(self) -> Manifest | None:
        """Make a snapshot of the last epoch that ended; return it, or None where none has ended since the last one.

        Raises
        ------
        HoldfastError
            If state could not be read or written.  Nothing counts of it.
        """
        with self._working:
            return self._snapshot()

    def _made(self, at: _Moment | None) -> Manifest | None:
        with self._working:
            return self._snapshot(at)

    def snapshot_named(self, name: str) -> Manifest | None:
        """Make a snapshot that stays under a name, too; None, and no name, where no epoch has ended yet.

        Raises
        ------
        InvalidPipeline
            If the name is taken, or is none.
        HoldfastError
            As :meth:`snapshot`.
        """
        named.new_name(name)
        with self._working:  # nothing is pruned before the name is there
            self._hold()
            made = self._snapshot()
            if made is not None:
                named.put_named(self._store, name, made)
                try:
                    self._check_fenced()
                except Fenced:  # the new owner may have pruned what the name needs before it was there
                    named.delete_named(self._store, name)
                    raise
            return made

    def _hold(self) -> None:
        """Make sources keep what follows the snapshot that is made now; where there are others, they do."""
        with self._lock:
            ended = self._newest
        if ended is not None and not self._intervals.snapshot_us:
            named.hold(self._store, self._pipeline, ended)

    def _snapshot(self, at: _Moment | None = None) -> Manifest | None:
        """Make a snapshot of a barrier; None: of the last epoch that ended."""
        # Before the epoch is read: the value must not be of a later one.
        user_data = self._user_data() if at is None else at.user_data
        with self._lock:
            ended = self._newest if at is None else at.ended
        if ended is None:
            return None
        let_go = self._hold_state(ended) if at is None else at.let_go
        try:
            if self._last is not None and self._last.ended.epoch >= ended.epoch:
                return self._last
            return self._snapshot_of(ended, user_data)
        finally:
            let_go()

    def _snapshot_of(self, ended: EpochEnd, user_data: Mapping[str, Any] | None) -> Manifest:
        began = self._clock.now_us()
        self._publish()
        self.write_progress()
        # 1. files.  A crash leaves files that no manifest names: the next snapshot uses or prunes them.
        operators = self._read(ended, self._last)
        self._check_fenced()
        faults.reach("snapshot-files", ended.epoch, self._pipeline)
        manifest = Manifest(
            self._pipeline,
            self._generation,
            self._clock.now_us(),
            self._graph,
            ended,
            self._buckets,
            operators,
            user_data,
        )
        # 2. manifest.  A crash right after leaves the snapshot, and the older ones that were to go.
        commit(self._store, manifest)
        try:
            self._check_fenced()
        except Fenced:
            # Written, then looked: the new owner may not have seen it, and may have gone another way since.
            self._store.delete(manifest.key.path)
            raise
        faults.reach("snapshot-manifest", ended.epoch, self._pipeline)
        self._last = manifest
        if self._barriers is not None:
            self._barriers.learn(manifest)
        took = self._clock.now_us() - began
        with self._lock:
            self._status = replace(
                self._status,
                count=self._status.count + 1,
                epoch=ended.epoch,
                at_us=manifest.at_us,
                duration_ms=took / 1e3,
                size_bytes=manifest.size_bytes,
                rows=manifest.rows,
                is_failing=False,
            )
        log.info(
            "snapshot of epoch %d: %d rows of state, %d bytes, %d ms",
            ended.epoch,
            manifest.rows,
            manifest.size_bytes,
            took // 1000,
        )
        self._prune()
        self._tidy()
        return manifest

    def _prune(self) -> None:
        """Remove what is older than is kept; each removal may be the last thing that this process does."""
        pinned: frozenset[SnapshotKey] = frozenset() if self._seed is None else frozenset({self._seed.key})
        oldest = prune(self._store, keep=self._intervals.keep, pinned=pinned, check_fenced=self._check_fenced)
        if oldest is not None:
            progress.prune(self._store, oldest.epoch)
            kept = read_manifest(self._store, oldest)
            try:
                write_floor(self._store, named.earliest(self._store, self._pipeline, kept))
            except Corrupt:
                return  # prune has logged it: what it needs is not known, so everything is kept

    def write_progress(self) -> None:
        """Write the ends of the epochs that were noted since the last time."""
        with self._recording:
            gathered = self.unrecorded()
            if gathered and self._intervals.snapshot_us:  # else nothing would ever remove them
                self._check_fenced()
                progress.write(self._store, gathered, self._generation)
            with self._lock:  # from here on no epoch takes them along
                del self._gathered[: len(gathered)]

    def _guarded(self, do: Callable[[], object]) -> None:
        try:
            do()
        except Fenced:
            self._is_ending = True
        except HoldfastError as error:
            self._note_failure(error.what)
            log.warning("no snapshot was made, the run continues: %s", error.message)
        except Exception as error:  # whatever it is: the run must neither stop nor hang because of it
            self._note_failure(repr(error))
            log.exception("no snapshot was made, the run continues")

    def _note_failure(self, what: str) -> None:
        with self._lock:
            self._status = replace(self._status, failed=self._status.failed + 1, last_error=what, is_failing=True)

    # --- the thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to work concurrently with the run."""
        self._thread = threading.Thread(target=self._run, name=f"holdfast-checkpoint-{self._pipeline}", daemon=True)
        self._thread.start()

    def end(self, *, is_clean: bool) -> None:
        """End the work, after a clean stop with a last snapshot, unless they are switched off; else with records."""
        self._is_ending = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if (at := self._taken_barrier()) is not None:
            at.let_go()
        self._guarded(self.snapshot if is_clean and self._intervals.snapshot_us else self.write_progress)

    def _run(self) -> None:
        while not self._is_ending:
            self._wake.wait(self._wait_s())
            self._wake.clear()
            if not self._is_ending:
                self.turn()

    def _wait_s(self) -> float:
        now = self._clock.now_us()
        waits = [self._written_us + self._intervals.progress_us - now]
        if self._intervals.snapshot_us:
            waits.append(self._due_us + self._intervals.snapshot_us - now)
        since = self._waits_since_us
        if since is not None:
            waits.append(max(_LOOK_US, since + self._patience_us - now))  # an epoch may run for longer than that
        return max(0.0, min(waits) / 1e6)
