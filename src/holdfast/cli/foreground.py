"""``holdfast run``: one pipeline in the foreground, until it ends, fails or is asked to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from holdfast.cli.signals import StopSignals
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.observe.progress import progress_of
from holdfast.status import Status

POLL_S = 0.2
"""How soon a signal is acted upon; signals wake the main thread from Python code only, not from a long wait."""


class Run(Protocol):
    """What the command line needs of a run."""

    def status(self) -> Status:
        """Return the run's status now."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when the time is up.  Raises the error of a run that failed."""

    def stop(self, timeout_s: float | None = None) -> Any:
        """Stop after the current epoch."""


def run_in_foreground(start: Callable[[], Run], settings: Settings, *, as_json: bool) -> None:
    """Start a run, show its progress, and return when it has ended.

    A signal that comes during the start is remembered, and stops the run as soon as it has begun: half a start cannot
    be taken back better than by a run that stops.

    Parameters
    ----------
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
    """
    with StopSignals() as signals:
        run = start()
        signals.install()  # a session that users' code has made meanwhile may have taken them
        with progress_of(run, interval_s=settings.progress_interval_s, now_us=SystemClock().now_us, as_json=as_json):
            # One that came during the start counts as well: stopped before it is waited for.
            while signals.asked_by is None:
                if run.wait(timeout_s=POLL_S):
                    return
            run.stop()
            run.wait()
