"""What an epoch takes of a source: arithmetic of the limits that its declaration and the run set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

ROW_SIZE = 80
"""Bytes that a row counts at least: compressed columns say little about the memory and the time that rows take."""


@dataclass(frozen=True)
class ReadLimit:
    """How much an epoch takes of one source at most, beside what the source's own arguments say.

    Parameters
    ----------
    rows : int
        Rows, where the source knows their number.
    size_bytes : int
        Bytes, where it knows them.
    """

    rows: int
    size_bytes: int


def rows_within(own: int | None, limit: ReadLimit | None, count: int, size: Callable[[], int | None]) -> int | None:
    """Return how many of the rows that are there an epoch takes at most; None: all.

    Parameters
    ----------
    own : int, optional
        ``max_rows_per_epoch``.
    limit : ReadLimit, optional
        The limit of the run.
    count : int
        The rows that are there.
    size : callable
        Returns their bytes, where these are known; asked only where there is a limit, and something that it may cut.

    Examples
    --------
    >>> limit = ReadLimit(rows=100, size_bytes=4000)
    >>> rows_within(None, None, 900, lambda: 1), rows_within(None, limit, 900, lambda: 900)
    (None, 100)
    >>> rows_within(None, limit, 900, lambda: 90_000), rows_within(7, limit, 900, lambda: None)
    (40, 7)
    """
    if limit is None or not count:
        return own
    size_bytes = size() or 0
    fitting = count if size_bytes <= limit.size_bytes else max(1, count * limit.size_bytes // size_bytes)
    return min(fitting, limit.rows, count if own is None else own)


class ReadUnit(Protocol):
    """A part of a source that an epoch takes as a whole."""

    @property
    def name(self) -> str:
        """The file that it is of."""

    @property
    def row_count(self) -> int | None:
        """Its rows; None where they were not counted."""

    @property
    def size_bytes(self) -> int:
        """Its bytes."""


class EpochRoom:
    """What an epoch has taken of a source, and how much more it may take.

    Parameters
    ----------
    max_files, max_rows : int, optional
        The limits of the declaration.
    limit : ReadLimit, optional
        The limit of the run.
    """

    def __init__(self, max_files: int | None, max_rows: int | None, limit: ReadLimit | None) -> None:
        rows = [most for most in (max_rows, None if limit is None else limit.rows) if most is not None]
        self._most = (max_files, min(rows, default=None), None if limit is None else limit.size_bytes)
        self._names: set[str] = set()
        self._rows = self._size = 0

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return any(most is not None for most in self._most)

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached; never before something is taken."""
        taken = zip((len(self._names), self._rows, self._size), self._most, strict=True)
        return bool(self._names) and any(most is not None and have >= most for have, most in taken)

    def take(self, unit: ReadUnit) -> None:
        """Take a unit, whether it fits or not."""
        self._names.add(unit.name)
        self._rows += unit.row_count or 0
        self._size += unit.size_bytes

    def fits(self, unit: ReadUnit) -> bool:
        """Return whether a unit exceeds no limit; the first one always fits."""
        if not self._names:
            return True
        files = len(self._names) + (unit.name not in self._names)
        wanted = (files, self._rows + (unit.row_count or 0), self._size + unit.size_bytes)
        return all(most is None or want <= most for want, most in zip(wanted, self._most, strict=True))
