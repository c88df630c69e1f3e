"""When a pipeline commits: at the ends of its epochs, or at *pts*, the time before which every input is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type
from holdfast.types import units

WAITING_ROWS_MAX = 1_000_000
"""Rows that may wait for pts before sources are held, unless it is said: they are in the memory of one worker."""

_RIGHT = 'hf.Pipeline("trips", ..., commit_at="pts")'


@dataclass(frozen=True)
class CommitAtPts:
    """Commit only what lies before pts, and only when pts has changed.

    Parameters
    ----------
    disorder : str, int or mapping of str to str or int
        How far a source's rows may be below the highest timestamp of earlier epochs: of all sources, or by name.
    max_waiting_rows : int
        How many rows may wait for pts before sources that run ahead are held.
    """

    disorder: str | int | Mapping[str, str | int]
    max_waiting_rows: int


def pts(*, disorder: str | int | Mapping[str, str | int] = 0, max_waiting_rows: int = WAITING_ROWS_MAX) -> CommitAtPts:
    """Commit at pts, with options that ``commit_at="pts"`` does not have.

    Parameters
    ----------
    disorder : str, int or mapping of str to str or int, optional
        How far a source's rows may be below the highest timestamp of earlier epochs: text with a unit for
        TIMESTAMPs, ticks for BIGINTs; one for all sources, or source name -> disorder.  By default none: from epoch to
        epoch the timestamps of each source ascend.
    max_waiting_rows : int, optional
        How many rows may wait before sources that run ahead are held.

    Returns
    -------
    CommitAtPts
        For ``Pipeline(..., commit_at=...)``.

    Raises
    ------
    InvalidPipeline
        If a disorder is no duration, or no row may wait.

    Examples
    --------
    >>> import holdfast as hf
    >>> hf.pts(disorder={"weather": "1 h"}, max_waiting_rows=50_000).max_waiting_rows
    50000
    """
    for value in disorder.values() if isinstance(disorder, Mapping) else [disorder]:
        _check_disorder(value)
    if not isinstance(max_waiting_rows, int) or isinstance(max_waiting_rows, bool) or max_waiting_rows < 1:
        raise InvalidPipeline(
            f"max_waiting_rows={max_waiting_rows!r} is no number of rows.",
            why="rows at or above pts must be able to wait.",
            do="give 1 or more, or leave it out.",
        )
    return CommitAtPts(disorder, max_waiting_rows)


def commit_at_of(given: Any, pipeline: str) -> CommitAtPts | None:
    """Return what ``commit_at=`` of a pipeline says.

    Raises
    ------
    InvalidPipeline
        If it is none of ``None``, ``"pts"`` and :func:`pts`.
    """
    if given is None or isinstance(given, CommitAtPts):
        return given
    if given == "pts":
        return pts()
    raise InvalidPipeline(
        f"commit_at={given!r} of pipeline {pipeline!r} is no place to commit at.",
        why='a pipeline commits at the end of each epoch, or, with commit_at="pts", at a boundary of event time.',
        do=f"write {_RIGHT}, or leave commit_at out.",
        pipeline=pipeline,
    )


def _check_disorder(value: Any) -> None:
    amount = units.duration_us(value, argument="disorder") if isinstance(value, str) else value
    if not isinstance(amount, int) or isinstance(amount, bool) or amount < 0:
        raise InvalidPipeline(
            f"disorder={value!r} is no duration.",
            why=f"{a_type(value)} was given." if not isinstance(amount, int) else "it is negative.",
            do='write text with a unit, disorder="5 s", or ticks for BIGINT timestamps, disorder=100.',
        )
