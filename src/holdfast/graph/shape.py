"""What is known of a stream's rows before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.capabilities import offers, optional
from holdfast.errors import InvalidPipeline
from holdfast.graph.changes import Changes, check_sink
from holdfast.graph.row_ids import RowIds


@dataclass(frozen=True)
class Shape:
    """What is known of a stream's rows before anything runs.

    Parameters
    ----------
    columns : tuple of str, optional
        Names in order; None when unknown (downstream of ``map``, for instance).
    timestamp : str, optional
        The column that holds event time; None when there is none or it is unknown.
    ids : RowIds, optional
        The column that identifies each row; None when there is none or it is unknown.
    changes : Changes, optional
        Of a stream of changes, which rows no longer hold; None where rows only come.
    """

    columns: tuple[str, ...] | None = None
    timestamp: str | None = None
    ids: RowIds | None = None
    changes: Changes | None = None

    def check_sink(self, spec: Any) -> None:
        """Raise :class:`InvalidPipeline` if rows of this shape may be retracted, and a sink cannot."""
        check_sink(spec.kind, spec.arguments(), self.changes)


@optional()
class TakesChanges(Protocol):
    """What the declaration of an operator may say: what it makes of a stream of changes, or that it makes one."""

    def changes(self, inputs: Sequence[Shape]) -> Changes | None:
        """Return the changes of its output; None: its rows only come.

        Raises
        ------
        InvalidPipeline
            If it cannot do over changes what it is to do.
        """


def shape_after(spec: Any, inputs: Sequence[Shape]) -> Shape:
    """Return the shape of an operator's output, with its changes.

    Parameters
    ----------
    spec : OperatorSpec
        The operator.
    inputs : sequence of Shape
        Its inputs.

    Raises
    ------
    InvalidPipeline
        If it cannot work on such inputs; if one of them is a stream of changes, and the operator takes none.
    """
    shape: Shape = spec.shape(inputs)
    if offers(spec, TakesChanges):
        return replace(shape, changes=spec.changes(inputs))
    for changes in (each.changes for each in inputs):
        if changes is not None:
            raise InvalidPipeline(
                f"{spec.kind} takes no changes, and rows of its input may be retracted: {changes.column!r} is true for "
                "them.",
                why="it would count a row that no longer holds as one more.",
                do=f'use it before the rows change, or where they are final (emit="settled"); {changes.as_rows}.',
            )
    return replace(shape, changes=None)
