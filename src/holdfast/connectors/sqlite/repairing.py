"""What makes a SQLite table hold what it should, within the transaction of a caller who has compared the ledger."""

from __future__ import annotations

import sqlite3

import numpy as np
import pyarrow as pa

from holdfast.connectors.kit.compared_columns import Moved
from holdfast.connectors.sqlite.content import CHUNK_ROWS, TableReader
from holdfast.connectors.sqlite.table import SqliteTable
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Repair


def repair_rows(connection: sqlite3.Connection, table: SqliteTable, repair: Repair) -> int:
    """Remove and write rows; return how many.

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


def _remove(connection: sqlite3.Connection, table: SqliteTable, repair: Repair) -> None:
    if not repair.removed.num_rows:
        return
    reader = TableReader(connection, table, repair.losses)
    places = [reader.place.values(place) for place in repair.removed.column(PLACE_COLUMN).to_pylist()]
    hashes = repair.removed.column(HASH_COLUMN).to_numpy()
    for first in range(0, len(places), CHUNK_ROWS):
        found, _ = reader.at(places[first : first + CHUNK_ROWS]).hashes()
        if not np.array_equal(found, hashes[first : first + CHUNK_ROWS]):
            raise Moved
    if connection.executemany(reader.delete, places).rowcount != len(places):
        raise Moved
