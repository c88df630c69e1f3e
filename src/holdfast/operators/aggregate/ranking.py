"""The first rows of a window by an order: what is wanted, what the state keeps of it, and which ranks change.

The order is total: the columns, then timestamp, then arrival; so it does not depend on how rows are cut into epochs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.operators.aggregate.collected import change_of, moved_rows
from holdfast.state import keyed, tables
from holdfast.state.keys import Ints, coded, numbers, one, ordinals_from
from holdfast.state.rows import rows_at
from holdfast.state.step import Change, StateTable

Flags = npt.NDArray[np.bool_]
TABLE = "ranked"
_NONE = np.int64(2**62)
"""Above every rank: of a row that does not hold."""
_VALUE = "value__"
_RANK = "rank"
_PLACES = ("time", "epoch", "place")
_TERM = re.compile(
    r"(?P<column>`[^`]+`|[^\W\d]\w*)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE
)


class SortTerm(NamedTuple):
    """One column of an order."""

    column: str
    is_descending: bool
    nulls_first: bool


def sort_terms(order: Any) -> tuple[SortTerm, ...]:
    """Return the columns of an order as people write it; nulls come first ascending, and last descending, as in Spark.

    Raises
    ------
    InvalidPipeline
        If it is not an order by columns.

    Examples
    --------
    >>> sort_terms("price desc, at")
    (SortTerm(column='price', is_descending=True, nulls_first=False), SortTerm(column='at', is_descending=False, \
nulls_first=True))
    """
    found = [_TERM.fullmatch(text.strip()) for text in order.split(",")] if isinstance(order, str) else [None]
    terms = []
    for term in found:
        if term is None:
            raise InvalidPipeline(
                f"order={order!r} is not an order.",
                why="it is columns with asc or desc, with commas between; an expression becomes a column before.",
                do='write for instance order="price desc, at"; '
                'for an expression first stream | hf.select("*", x="a + b")',
            )
        is_descending = (term["way"] or "").lower() == "desc"
        nulls = term["nulls"]
        nulls_first = not is_descending if nulls is None else nulls.lower() == "first"
        terms.append(SortTerm(term["column"].strip("`"), is_descending, nulls_first))
    return tuple(terms)


def terms_in(schema: pa.Schema, terms: Sequence[SortTerm]) -> tuple[SortTerm, ...]:
    """Return an order whose columns are named as in a schema.

    Raises
    ------
    InvalidPipeline
        If values of a column have no order.
    """
    found = []
    for term in terms:
        field = keyed.field_of(schema, term.column, "order=")
        if pa.types.is_nested(field.type):
            raise InvalidPipeline(
                f"order= names the column {term.column!r}, which is of type {field.type}.",
                why="values of it have no order.",
                do='take a part of it: stream | hf.select("*", x="...") and order="x"',
            )
        found.append(term._replace(column=field.name))
    return tuple(found)


@dataclass(frozen=True)
class Ranking:
    """The first rows of a window.

    Parameters
    ----------
    n : int
        How many.
    order : tuple of SortTerm
        By what.
    columns : tuple of str
        The columns of the rows, without the key.
    rank : str
        The column of the output that holds the rank.
    takes_ties : bool
        Whether rows of equal order have one rank, and all of them count.
    keeps_all : bool
        Whether rows may be retracted, so that the state has those behind rank N too.
    """

    n: int
    order: tuple[SortTerm, ...]
    columns: tuple[str, ...]
    rank: str
    takes_ties: bool = False
    keeps_all: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return all, for display and fingerprint."""
        order = [
            f"{term.column} {'desc' if term.is_descending else 'asc'} nulls {'first' if term.nulls_first else 'last'}"
            for term in self.order
        ]
        return {"n": self.n, "order": order, "columns": [*self.columns], "rank": self.rank, "ties": self.takes_ties}

    def of_schema(self, schema: pa.Schema) -> RankedRows:
        """Return what the state keeps of rows of a schema.

        Raises
        ------
        InvalidPipeline
            If a column of the order has no order.
        """
        fields = tuple(keyed.field_of(schema, name, "top").with_nullable(True) for name in self.columns)
        nested = next((field.name for field in fields if pa.types.is_nested(field.type)), None)
        if self.keeps_all and nested is not None:
            raise InvalidPipeline(
                f"column {nested!r} is of type {schema.field(nested).type}, and rows may be retracted.",
                why="the row that one retracts is found by its values, and values of this type are not compared.",
                do=f'leave it out before: stream | hf.select("* except ({nested})")',
            )
        order = terms_in(schema, self.order)
        return RankedRows(self.n, order, fields, self.rank, self.takes_ties, self.keeps_all)


