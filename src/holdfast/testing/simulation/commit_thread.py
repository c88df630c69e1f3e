"""The commit thread without a thread: a seed decides when it runs."""

from __future__ import annotations

import random
from collections import deque

from holdfast.commit.commit_thread import Job, Step
from holdfast.testing.simulation.process import SimulatedCrash


class SteppedLane:
    """A lane whose jobs advance when :meth:`tick` is called: between any two durable writes of the engine.

    Parameters
    ----------
    random_ : random.Random
        Says at each tick how many steps are taken.
    size : int
        Jobs that may wait; submitting one more works the oldest off.
    """

    def __init__(self, random_: random.Random, size: int = 4) -> None:
        self._random = random_
        self._size = size
        self._jobs: deque[deque[Step]] = deque()
        self._failure: BaseException | None = None
        self._is_at_work = False

    @property
    def length(self) -> int:
        """Jobs submitted and not finished."""
        return len(self._jobs)

    def tick(self) -> None:
        """Let the simulated thread run for a moment, unless it is the one that is running."""
        if not self._is_at_work and self._failure is None:
            for _ in range(self._random.choice((0, 0, 1, 1, 2, 5))):
                self._step()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.check()
        while len(self._jobs) > self._size:
            self._step()
            self.check()
        self._jobs.append(deque(job))

    def wait(self) -> None:
        """Work every job off."""
        while self._jobs and self._failure is None:
            self._step()
        self.check()

    def check(self) -> None:
        """Raise the failure of a job, if there is one."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Drop what waits."""
        self._jobs.clear()

    def _step(self) -> None:
        if not self._jobs or self._failure is not None:
            return
        self._is_at_work = True
        try:
            if self._jobs[0]:
                self._jobs[0].popleft()()
            else:
                self._jobs.popleft()
        except SimulatedCrash as crash:
            self._failure = crash
            raise  # the whole process is dead, not just its commit thread
        except Exception as failure:
            self._failure = failure
        finally:
            self._is_at_work = False
