"""Rows that somebody wants to see as they pass a node: what is wanted of a task, and what it takes of them.

A *tap* is a place where rows pass: a source, a step or a sink by its name, an output of an operator with state as the
head of the program behind it.  What is wanted reaches tasks with each epoch; rows come back in its report, as text for
people.  Nothing of it is durable.  Where nothing is wanted, a batch costs one look into an empty mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.display.rows import ShownRow, rows_of

Wish = Mapping[str, int]
"""Tap -> so many rows of it are wanted at most."""

NO_WISH: Wish = {}

Samples = Mapping[str, Sequence[ShownRow]]
"""Tap -> rows that passed it."""


class Taps:
    """What one task takes of the rows that pass: the first ones, and no more than are wanted.  Of one thread.

    Parameters
    ----------
    wish : mapping of str to int
        What is wanted.

    Examples
    --------
    >>> taps = Taps({"rides": 2})
    >>> for first in (1, 4):
    ...     taps.see("rides", [pa.RecordBatch.from_pydict({"id": [first, first + 1]})])
    >>> taps.take(), taps.take()
    ({'rides': [{'id': 1}, {'id': 2}]}, {})
    """

    def __init__(self, wish: Wish = NO_WISH) -> None:
        self.begin(wish)

    def begin(self, wish: Wish) -> None:
        """Begin with the next task of the thread; what is left of another one is forgotten."""
        self._left = dict(wish)
        self._rows: dict[str, list[dict[str, Any]]] = {}

    @property
    def are_wanted(self) -> bool:
        """Whether any rows are."""
        return bool(self._left)

    def see(self, tap: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows that pass a tap, where they are wanted."""
        if not self._left or tap not in self._left:
            return
        for batch in batches:
            if self._left[tap] and batch.num_rows:
                rows = rows_of(batch, self._left[tap])
                self._left[tap] -= len(rows)
                self._rows.setdefault(tap, []).extend(rows)

    def take(self) -> Samples:
        """Return the rows since the last call."""
        rows, self._rows = self._rows, {}
        return rows


def together(samples: Iterable[Samples]) -> dict[str, list[ShownRow]]:
    """Return the rows of several tasks.

    Examples
    --------
    >>> together([{"rides": [{"id": 1}]}, {"rides": [{"id": 2}]}])
    {'rides': [{'id': 1}, {'id': 2}]}
    """
    found: dict[str, list[ShownRow]] = {}
    for each in samples:
        for tap, rows in each.items():
            found.setdefault(tap, []).extend(rows)
    return found
