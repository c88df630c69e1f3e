"""The rows of a table at one moment, streamed through this process in chunks of columns; and their repair.

Who compares computes the hashes: the systems here have no function for them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.connectors.kit.compared_columns import Moved
from holdfast.connectors.kit.sql_table import Connection, RowPlace, SqlTable
from holdfast.connectors.kit.stored import StoredValues
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Held, Repair
from holdfast.types import canonical
from holdfast.types.canonical import Digests, is_wanted
from holdfast.types.lookup3 import Hashes
from holdfast.types.plain import flat_type
from holdfast.values import NO_LOSSES, Loss, Losses

CHUNK_ROWS = 8192
"""Rows that are hashed at once."""

FETCHED_ROWS = 1024
"""Of these, so many are made of Python's values at a time: they stay in the processor's cache."""

CHUNK_BYTES = 32_000_000
"""About how large a chunk of wide rows may be."""


def place_texts(values: Sequence[Sequence[object]]) -> pa.Array:
    """Return places from the columns of their values."""
    rows = zip(*values, strict=True)
    return pa.array([json.dumps([_plain(value) for value in row]).encode() for row in rows], pa.binary())


def place_values(text: bytes) -> tuple[object, ...]:
    """Return the values of a place."""
    return tuple(bytes.fromhex(value[0]) if isinstance(value, list) else value for value in json.loads(text))


def _plain(value: Any) -> Any:
    return [value.hex()] if isinstance(value, bytes) else value


@dataclass(frozen=True)
class StoredRows:
    """Some rows: their columns, and the columns of their places."""

    columns: Sequence[StoredValues]
    places: Sequence[Sequence[object]]

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

    def rows(self, chosen: np.ndarray, hashes: Hashes) -> pa.RecordBatch:
        """Return some of the rows as ``Content.rows`` does."""
        indexes = pa.array(chosen)
        arrays = [values.values(indexes) for values in self.columns]
        arrays.append(place_texts([[column[at] for at in chosen.tolist()] for column in self.places]))
        arrays.append(pa.array(hashes[chosen]))
        fields = [values.column.field for values in self.columns]
        schema = pa.schema([*fields, pa.field(PLACE_COLUMN, pa.binary()), pa.field(HASH_COLUMN, pa.uint64())])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class TableReader:
    """What reads a table.

    Parameters
    ----------
    connection : Connection
        In a transaction, whose snapshot all questions share.
    table : SqlTable
        The target.
    losses : frozenset of Loss
        What is left out, beside what the table does not keep.
    """

    def __init__(self, connection: Connection, table: SqlTable, losses: Losses) -> None:
        self._connection = connection
        self._table = table
        self._dialect = table.dialect
        present = {each.name.lower(): each for each in self._dialect.columns(connection, table.name)}
        lost = losses | own_losses(table)
        self._columns = [
            self._dialect.stored_column(field, present[field.name.lower()], canonical.losses_of(field.name, lost))
            for field in table.stored
        ]

    @cached_property
    def place(self) -> RowPlace:
        """How its rows are found again."""
        return self._dialect.place(self._connection, self._table)

    @property
    def delete(self) -> str:
        """Return the statement that removes the row at a place."""
        return f"DELETE FROM {self._table.quoted_name} WHERE {self.place.condition}{self._dialect.delete_one}"

    def chunks(self, *, with_places: bool) -> Iterator[StoredRows]:
        """Yield the rows, some at a time."""
        cursor = self._dialect.read_in_parts(self._connection, self._select(with_places=with_places))
        count = CHUNK_ROWS // 16
        while rows := cursor.fetchmany(min(count, FETCHED_ROWS)):
            columns = [list(column) for column in zip(*rows, strict=True)]
            while len(columns[0]) < count and (rows := cursor.fetchmany(min(count - len(columns[0]), FETCHED_ROWS))):
                for column, more in zip(columns, zip(*rows, strict=True), strict=True):
                    column.extend(more)
            chunk = self._chunk(columns)
            yield chunk
            count = max(1, min(CHUNK_ROWS, CHUNK_BYTES * chunk.row_count // max(chunk.size_bytes, 1)))

    def at(self, places: Sequence[tuple[object, ...]]) -> StoredRows:
        """Return the rows at some places, locked; none of a place that has no row."""
        statement = f"{self._select(with_places=False)} WHERE {self.place.condition}{self._dialect.lock}"
        found = [self._dialect.read_row(self._connection, statement, place) for place in places]
        columns: list[Sequence[object]] = list(zip(*(row for row in found if row is not None), strict=True))
        return self._chunk(columns or [()] * len(self._columns))

    def _select(self, *, with_places: bool) -> str:
        name = self._table.quoted_name
        # NB with the table's name: in SQLite "x" alone may be a text.
        chosen = [each.expression(f"{name}.{self._dialect.quoted(each.field.name)}") for each in self._columns]
        chosen += self.place.names if with_places else ()
        return f"SELECT {', '.join(chosen)} FROM {name}"

    def _chunk(self, columns: Sequence[Sequence[object]]) -> StoredRows:
        width = len(self._columns)
        read = [column.read(found) for column, found in zip(self._columns, columns[:width], strict=True)]
        return StoredRows(read, columns[width:])


class SqlContent:
    """See :class:`holdfast.ports.Content`.

    Parameters
    ----------
    connection : Connection
        In a transaction whose snapshot all questions share.
    table : SqlTable
        The target, with the columns that it has in that snapshot.
    held : Held
        What the ledger says in that snapshot.
    """

    def __init__(self, connection: Connection, table: SqlTable, held: Held) -> None:
        canonical.check(table.stored)
        self.held = held
        self.schema = table.stored
        self.key = table.mode.key
        self.losses = own_losses(table)
        self._connection = connection
        self._table = table

    def row_count(self) -> int:
        """Count them."""
        return int(self._connection.execute(f"SELECT count(*) FROM {self._table.quoted_name}").fetchone()[0])

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
                yield chunk.rows(chosen, whole)


def own_losses(table: SqlTable) -> Losses:
    """Return what the table does not keep of the rows that were written."""
    kinds = [(field.name, flat_type(field.type)) for field in table.stored]
    floats = [name for name, kind in kinds if pa.types.is_floating(kind)]
    return frozenset(Loss(name, lost) for name in floats for lost in table.dialect.losses_of_floats)


# --- repair -----------------------------------------------------------------------------------------------------------


def repair_rows(connection: Connection, table: SqlTable, repair: Repair) -> int:
    """Remove and write rows, within the transaction of a caller who has compared the ledger; return how many.

    Raises
    ------
    Moved
        If a row that is to be removed is no longer there.  The caller rolls back.
    """
    _remove(connection, table, repair)
    written = repair.written.select(table.stored.names)
    if table.mode.delete is not None:
        written = written.append_column(table.mode.delete, pa.repeat(False, written.num_rows))
    for batch in written.to_batches():
        table.write(connection, batch, repair.held.epoch)
    return int(repair.removed.num_rows + repair.written.num_rows)


def _remove(connection: Connection, table: SqlTable, repair: Repair) -> None:
    if not repair.removed.num_rows:
        return
    reader = TableReader(connection, table, repair.losses)
    places = [place_values(place) for place in repair.removed.column(PLACE_COLUMN).to_pylist()]
    hashes = repair.removed.column(HASH_COLUMN).to_numpy()
    for first in range(0, len(places), CHUNK_ROWS):
        found, _ = reader.at(places[first : first + CHUNK_ROWS]).hashes()
        if not np.array_equal(found, hashes[first : first + CHUNK_ROWS]):
            raise Moved
    if connection.executemany(reader.delete, places).rowcount != len(places):
        raise Moved