@dataclass(frozen=True)
class FormerRanks:
    """The rows whose rank is another than before, or none, with the one that they had.

    Parameters
    ----------
    owners : ndarray of int64
        The window of each.
    ranks : ndarray of int64
        The rank that it had.
    places : ndarray of int64
        Where it is in :attr:`Ranks.rows`.
    """

    owners: Ints
    ranks: Ints
    places: Ints


@dataclass(frozen=True)
class Ranks:
    """The rows that have a rank, by window, then rank.

    Parameters
    ----------
    owners : ndarray of int64
        The window of each.
    ranks, before : ndarray of int64
        Its rank, and the one that it had; 0: none.
    places : ndarray of int64
        Where it is in ``rows``.
    rows : pa.Table
        Columns of all rows that were looked at, and of others: as they lie, because few are taken of them.
    former : FormerRanks
        Those whose rank is another, as they were.
    """

    owners: Ints
    ranks: Ints
    before: Ints
    places: Ints
    rows: pa.Table
    former: FormerRanks


@dataclass(frozen=True)
class RankedRows:
    """How the state keeps the first rows of each window.

    Parameters
    ----------
    n : int
        How many.
    order : tuple of SortTerm
        By what.
    fields : tuple of pa.Field
        Columns of the rows.
    rank : str
        The output's column with the rank.
    takes_ties : bool
        Whether rows of equal order have one rank.
    keeps_all : bool
        Whether rows may be retracted, so that the state has those behind rank N too, with rank 0.
    """

    n: int
    order: tuple[SortTerm, ...]
    fields: tuple[pa.Field, ...]
    rank: str
    takes_ties: bool
    keeps_all: bool = False

    def state_fields(self) -> list[pa.Field]:
        """Return the columns of the state table after key and start; epoch and place identify a row."""
        own = [pa.field(name, pa.int64()) for name in (*_PLACES, _RANK)]
        return own + [pa.field(f"{_VALUE}{field.name}", field.type) for field in self.fields]

    def output_fields(self) -> list[pa.Field]:
        """Return the columns of the output after key and window."""
        return [pa.field(self.rank, pa.int64()), *self.fields]

    def entries(self, rows: pa.Table, which: Ints, ticks: Ints, places: Ints, epoch: int) -> pa.Table:
        """Return new rows with the columns of the state table; none has a rank.

        Parameters
        ----------
        rows : pa.Table
            The rows of the epoch.
        which : ndarray of int64
            Which of them, ascending; one that is in several windows is there for each.
        ticks, places : ndarray of int64
            Time and place of all.
        epoch : int
            The epoch.
        """
        values = rows.select([field.name for field in self.fields])
        if len(which) != rows.num_rows or (which != np.arange(len(which))).any():
            values = rows_at(values, which)
        own = [ticks[which], np.full(len(which), epoch), places[which], np.zeros(len(which), np.int64)]
        return pa.Table.from_arrays([*map(pa.array, own), *values.columns], schema=pa.schema(self.state_fields()))

    def rank_rows(
        self, values: pa.Table, positions: Ints, fresh: pa.Table, windows: Ints, starts: Ints, closing: Flags,
        keys: Sequence[pa.Array], table: StateTable, retracted: Flags | None = None,
    ) -> tuple[Ranks, Change]:  # fmt: skip
        """Return the rows that have a rank, and how the state table changes.

        Parameters
        ----------
        values : pa.Table
            The state table.
        positions : ndarray of int64
            Its rows of these windows: the known ones.
        fresh : pa.Table
            The new rows, in the order of arrival.
        windows : ndarray of int64
            Window of each known and then of each fresh row.
        starts : ndarray of int64
            Start of each window.
        closing : ndarray of bool
            For each window whether it is final.
        keys : sequence of pa.Array
            Key columns of each window.
        table : StateTable
            The state table.
        retracted : ndarray of bool, optional
            Which fresh rows retract others; None: rows only come.
        """
        count = len(positions)
        # known rows in the order of arrival: with a stable sort, neither epoch nor place has to be compared again
        arrival = rows_at(values.select(["place", "epoch"]), positions)
        arrived = np.lexsort([numbers(column) for column in arrival.columns])
        positions, windows = positions[arrived], np.concatenate([windows[:count][arrived], windows[count:]])
        names = [field.name for field in self.state_fields()]
        every = tables.united([values.select(names), fresh.select(names)])
        at = np.concatenate([positions, np.arange(values.num_rows, every.num_rows)])
        ordering = rows_at(every.select(["time", _RANK, *{f"{_VALUE}{term.column}": "" for term in self.order}]), at)
        terms = [key for term in self.order for key in sort_keys(one(ordering.column(f"{_VALUE}{term.column}")), term)]
        order = np.lexsort((numbers(ordering.column("time")), *reversed(terms), windows))
        if retracted is not None:
            is_retracted = np.concatenate([np.zeros(count, np.bool_), retracted])
            order = order[self._holds(rows_at(every, at), windows, is_retracted)[order]]
        ranks = np.full(len(at), _NONE)
        ranks[order] = self._ranks(windows[order], [key[order] for key in terms])
        known = rows_at(values.select([*table.key]), positions)
        moved = moved_rows(known, windows, starts)
        before = numbers(ordering.column(_RANK)).copy()
        went = np.flatnonzero((before[:count] > 0) & (before[:count] != ranks[:count]))
        former = FormerRanks(windows[went], before[went], at[went])
        before[:count][moved] = 0
        is_kept = ranks < _NONE if self.keeps_all else ranks <= self.n
        gone = ~is_kept[:count] | moved | closing[windows[:count]]
        order = order[is_kept[order]]
        ranks[ranks > self.n] = 0
        owners, ranks, before, places = windows[order], ranks[order], before[order], at[order]
        stays = np.flatnonzero(~closing[owners] & ((ranks != before) | (order >= count)))
        kept = rows_at(every, places[stays])
        put = [pa.array(ranks[stays]) if name == _RANK else one(kept.column(name)) for name in names]
        change = change_of(known, gone, owners[stays], starts, keys, put, table)
        rows = every.select(names[len(_PLACES) + 1 :])
        return Ranks(owners, ranks, before, places, rows, former), change

    def _holds(self, rows: pa.Table, windows: Ints, retracted: Flags) -> Flags:
        """Return which rows, in the order of arrival, no other one retracts: of equal ones the first are retracted."""
        values = rows.select([f"{_VALUE}{field.name}" for field in self.fields]).append_column("", pa.array(windows))
        codes, first = coded(values)
        came = np.flatnonzero(~retracted)
        gone = np.bincount(codes[retracted], minlength=len(first))
        holds = np.zeros(len(codes), np.bool_)
        holds[came[ordinals_from(np.zeros(len(first), np.int64), codes[came], len(first)) >= gone[codes[came]]]] = True
        return holds

    def _ranks(self, owners: Ints, terms: Sequence[npt.NDArray[Any]]) -> Ints:
        """Return the rank of each row, where rows are in their order."""
        begins = np.concatenate([[True], owners[1:] != owners[:-1]])[: len(owners)]
        places = np.arange(len(owners))
        within = places - np.maximum.accumulate(np.where(begins, places, 0)) + 1
        if not self.takes_ties:
            return within
        differs = begins.copy()
        for term in terms:
            differs[1:] |= term[1:] != term[:-1]
        return within - (places - np.maximum.accumulate(np.where(differs, places, 0)))


