"""Row ids in the graph: which column of a stream identifies its rows (design/0022)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.capabilities import optional
from holdfast.errors import InvalidPipeline
from holdfast.ports import SinkSpec

DEFAULT_COLUMN = "row_id"
AUTO = "auto"
DECIDED, EARLY = "decided", "early"
"""When a sink that knows rows by their ids is given those of an epoch."""


@dataclass(frozen=True)
class RowIds:
    """The ids of a stream's rows: no two of its rows have the same one, and each has it in every replay.

    Parameters
    ----------
    column : str
        The column that holds them.
    origins : frozenset of str
        Where they were made: streams without a common origin have no common id.
    made_of : str
        What an id is made of, for users.
    """

    column: str
    origins: frozenset[str]
    made_of: str

    def renamed(self, column: str | None) -> RowIds | None:
        """Return them under another name; None where the column is not passed on."""
        return None if column is None else replace(self, column=column)


def united(several: Sequence[RowIds | None]) -> RowIds | None:
    """Return the ids of the rows of several streams together; None where two of these can hold the same row."""
    known = [ids for ids in several if ids is not None]
    origins = frozenset[str]().union(*(ids.origins for ids in known))
    columns = {ids.column for ids in known}
    if len(known) < len(several) or len(columns) > 1 or len(origins) < sum(len(ids.origins) for ids in known):
        return None
    return RowIds(columns.pop(), origins, "; ".join(dict.fromkeys(ids.made_of for ids in known)))


@optional(SinkSpec)
class Identifying(Protocol):
    """What a sink's declaration may say beyond :class:`~holdfast.ports.SinkSpec`: that its rows must have ids."""

    id_column: str | None
    """The column; None until the sink takes a stream, and where it needs none."""

    def identified(self, columns: Collection[str] | None, ids: RowIds | None) -> SinkSpec:
        """Return the declaration for a stream; raise InvalidPipeline where the stream has no ids that it could use."""


@optional(SinkSpec)
class EarlySpec(Protocol):
    """What a sink's declaration may say beyond :class:`Identifying`: when rows are given to it."""

    send: str
    """``DECIDED`` or ``EARLY``."""


def check_id(value: Any) -> str:
    """Return the argument ``id=`` of a sink.

    Raises
    ------
    InvalidPipeline
        If it is no name.
    """
    if not isinstance(value, str) or not value:
        raise InvalidPipeline(
            f"id={value!r} is no column.",
            do='write id="auto" for the column that hf.row_id made, or the name of a column: id="order_id".',
        )
    return value


def id_column(asked: str, columns: Collection[str] | None, ids: RowIds | None) -> str:
    """Return the column of a stream that a sink identifies rows by.

    Parameters
    ----------
    asked : str
        ``"auto"``, or the name of a column, which the user says is unique.
    columns : collection of str, optional
        Of the stream, where known.
    ids : RowIds, optional
        Those of the stream, where it has any.

    Raises
    ------
    InvalidPipeline
        If there is none: says how rows get one.
    """
    if asked != AUTO:
        if columns is not None and asked not in columns:
            raise InvalidPipeline(
                f"id={asked!r} is not a column of the stream.",
                why=f"its columns are {', '.join(columns)}.",
                do='name one of these, or write id="auto" for the one that hf.row_id made.',
            )
        return asked
    if ids is not None:
        return ids.column
    known = "" if columns is None else f" Its columns are {', '.join(columns)}."
    raise InvalidPipeline(
        'id="auto", and no column of the stream is known to be the id of its rows.',
        why="none was made, or an operator upstream can give several rows for one, or new rows: they have no position "
        f"in a source.{known}",
        do="write hf.row_id() right behind the source; or behind the last such operator hf.row_id(...) with the "
        'columns that make a row unique, for instance hf.row_id("key", "window_start"); or name a unique column: '
        'id="order_id".',
    )
