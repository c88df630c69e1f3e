"""What is known of a stream's rows before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    columns: tuple[str, ...] | None = None
    timestamp: str | None = None
    ids: RowIds | None = None
