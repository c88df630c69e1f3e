"""One life of a simulated driver: it counts durable writes and dies before or after a given one.

The idea is SQLite's (``test/writecrash.test``): crash at the n-th write, n = 1, 2, ..., until a run survives.  No
guessing of interesting points: every durable write of store, sinks and engine goes through :meth:`Process.write`.

The commit thread without a thread: a seed decides when it runs.

Several drivers at once, one durable write at a time, in an order that a seed chooses.

Each driver runs in a thread of its own, but only the one that holds the baton moves; at every durable write the baton
may go to another.  So a run is as deterministic as one thread, and every interleaving of durable writes can happen.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from holdfast import faults
from holdfast.commit.commit_thread import Job, Step

T = TypeVar("T")

INSIDE_SINKS = ("publish-begun", "publish-uncommitted")
"""Crash points within one call of a sink: a real sink's own durable writes are seen through them."""


class SimulatedCrash(BaseException):
    """The process is dead.  No ``Exception``: nothing may catch it and go on."""


@dataclass(frozen=True)
class CrashAt:
    """Die before or after the n-th durable write of a life (the first is 1)."""

    n: int
    when: Literal["before", "after"] = "before"

    def __str__(self) -> str:
        return f"{self.when} write {self.n}"


class Process:
    """One life.

    Parameters
    ----------
    crash : CrashAt, optional
        When to die; None: live.
    trace : list of str, optional
        Receives a line for every durable write.
    on_write : callable, optional
        Called with the label before every durable write: lets others run in between.

    Attributes
    ----------
    at_death : list of callable
        Called once, at the instant of death, before any ``finally`` of the process runs.  A test of a real sink cuts
        its connections here, or notes what its files hold: what runs on the way out must not reach the target, as
        it would not after a SIGKILL.
    """

    def __init__(
        self,
        crash: CrashAt | None = None,
        *,
        trace: list[str] | None = None,
        on_write: Callable[[str], None] | None = None,
    ) -> None:
        self._crash = crash
        self.trace = trace if trace is not None else []
        self.on_write = on_write
        self.at_death: list[Callable[[], None]] = []
        self.write_count = 0
        self.is_alive = True

    def write(self, label: str, apply: Callable[[], T]) -> T:
        """Do one durable write, unless the process dies before it."""
        self.check()
        if self.on_write is not None:
            self.on_write(label)
            self.check()
        self.write_count += 1
        number = self.write_count
        if self._crash == CrashAt(number, "before"):
            self.die(f"before {label}")
        result = apply()
        self.trace.append(label)
        if self._crash == CrashAt(number, "after"):
            self.die(f"after {label}")
        return result

    def die(self, where: str) -> None:
        """Be dead from here on.  First what the system does with a dead process: connections are cut, files stay."""
        self.is_alive = False
        self.trace.append(f"crash {where}")
        for act in self.at_death:
            act()
        raise SimulatedCrash(where)

    def check(self) -> None:
        """Raise if the process is dead: what runs on the way out (``finally``, ``__exit__``) changes nothing."""
        if not self.is_alive:
            raise SimulatedCrash("the process is dead")

    @contextmanager
    def counting_points(self, on_point: Callable[[str, int], None] | None = None) -> Iterator[None]:
        """Count the crash points inside a sink's publish as places to die too; tell ``on_point`` of all.

        The other points of ``holdfast.faults`` lie next to a durable write, which is counted already.
        """

        def hook(point: str, epoch: int) -> None:
            if on_point is not None:
                on_point(point, epoch)
            if point in INSIDE_SINKS:
                self.write(f"{point} {epoch}", lambda: None)

        thread = threading.get_ident()
        before = _HOOKS.get(thread)
        _HOOKS[thread] = hook
        faults.install(_call_hook)
        try:
            yield
        finally:
            _HOOKS.pop(thread)
            if before is not None:
                _HOOKS[thread] = before
            if not _HOOKS:
                faults.install(None)


_HOOKS: dict[int, faults.Hook] = {}
"""Thread -> what is told of the points that it reaches: several processes may live, each in a thread of its own."""


def _call_hook(point: str, epoch: int) -> None:
    hook = _HOOKS.get(threading.get_ident())
    if hook is not None:
        hook(point, epoch)


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


@dataclass(frozen=True)
class Ending:
    """How one driver ended: with an error, or (None) in good order."""

    error: BaseException | None


class Baton:
    """Lets exactly one of several threads run.

    Parameters
    ----------
    random_ : random.Random
        Chooses who runs next.
    is_frozen : callable, optional
        Tells whether a driver stands still: it gets no turn while another one can take it.
    switch_rate : float
        How often the turn is given away; where that is seldom, one stalls while another does much.
    """

    def __init__(
        self,
        random_: random.Random,
        is_frozen: Callable[[str], bool] = lambda name: False,
        switch_rate: float = 1.0,
    ) -> None:
        self._random = random_
        self._is_frozen = is_frozen
        self._switch_rate = switch_rate
        self._turns: dict[str, threading.Semaphore] = {}
        self._current = ""
        self._all_done = threading.Event()

    def switch(self, name: str) -> None:
        """Give the turn to a driver, perhaps this one, and wait for the next turn; called by driver ``name``."""
        if self._current != name:
            return  # not one of ours: the test's own thread
        if self._switch_rate < 1.0 and not self._is_frozen(name) and self._random.random() >= self._switch_rate:
            return
        self._pass_on()
        self._turns[name].acquire()

    def run(self, drivers: Mapping[str, Callable[[], None]]) -> dict[str, Ending]:
        """Run every driver to its end; returns how each ended."""
        endings: dict[str, Ending] = {}
        self._turns = {name: threading.Semaphore(0) for name in drivers}
        threads = [
            threading.Thread(target=self._drive, args=(name, drive, endings), name=name, daemon=True)
            for name, drive in drivers.items()
        ]
        for thread in threads:
            thread.start()
        self._pass_on()
        self._all_done.wait()
        for thread in threads:
            thread.join()
        return {name: endings[name] for name in drivers}

    def _drive(self, name: str, drive: Callable[[], None], endings: dict[str, Ending]) -> None:
        self._turns[name].acquire()
        error: BaseException | None = None
        try:
            drive()
        except BaseException as failure:  # returned as the driver's ending
            error = failure
        endings[name] = Ending(error)
        del self._turns[name]
        self._pass_on()

    def _pass_on(self) -> None:
        if not self._turns:
            self._all_done.set()
            return
        names = sorted(self._turns)
        self._current = self._random.choice([name for name in names if not self._is_frozen(name)] or names)
        self._turns[self._current].release()
