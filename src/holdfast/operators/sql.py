"""``sql``: a ``select`` statement over the stream, which is the table ``input`` in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.expressions import text
from holdfast.expressions.statement import Statement, statement_of
from holdfast.expressions.text import Item
from holdfast.graph.building import building, require_columns
from holdfast.graph.nodes import Operator
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import looks_across
from holdfast.operators.select import selected, unless_timed

_RIGHT = 'hf.sql("select origin, dep_delay / 60 as hours from input where dep_delay > 15")'
TABLE = "input"
"""The name by which a query knows the stream."""


@dataclass(frozen=True)
class Sql:
    """Run a ``select`` statement over the table ``input``."""

    query: str
    kind: ClassVar[str] = "sql"

    def arguments(self) -> Mapping[str, Any]:
        """Return the query."""
        return {"query": self.query}

    @property
    def is_of_frames(self) -> bool:
        """Whether Spark alone evaluates it, whatever its types are: it is more than items and a condition."""
        return self.statement is None

    @property
    def statement(self) -> Statement | None:
        """Its items and condition, where it has nothing else."""
        return statement_of(self.query, TABLE)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the select list, where the query is simple enough."""
        known = text.query_of(self.query)
        if known is None or known.items is None:
            return Shape()
        if inputs[0].columns is not None:
            require_columns(sorted(known.reads or ()), inputs[0].columns, "the condition of the query")
        shape = selected(known.items, ["of the query"] * len(known.items), inputs[0])
        return replace(shape, ids=None) if text.generates(self.query) else shape

    def items_read(self) -> Sequence[Item] | None:
        """Return what each item of the select list reads and gives; None where the query is not simple enough."""
        known = text.query_of(self.query)
        return None if known is None else known.items

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds downstream of it."""
        return unless_timed(self.shape(inputs), inputs[0])

    def bounds_decided(self, inputs: Sequence[Shape]) -> bool:
        """Return whether it is known before the start what happens to the timestamp."""
        return self.items_read() is not None and inputs[0].columns is not None


def sql(query: str, *, name: str | None = None) -> Operator:
    """Transform the stream by a ``select`` statement.

    Parameters
    ----------
    query : str
        ``select ... from input [where ...]``, in Spark SQL; ``lateral view explode(...)`` is allowed.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If the statement does not read ``input``, reads it twice or another table, or processes several rows
        together (aggregate, window, join, distinct, order, limit).

    Examples
    --------
    ::

        flights | hf.sql("select *, dep_delay > 15 as late from input", name="with_late")
    """
    with building(Sql.kind, name) as built_at:
        if not isinstance(query, str) or not query.strip():
            raise InvalidPipeline(
                f"query={query!r} is not a statement.", why="a text is expected.", do=f"write for instance {_RIGHT}"
            )
        if (part := text.across_rows(query, is_query=True)) is not None:
            raise looks_across("query", query, part)
        _check_tables(query)
        return Operator(Sql(query.strip().rstrip(";")), name, built_at)


def _check_tables(query: str) -> None:
    known = text.query_of(query)
    if known is None:  # cannot be read here; Spark says what is wrong with it
        return
    if known.tables == (TABLE,):
        return
    others = sorted(set(known.tables) - {TABLE})
    if others:
        read = ", ".join(name or "a table function" for name in others)
        why = f"it reads {read}, and a stateless operator sees only its stream."
    else:
        why = f"the stream is the table {TABLE!r}, and it is read {'more than once' if known.tables else 'nowhere'}."
    raise InvalidPipeline(f"query={query!r} does not read {TABLE!r} alone and once.", why=why, do=f"write {_RIGHT}")
