"""``lookup``: adds the columns of a dimension table to the rows of a stream, by key.

Which rows of a table have the keys of other rows: hashed and sorted once, then searched batch by batch.

Invariant: every pair of equal keys is found, and no other; a null is equal to nothing.  What the numbers of keys say is
only where to look: candidates are compared exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, added_twice, require_columns
from holdfast.graph.shape import Shape
from holdfast.operators.lookup.tables import LookupTable
from holdfast.types import canonical
from holdfast.types.casting import nullable_field

HOWS = ("left", "inner", "semi", "anti")
ADDING = ("left", "inner")
"""Those that add columns of the table."""


class Used(NamedTuple):
    """What a look-up uses of a table."""

    schema: pa.Schema
    """Its columns in a version: those of the key, then those that are added."""
    output: pa.Schema
    """Of the rows that leave the look-up."""


@dataclass(frozen=True)
class TableLookup:
    """Add columns of a table to rows, by key.

    Parameters
    ----------
    table : LookupTable
        The table.
    on : tuple of (str, str)
        Key columns: (of the stream, of the table).
    how : str
        ``left``, ``inner``, ``semi`` or ``anti``.
    columns : tuple of (str, str), optional
        What is added: (name in the stream, column of the table).  None: every column that is not of the key.
    duplicates : str
        ``fail`` or ``all``.
    refresh_us : int, optional
        After how long the table is loaded again, microseconds of batch time.
    """

    table: LookupTable
    on: tuple[tuple[str, str], ...]
    how: str
    columns: tuple[tuple[str, str], ...] | None
    duplicates: str
    refresh_us: int | None = None
    kind: ClassVar[str] = "lookup"

    def arguments(self) -> Mapping[str, Any]:
        """Return every argument but how often the table is loaded, which changes nothing of what a row gets."""
        columns = {} if self.columns is None else {"columns": dict(self.columns)}
        twice = {} if self.duplicates == "fail" else {"duplicates": self.duplicates}
        return {"table": dict(self.table.described()), "on": dict(self.on), "how": self.how, **columns, **twice}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the stream, and those that are added."""
        (before,) = inputs
        require_columns([ours for ours, _ in self.on], before.columns, "on=")
        known = self.table.known_columns()
        if known is not None:
            require_columns([theirs for _, theirs in self.on], known, "on=, of the table")
            require_columns([theirs for _, theirs in self.columns or ()], known, "columns=")
        after = before if self.duplicates == "fail" or self.how not in ADDING else replace(before, ids=None)
        if self.how not in ADDING:
            return after
        if before.columns is not None and (known is not None or self.columns is not None):
            added = [name for name, _ in self._added(known or ())]
            _check_new(added, before.columns)
            return replace(after, columns=(*before.columns, *added))
        return replace(after, columns=None)

    def used(self, before: pa.Schema) -> Used:
        """Return what is used of the table, for rows of a schema; asks the table for its columns.

        Raises
        ------
        InvalidPipeline
            If a column is missing, or the types of two key columns differ.
        """
        there = self.table.schema()
        require_columns([theirs for _, theirs in self.on], there.names, "on=, of the table")
        keys = [_key_field(before.field(ours), there.field(theirs)) for ours, theirs in self.on]
        if self.how not in ADDING:
            return Used(pa.schema(keys), before)
        added = self._added(there.names)
        require_columns([theirs for _, theirs in added], there.names, "columns=")
        _check_new([name for name, _ in added], before.names)
        fields = [nullable_field(there.field(theirs)) for _, theirs in added]
        output = [field.with_name(name) for field, (name, _) in zip(fields, added, strict=True)]
        taken = {field.name for field in keys}
        more = {field.name: field for field in fields if field.name not in taken}
        return Used(pa.schema([*keys, *more.values()]), pa.schema([*before, *output]))

    def sources_of_added(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the table that are added, in their order."""
        return () if self.how not in ADDING else tuple(theirs for _, theirs in self._added(there))

    def _added(self, there: Sequence[str]) -> tuple[tuple[str, str], ...]:
        if self.columns is not None:
            return self.columns
        keys = {theirs for _, theirs in self.on}
        return tuple((name, name) for name in there if name not in keys)

    def checked(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a version, after a look at their keys.

        Raises
        ------
        InvalidPipeline
            If two rows have one key, and that is not allowed.
        """
        if self.duplicates == "all" or self.how not in ADDING:
            return rows

        names = [theirs for _, theirs in self.on]
        again = Index([rows.column(name) for name in names]).repeated()
        if not len(again):
            return rows
        first = rows.select(names).slice(int(again[0]), 1).to_pylist()[0]
        shown = ", ".join(f"{name}={value!r}" for name, value in first.items())
        raise InvalidPipeline(
            f"the table has {len(again)} row(s) whose key another row has: {shown}.",
            why="each row of the stream would leave several times.",
            do='make the key unique where the table is made; or write duplicates="all", if every match is wanted.',
        )


def _key_field(ours: pa.Field, theirs: pa.Field) -> pa.Field:
    """Return the key column as a version has it: of the type that the stream's has."""
    both_whole = pa.types.is_integer(ours.type) and pa.types.is_integer(theirs.type)
    if pa.types.is_nested(ours.type) or pa.types.is_floating(ours.type):
        raise InvalidPipeline(
            f"on= names the column {ours.name!r}, which is of type {ours.type}.",
            why="a key is a plain value, and one that is equal to itself in every system.",
            do=f'cast it before: stream | hf.select("*", key="CAST({ours.name} AS STRING)")',
        )
    if ours.type == theirs.type or both_whole:
        return pa.field(theirs.name, pa.int64() if both_whole else theirs.type)
    raise InvalidPipeline(
        f"the key column {ours.name!r} is {ours.type}, and the table's {theirs.name!r} is {theirs.type}.",
        why="keys are compared as they are: values of two types are never equal.",
        do="bring them to one type: declare the column otherwise where it is read, or cast it before, "
        f'stream | hf.select("* except ({ours.name})", {ours.name}="CAST({ours.name} AS ...)").',
    )


def _check_new(added: Sequence[str], before: Sequence[str]) -> None:
    if (taken := added_twice(added, before)) is not None:
        raise InvalidPipeline(
            f"the look-up adds a second column {taken!r}.",
            why="the stream, or another column of the table, has one of this name.",
            do=f'give it another one: columns={{"table_{taken}": "{taken}"}}, with all columns that are wanted.',
        )


def pairs_of(on: Any) -> tuple[tuple[str, str], ...]:
    """Return key columns, given as one name, several, or a mapping of names of the stream to names of the table.

    Raises
    ------
    InvalidPipeline
        If one is not a text, or is there twice, or there is none.
    """
    given = [(on, on)] if isinstance(on, str) else _pairs(on)
    ours = [one for one, _ in given]
    theirs = [other for _, other in given]
    if not given or not all(isinstance(name, str) and name for pair in given for name in pair):
        raise InvalidPipeline(
            f"on={on!r} does not name columns.",
            do='write on="id"; on=["country", "id"]; or on={"customer": "id"}, where the table has another name.',
        )
    if len(set(ours)) < len(ours) or len(set(theirs)) < len(theirs):
        raise InvalidPipeline(f"on={on!r} names a column twice.", do="name each column once.")
    return tuple(given)


def pairs_for(on: Any, key: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return key columns of a table whose key is known: names alone are those of the stream, in the key's order."""
    given = pairs_of(on)
    if isinstance(on, Mapping) or len(given) != len(key):
        return given
    return tuple(zip((ours for ours, _ in given), key, strict=True))


def added_of(columns: Any) -> tuple[tuple[str, str], ...] | None:
    """Return what is added: None, one name, several, or a mapping of new names to columns of the table."""
    if columns is None:
        return None
    given = [(columns, columns)] if isinstance(columns, str) else _pairs(columns)
    if not all(isinstance(name, str) and name for pair in given for name in pair):
        raise InvalidPipeline(
            f"columns={columns!r} does not name columns.",
            do='write columns=["name", "country"], or columns={"customer_name": "name"}.',
        )
    return tuple(given)


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return list(given.items())
    if isinstance(given, Sequence):
        return [(name, name) for name in given]
    raise InvalidPipeline(f"{a_type(given)} stands for columns.", do="give names of columns, or a mapping of names.")


Ints = npt.NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio


class Index:
    """The keys of a table.

    Parameters
    ----------
    keys : sequence of pa.ChunkedArray
        The key columns of the table, of plain types; one or more.

    Examples
    --------
    >>> index = Index([pa.chunked_array([[7, 3, None, 7]])])
    >>> rows, found = index.pairs([pa.array([3, 7, None, 4])])
    >>> rows.tolist(), found.tolist()
    ([0, 1, 1], [1, 0, 3])
    """

    def __init__(self, keys: Sequence[pa.ChunkedArray]) -> None:
        self._keys = [_one(column) for column in keys]
        numbers, is_whole = _numbers(self._keys)
        valid = np.flatnonzero(is_whole)
        order = valid[np.argsort(numbers[valid], kind="stable")]
        self._rows = order
        self._sorted = numbers[order]
        self._distinct, self._first, self._count = np.unique(self._sorted, return_index=True, return_counts=True)
        self._places = _places_in_range(self._distinct)

    def pairs(self, keys: Sequence[pa.Array]) -> tuple[Ints, Ints]:
        """Return every pair of a row with one of the given keys and a row of the table that has the same.

        Parameters
        ----------
        keys : sequence of pa.Array
            Columns of the same types as those of the table.

        Returns
        -------
        (array of int64, array of int64)
            Rows of ``keys``, ascending; for each a row of the table, for one row of ``keys`` ascending.
        """
        numbers, is_whole = _numbers(keys)
        rows, places = self._search(numbers, is_whole)
        first, counts = self._first[places], self._count[places]
        if len(self._distinct) < len(self._sorted):
            starts = np.cumsum(counts) - counts
            rows = np.repeat(rows, counts)
            first = np.arange(len(rows), dtype=np.int64) - np.repeat(starts - first, counts)
        found = self._rows[first]
        if not len(rows) or (len(self._keys) == 1 and _is_exact(self._keys[0].type)):
            return rows, found
        equal = np.ones(len(rows), bool)
        for ours, theirs in zip(self._keys, keys, strict=True):
            same = pc.equal(theirs.take(pa.array(rows)), ours.take(pa.array(found)))
            equal &= np.asarray(same.fill_null(False))
        return (rows, found) if equal.all() else (rows[equal], found[equal])

    def _search(self, numbers: npt.NDArray[np.uint64], is_whole: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return which rows have a number of the table, and its place among the distinct ones."""
        if not len(self._distinct):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        if self._places is not None:  # a subtraction that wraps around is beyond the range, too
            offsets = numbers - self._distinct[0]
            is_inside = offsets < len(self._places)
            places = self._places[np.where(is_inside, offsets, 0)]
            is_known = is_inside & (places >= 0) & is_whole
        else:
            places = np.minimum(np.searchsorted(self._distinct, numbers), len(self._distinct) - 1)
            is_known = (self._distinct[places] == numbers) & is_whole
        return (np.arange(len(numbers)), places) if is_known.all() else (np.flatnonzero(is_known), places[is_known])

    def repeated(self) -> Ints:
        """Return the rows of the table whose key an earlier row has, too, ascending."""
        again = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if not len(again):
            return np.zeros(0, np.int64)
        wanted = np.unique(np.concatenate([self._rows[again], self._rows[again + 1]]))
        rows, found = self.pairs([column.take(pa.array(wanted)) for column in self._keys])
        return np.unique(wanted[rows][found < wanted[rows]])


_SPREAD = 4
"""How many numbers a range may have for each that is there, so that a key is found by its place, without a search."""


def _places_in_range(distinct: npt.NDArray[np.uint64]) -> Ints | None:
    """Return the place of each number from the least to the greatest, -1 where one is missing; None: most are."""
    if not len(distinct) or int(distinct[-1]) - int(distinct[0]) >= _SPREAD * len(distinct) + 64:
        return None
    places = np.full(int(distinct[-1] - distinct[0]) + 1, -1, np.int64)
    places[distinct - distinct[0]] = np.arange(len(distinct))
    return places


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether a value is one number of 64 bits itself."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _numbers(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return a number for each row, equal where the values are; and whether no value of the row is null."""
    is_whole = np.ones(len(columns[0]), bool)
    numbers: npt.NDArray[np.uint64] | None = None
    for column in columns:
        if column.null_count:
            is_whole &= np.asarray(column.is_valid())
        mine = _column(column)
        numbers = mine if numbers is None else (numbers ^ numbers >> np.uint64(32)) * _MIX + mine
    assert numbers is not None
    return numbers, is_whole


def _column(column: pa.Array) -> npt.NDArray[np.uint64]:
    kind = column.type
    if not _is_exact(kind):
        return canonical.column_hashes(column, "")
    if not pa.types.is_integer(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    plain = column.fill_null(0) if column.null_count else column
    return np.asarray(plain).astype(np.int64).view(np.uint64)
