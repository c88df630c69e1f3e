"""What is known of a stream's rows before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.graph.changes import Changes, changes_after, check_sink
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
        """Raise :class:`InvalidPipeline` if rows of this shape may be withdrawn, and a sink cannot."""
        check_sink(spec.kind, spec.arguments(), self.changes)


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
        If it cannot work on such inputs.
    """
    shape: Shape = spec.shape(inputs)
    return replace(shape, changes=changes_after(spec, inputs))
