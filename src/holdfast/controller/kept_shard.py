"""One shard under its controller: a run, and after its end another one.

A failed shard is started again at once, the second time in a row after a wait that doubles.  Before that wait it is
taken over without a run: what is decided is published, and what is open is swept, so that nothing of a shard that is
down holds back the readers of others.  So is one that stays down.  An epoch that a run has published begins a new row.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.retry import RetryPolicy
from holdfast.shards.ends import Reaction, reaction
from holdfast.status import ShardState, ShardStatus, Status
from holdfast.steer.controls import Controls

log = logging.getLogger("holdfast.run")


class ShardRun(Protocol):
    """What is asked of the run of a shard: :class:`holdfast.spark.run.Run`."""

    @property
    def is_active(self) -> bool:
        """Whether it has not ended."""

    def status(self) -> Status:
        """Return its status now."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; raise why it failed."""

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop after the current epoch."""

    def checkpoint_now(self, name: str | None = None) -> int:
        """Make a snapshot; return its epoch, without a name 0 where the run has not finished any."""

    def hold(self, controls: Controls) -> None:
        """Hold its sources to what the run was told."""


@dataclass(frozen=True)
class ShardWays:
    """How a shard is started, and taken over.

    Parameters
    ----------
    start : callable
        Starts it; returns its run.
    take_over : callable
        Takes it over without a run.
    translate : callable
        Returns the error of ours that an exception of a start stands for.
    has_jvm : callable
        Returns whether the JVM of all shards answers.
    check : callable
        Raises ``Fenced`` where another controller runs the shards by now; asked before it is started or taken over.
    """

    start: Callable[[], ShardRun]
    take_over: Callable[[], object]
    translate: Callable[[Exception], HoldfastError]
    has_jvm: Callable[[], bool] = lambda: True
    check: Callable[[], object] = lambda: None


@dataclass
class KeptShard:
    """A shard.  Its methods are called by one thread, that of the controller; :meth:`status` by any.

    Parameters
    ----------
    shard : int
        Its number.
    name : str
        As ledgers have it.
    ways : ShardWays
        How it is started.
    retry : RetryPolicy
        The waits before it is started again; ``attempts`` bounds the starts in a row that fail for another reason than
        that something is away.
    """

    shard: int
    name: str
    ways: ShardWays
    retry: RetryPolicy
    state: ShardState = "starting"
    restarts: int = 0
    error: HoldfastError | None = None
    reaction: Reaction | None = None
    run: ShardRun | None = None
    _failures: int = 0
    _epoch: int = -1
    _due_s: float = 0.0
    _starting: Future[ShardRun] | None = None
    _closing: Future[None] | None = None
    _last: Status | None = None
    _random: random.Random = field(default_factory=random.Random)

    def begin(self, threads: Executor) -> None:
        """Start it, in a thread of the executor."""
        self.state = "starting"
        self._starting = threads.submit(self._start)

    def _start(self) -> ShardRun:
        self.ways.check()
        return self.ways.start()

    @property
    def is_starting(self) -> bool:
        """Whether a start is under way."""
        return self._starting is not None

    @property
    def is_final(self) -> bool:
        """Whether it has ended, and is not started again."""
        is_closed = self._closing is None or self._closing.done()
        return self.state in ("stopped", "failed") and is_closed

    def look(self, threads: Executor, now_s: float, *, is_stopping: bool) -> None:
        """See what has become of it, and do what follows.

        Parameters
        ----------
        threads : Executor
            For starts.
        now_s : float
            The time, of a clock that is not set.
        is_stopping : bool
            Whether all shards are to stop.
        """
        if self._starting is not None:
            if self._starting.done():
                self._has_started(is_stopping=is_stopping, now_s=now_s)
        elif self.run is not None:
            if not self.run.is_active:
                self._has_ended(threads, now_s)
            elif is_stopping and self.state != "stopping":
                self.state = "stopping"
                self.run.stop(0)
        elif self.state == "waiting" and (self._closing is None or self._closing.done()):
            if is_stopping:
                self.state = "failed"
            elif now_s >= self._due_s:
                self.restarts += 1
                log.info("shard %d (%s) is started again", self.shard, self.name)
                self.begin(threads)
            elif self._failures > 1 and self._closing is None:
                self._closing = threads.submit(self._take_over)
        elif self.state == "failed" and not is_stopping and self._closing is None and self._is_down_alone:
            self._closing = threads.submit(self._take_over)

    @property
    def _is_down_alone(self) -> bool:
        return self.reaction in (Reaction.DOWN, Reaction.FEW_TIMES)

    def status(self) -> ShardStatus:
        """Return its status."""
        found = self.picture() or Status(self.name)
        lags = [source.lag for source in found.sources]
        is_lag_known = bool(lags) and None not in lags
        return ShardStatus(
            self.shard,
            self.state,
            found.generation,
            found.epoch,
            found.rows_total,
            found.rows_per_s if self.state == "running" else 0.0,
            sum(lag or 0 for lag in lags) if is_lag_known else None,
            self.restarts,
            found.doing if self.run is not None else "",
            found.waits_for or None if self.error is None else self.error.message,
        )

    def picture(self) -> Status | None:
        """Return the status of its run, or of its last one; None before the first."""
        run = self.run
        if run is not None:
            with suppress(Exception):  # of a run that is ending: the last one serves
                self._last = run.status()
        return self._last

    def _has_started(self, *, is_stopping: bool, now_s: float) -> None:
        assert self._starting is not None
        starting, self._starting = self._starting, None
        try:
            self.run = starting.result()
        except Exception as error:
            self._fail(self.ways.translate(error), now_s)
            return
        self._closing = None
        self.state = "running"
        if self._epoch < 0:
            self._epoch = self._epoch_now()
        if is_stopping:
            self.state = "stopping"
            self.run.stop(0)

    def _has_ended(self, threads: Executor, now_s: float) -> None:
        assert self.run is not None
        epoch = self._epoch_now()
        run, self.run = self.run, None
        try:
            run.wait(0)
        except HoldfastError as error:
            if epoch > self._epoch:
                self._epoch, self._failures = epoch, 0
            self._fail(error, now_s)
        else:
            self.state = "stopped"
            self.error = None

    def _epoch_now(self) -> int:
        found = self.picture()
        return 0 if found is None else found.epoch

    def _fail(self, error: HoldfastError, now_s: float) -> None:
        self._failures += 1
        self.error, self._closing = error, None
        self.reaction = reaction(error, has_jvm=self.ways.has_jvm())
        is_over = self.reaction is Reaction.FEW_TIMES and self._failures >= self.retry.attempts
        if is_over or self.reaction not in (Reaction.AGAIN, Reaction.FEW_TIMES):
            self.state = "failed"
            log.error("shard %d (%s) stays down: %s", self.shard, self.name, error.what)
            return
        self.state = "waiting"
        wait_s = self.retry.wait_s(self._failures - 1, self._random) if self._failures > 1 else 0.0
        self._due_s = now_s + wait_s
        log.warning(
            "shard %d (%s) has failed, and is started again in %.1f s; the others go on: %s %s",
            self.shard,
            self.name,
            wait_s,
            error.what,
            error.why,
        )

    def _take_over(self) -> None:
        """Take it over; where that cannot be done, the next start does."""
        try:
            self.ways.check()
            self.ways.take_over()
        except Exception as error:  # whatever it is, the start meets it again
            log.info("shard %d is not taken over: %s", self.shard, error)


def positions_of(status: Status | None) -> dict[str, Any]:
    """Return source -> segment -> position, as a record for people has it."""
    return {} if status is None else {source.name: dict(source.positions) for source in status.sources}
