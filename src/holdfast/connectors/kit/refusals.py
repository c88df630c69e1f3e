"""Which rows a sink refuses: found by bisection, in the order of the rows, each half written after those before it.

What passes stays written (in a transaction that is rolled back at the end), because rows may be refused for each other:
of two with one unique value the first is accepted.  A refused row costs as many attempts as there are halvings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRow
from holdfast.ports import Carried, Part, Publication, Refused, Staged

T = TypeVar("T")

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


class Halving(Protocol):
    """The rows of one part, as they are tried by halves."""

    @property
    def count(self) -> int:
        """How many there are."""

    def refusal(self, low: int, high: int) -> BadRow | None:
        """Write rows onto those before them; return why they are refused, if they are."""

    def row(self, number: int) -> pa.Table:
        """Return a row."""

    def without(self, numbers: Collection[int]) -> Part:
        """Return the part without some rows."""


class TableRows:
    """Rows of a part that the driver holds; ``write(low, high)`` as in :func:`refused`."""

    def __init__(self, part: Part, rows: pa.Table, write: Callable[[int, int], BadRow | None]) -> None:
        self.refusal = write
        self._part = part
        self._rows = rows

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._rows.num_rows)

    def row(self, number: int) -> pa.Table:
        """Return a row."""
        return self._rows.slice(number, 1)

    def without(self, numbers: Collection[int]) -> Part:
        """Return the part without some rows."""
        if isinstance(self._part, Carried):
            return Carried(without(self._rows, numbers))
        return leaving_out(self._part, places(self._part, numbers))


def rejected(publication: Publication, rows_of: Callable[[Part], Halving | None]) -> tuple[Publication, list[Refused]]:
    """Return an epoch without the rows that its sink refuses, and the rows, numbered over all parts.

    Parameters
    ----------
    publication : Publication
        The epoch.
    rows_of : callable
        Returns the rows of a part, to be tried; None where they were all taken already.
    """
    parts: list[Part] = []
    found: list[Refused] = []
    first = 0
    for part in publication.parts:
        rows = rows_of(part)
        numbers = dict(refused(rows.count, rows.refusal)) if rows is not None else {}
        if rows is not None and numbers:
            found += [Refused(first + number, rows.row(number), error) for number, error in numbers.items()]
            parts.append(rows.without(numbers))
        else:
            parts.append(part)
        first += part.row_count
    return Publication(publication.record, tuple(parts)), found


def check_carried(publication: Publication, check: Callable[[pa.Table], None]) -> None:
    """Check the rows of an epoch that the driver carries: staged ones were checked when they were written.

    Parameters
    ----------
    publication : Publication
        The epoch.
    check : callable
        Raises :class:`BadRow` if one of these rows cannot be written.
    """
    for part in publication.parts:
        if isinstance(part, Carried):
            check(part.rows)


def rejected_carried(publication: Publication, check: Callable[[pa.Table], None]) -> tuple[Publication, list[Refused]]:
    """Return an epoch without the carried rows that cannot be written, and these; parameters as those above."""

    def rows_of(part: Part) -> Halving | None:
        if not isinstance(part, Carried):
            return None
        rows = part.rows
        return TableRows(part, rows, lambda low, high: _bad_row(check, rows.slice(low, high - low)))

    return rejected(publication, rows_of)


def _bad_row(check: Callable[[pa.Table], None], rows: pa.Table) -> BadRow | None:
    try:
        check(rows)
    except BadRow as error:
        return error
    return None


def try_behind(beside: Sequence[T], same: Sequence[T], own: T, write: Callable[[Sequence[T]], None]) -> None:
    """Try rows after those of sinks that publish earlier.

    Parameters
    ----------
    beside, same : sequence
        What those write to the same database, and of these to the same table.
    own : object
        What is tried.
    write : callable
        Writes, and rolls back.

    Raises
    ------
    BadRow
        If they are refused after all of these too.
    """
    try:
        write([*same, own])
    except BadRow:
        if len(beside) == len(same):
            raise
        write([*beside, own])  # a foreign key may point to the rows of the others


def check_no_null(node: str, table: str, column: str, values: pa.Array | pa.ChunkedArray) -> None:
    """Raise :class:`BadRow` where a NOT NULL column gets a null."""
    if count := values.null_count:
        raise BadRow(
            f"{node}: {count} rows have a null in column {column!r}, which takes none.",
            why=f"table {table} declares it NOT NULL.",
            do=f'filter such rows out before the sink: hf.filter("{column} is not null"); or fill the column.',
        )


def left_out(part: Staged) -> list[Any]:
    """Return the rows of a staged part that are not published, as its sink finds them: by number, or by place."""
    return list(json.loads(part.reference.get(_WITHOUT, "[]")))


def places(part: Staged, numbers: Iterable[int]) -> list[int]:
    """Return the places of rows in a staged part, by their numbers among those that are published.

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
