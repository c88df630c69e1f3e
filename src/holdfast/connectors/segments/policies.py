"""When a segment is sealed: policies, plain functions ``(Segment) -> str | None`` that return the reason.

A policy sees one segment at an epoch's end and decides from that alone, without I/O: asked again it answers the same.
Any function of this kind can be given as ``seal=``; the first policy that returns a text decides.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from holdfast.errors import InvalidPipeline
from holdfast.positions import Positions
from holdfast.types.units import duration_us, size_bytes


@dataclass(frozen=True)
class Segment:
    """A growing segment, as policies see it.

    Parameters
    ----------
    partition : str
        Its directory: ``day=mo/route=LHR%2FJFK``; empty where nothing is partitioned.
    rows : int
        How many it has.
    bytes : int
        What its file would have, as far as is known from earlier files; ``row_bytes`` are those in memory.
    row_bytes : int
        Bytes of its rows in memory.
    first_epoch, last_epoch : int
        The epoch in which it began, and the last one that the sink holds.
    start, end : Positions
        Where these begin and end.
    began_us, now_us : int
        When it began, and the present; Unix time.
    target_bytes : int
        The sink's ``target_size``.
    journal_bytes : int
        What the journal of the sink takes on disk, all segments.
    older_bytes : int
        ``row_bytes`` of the growing segments that began before this one.
    is_flushed : bool
        Whether somebody asked for it (``holdfast flush``).
    is_closing : bool
        Whether the run is about to end.
    """

    partition: str
    rows: int
    bytes: int
    row_bytes: int
    first_epoch: int
    last_epoch: int
    start: Positions
    end: Positions
    began_us: int
    now_us: int
    target_bytes: int
    journal_bytes: int = 0
    older_bytes: int = 0
    is_flushed: bool = False
    is_closing: bool = False


Column: TypeAlias = np.ndarray[Any, Any]

Policy: TypeAlias = Callable[[Segment], str | None]
"""What ``seal=`` takes: returns the reason why a segment is sealed now, or None."""


@dataclass(frozen=True)
class Grown:
    """What grows, as columns: the policies of this module compare these first, and see a :class:`Segment` only of what
    may be due.

    Parameters
    ----------
    rows, bytes, older_bytes, began_us, is_flushed : numpy.ndarray
        As in :class:`Segment`, one element for each.
    now_us, target_bytes, journal_bytes, is_closing
        As there.
    """

    rows: Column
    bytes: Column
    older_bytes: Column
    began_us: Column
    is_flushed: Column
    now_us: int
    target_bytes: int
    journal_bytes: int
    is_closing: bool


@dataclass(frozen=True)
class _Size:
    bytes: int | None

    def may_seal(self, grown: Grown) -> Column:
        return grown.bytes >= (self.bytes or grown.target_bytes)

    def __call__(self, segment: Segment) -> str | None:
        return "size" if segment.bytes >= (self.bytes or segment.target_bytes) else None


def size(at: str | None = None) -> Policy:
    """Seal what has reached a size (``"128 MB"``); by default the sink's ``target_size``."""
    return _Size(None if at is None else size_bytes(at, argument="size"))


@dataclass(frozen=True)
class _Rows:
    count: int

    def may_seal(self, grown: Grown) -> Column:
        return grown.rows >= self.count

    def __call__(self, segment: Segment) -> str | None:
        return "rows" if segment.rows >= self.count else None


def rows(count: int) -> Policy:
    """Seal what has this many rows."""
    if count < 1:
        raise InvalidPipeline(f"segments.rows({count!r}): a segment has at least one row.", do="give a number above 0.")
    return _Rows(count)


@dataclass(frozen=True)
class _Age:
    us: int
    jitter: float

    def may_seal(self, grown: Grown) -> Column:
        return grown.now_us - grown.began_us >= self.us * (1 - self.jitter)

    def __call__(self, segment: Segment) -> str | None:
        share = zlib.crc32(f"{segment.partition}@{segment.first_epoch}".encode()) / 2**32
        due_us = self.us * (1 + self.jitter * (2 * share - 1))
        return "age" if segment.now_us - segment.began_us >= due_us else None


