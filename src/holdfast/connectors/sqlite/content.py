"""The rows of a SQLite table at one moment, streamed through this process in chunks of columns.

SQLite has no hash function; whoever reads its file computes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.connectors.sqlite.stored import StoredColumn, StoredValues
from holdfast.connectors.sqlite.table import SqliteTable, affinity_of, quoted
from holdfast.errors import InvalidPipeline
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Held
from holdfast.types import canonical
from holdfast.types.canonical import Digests, is_wanted
from holdfast.types.lookup3 import Hashes
from holdfast.types.plain import flat_type
from holdfast.values import NO_LOSSES, Loss, Losses, LossKind

CHUNK_ROWS = 8192
"""Rows that are hashed at once."""

FETCHED_ROWS = 1024
"""Of these, so many are made of Python's values at a time: they stay in the processor's cache."""

CHUNK_BYTES = 32_000_000
"""About how large a chunk of wide rows may be."""

_ESCAPING = partial(str, encoding="utf-8", errors="surrogateescape")
"""What reads a text that is no UTF-8; costs a quarter more than ``str``."""


@dataclass(frozen=True)
class RowPlace:
    """How a row is found again: by its rowid, or by its primary key where the table has none.

    Parameters
    ----------
    names : tuple of str
        Expressions of SQL.
    is_key : bool
        Whether it is the primary key.
    """

    names: tuple[str, ...]
    is_key: bool

    @classmethod
    def of(cls, connection: sqlite3.Connection, table: str) -> RowPlace:
        """Return it for a table."""
        columns = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
        taken = {str(row[1]).lower() for row in columns}
        rowid = next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)
        if rowid is not None:
            try:
                connection.execute(f"SELECT {quoted(table)}.{rowid} FROM {quoted(table)} LIMIT 0")
                return cls((f"{quoted(table)}.{rowid}",), False)
            except sqlite3.OperationalError:  # WITHOUT ROWID
                pass
        keys = sorted((row[5], row[1]) for row in columns if row[5])
        if not keys:
            raise InvalidPipeline(
                f"Rows of table {table} cannot be told apart.",
                why="its columns have all the names of a rowid, and it has no primary key.",
                do="rename the column rowid before the sink.",
            )
        return cls(tuple(f"{quoted(table)}.{quoted(name)}" for _, name in keys), True)

    @property
    def condition(self) -> str:
        """Return the condition of one row, with a question mark for each value."""
        return " AND ".join(f"{name} = ?" for name in self.names)

    def texts(self, values: Sequence[Sequence[Any]]) -> pa.Array:
        """Return places from the columns of their values."""
        rows = zip(*values, strict=True)
        return pa.array([json.dumps([_plain(value) for value in row]).encode() for row in rows], pa.binary())

    def values(self, text: bytes) -> tuple[Any, ...]:
        """Return the values of a place."""
        return tuple(bytes.fromhex(value[0]) if isinstance(value, list) else value for value in json.loads(text))


def _plain(value: Any) -> Any:
    return [value.hex()] if isinstance(value, bytes) else value


@dataclass(frozen=True)
class StoredRows:
    """Some rows: their columns, and the columns of their places."""

    columns: Sequence[StoredValues]
    places: Sequence[Sequence[Any]]

    @property
    def row_count(self) -> int:
        """How many there are."""
        return len(self.columns[0].plain)

    @property
    def size_bytes(self) -> int:
        """How large they are."""
        return sum(values.plain.nbytes for values in self.columns)

    def hashes(self, by: Collection[str] = ()) -> tuple[Hashes, Hashes]:
        """Return the hash of each row, and that of its bucket."""
        of_by, of_others = np.zeros(self.row_count, np.uint64), np.zeros(self.row_count, np.uint64)
        for values in self.columns:
            joined = of_by if values.column.field.name in by else of_others
            joined ^= values.hashes()
        whole = canonical.row_hash(of_by ^ of_others)
        return whole, canonical.bucket_hash(of_by) if by else whole

    def rows(self, chosen: np.ndarray, hashes: Hashes, place: RowPlace) -> pa.RecordBatch:
        """Return some of the rows as ``Content.rows`` does."""
        indexes = pa.array(chosen)
        arrays = [values.values(indexes) for values in self.columns]
        arrays.append(place.texts([[column[at] for at in chosen.tolist()] for column in self.places]))
        arrays.append(pa.array(hashes[chosen]))
        fields = [values.column.field for values in self.columns]
        schema = pa.schema([*fields, pa.field(PLACE_COLUMN, pa.binary()), pa.field(HASH_COLUMN, pa.uint64())])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class TableReader:
    """What reads a table.

    Parameters
    ----------
    connection : sqlite3.Connection
        In a transaction, whose snapshot all questions share.
    table : SqliteTable
        The target.
    losses : frozenset of Loss
        What is left out, beside what the table does not keep.
    """

    def __init__(self, connection: sqlite3.Connection, table: SqliteTable, losses: Losses) -> None:
        self._connection = connection
        self._table = table
        declared = connection.execute(f"PRAGMA table_xinfo({quoted(table.name)})").fetchall()
        affinities = {str(row[1]).lower(): affinity_of(str(row[2])) for row in declared}
        lost = losses | own_losses(table)
        self._columns = [
            StoredColumn(field, affinities.get(field.name.lower(), ""), canonical.losses_of(field.name, lost))
            for field in table.stored
        ]

    @cached_property
    def place(self) -> RowPlace:
        """How its rows are found again."""
        return RowPlace.of(self._connection, self._table.name)

    @property
    def delete(self) -> str:
        """Return the statement that removes the row at a place."""
        return f"DELETE FROM {quoted(self._table.name)} WHERE {self.place.condition}"

    def chunks(self, *, with_places: bool) -> Iterator[StoredRows]:
        """Yield the rows, some at a time."""
        read_count = 0
        while True:
            try:
                for chunk in self._chunks(with_places, read_count):
                    yield chunk
                    read_count += chunk.row_count
                return
            except sqlite3.OperationalError as error:
                self._escape(error)

    def at(self, places: Sequence[tuple[Any, ...]]) -> StoredRows:
        """Return the rows at some places; none of a place that has no row."""
        statement = f"{self._select(with_places=False)} WHERE {self.place.condition}"
        try:
            found = [self._connection.execute(statement, place).fetchone() for place in places]
        except sqlite3.OperationalError as error:
            self._escape(error)
            return self.at(places)
        columns: list[Sequence[Any]] = list(zip(*(row for row in found if row is not None), strict=True))
        return self._chunk(columns or [()] * len(self._columns))

    def _chunks(self, with_places: bool, skipped: int) -> Iterator[StoredRows]:
        cursor = self._connection.execute(f"{self._select(with_places=with_places)} LIMIT -1 OFFSET ?", (skipped,))
        count = CHUNK_ROWS // 16
        while rows := cursor.fetchmany(min(count, FETCHED_ROWS)):
            columns = [list(column) for column in zip(*rows, strict=True)]
            while len(columns[0]) < count and (rows := cursor.fetchmany(min(count - len(columns[0]), FETCHED_ROWS))):
                for column, more in zip(columns, zip(*rows, strict=True), strict=True):
                    column.extend(more)
            chunk = self._chunk(columns)
            yield chunk
            count = max(1, min(CHUNK_ROWS, CHUNK_BYTES * chunk.row_count // max(chunk.size_bytes, 1)))

    def _select(self, *, with_places: bool) -> str:
        name = quoted(self._table.name)
        chosen = [f"{name}.{quoted(column.field.name)}" for column in self._columns]  # NB "x" alone may be a text
        chosen += self.place.names if with_places else ()
        return f"SELECT {', '.join(chosen)} FROM {name}"

    def _chunk(self, columns: Sequence[Sequence[Any]]) -> StoredRows:
        width = len(self._columns)
        read = [column.read(found) for column, found in zip(self._columns, columns[:width], strict=True)]
        return StoredRows(read, columns[width:])

    def _escape(self, error: sqlite3.OperationalError) -> None:
        """Go on with what reads any text, if it was a text that cannot be read."""
        if self._connection.text_factory is _ESCAPING or "decode to UTF-8" not in str(error):
            raise error
        self._connection.text_factory = _ESCAPING


class SqliteContent:
    """See :class:`holdfast.ports.Content`.

    Parameters
    ----------
    connection : sqlite3.Connection
        In a transaction whose snapshot all questions share.
    table : SqliteTable
        The target, with the columns that it has in that snapshot.
    held : Held
        What the ledger says in that snapshot.
    """

    def __init__(self, connection: sqlite3.Connection, table: SqliteTable, held: Held) -> None:
        canonical.check(table.stored)
        self.held = held
        self.schema = table.stored
        self.key = table.mode.key
        self.losses = own_losses(table)
        self._connection = connection
        self._table = table

    def row_count(self) -> int:
        """Count them."""
        return int(self._connection.execute(f"SELECT count(*) FROM {quoted(self._table.name)}").fetchone()[0])

    def digests(self, bits: int, losses: Losses = NO_LOSSES, by: Collection[str] = ()) -> Digests:
        """Read the table once."""
        found = Digests.empty(bits)
        for chunk in TableReader(self._connection, self._table, losses).chunks(with_places=False):
            whole, divided = chunk.hashes(by)
            found.add(canonical.buckets(divided, bits), whole)
        return found

    def rows(
        self, bits: int, buckets: Collection[int], losses: Losses = NO_LOSSES, by: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Read the table once more, and yield the rows of these buckets."""
        if not buckets:
            return
        wanted = is_wanted(buckets, bits)
        reader = TableReader(self._connection, self._table, losses)
        for chunk in reader.chunks(with_places=True):
            whole, divided = chunk.hashes(by)
            chosen = np.flatnonzero(wanted[canonical.buckets(divided, bits)])
            if len(chosen):
                yield chunk.rows(chosen, whole, reader.place)


def own_losses(table: SqliteTable) -> Losses:
    """Return what the table does not keep of the rows that were written: SQLite's NaN is null."""
    kinds = [(field.name, flat_type(field.type)) for field in table.stored]
    return frozenset(Loss(name, LossKind.NAN) for name, kind in kinds if pa.types.is_floating(kind))
