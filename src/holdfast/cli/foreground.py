"""``holdfast run``: one pipeline in the foreground, until it ends, fails or is asked to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from holdfast.cli.child import StopSignals, is_supervised
from holdfast.cli.failures import StoppedEarly
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InternalError, Unavailable
from holdfast.observe.progress import progress_of, start_shown
from holdfast.status import Status

POLL_S = 0.2
"""How soon a signal is acted upon; signals wake the main thread from Python code only, not from a long wait."""


class Runnable(Protocol):
    """What the command line needs of a run."""

    def status(self) -> Status:
        """Return the run's status now."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when the time is up.  Raises the error of a run that failed."""

    def stop(self, timeout_s: float | None = None) -> Any:
        """Stop after the current epoch."""


def run_in_foreground(pipeline: str, start: Callable[[], Runnable], settings: Settings, *, as_json: bool) -> None:
    """Start a run, show its progress, and return when it has ended.

    A signal that arrives during the start is remembered, and stops the run as soon as it has begun: half a start cannot
    be taken back better than by a run that stops.

    Parameters
    ----------
    pipeline : str
        Its name.
    start : callable
        Starts the run and returns it.
    settings : Settings
        For the interval between progress lines.
    as_json : bool
        Progress as JSON lines on stdout.

    Raises
    ------
    HoldfastError
        If the run cannot start or fails.
    StoppedEarly
        If it was asked to stop, and a system that its start or its last epoch needed was gone.
    """
    with StopSignals(is_supervised=is_supervised()) as signals:
        doing, now_us, interval_s = "the start", SystemClock().now_us, settings.progress_interval_s
        try:
            with start_shown(pipeline, interval_s=interval_s, now_us=now_us, as_json=as_json):
                run = start()
            signals.install()  # a session that users' code has made meanwhile may have taken them
            doing = "the current epoch"
            with progress_of(run, interval_s=interval_s, now_us=now_us, as_json=as_json):
                # One that arrived during the start counts as well: stopped before it is waited for.
                while signals.asked_by is None:
                    if run.wait(timeout_s=POLL_S):
                        return
                run.stop()
                run.wait()
        except (Unavailable, InternalError) as failure:
            if signals.asked_by is None:
                raise
            raise _stopped_early(signals.asked_by, doing, failure) from failure


def _stopped_early(signal: str, doing: str, failure: HoldfastError) -> StoppedEarly:
    """Report a stop as a stop: the sender of the signal may also have stopped a system that was needed."""
    return StoppedEarly(
        f"{signal} asked for a stop, and {doing} could not be finished.",
        why=f"{failure.what} {failure.why}".strip(),
        do="start again at any time: the next run asks every sink first; nothing is lost or duplicated.",
        pipeline=failure.pipeline,
        epoch=failure.epoch,
        generation=failure.generation,
    )


def seen_waiting(pipeline: str, options: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Serve for a block that a replica waits, where metrics are asked for: by options of a start, or by settings."""
    if not (address := options.get("metrics") or options["settings"].metrics):
        return nullcontext()
    from holdfast.metrics.exporter import show_replica  # its library may be missing

    return show_replica(pipeline, address)
