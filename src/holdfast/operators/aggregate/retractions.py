"""What an aggregation makes of changes: which it takes, and how it says which of its rows no longer hold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.graph.changes import Changes, check_delete_column
from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.collected import START
from holdfast.operators.aggregate.open import END
from holdfast.operators.aggregate.window import Window
from holdfast.state import tables
from holdfast.state.keys import Ints, one

TAKEN = ("count", "sum", "mean", "min", "max", "distinct_count")
"""The aggregates over rows that may be retracted."""

COUNTED = ("min", "max", "distinct_count")
"""Those of them for which the state counts each value."""


def check_delete(delete: str, taken: Iterable[str], *, emit: str, forgets: bool) -> None:
    """Check that an aggregation can say which of its rows no longer hold.

    Parameters
    ----------
    delete : str
        The column that is to say it.
    taken : iterable of str
        The other columns of the output.
    emit : str
        When it emits.
    forgets : bool
        Whether it forgets keys.

    Raises
    ------
    InvalidPipeline
        If it emits each window once, or forgets keys; or the column is none.
    """
    check_delete_column(delete)
    if delete.lower() in {name.lower() for name in (*taken, START, END)}:
        raise InvalidPipeline(
            f"two columns of the output would be called {delete!r}.",
            why="key columns, window_start, window_end, aggregates, rank and the column of delete= are columns of one "
            "output.",
            do='give it a name of its own: delete="is_deleted".',
        )
    if emit != "changes":
        raise InvalidPipeline(
            f"delete={delete!r} has no meaning with emit={emit!r}.",
            why="a window that is emitted once, when it is final, is never retracted.",
            do='write emit="changes", or leave delete= out.',
        )
    if forgets:
        raise InvalidPipeline(
            f"delete={delete!r} and forget_after= contradict each other.",
            why="a key that is forgotten begins again as a new one: its row before could not be retracted.",
            do="leave forget_after= out; or leave delete= out, where a sink upserts and nothing else needs it.",
        )


def check_over_changes(
    changes: Changes, by: Iterable[str], aggregates: Iterable[tuple[str, Aggregate]], window: Window, *, forgets: bool,
    retracts: bool,
) -> None:  # fmt: skip
    """Check that an aggregation can be computed of rows that may be retracted.

    Parameters
    ----------
    changes : Changes
        Of its input.
    by : iterable of str
        Its key columns.
    aggregates : iterable of (str, Aggregate)
        Its aggregates.
    window : Window
        Its window.
    forgets : bool
        Whether it forgets keys.
    retracts : bool
        Whether it says which of its rows no longer hold, or emits each once.

    Raises
    ------
    InvalidPipeline
        If one of these needs rows that only come.
    """
    column = changes.column
    for name, of in aggregates:
        if of.kind not in TAKEN:
            raise InvalidPipeline(
                f"{name}=hf.{of.kind} cannot be computed of rows that may be retracted.",
                why=f"over changes there are {', '.join(f'hf.{kind}' for kind in TAKEN)}.",
                do=f'use one of these, or rows that are final (emit="settled" upstream); or {changes.as_rows}.',
            )
        if column.lower() in {read.lower() for read in of.reads}:
            raise InvalidPipeline(
                f"{name}=hf.{of.kind} reads {column!r}.",
                why="it says which rows no longer hold, and is no value of theirs.",
                do=f"leave it out: a row that is retracted is subtracted by itself; or {changes.as_rows}.",
            )
    if column.lower() in {name.lower() for name in by}:
        raise InvalidPipeline(
            f"by= names {column!r}.",
            why="it says which rows no longer hold: a row and the one that retracts it would have two keys.",
            do=f"leave it out of by=; or {changes.as_rows}.",
        )
    if window.kind != "total" or forgets:
        wrong = "forget_after=" if window.kind == "total" else f"hf.{window.kind}"
        raise InvalidPipeline(
            f"{wrong} does not go with rows that may be retracted.",
            why="a row may be retracted at any time, also when its window would be final or its key forgotten.",
            do="leave it out; the start of a window is a column like others, under another name: "
            'hf.select("* except (window_start, window_end)", "window_start AS opened"), then '
            'hf.reduce(by=["shop", "opened"], delete="is_deleted", ...).',
        )
    if not retracts:
        raise InvalidPipeline(
            "it does not say which of its rows no longer hold.",
            why="rows of its input may be retracted: when the last one of a key is, the key's row no longer holds.",
            do='write delete="is_deleted", and hf.write.sqlite(..., mode="upsert", delete="is_deleted") behind it; '
            f"or {changes.as_rows}.",
        )


def with_retractions(
    before: pa.Table, after: pa.Table, starts: Ints, ranks: Ints, partners: Ints, delete: str
) -> pa.Table:  # fmt: skip
    """Return rows that no longer hold and rows that hold from now on, without those that stay as they are.

    Parameters
    ----------
    before, after : pa.Table
        The rows as they were, and as they are.
    starts, ranks : ndarray of int64
        Of each row of ``before``, then of ``after``, the start of its window and the place of its key: their order.  A
        row that is retracted comes before the one in its place.
    partners : ndarray of int64
        For each row of ``before`` the row of ``after`` in its place; -1: none.
    delete : str
        The column that is true for rows that no longer hold.
    """
    pairs = np.flatnonzero(partners >= 0)
    is_same = _are_equal(before.take(pa.array(pairs)), after.take(pa.array(partners[pairs])))
    stays = np.zeros(before.num_rows + after.num_rows, np.bool_)
    stays[pairs[is_same]] = True
    stays[before.num_rows + partners[pairs[is_same]]] = True
    rows = np.flatnonzero(~stays)
    is_retracted = rows < before.num_rows
    order = np.lexsort((~is_retracted, ranks[rows], starts[rows]))
    both = tables.united([before, after]).take(pa.array(rows[order]))
    schema = both.schema.append(pa.field(delete, pa.bool_()))
    return pa.Table.from_arrays([*both.columns, pa.array(is_retracted[order])], schema=schema)


def _are_equal(left: pa.Table, right: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows of two tables are the same to the bit: a row that stays must be retracted later as it came."""
    same = np.ones(left.num_rows, np.bool_)
    for name in left.column_names:
        was, now = one(left.column(name)), one(right.column(name))
        if pa.types.is_nested(was.type):
            return np.zeros(left.num_rows, np.bool_)
        if pa.types.is_floating(was.type):
            whole = _WHOLE[was.type.bit_width]
            was, now = was.view(whole), now.view(whole)
        are_null = np.asarray(was.is_null()), np.asarray(now.is_null())
        are_equal = np.asarray(pc.equal(was, now).fill_null(False))
        same &= np.where(are_null[0] | are_null[1], are_null[0] & are_null[1], are_equal)
    return same


_WHOLE = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
