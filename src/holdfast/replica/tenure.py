"""Taking, keeping, watching and asking for the lease of a pipeline.  Liveness alone: safety is the fence's.

Rules.  Every write is conditional on the beat that was seen, so of several that find a lease free exactly one gets it.
No two clocks are compared: a lease expires by the clock of the database that keeps it; where there is none, when the
watcher, by its own monotonic clock, has seen no new beat for as long as the lease says.

What a checkpoint knows of the terms of its pipeline: whether the run before was on it too (design/0028).

Each holder notes its term in its checkpoint before it starts.  Where the term before is not noted there, another
checkpoint has led since: what this one says of positions is old.  A graph without state needs nothing of it, since the
sinks say where they are and what their positions mean; it is set aside.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.ports import Lease, LeasePlace, SeenLease, Store

_TRIES = 10


@dataclass(frozen=True)
class Holder:
    """A process that may hold a lease.

    Parameters
    ----------
    name : str
        As people see it.
    host, pid : str, int
        Where it is.
    token : str
        Its alone.
    """

    name: str = "main"
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


class Watch:
    """Tells whether a lease may be taken.

    Parameters
    ----------
    place : LeasePlace
        Where it is kept.
    monotonic_us : callable
        A clock of this process that never goes back.
    """

    def __init__(
        self, place: LeasePlace, monotonic_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000
    ) -> None:
        self._place = place
        self._monotonic_us = monotonic_us
        self._beat: int | None = None
        self._since_us = 0
        self.seen: SeenLease | None = None
        """The lease as it was read last."""

    def is_free(self) -> bool:
        """Read the lease; return whether it was given back, has expired, is asked for, or there is none."""
        is_held, seen = self.is_held(), self.seen
        return not is_held or seen is None or seen.lease.asked_term == seen.lease.term

    def is_held(self) -> bool:
        """Read the lease; return whether a holder's beat is valid, also where a promotion is asked for."""
        self.seen = seen = self._place.read()
        if seen is None or not seen.lease.token:
            return False
        if seen.left_us is not None:
            return seen.left_us > 0
        now_us = self._monotonic_us()
        if seen.beat != self._beat:
            self._beat, self._since_us = seen.beat, now_us
        return now_us - self._since_us < seen.lease.ttl_us


class Tenure:
    """A lease that this process holds, until it is lost or given back."""

    def __init__(self, place: LeasePlace, seen: SeenLease) -> None:
        self._place = place
        self._seen = seen

    @property
    def lease(self) -> Lease:
        """What it says."""
        return self._seen.lease

    def renew(self, generation: int | None = None) -> bool:
        """Begin its time anew; False where it is lost: another process has taken it.

        A request for promotion that was written meanwhile stays.  Where the reply of a write is lost the error is the
        place's, and the next call finds out.
        """
        wanted = self.lease.generation if generation is None else generation
        return self._written(lambda found: _with_generation(found, wanted))

    def give_back(self) -> bool:
        """Let another process take it at once; False where it is lost already."""
        return self._written(lambda found: replace(found, token=""))

    def _written(self, changed: Callable[[Lease], Lease]) -> bool:
        token, term = self.lease.token, self.lease.term
        for _ in range(_TRIES):
            new = changed(self.lease)
            if self._place.write(self._seen, new):
                self._seen = SeenLease(self._seen.beat + 1, new)
                return True
            found = self._place.read()
            if found is None or (found.lease.term, found.lease.token) != (term, token):
                return False
            self._seen = found
        return True  # others keep writing requests: it is ours still


def take(place: LeasePlace, seen: SeenLease | None, holder: Holder, ttl_us: int) -> Tenure | None:
    """Take a lease that is free; None where another process was faster.

    Parameters
    ----------
    place : LeasePlace
        Where it is kept.
    seen : SeenLease, optional
        As it was when it was found free.
    holder : Holder
        Who takes it.
    ttl_us : int
        How long a beat is good for, microseconds.
    """
    term = 1 if seen is None else seen.lease.term + 1
    compares = seen is not None and seen.lease.compares
    lease = Lease(term, holder.token, holder.name, holder.host, holder.pid, ttl_us, compares=compares)
    if not place.write(seen, lease):
        return None
    return Tenure(place, SeenLease(1 if seen is None else seen.beat + 1, lease))


def _with_generation(lease: Lease, generation: int) -> Lease:
    """Return a lease whose holder has a run: its start has compared the sinks, if that was asked for before its term.

    What was asked for in this term is for whoever takes the next one.
    """
    has_begun = generation > 0 and not lease.generation
    has_compared = has_begun and lease.asked_term != lease.term
    return replace(lease, generation=generation, compares=lease.compares and not has_compared)


def ask(place: LeasePlace, *, compares: bool = False) -> bool:
    """Ask for a promotion: whoever watches may take the lease now.  False where there is no lease.

    The time of the lease begins anew with that, which delays nobody who watches.

    Parameters
    ----------
    place : LeasePlace
        Where it is kept.
    compares : bool
        Whether whoever takes it is to compare the sinks before its run goes on.  That stays asked for until a run of
        another holder has begun: one that dies before is followed by one that compares, too.  Who asks later without
        it takes it back.
    """
    for _ in range(_TRIES):
        seen = place.read()
        if seen is None:
            return False
        asked = replace(seen.lease, asked_term=seen.lease.term, compares=compares)
        if place.write(seen, asked):
            return True
    return False


NOTE = "lease.json"
"""Key, in the checkpoint, of the last term whose holder ran on it."""
ASIDE = "set-aside"
"""Directory in the checkpoint: what was in it before another checkpoint led."""
_FIRST, _LAST = "sources", "spark"
"""A start that finds one without the other is refused; one that finds neither asks the sinks."""


def noted_term(store: Store, note: str = NOTE) -> int:
    """Return the last term whose holder ran on a checkpoint; 0 where none has."""
    data = store.get(note)
    return 0 if data is None else int(json.loads(data)["term"])


def note_term(store: Store, term: int, note: str = NOTE) -> None:
    """Note that the holder of a term runs on a checkpoint."""
    store.put(note, json.dumps({"term": term}).encode())


def set_aside(directory: Path, kept: Collection[str]) -> bool:
    """Move what is in a checkpoint into a directory of it, instead of what was moved before; False: there is nothing.

    Parameters
    ----------
    directory : Path
        The checkpoint.  Nobody runs on it.
    kept : collection of str
        Names whose files stay: what they begin with.

    Notes
    -----
    A crash in here is followed by another one of the same: the term is noted after it.
    """
    stays = (".", ASIDE, NOTE, *kept)
    names = sorted(path.name for path in directory.glob("*") if not path.name.startswith(stays))
    if not names:
        return False
    if _FIRST in names:  # else a crash has moved it already: what is there belongs to the rest
        shutil.rmtree(directory / ASIDE, ignore_errors=True)
    (directory / ASIDE).mkdir(exist_ok=True)
    for name in sorted(names, key=lambda name: (name == _LAST, name != _FIRST)):
        os.replace(directory / name, directory / ASIDE / name)
    return True
