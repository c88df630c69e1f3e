"""``row_id`` of columns: an id that is made of what a row says (design/0022).

Ids of positions are no operator: the source itself adds them (:mod:`holdfast.connectors.reading.row_id`, where the
function is
that users call for both).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import require_columns
from holdfast.graph.row_ids import RowIds
from holdfast.graph.shape import Shape
from holdfast.types.row_ids import Key, key_of
from holdfast.types.schema import RESERVED_PREFIX


@dataclass(frozen=True)
class RowIdOfColumns:
    """Add a column: the id of the values of some columns.

    Parameters
    ----------
    columns : tuple of str
        The columns, in the order in which they are hashed.
    into : str
        The column that is added.
    timestamp : str, optional
        The column that the time of an id is taken from; None: ids have no time.
    scope : str
        The node's name, where the user gave one: equal rows of two scopes have different ids.
    """

    columns: tuple[str, ...]
    into: str
    timestamp: str | None
    scope: str
    kind: ClassVar[str] = "row_id"

    @property
    def key(self) -> Key:
        """What the ids begin with: neither the names of the columns nor anything upstream is part of them."""
        return key_of("columns", self.scope)

    def arguments(self) -> Mapping[str, Any]:
        """Return the columns, and what is added."""
        return {"columns": list(self.columns), "into": self.into, "timestamp": self.timestamp}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns with the one that is added, after checking those that it is made of."""
        before = inputs[0]
        require_columns(self.columns, before.columns, "row_id")
        if self.timestamp:
            require_columns([self.timestamp], before.columns, "timestamp=")
        check_into(self.into, before.columns)
        made_of = f"the columns {', '.join(self.columns)}" + (f" and the name {self.scope!r}" if self.scope else "")
        after = None if before.columns is None else (*before.columns, self.into)
        return Shape(after, before.timestamp, RowIds(self.into, frozenset({f"columns/{self.scope}"}), made_of))

    def resolved(self, columns: Sequence[str]) -> tuple[list[str], str | None]:
        """Return the columns, and that of the time, as they are spelled in a stream."""
        known = {column.lower(): column for column in columns}
        require_columns([*self.columns, *([self.timestamp] if self.timestamp else [])], columns, "row_id")
        return [known[name.lower()] for name in self.columns], self.timestamp and known[self.timestamp.lower()]


def check_into(into: str, columns: Sequence[str] | None) -> None:
    """Check the name of the column that is added.

    Raises
    ------
    InvalidPipeline
        If the stream has one of that name, or it is reserved.
    """
    if into.lower().startswith(RESERVED_PREFIX):
        raise InvalidPipeline(
            f"into={into!r} is a reserved name.",
            why=f"names that begin with {RESERVED_PREFIX!r} are Holdfast's own.",
            do='give the column another name: into="id".',
        )
    if columns is not None and into.lower() in {column.lower() for column in columns}:
        raise InvalidPipeline(
            f"the stream has a column {into!r} already.",
            why="row_id adds a column, and a table cannot have two of one name.",
            do='give the new one another name: hf.row_id(..., into="item_id").',
        )
