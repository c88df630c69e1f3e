"""Streams of changes: rows that come, and rows that no longer hold (design/0059).

A stream of changes has a Boolean column.  A row for which it is false holds from now on; one for which it is true, with
the values that it had, holds no longer.  An operator that does not say what it makes of the second kind is refused such
a stream, as is a sink that only adds rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InvalidPipeline

RETRACTED = "retracted"
"""Argument of an operator over changes, as the record of its graph has it: the column of its input."""

_SHOWN = frozenset({"console", "memory"})
"""Kinds of sinks that show every row as it is, and are no table."""

_TABLES = frozenset({"sqlite", "postgres", "mysql", "kafka"})
"""Kinds of sinks that can be told which rows no longer hold."""


@dataclass(frozen=True)
class Changes:
    """What is known of a stream of changes.

    Parameters
    ----------
    column : str
        The Boolean column: true for a row that no longer holds.
    key : tuple of str, optional
        Columns of which no two rows that hold have the same values; None: not known.
    is_scattered : bool
        Whether rows of one key come from several buckets, so that within an epoch a row may come before the one in
        whose place it is.
    """

    column: str
    key: tuple[str, ...] | None = None
    is_scattered: bool = False

    @property
    def as_rows(self) -> str:
        """What to do where changes are not taken."""
        new = f"was_{self.column.removeprefix('is_')}"
        return (
            "to take the changes as rows like others, rename their column first: "
            f'hf.select("* except ({self.column})", "{self.column} AS {new}")'
        )


def is_table(kind: str) -> bool:
    """Return whether sinks of a kind hold rows that are retracted."""
    return kind not in _SHOWN


def check_delete_column(delete: object) -> None:
    """Raise :class:`InvalidPipeline` if ``delete=`` of an operator names no column."""
    if not isinstance(delete, str) or not delete:
        raise InvalidPipeline(
            f"delete={delete!r} is not a column.",
            why="it is the name of the Boolean column that is true for rows that no longer hold.",
            do='write delete="is_deleted", or leave it out.',
        )


def check_sink(kind: str, arguments: Mapping[str, Any], changes: Changes | None) -> None:
    """Check that a sink of a stream of changes is a table that retracts rows.

    Parameters
    ----------
    kind : str
        Of the sink.
    arguments : mapping of str to object
        Its arguments, as its declaration shows them.
    changes : Changes, optional
        Of the stream; None: its rows only come.

    Raises
    ------
    InvalidPipeline
        If it adds rows only, is not told which rows no longer hold, or two rows that hold could have one key in it.
    """
    if changes is None or kind in _SHOWN:
        return
    wanted = f'mode="upsert", key={_as_list(changes.key)}, delete="{changes.column}"'
    if arguments.get("mode") != "upsert" or arguments.get("delete") != changes.column:
        takes_them = kind in _TABLES
        there = "is not told which rows no longer hold" if takes_them else "adds rows only"
        table = f'write to a table, hf.write.sqlite(..., {wanted}); or emit="settled" upstream'
        raise InvalidPipeline(
            f"its stream has changes, and it {there}.",
            why=f"a row for which {changes.column!r} is true no longer holds: it would stay, or be added once more.",
            do=f"{f'write {wanted}' if takes_them else table}; or {changes.as_rows}.",
        )
    key = tuple(arguments.get("key", ()))
    if changes.key is None or not set(changes.key) <= set(key):
        known = "no column of the stream is known to identify its rows" if changes.key is None else (
            f"rows are identified by ({', '.join(changes.key) or 'nothing: there is one row'})"
        )  # fmt: skip
        raise InvalidPipeline(
            f"key={list(key)!r} does not identify the rows of its stream of changes.",
            why=f"{known}: two rows that hold could have one key here, and when one of them is retracted the other one "
            "would be lost.",
            do=f"write key={_as_list(changes.key)}."
            if changes.key is not None
            else "pass the key of the operator upstream on, under any name, in every select up to here.",
        )


def _as_list(key: Sequence[str] | None) -> str:
    return "[...]" if key is None else f"[{', '.join(repr(name) for name in key)}]".replace("'", '"')