def age(at: str, *, jitter: float = 0.1) -> Policy:
    """Seal what began this long ago (``"1 h"``), give or take a share of it.

    The share follows from the segment's partition and first epoch: the same after a restart, and others for partitions
    that began together, which then do not seal together.
    """
    if not 0 <= jitter < 1:
        raise InvalidPipeline(f"segments.age(jitter={jitter!r}) is no share.", do="give a number from 0 to below 1.")
    return _Age(duration_us(at, argument="age"), jitter)


@dataclass(frozen=True)
class _Pressure:
    limit_bytes: int

    def may_seal(self, grown: Grown) -> Column:
        return grown.journal_bytes - grown.older_bytes > self.limit_bytes

    def __call__(self, segment: Segment) -> str | None:
        return "pressure" if segment.journal_bytes - segment.older_bytes > self.limit_bytes else None


def pressure(limit: str) -> Policy:
    """Seal the segments that began first, until the journal of what grows is no larger than this (``"4 GB"``)."""
    return _Pressure(size_bytes(limit, argument="limit"))


@dataclass(frozen=True)
class _Flushed:
    def may_seal(self, grown: Grown) -> Column:
        return grown.is_flushed

    def __call__(self, segment: Segment) -> str | None:
        return "manual" if segment.is_flushed else None


@dataclass(frozen=True)
class _Shutdown:
    def may_seal(self, grown: Grown) -> Column:
        return np.full(len(grown.rows), grown.is_closing)

    def __call__(self, segment: Segment) -> str | None:
        return "shutdown" if segment.is_closing else None


def shutdown() -> Policy:
    """Seal everything when a run ends: without it what grows goes on growing in the next run."""
    return _Shutdown()


_OURS = (_Size, _Rows, _Age, _Pressure, _Flushed, _Shutdown)

DEFAULT = (pressure("4 GB"), shutdown())
"""What ``seal=`` is if it is not given."""


def chosen(max_age: str | None, seal: Sequence[Policy]) -> tuple[Policy, ...]:
    """Return the policies of a sink, in the order in which they are asked."""
    ages = () if max_age is None else (age(max_age),)
    return (size(), *ages, _Flushed(), *seal)


def may_seal(policies: Sequence[Policy], grown: Grown) -> Column:
    """Return where a policy may have a reason; a function of others may have one everywhere."""
    found: Column = np.zeros(len(grown.rows), dtype=bool)
    for policy in policies:
        if not isinstance(policy, _OURS):
            return np.ones(len(grown.rows), dtype=bool)
        found |= policy.may_seal(grown)
    return found


def reason_of(policies: Sequence[Policy], segment: Segment) -> str | None:
    """Return the first policy's reason to seal a segment; None while it grows on.

    Raises
    ------
    InvalidPipeline
        If a policy fails, or returns something else than a text or None.
    """
    for policy in policies:
        try:
            reason = policy(segment)
        except Exception as error:
            raise InvalidPipeline(
                f"A policy that seals segments failed: {named(policy)}.",
                why=f"{type(error).__name__}: {error}.",
                do="correct it: it is given a holdfast.segments.Segment and returns a reason or None.",
            ) from error
        if reason is not None and not isinstance(reason, str):
            raise InvalidPipeline(
                f"A policy that seals segments returned {reason!r}: {named(policy)}.",
                do="return a text, the reason, to seal the segment, or None to let it grow.",
            )
        if reason:
            return reason
    return None


def named(policy: Policy) -> str:
    """Return a policy's name and arguments, for display; of a function, where it is from."""
    if isinstance(policy, _OURS):
        values = ", ".join(str(value) for value in vars(policy).values() if value is not None)
        return f"{type(policy).__name__.strip('_').lower()}({values})"
    return f"{getattr(policy, '__module__', '')}.{getattr(policy, '__qualname__', repr(policy))}"
