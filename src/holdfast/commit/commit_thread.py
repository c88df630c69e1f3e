"""The commit thread: publishes decided epochs in order while the engine evaluates the next one.

A *job* is a list of steps, each of at most one durable write.  The real commit thread runs each job to its end;
the simulated one (``holdfast.testing``) lets a seed decide between which of the engine's writes each step falls.

Invariants.  Jobs are processed in the order of submission.  Once one has failed, nothing that was
submitted after it is touched: a later epoch must never become visible before an earlier one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.errors import invariant


class _Thread(threading.local):
    is_lane = False


_thread = _Thread()


def is_commit_thread() -> bool:
    """Return whether this is a commit thread."""
    return _thread.is_lane


Step = Callable[[], None]
Job = Sequence[Step]


class CommitThread(Protocol):
    """A bounded queue of jobs, worked off in order."""

    @property
    def length(self) -> int:
        """Jobs submitted and not finished."""

    def submit(self, job: Job) -> None:
        """Queue a job; waits while the queue is full.  Raises the failure of an earlier job."""

    def wait(self) -> None:
        """Wait until every job is finished.  Raises the failure of a job."""

    def check(self) -> None:
        """Raise the failure of a job, if there is one."""

    def stop(self) -> None:
        """Finish the job at work, drop the others (their decisions are in the ledger), and end.  Never raises."""


class ThreadLane:
    """The real lane: one daemon thread, started by the first job.

    Parameters
    ----------
    name : str
        Of the thread.
    size : int
        Jobs that may wait; one more is at work.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._is_stopping = False

    @property
    def length(self) -> int:
        """Jobs submitted and not finished."""
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Queue a job; waits while the queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._jobs) <= self._size or self._failure is not None)
            self.check()
            self._jobs.append(job)  # the first stays in the queue while it is at work
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until every job is finished."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or self._failure is not None)
            self.check()

    def check(self) -> None:
        """Raise the failure of a job, if there is one."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Finish the job at work, drop the others, and end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        _thread.is_lane = True
        while (job := self._next()) is not None:
            try:
                for step in job:
                    step()
                invariant(self._jobs[0] is job, "the commit thread has processed a job out of order.")
            except BaseException as failure:  # raised in the engine's thread, by check
                with self._changed:
                    self._failure = failure
                    self._changed.notify_all()
                return
            with self._changed:
                self._jobs.popleft()
                self._changed.notify_all()

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._jobs) or self._is_stopping)
            return None if self._is_stopping else self._jobs[0]
