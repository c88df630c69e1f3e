"""Isolation: which rows of an epoch make it fail, found by bisection with trials.

A trial evaluates a part of the epoch and publishes nothing.  The search is for the shortest prefix of the epoch
that fails: its last row is condemned, and the search continues after it, without that row.  So every row that is left
has taken part in a trial that passed, together with all rows before it; that holds with state too, where rows act on
each other.

No row is condemned for what a larger part did: the last trial is of that row, after those that pass.  Many rows may
fail together for want of memory, a person may have killed a trial, and the function may have been fixed since.

A trial may kill the process.  So it is recorded before it begins, with all that is known; an unfinished one is
tried again, and then counts as failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import invariant
from holdfast.ports import Store
from holdfast.store import records, sealed

PREFIX = "poison/"
T = TypeVar("T")

ATTEMPTS = f"{PREFIX}attempts.json"
SEARCH = f"{PREFIX}search.json"
_TRIES = 2
PROBE = [0, 0]
"""The trial that is a probe: it evaluates all rows, and ends before there are others."""
SCAN_PARTS = 64
"""The number of parts that a scan distinguishes: a death costs a second, so few scans are better than small parts."""


@dataclass(frozen=True)
class Bounds:
    """What is known of an epoch's beginning.

    Parameters
    ----------
    low : int
        Number of rows that pass, without the condemned ones.
    high : int, optional
        Number of rows that do not; None: not known of any number.
    """

    low: int = 0
    high: int | None = None


def isolate(
    count: int, fails: Callable[[int, int, Bounds], bool], condemn: Callable[[int], None], known: Bounds = Bounds()
) -> None:
    """Find the rows that make an epoch fail.

    Parameters
    ----------
    count : int
        Rows of the epoch.
    fails : callable
        ``fails(low, high, known)``: whether the first ``high`` rows fail, given that the first ``low`` pass.
    condemn : callable
        Called for each row that is found, with its number: later trials are made without it.
    known : Bounds
        Where to begin.

    Examples
    --------
    >>> found = []
    >>> isolate(100, lambda low, high, known: any(low <= row < high for row in {7, 8, 99} - set(found)), found.append)
    >>> found
    [7, 8, 99]
    """
    low, high = known.low, known.high
    failed: tuple[int, int] | None = None
    while low < count:
        if high is None:
            if not fails(low, count, Bounds(low)):
                return
            failed, high = (low, count), count
        while high - low > 1:
            middle = (low + high) // 2
            if fails(low, middle, Bounds(low, high)):
                failed, high = (low, middle), middle
            else:
                low = middle
        if failed == (low, high) or fails(low, high, Bounds(low, high)):
            invariant(high == low + 1, f"row {low} is to be condemned for what the rows up to {high} did.")
            condemn(low)
        low, high = low + 1, None


@dataclass(frozen=True)
class Failing:
    """Consecutive rows that fail when they are evaluated together.

    Parameters
    ----------
    low, high : int
        Number of the first, and after the last.
    said : tuple of (str, str, str)
        Kind of the error, what happened, and why.
    """

    low: int
    high: int
    said: tuple[str, str, str]


def locate(
    low: int, high: int, scan: Callable[[int, int, int], list[Failing]], *, most: int = 100
) -> list[tuple[int, tuple[str, str, str]]]:
    """Find rows that fail each by itself, where a scan shows which of many parts fail.

    Parameters
    ----------
    low, high : int
        The rows.
    scan : callable
        ``scan(low, high, size)``: the parts that fail, ascending, where rows are evaluated ``size`` at a time.
    most : int
        When more parts fail than this, the rest is not examined.

    Returns
    -------
    list of (int, tuple)
        Row and what was said of it alone, ascending.  Rows that fail only together are not among them.

    Notes
    -----
    Each row that is named failed twice on its own: a person may have ended the process the first time.  One row of a
    million is found in five scans.

    Examples
    --------
    >>> def scan(low, high, size):
    ...     parts = [(at, min(at + size, high)) for at in range(low, high, size)]
    ...     return [Failing(a, b, ("BadRow", "it", "")) for a, b in parts if a <= 7 < b or a <= 81 < b]
    >>> [row for row, said in locate(0, 100_000, scan)]
    [7, 81]
    """
    found: list[tuple[int, tuple[str, str, str]]] = []
    size = max(1, -(-(high - low) // SCAN_PARTS))
    for part in scan(low, high, size)[: most + 1]:
        if part.high - part.low > 1:
            found += locate(part.low, part.high, scan, most=most)
        else:
            found += [(part.low, again.said) for again in scan(part.low, part.high, 1)]
    return found


class Search:
    """The durable memory of one search.

    Parameters
    ----------
    store : Store
        The checkpoint.
    epoch : str
        Names the epoch: what is known of another one is forgotten.
    condemned : callable
        Returns how many rows were condemned so far, durably.  What failed before the last of them may pass without it:
        a kill right after it leaves a record that must not be trusted any more.
    """

    def __init__(self, store: Store, epoch: str, condemned: Callable[[], int] = lambda: 0) -> None:
        self._store = store
        self._epoch = epoch
        self._condemned = condemned
        noted = _read(store, SEARCH, _Noted())
        if noted.epoch != epoch:  # left by a run that was killed while it searched; that epoch is over
            noted = _Noted()
        is_current = noted.condemned == condemned()
        self.known = Bounds(noted.low, noted.high if is_current else None)
        self._unfinished = (noted.trial, noted.tries) if is_current else (None, 0)

    @property
    def is_new(self) -> bool:
        """Whether nothing is known yet."""
        return self.known == Bounds() and self._unfinished == (None, 0)

    def begin_probe(self) -> bool:
        """Record a probe; False where trials have already begun, or it was begun repeatedly and never ended."""
        trial, tries = self._unfinished
        if self.known != Bounds() or (trial is not None and trial != PROBE) or tries >= _TRIES:
            return False
        self._note(Bounds(), PROBE, tries + 1)
        return True

    def begin(self, low: int, high: int, known: Bounds) -> bool:
        """Record a trial; False where it was begun repeatedly before and never ended: it counts as failed."""
        trial, tries = self._unfinished
        tries = tries + 1 if trial == [low, high] else 1
        self._unfinished = (None, 0)  # of this process, which has not died of it
        if tries > _TRIES:  # its process died in it, each time
            return False
        self._note(known, [low, high], tries)
        return True

    def withdraw(self, known: Bounds) -> None:
        """Record that the trial that was begun said nothing: its process lives, and it was not for the rows."""
        self._note(known, None, 0)

    def end(self) -> None:
        """Forget the search: it is over."""
        self._store.delete(SEARCH)
        self._store.delete(ATTEMPTS)

    def _note(self, known: Bounds, trial: list[int] | None, tries: int) -> None:
        noted = _Noted(self._epoch, known.low, known.high, trial, tries, self._condemned())
        self._store.put(SEARCH, sealed.dump(records.plain(noted)))


def searched(store: Store) -> str:
    """Return what is being searched, durably: the name of an epoch, or of a part of it; empty where nothing is."""
    return _read(store, SEARCH, _Noted()).epoch


def count_attempt(store: Store, epoch: str | None) -> int:
    """Count a start that finds an epoch planned and not finished; return how many in a row found this one.

    Parameters
    ----------
    store : Store
        The checkpoint.
    epoch : str, optional
        Names the epoch; None: there is none, the last run ended between two.
    """
    noted = _read(store, ATTEMPTS, _Attempts())
    if epoch is None:
        if noted.count:
            store.delete(ATTEMPTS)
        return 0
    count = noted.count + 1 if noted.epoch == epoch else 1
    store.put(ATTEMPTS, sealed.dump(records.plain(_Attempts(epoch, count))))
    return count


def forgive_attempt(store: Store, epoch: str) -> None:
    """Record that a run ended in an epoch for what is mended by now: the start that finds it is not counted.

    Parameters
    ----------
    store : Store
        The checkpoint.
    epoch : str
        Names the epoch.

    Notes
    -----
    A crash before it leaves one more start counted than has failed: trials decide.
    """
    noted = _read(store, ATTEMPTS, _Attempts())
    count = noted.count if noted.epoch == epoch else 0
    store.put(ATTEMPTS, sealed.dump(records.plain(_Attempts(epoch, count - 1))))


@dataclass(frozen=True)
class _Noted:
    epoch: str = ""
    low: int = 0
    high: int | None = None
    trial: list[int] | None = None
    tries: int = 0
    condemned: int | None = None


@dataclass(frozen=True)
class _Attempts:
    epoch: str = ""
    count: int = 0


def _read(store: Store, key: str, nothing: T) -> T:
    try:
        return records.read(type(nothing), sealed.load(store.get(key) or b"{}"))
    except ValueError:  # what is known is lost: counted and searched again
        return nothing
