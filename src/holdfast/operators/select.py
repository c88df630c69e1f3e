"""``select``: columns and expressions, one row out for each row in (or several, with ``explode``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.expressions.text import Item, generates, item_of, quoted
from holdfast.graph.building import building, require_columns
from holdfast.graph.changes import Changes
from holdfast.graph.nodes import Operator
from holdfast.graph.shape import Shape
from holdfast.operators import changes_of_rows
from holdfast.operators.arguments import check_text, closed
from holdfast.types.schema import RESERVED_PREFIX

_RIGHT = 'hf.select("*", gain="dep_delay - arr_delay")'


@dataclass(frozen=True)
class Select:
    """Compute the items, in their order; each is a Spark SQL expression, ``*``, or ``expression AS name``."""

    items: tuple[str, ...]
    kind: ClassVar[str] = "select"

    def arguments(self) -> Mapping[str, Any]:
        """Return the items."""
        return {"items": list(self.items)}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the items, after checking those that they read."""
        shape = selected(self.items_read(), list(self.items), inputs[0])
        return replace(shape, ids=None) if any(map(generates, self.items)) else shape

    def changes(self, inputs: Sequence[Shape]) -> Changes | None:
        """Return the input's changes; none where an item gives their column another name."""
        return changes_of_rows.changes_of_items(self.items_read(), self.items, inputs[0].changes)

    def items_read(self) -> list[Item]:
        """Return what each item reads and gives."""
        return [item_of(text) for text in self.items]

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds downstream of it."""
        return unless_timed(self.shape(inputs), inputs[0])

    def bounds_decided(self, inputs: Sequence[Shape]) -> bool:
        """Return whether it is known before the start what happens to the timestamp."""
        return inputs[0].columns is not None


def unless_timed(output: Shape, before: Shape) -> str | None:
    """Return why no bound holds downstream of items that do not pass the timestamp on."""
    return f"{before.timestamp!r} is left out or computed" if output.timestamp is None else None


def selected(items: Sequence[Item], texts: Sequence[str], before: Shape) -> Shape:
    """Return the shape that select items make of a shape.

    Raises
    ------
    InvalidPipeline
        If an item reads an unknown column, or two items yield a column of one name.
    """
    given: list[str] = []
    is_known = True
    timestamp: str | None = None
    id_column: str | None = None
    for item, text in zip(items, texts, strict=True):
        if before.columns is not None:
            # Spark lets an item use the names of the items before it.
            require_columns(sorted(item.reads), (*before.columns, *given), f"item {text!r}")
        if item.names is None or (item.is_star and before.columns is None):
            is_known = False
            continue
        new = _columns_of(item, before)
        _check_new(new, given, text)
        given.extend(new)
        timestamp = timestamp or _passed_by(item, new, before.timestamp)
        id_column = id_column or _passed_by(item, new, before.ids.column if before.ids else None)
    ids = None if before.ids is None else before.ids.renamed(id_column)
    return Shape(tuple(given) if is_known else None, timestamp, ids)


def _columns_of(item: Item, before: Shape) -> tuple[str, ...]:
    if not item.is_star:
        return item.names or ()
    return tuple(column for column in before.columns or () if column.lower() not in item.excluded)


def _passed_by(item: Item, new: Iterable[str], column: str | None) -> str | None:
    """Return the name under which an item passes a column on unchanged, if it does."""
    if column is None:
        return None
    if item.is_star:
        return next((name for name in new if name.lower() == column.lower()), None)
    if item.source is not None and item.source.lower() == column.lower() and item.names:
        return item.names[0]
    return None


def _check_new(new: Iterable[str], given: Iterable[str], text: str) -> None:
    taken = {column.lower() for column in given}
    for column in new:
        if column.lower().startswith(RESERVED_PREFIX):
            raise InvalidPipeline(
                f"item {text!r} gives the column {column!r}, a reserved name.",
                why=f"names that begin with {RESERVED_PREFIX!r} are Holdfast's own.",
                do="give the column another name.",
            )
        if column.lower() in taken:
            raise InvalidPipeline(
                f"item {text!r} gives a second column {column!r}.",
                why="* includes the old columns, and a table cannot have two columns of one name.",
                do=f'leave the old one out: hf.select("* except ({column})", ...)',
            )
        taken.add(column.lower())


def select(*items: str, name: str | None = None, **named: str) -> Operator:
    """Choose and compute columns.

    Parameters
    ----------
    *items : str
        Columns, Spark SQL expressions, ``"expression as name"``, ``"*"`` or ``"* except (a, b)"``.
    name : str, optional
        The node's name.  A column of this name is written ``"expression as name"``.
    **named : str
        Column -> expression; they follow ``items``.

    Raises
    ------
    InvalidPipeline
        If an item reads an unknown column (when attached), two columns have one name, or an item processes several
        rows together.

    Examples
    --------
    ::

        flights | hf.select("origin", "dest", gain="dep_delay - arr_delay", name="gains")
    """
    with building(Select.kind, name) as built_at:
        texts = [check_text(item, f"items[{index}]", right=_RIGHT) for index, item in enumerate(items)]
        texts += [
            f"{closed(check_text(text, column, right=_RIGHT))} AS {quoted(column)}" for column, text in named.items()
        ]
        if not texts:
            raise InvalidPipeline("it has no item.", do=f"write for instance {_RIGHT}")
        return Operator(Select(tuple(texts)), name, built_at)
