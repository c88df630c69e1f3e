"""The controller: the driver's thread that watches all shards of a pipeline, and starts them again (design/0048, 5).

Invariants: a shard that fails leaves the others alone; what the controller records, no recovery reads; with the
driver's process, and with its JVM, all shards end, and each goes on from its own checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.controller.kept_shard import KeptShard, ShardRun, positions_of
from holdfast.controller.status import status_of_all
from holdfast.display.cell import follow
from holdfast.display.drawing import picture
from holdfast.display.tables import counts, status_html
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.shards.ends import Reaction
from holdfast.status import ComparedSink, ShardStatus, State, Status
from holdfast.steer.controls import Controls

log = logging.getLogger("holdfast.run")

_LOOK_S = 0.02
"""How often the shards are looked at."""
STARTS_MAX = 4
"""How many shards are started at a time, when all of them are: each computes for some tenths of a second."""

Record = Callable[[Sequence[tuple[ShardStatus, Mapping[str, Any]]]], None]


class ShardedRun:
    """A started pipeline in shards: what a run of one has for users.  Safe to use from any thread.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.
    shards : sequence of KeptShard
        Not started yet.
    record : callable
        Records what all of them have done.
    record_every_s : float
        How often, seconds.
    put_name : callable
        Given a name and the runs of all shards, keeps the state of each under it; returns the highest epoch of them.
    compared : sequence of ComparedSink
        What the start has compared.
    tear_down : callable
        Called once, when all have ended.
    """

    def __init__(
        self,
        pipeline: Graph,
        shards: Sequence[KeptShard],
        *,
        record: Record,
        record_every_s: float,
        put_name: Callable[[str, Sequence[ShardRun]], int],
        compared: Sequence[ComparedSink] = (),
        tear_down: Callable[[], object] = lambda: None,
    ) -> None:
        self.pipeline = pipeline
        self._shards = tuple(shards)
        self._record = record
        self._record_every_s = record_every_s
        self._put_name = put_name
        self._compared = tuple(compared)
        self._tear_down = tear_down
        self._started_at_us = time.time_ns() // 1000
        self._threads = ThreadPoolExecutor(max(STARTS_MAX, len(shards)), thread_name_prefix="holdfast-shard")
        self._state: State = "starting"
        self._error: HoldfastError | None = None
        self._controls: Controls | None = None
        self._held_runs: dict[int, ShardRun] = {}
        """Shard -> its run that goes by the controls."""
        self._last_steps: list[Callable[[HoldfastError | None], object]] = []
        self._is_stopping = threading.Event()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._recorder = threading.Thread(
            target=self._keep_record, name=f"holdfast-{pipeline.name}-progress", daemon=True
        )
        self._watcher = threading.Thread(target=self._watch, name=f"holdfast-{pipeline.name}", daemon=True)

    def begin(self) -> None:
        """Start all shards, some at a time, and return when each has been tried.

        Raises
        ------
        HoldfastError
            If one cannot be started by a mistake that stays, or none can: then none runs.
        """
        waiting = [*self._shards]
        while waiting or any(shard.is_starting for shard in self._shards):
            while waiting and sum(shard.is_starting for shard in self._shards) < STARTS_MAX:
                waiting.pop(0).begin(self._threads)
            self._look([shard for shard in self._shards if shard not in waiting])
            if any(shard.state == "failed" for shard in self._shards):
                break
            self._wake.wait(_LOOK_S)
        errors = [shard.error for shard in self._shards if shard.error is not None]
        final = next((shard.error for shard in self._shards if shard.state == "failed"), None)
        refusal = final or (errors[0] if len(errors) == len(self._shards) else None)
        if refusal is not None:
            self._abandon(waiting)
            self._error, self._state = refusal, "failed"
            self._ended.set()
            raise refusal
        self._state = "running"
        self._recorder.start()
        self._watcher.start()

    def _abandon(self, unstarted: Sequence[KeptShard]) -> None:
        """Stop what has been started: the start is refused."""
        self._is_stopping.set()
        begun = [shard for shard in self._shards if shard not in unstarted]
        while not all(shard.is_final for shard in begun):
            self._look(begun)
            time.sleep(_LOOK_S)
        self._threads.shutdown()

    # --- what users call ----------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether the run has not ended."""
        return not self._ended.is_set()

    @property
    def shards(self) -> tuple[KeptShard, ...]:
        """Its shards."""
        return self._shards

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of all shards.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait; None waits for the end.

        Returns
        -------
        bool
            True when all have ended well, False when the time is over.

        Raises
        ------
        HoldfastError
            Why the first one failed that stayed down.
        """
        if not self._ended.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finish the current epoch of each shard, publish everything decided, and end.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait for that; None waits as long as it takes.

        Returns
        -------
        bool
            True when the run has ended, False when the time is over (it still stops as soon as it can).
        """
        self._is_stopping.set()
        if self._state == "running":
            self._state = "stopping"
        self._wake.set()
        return self._ended.wait(timeout_s)

    def checkpoint_now(self, name: str | None = None) -> int:
        """Make a snapshot of each shard's state, and wait for them: as :meth:`holdfast.spark.run.Run.checkpoint_now`.

        Parameters
        ----------
        name : str, optional
            Keep them, one of each shard, under this name until it is deleted.  A shard that has read nothing since it
            was started has it of the end of its last run; one that never has, has none, and does not matter.

        Returns
        -------
        int
            The highest epoch of a shard, 0 when none has finished any in this run; each shard has epochs of its own.

        Raises
        ------
        InvalidPipeline
            If a shard does not run, no shard has finished an epoch that the name could stand for, or as there.
        Unavailable
            If another process makes or removes a checkpoint of this name.
        """
        runs = [shard.run for shard in self._shards]
        known = [run for run in runs if run is not None]
        if len(known) < len(runs):
            raise InvalidPipeline(
                f"shard {runs.index(None)} of pipeline {self.pipeline.name!r} does not run.",
                why="a checkpoint of the pipeline is one of each shard.",
                do="wait until all shards run: run.status().shards.",
                pipeline=self.pipeline.name,
            )
        return max(run.checkpoint_now() for run in known) if name is None else self._put_name(name, known)

    def hold(self, controls: Controls) -> None:
        """Hold the sources of all shards to what the run was told, each to its share; also those that start later."""
        self._controls = controls.shared_by(len(self._shards))
        self._held_runs.clear()
        self._wake.set()

    def call_at_end(self, step: Callable[[HoldfastError | None], object]) -> None:
        """Have something called with why the run has failed, or None, before who waits for its end is told."""
        self._last_steps.append(step)

    def status(self) -> Status:
        """Return the current status: of all shards, and of each in ``shards``."""
        return self.pictures()[0]

    def pictures(self) -> list[Status]:
        """Return the current status of all, and behind it that of each shard that has had a run."""
        pictures = [found for shard in self._shards if (found := shard.picture()) is not None]
        error = None if self._error is None else self._error.message
        whole = status_of_all(
            self.pipeline.name,
            self._state,
            [shard.status() for shard in self._shards],
            pictures,
            started_at_us=self._started_at_us,
            error=error,
            compared=self._compared,
        )
        return [whole, *pictures]

    def progress(self, timeout_s: float | None = None, *, interval_s: float = 1.0) -> bool:
        """Show the run in this cell of a notebook until it has ended: as :meth:`holdfast.spark.run.Run.progress`."""
        has_ended = follow(self.status, self._html, self._ended.wait, interval_s=interval_s, timeout_s=timeout_s)
        return has_ended and self.wait()

    def __repr__(self) -> str:
        return f"<run of {self.pipeline.name!r}: {len(self._shards)} shards, {self._state}>"

    def _repr_html_(self) -> str:
        """Return the graph with its counts, and the status: what a notebook shows."""
        return self._html(self.status())

    def _html(self, status: Status) -> str:
        nodes, sinks = self.pipeline.nodes, self.pipeline.sinks
        return status_html(status, picture(nodes, sinks, f"pipeline {self.pipeline.name}", counts(status)))

    # --- inside -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not all(shard.is_final for shard in self._shards):
                self._look(self._shards)
                self._wake.wait(_LOOK_S)
        except BaseException:  # nothing else ends this run
            log.exception("the controller of pipeline %r has failed", self.pipeline.name)
            raise
        finally:
            self._end()

    def _look(self, shards: Sequence[KeptShard]) -> None:
        """See what has become of the shards, and whether that of one ends all of them."""
        for shard in shards:
            shard.look(self._threads, time.monotonic(), is_stopping=self._is_stopping.is_set())
            if self._controls is not None and shard.run is not None and self._held_runs.get(shard.shard) != shard.run:
                self._held_runs[shard.shard] = shard.run
                shard.run.hold(self._controls)
        if not self._is_stopping.is_set():
            for shard in shards:
                if shard.reaction in (Reaction.ALL_STOP, Reaction.ALL_END):
                    log.error("all shards of pipeline %r stop: %s", self.pipeline.name, shard.error)
                    self._is_stopping.set()
                    return

    def _end(self) -> None:
        ends_all = [each.error for each in self._shards if each.reaction in (Reaction.ALL_STOP, Reaction.ALL_END)]
        failed = [each.error for each in self._shards if each.state == "failed"]
        self._error = next((error for error in (*ends_all, *failed) if error is not None), None)
        self._state = "stopped" if self._error is None else "failed"
        self._threads.shutdown(wait=False)
        try:
            self._write_record()
            self._tear_down()
            for step in self._last_steps:
                step(self._error)
        finally:
            self._ended.set()

    def _keep_record(self) -> None:
        while not self._ended.wait(self._record_every_s):
            self._write_record()

    def _write_record(self) -> None:
        try:
            self._record([(shard.status(), positions_of(shard.picture())) for shard in self._shards])
        except Exception as error:  # it is for people: no shard stops for it
            log.warning("what the shards of pipeline %r have done is not recorded: %s", self.pipeline.name, error)
