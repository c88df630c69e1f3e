"""``top``: the first rows of each key and window by an order, with their ranks, by an aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building, check_choice, require_columns
from holdfast.graph.evolution import Migration
from holdfast.graph.nodes import Stream
from holdfast.operators.aggregate.collected import START
from holdfast.operators.aggregate.open import END
from holdfast.operators.aggregate.ranking import Ranking, sort_terms
from holdfast.operators.aggregate.spec import declare
from holdfast.operators.aggregate.window import Total, Window
from holdfast.state import keyed

_RIGHT = 'hf.top(bids, 10, by="auction", order="price desc")'


def top(
    stream: Stream,
    n: int,
    *,
    by: str | Sequence[str] | None = None,
    order: str,
    window: Window | None = None,
    emit: str = "changes",
    delete: str | None = None,
    rank: str = "rank",
    ties: str = "first",
    timestamp: str | None = None,
    timestamps: str = "ascending",
    disorder: str | int | None = None,
    idle_after: str | None = None,
    forget_after: str | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Stream:
    """Keep the first ``n`` rows of each key, and window, by an order; each has its rank, from 1.

    Parameters
    ----------
    stream : Stream
        The rows; its columns must be known.
    n : int
        How many rows, at least 1.
    by : str or sequence of str, optional
        Key columns; without them all rows have the same key.
    order : str
        Columns with ``asc`` or ``desc``, and ``nulls first`` or ``nulls last``, with commas between.  As in Spark nulls
        are first ascending and last descending, and NaN is the largest.  Of equal rows the one with the lowest
        timestamp is first, of several of these the first to arrive.
    window : Window, optional
        As of ``hf.aggregate``; without it all rows of a key.
    emit : {"changes", "settled"}
        In each epoch the ranks whose row is another, to be upserted by ``(*by, "window_start", rank)``, or all ranks of
        a window once it is final.  A rank never disappears.
    delete : str, optional
        With ``emit="changes"``: name of a Boolean column that is added, true for rows that no longer hold.  A rank
        whose row is another then gives both, the one that left it first: ``docs/changes.md``.
    rank : str
        The column with the rank, BIGINT.
    ties : {"first", "all"}
        Whether rows of equal order have ranks of their own, or one: then all rows up to rank ``n`` are emitted, however
        many, with ``emit="settled"`` only.
    timestamp, timestamps, disorder, idle_after, forget_after : optional
        As of ``hf.aggregate``.
    name : str, optional
        The node's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Returns
    -------
    Stream
        The key columns, ``window_start`` and ``window_end`` (where there is a window), the rank, then the other
        columns.

    Raises
    ------
    InvalidPipeline
        If the columns are not known, the order is none, or the arguments do not fit together.

    Notes
    -----
    State is up to ``n`` rows for each key and open window: where rows only come, one that was pushed out never returns.
    Of a stream of changes it is all rows that hold.

    Examples
    --------
    ::

        best = hf.top(bids, 10, by="auction", order="price desc", name="best")
        best | hf.write.postgres(dsn, table="best", mode="upsert", key=["auction", "rank"])
    """
    with building("top", name):
        if not isinstance(stream, Stream):
            raise InvalidPipeline(f"{a_type(stream)} stands for the stream.", do=f"write {_RIGHT}")
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InvalidPipeline(f"n={n!r} is not a number of rows.", do=f"write a whole number from 1: {_RIGHT}")
        check_choice("ties", ties, ("first", "all"))
        if ties == "all" and emit != "settled":
            raise InvalidPipeline(
                f'ties="all" cannot be emitted with emit={emit!r}.',
                why="rows of one rank are no key, and a row that leaves a rank could not be taken back.",
                do='write emit="settled" with a window, or leave ties= out.',
            )
        keys = () if by is None else keyed.key_names(by)
        ranking = _ranking(stream, n, keys, order, rank, takes_ties=ties == "all")
        _check_windows(keys if window is None else (*keys, *ranking.columns))
    unattached = declare(
        {}, called="top", by=keys or None, window=Total() if window is None else window, emit=emit, delete=delete,
        timestamp=timestamp, timestamps=timestamps, disorder=disorder, idle_after=idle_after, forget_after=forget_after,
        name=name, renamed_from=renamed_from, migrate=migrate, ranking=ranking,
    )  # fmt: skip
    return unattached.attach(stream)


def _ranking(stream: Stream, n: int, keys: Sequence[str], order: Any, rank: Any, *, takes_ties: bool) -> Ranking:
    if stream.columns is None:
        raise InvalidPipeline(
            f"the columns of {stream.name!r} are not known.",
            why="each of them is kept by name.",
            do='name them before: stream | hf.select("auction", "price", "at")',
        )
    require_columns(keys, stream.columns, "by=")
    terms = sort_terms(order)
    changes = stream.shape.changes
    taken = {key.lower() for key in (*keys, *([] if changes is None else [changes.column]))}
    others = tuple(column for column in stream.columns if column.lower() not in taken)
    require_columns([term.column for term in terms], others, f"order={order!r}")
    if not isinstance(rank, str) or not rank:
        raise InvalidPipeline(f"rank={rank!r} is not a column.", do='write rank="place", or leave it out.')
    if rank.lower() in {column.lower() for column in (*stream.columns, START, END)}:
        raise InvalidPipeline(
            f"two columns of the output would be called {rank!r}.",
            why="a row keeps its columns, and its rank is added to them.",
            do='give the rank another name: rank="place".',
        )
    return Ranking(n, terms, others, rank, takes_ties)


def _check_windows(columns: Sequence[str]) -> None:
    for column in columns:
        if column.lower() in (START, END):
            raise InvalidPipeline(
                f"there is a column {column!r} already.",
                why="the state, and the output where there is a window, have a column of this name for the window.",
                do=f'give it another name before: stream | hf.select("* except ({column})", of_{column}="{column}")',
            )
