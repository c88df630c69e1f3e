"""Which rows a sink refuses: found by halves, in the order of the rows, each half written onto those before it.

What passes stays written (in a transaction that is rolled back at the end), because rows may be refused for each other:
of two with one unique value the first is taken.  A refused row costs as many attempts as there are halvings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRow
from holdfast.ports import Staged

_WITHOUT = "without"
"""Key of a handle's reference: which rows are left out when the part is published."""


def refused(count: int, write: Callable[[int, int], BadRow | None]) -> Iterator[tuple[int, BadRow]]:
    """Yield the number of each refused row, and why.

    Parameters
    ----------
    count : int
        Rows.
    write : callable
        ``write(low, high)``: writes those rows; None where they were taken, else nothing of them stays.

    Examples
    --------
    >>> def write(low, high):
    ...     return BadRow("no") if {3, 4} & set(range(low, high)) else None
    >>> [number for number, _ in refused(10, write)]
    [3, 4]
    """
    waiting = [(0, count)] if count else []
    while waiting:
        low, high = waiting.pop()
        error = write(low, high)
        if error is None:
            continue
        if high - low == 1:
            yield low, error
            continue
        middle = (low + high) // 2
        waiting += [(middle, high), (low, middle)]


def left_out(part: Staged) -> list[Any]:
    """Return the rows of a staged part that are not published, as its sink finds them: by number, or by place."""
    return list(json.loads(part.reference.get(_WITHOUT, "[]")))


def places(part: Staged, numbers: Iterable[int]) -> list[int]:
    """Return where rows stand in a staged part, by their numbers among those that are published.

    Examples
    --------
    >>> places(leaving_out(Staged("a", 5), [1, 2]), [0, 1])
    [0, 3]
    """
    gone = set(left_out(part))
    standing = [number for number in range(part.row_count + len(gone)) if number not in gone]
    return [standing[number] for number in numbers]


def leaving_out(part: Staged, rows: Collection[Any]) -> Staged:
    """Return a staged part without some of its rows: they stay where they are, and are not published, nor counted."""
    every = [*left_out(part), *rows]
    return Staged(part.name, part.row_count - len(rows), {**part.reference, _WITHOUT: json.dumps(every)})


def without(rows: pa.Table, numbers: Collection[int]) -> pa.Table:
    """Return rows without some of them."""
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[sorted(numbers)] = False
    return rows.filter(pa.array(kept)) if numbers else rows
