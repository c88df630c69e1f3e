"""The lease of a pipeline: who runs it, as its sink's system says; and what a sink may offer to keep one (design/0028).

A lease elects; it protects nothing.  That at most one run writes is the fence's work, in each sink's own transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holdfast.capabilities import optional
from holdfast.ports.sinks import SinkSpec


@dataclass(frozen=True)
class Lease:
    """What is written in a lease.

    Parameters
    ----------
    term : int
        Grows by one whenever another process takes the lease.
    token : str
        Of the process that holds it; empty: it was given back.
    name, host : str
        The holder, as people see it.
    pid : int
        Its process.
    ttl_us : int
        How long a beat is good for, microseconds.
    generation : int
        Of the holder's run; 0 while it has none.
    asked_term : int
        The term at which somebody asked for a promotion: that term's lease may be taken before it expires.
    compares : bool
        Whether the next run is to compare the sinks with what they should hold before it goes on: somebody asked for
        that, and no run has begun since.
    """

    term: int
    token: str
    name: str
    host: str
    pid: int
    ttl_us: int
    generation: int = 0
    asked_term: int = 0
    compares: bool = False


@dataclass(frozen=True)
class SeenLease:
    """A lease as it was read.

    Parameters
    ----------
    beat : int
        Grows with every write; what a write is conditional on.
    lease : Lease
        What it says.
    left_us : int, optional
        Until it expires, by the clock of the system that keeps it; None where that has none of its own.
    """

    beat: int
    lease: Lease
    left_us: int | None = None


class LeasePlace(Protocol):
    """Where the lease of one pipeline is kept.  From one thread at a time."""

    def read(self) -> SeenLease | None:
        """Return the lease; None where there is none.  Creates nothing."""

    def write(self, seen: SeenLease | None, lease: Lease) -> bool:
        """Replace what was seen (None: nothing) and begin its time anew; False, changing nothing, if it has changed.

        Of several callers that saw the same exactly one gets True.
        """

    def close(self) -> None:
        """Release connections.  Must not raise."""


@optional(SinkSpec)
class LeasedSpec(Protocol):
    """What a sink's declaration may offer beyond ``SinkSpec``: to keep the lease of a pipeline."""

    def lease(self, name: str, pipeline: str) -> LeasePlace:
        """Return where the lease is kept.  Connects when it is asked, and creates what it needs when it is written."""
