"""What makes a PostgreSQL table hold what it should: one transaction, under the lock of the ledger's row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

import pyarrow as pa
from psycopg import sql as pg

from holdfast import faults
from holdfast.connectors.kit import sql
from holdfast.connectors.kit.compared_columns import Moved
from holdfast.connectors.kit.expected import are_moved
from holdfast.connectors.postgres.comparing import content
from holdfast.connectors.postgres.comparing.hashing import own_losses
from holdfast.connectors.postgres.epochs import PostgresEpochs
from holdfast.connectors.postgres.ledger import set_lock_timeout
from holdfast.connectors.postgres.session import Connection, PostgresSession
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.connectors.postgres.trials import LOCK_TIMEOUT
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Held, Repair

logger = logging.getLogger("holdfast.connectors.postgres")

WriteRows: TypeAlias = Callable[[Connection, PostgresTable, pa.Table, int], None]


def repaired(
    session: PostgresSession,
    table: PostgresTable,
    ours: tuple[str, str],
    repair: Repair,
    seen: Mapping[str, Held],
    write_rows: WriteRows,
    *,
    generation: int,
) -> int | None:
    """Remove and write rows; return how many, or None where the table, or the ledger of a shard, has moved.

    Another run that has opened the sink has a higher generation than this one: it may have repaired it, which moves
    neither epoch nor positions.

    Durable writes: 1. the transaction.  A crash before it leaves nothing, one after it nothing to do.
    """
    try:
        with session.transaction() as connection:
            connection.execute(set_lock_timeout(LOCK_TIMEOUT))
            rows = content.shards(connection, table, *ours, "FOR UPDATE")
            held = sql.check_generation(table.node, ours[0], generation, rows.get(ours[0])).held()
            is_begun = any(row.in_progress is not None for row in rows.values())
            if is_begun or are_moved({name: row.held() for name, row in rows.items()}, seen):
                return None
            _remove(connection, table, repair)
            written = repair.written.select(content.compared(table).names)
            if table.mode.delete is not None:
                written = written.append_column(table.mode.delete, pa.repeat(False, written.num_rows))
            write_rows(connection, table, written, held.epoch)
            if table.mode.rewindable and written.num_rows:
                # Which of its epochs a row belongs to is not known: so no rewind goes to before the last one.
                for name, row in rows.items():
                    PostgresEpochs(table, name, ours[1]).restart(connection, row)
            faults.reach("repair-uncommitted", held.epoch)
    except Moved:
        return None
    logger.info("%s: repaired: %d rows removed, %d written", table.node, repair.removed.num_rows, written.num_rows)
    return int(repair.removed.num_rows + written.num_rows)


def _remove(connection: Connection, table: PostgresTable, repair: Repair) -> None:
    """Remove rows where they were found, if they are what they were: a place may have another row by now."""
    if not repair.removed.num_rows:
        return
    places = [place.decode().partition("(") for place in repair.removed.column(PLACE_COLUMN).to_pylist()]
    hashes = [value - (value >> 63 << 64) for value in repair.removed.column(HASH_COLUMN).to_pylist()]
    columns = content.compared_columns(table, repair.losses | own_losses(table), connection)
    names = content.compared(table)
    statement = pg.SQL(
        "DELETE FROM {table} USING ROWS FROM (pg_catalog.unnest(%s::oid[]), pg_catalog.unnest(%s::tid[]),"
        " pg_catalog.unnest(%s::bigint[])) AS found (place_table, place, hash)"
        " WHERE {table}.ctid OPERATOR(pg_catalog.=) found.place"
        " AND {table}.tableoid OPERATOR(pg_catalog.=) found.place_table AND {hash} OPERATOR(pg_catalog.=) found.hash"
    ).format(table=table.identifier(), hash=content.row_hash(columns, names))
    tables, tids = [int(table_id) for table_id, _, _ in places], [f"({rest}" for _, _, rest in places]
    if connection.execute(statement, (tables, tids, hashes)).rowcount != repair.removed.num_rows:
        raise Moved
