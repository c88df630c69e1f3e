"""Rows cut at the commands among them: pieces of data, and commands, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.control.columns import ControlColumns
from holdfast.connectors.control.commands import Command, parsed
from holdfast.ports import Carried, Part, Publication

Piece: TypeAlias = pa.RecordBatch | Command


@runtime_checkable
class Controlled(Protocol):
    """What a sink may offer beyond :class:`~holdfast.ports.Sink`: to carry out commands among its rows."""

    def control_counts(self) -> Mapping[str, int]:
        """Return how many it has carried out: those that changed the ``schema``, and those that dropped a
        ``partition``; empty without a control column.  Asked of a sink opened or not: changes nothing.
        """


def pieces(rows: pa.RecordBatch, columns: ControlColumns) -> Iterator[Piece]:
    """Yield rows of data, and commands, in their order.

    Raises
    ------
    BadRow
        At a control row that is no command.

    Examples
    --------
    >>> rows = pa.RecordBatch.from_pydict({"id": [1, 2, 0, 3], "do": [None, None, '{"do": "widen", '
    ...     '"column": "id", "type": "bigint"}', None]})
    >>> [piece["id"].to_pylist() if isinstance(piece, pa.RecordBatch) else piece.column
    ...     for piece in pieces(rows, ControlColumns("do"))]
    [[1, 2], 'id', [3]]
    """
    control = rows.column(columns.control)
    first = 0
    for place in np.flatnonzero(pc.is_valid(control).to_numpy(zero_copy_only=False)).tolist():
        if place > first:
            yield rows.slice(first, place - first)
        yield parsed(control[place].as_py())
        first = place + 1
    if first < rows.num_rows:
        yield rows.slice(first)


def commands_only(batches: Iterator[pa.RecordBatch], columns: ControlColumns) -> pa.Table | None:
    """Return the control rows alone; None where there are none."""
    found = [rows.filter(pc.is_valid(rows.column(columns.control))) for rows in batches]
    found = [rows for rows in found if rows.num_rows]
    return pa.Table.from_batches(found) if found else None


class Awaited:
    """Commands of epochs that were admitted and are not published: they wait for their group, or for their turn.

    What is admitted behind them is checked as if they were carried out.
    """

    def __init__(self, columns: ControlColumns) -> None:
        self._columns = columns
        self._waiting: dict[int, Publication] = {}

    def note(self, publication: Publication, rows: Iterator[pa.RecordBatch]) -> None:
        """Take the commands of an epoch that passed."""
        epoch = publication.record.epoch
        self._waiting.pop(epoch, None)
        found = commands_only(rows, self._columns)
        if found is not None:
            self._waiting[epoch] = Publication(publication.record, (Carried(found),))

    def forget(self, epoch: int) -> None:
        """Drop the commands of an epoch: it comes again without rows, since all of them were left out meanwhile."""
        self._waiting.pop(epoch, None)

    def before(self, epoch: int, held: int) -> Sequence[Publication]:
        """Return those of epochs before one that the sink does not hold."""
        self._waiting = {number: each for number, each in sorted(self._waiting.items()) if number > held}
        return [each for number, each in self._waiting.items() if number < epoch]


def carried(parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parts that the driver carries."""
    for part in parts:
        if isinstance(part, Carried):
            yield from part.rows.to_batches()