def sort_keys(column: pa.ChunkedArray | pa.Array, term: SortTerm) -> list[npt.NDArray[Any]]:
    """Return arrays whose ascending order, the first one first, is that of a column.

    Examples
    --------
    >>> sort_keys(pa.array([1.5, None, float("nan")]), SortTerm("x", True, False))[0].tolist()
    [False, True, False]
    """
    array = one(column)
    keys: list[npt.NDArray[Any]] = []
    if array.null_count:
        is_null = np.asarray(array.is_null())
        keys.append(~is_null if term.nulls_first else is_null)
    codes = _codes(array)
    codes = np.where(np.asarray(array.is_valid()), codes, 0) if array.null_count else codes
    return [*keys, ~codes if term.is_descending else codes]


def _codes(array: pa.Array) -> Ints:
    """Return whole numbers in the order of values; NaN is the largest, and the zeros are equal.  Any for null."""
    kind = array.type
    if pa.types.is_floating(kind):
        floats = np.asarray(array.cast(pa.float64()).fill_null(0.0)) + 0.0  # -0.0 becomes 0.0
        bits = np.where(np.isnan(floats), np.nan, floats).view(np.int64)
        return bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return np.asarray(array.cast(pa.int64()).fill_null(0))
    if pa.types.is_timestamp(kind):
        return np.asarray(array.view(pa.int64()).fill_null(0))
    if pa.types.is_date32(kind):
        return np.asarray(array.cast(pa.int32()).cast(pa.int64()).fill_null(0))
    encoded = array.dictionary_encode()
    places = np.empty(len(encoded.dictionary) + 1, np.int64)
    places[np.asarray(pc.sort_indices(encoded.dictionary)).astype(np.int64)] = np.arange(len(encoded.dictionary))
    return places[np.asarray(encoded.indices.fill_null(0)).astype(np.int64)]
