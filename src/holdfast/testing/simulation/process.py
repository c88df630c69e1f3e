"""One life of a simulated driver: it counts durable writes and dies before or after a given one.

The idea is SQLite's (``test/writecrash.test``): crash at the n-th write, n = 1, 2, ..., until a run survives.  No
guessing of interesting points: every durable write of store, sinks and engine goes through :meth:`Process.write`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from holdfast import faults

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

        faults.install(hook)
        try:
            yield
        finally:
            faults.install(None)
