"""Streams of changes through operators that look at each row alone (design/0059).

Such an operator gives the same for a row when it comes and when it is retracted, if what it computes depends on the
row's values alone: so the second row retracts exactly what the first one brought.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.expressions import text as expressions
from holdfast.expressions.text import Item
from holdfast.graph.changes import Changes


def changes_where(condition: Any, changes: Changes | None, argument: str) -> Changes | None:
    """Return the changes of the rows for which a condition is true.

    Parameters
    ----------
    condition : str or callable
        The condition.
    changes : Changes, optional
        Of the input.
    argument : str
        What the condition is called.

    Raises
    ------
    InvalidPipeline
        If it need not give the same for a row that comes and for the one that retracts it.
    """
    if changes is None:
        return None
    if callable(condition):
        raise InvalidPipeline(
            f"{argument} is a function, and rows of the input may be retracted.",
            why="it is not known whether it lets a row pass that it let pass before.",
            do=f'write a Spark SQL condition as text: hf.filter("price > 10"); or {changes.as_rows}.',
        )
    _check_same(condition, changes, f"{argument}={condition!r}")
    return changes


def changes_of_items(items: Sequence[Item], texts: Sequence[str], changes: Changes | None) -> Changes | None:
    """Return the changes of what select items make of rows; none where their column has another name.

    Parameters
    ----------
    items : sequence of Item
        What each item reads and gives.
    texts : sequence of str
        The items.
    changes : Changes, optional
        Of the input.

    Raises
    ------
    InvalidPipeline
        If the column is left out, or an item need not give the same for a row that comes and for the one that
        retracts it.
    """
    if changes is None:
        return None
    names = _names(items, changes.column)
    if not names:
        items_text = ", ".join(f'"{text}"' for text in (*texts, changes.column))
        raise InvalidPipeline(
            f"the items leave {changes.column!r} out, and rows of the input may be retracted.",
            why="it is true for rows that no longer hold: without it they would count once more.",
            do=f"name it among the items: hf.select({items_text}); or {changes.as_rows}.",
        )
    column = next((name for name in names if name.lower() == changes.column.lower()), None)
    if column is None:
        return None  # rows like others, because the user says so
    for item, text in zip(items, texts, strict=True):
        passes = item.source is not None and item.source.lower() != changes.column.lower()
        if not (item.is_star or passes or (item.names or ())[:1] == (column,)):
            _check_same(text, changes, f"item {text!r}")
    keys = [next(iter(_names(items, name)), None) for name in changes.key or ()]
    is_known = changes.key is not None and None not in keys and not any(map(expressions.generates, texts))
    return replace(changes, column=column, key=tuple(name for name in keys if name is not None) if is_known else None)


def _names(items: Sequence[Item], column: str) -> list[str]:
    """Return the names under which items pass a column on unchanged."""
    found = []
    for item in items:
        if item.is_star and column.lower() not in item.excluded:
            found.append(column)
        elif item.source is not None and item.source.lower() == column.lower() and item.names:
            found.append(item.names[0])
    return found


def _check_same(text: str, changes: Changes, what: str) -> None:
    reads = {name.lower() for name in expressions.columns_of(text) or ()}
    function = expressions.varying(text) or expressions.clocked(text)
    if function is None and changes.column.lower() not in reads:
        return
    raise InvalidPipeline(
        f"{what} {f'uses {function}()' if function else f'reads {changes.column!r}'}, and rows of the input may be "
        "retracted.",
        why="it may give something else for a row that is retracted than it gave when the row came.",
        do=f"compute it before the rows change; or {changes.as_rows}."
        if function
        else f"write what depends on the other columns alone; or {changes.as_rows}.",
    )
