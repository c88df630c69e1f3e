"""The rows of a PostgreSQL table at one moment: digests computed in the server, rows of some buckets fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from psycopg import sql as pg

from holdfast.connectors.kit import rewinds
from holdfast.connectors.kit.sql import LEDGER, LedgerRow, rows_of_shards
from holdfast.connectors.postgres import catalog
from holdfast.connectors.postgres.comparing import fetching, hashing
from holdfast.connectors.postgres.session import Connection, PostgresSession
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Held
from holdfast.shards.naming import shard_of
from holdfast.types import canonical, lookup3
from holdfast.types.canonical import Digests
from holdfast.values import NO_LOSSES, Losses

WORK_MEMORY = "256MB"
"""Of the server, for the groups of one query: 2**20 buckets are counted without a file on its disk."""

PUBLISHING_TIMEOUT_S = 30.0
"""How long a publication that has been decided, and is not all visible yet, is waited for."""

_DIGEST = np.dtype(
    [("count", ">i2")]
    + [field for name in ("bucket", "rows", "high", "low") for field in ((f"{name}_length", ">i4"), (name, ">i8"))]
)
"""A row of four numbers as COPY sends it."""


class PostgresContent:
    """See :class:`holdfast.ports.Content`.

    Parameters
    ----------
    connection : Connection
        In a transaction whose snapshot all questions share.
    session : PostgresSession
        Of the connection.
    table : PostgresTable
        The target.
    held : Held
        What the ledger says in that snapshot.
    """

    def __init__(self, connection: Connection, session: PostgresSession, table: PostgresTable, held: Held) -> None:
        self.held = held
        self.schema = compared(table)
        self.key = table.mode.key
        self.losses = hashing.own_losses(table)
        self._connection = connection
        self._session = session
        self._table = table

    def row_count(self) -> int:
        """Ask for the planner's estimate: 0 where nobody has analysed the table."""
        found: Any = self._connection.execute(_ESTIMATE, {"table": self._table.identifier().as_string()}).fetchone()
        return int(found[0])

    def digests(self, bits: int, losses: Losses = NO_LOSSES, by: Collection[str] = ()) -> Digests:
        """Count in the server, in as many processes as it grants.

        A hash is summed in two halves of 32 bits: a sum of 64-bit integers would be of decimals.
        """
        query = pg.SQL(
            "COPY (SELECT {bucket}, pg_catalog.count(*), pg_catalog.sum({high}), pg_catalog.sum({low}) FROM ({rows})"
            " AS hashed GROUP BY 1) TO STDOUT (FORMAT binary)"
        ).format(
            bucket=_bucket(pg.SQL("by_hash" if by else "row_hash"), bits),
            high=pg.SQL("pg_catalog.int8shr(row_hash, 32)::integer"),
            low=pg.SQL("pg_catalog.int8mi(pg_catalog.int8and(row_hash, 4294967295), 2147483648)::integer"),
            rows=self._hashed(losses, by),
        )
        data = b"".join(self._copied(query))
        rows = np.frombuffer(data, _DIGEST, (len(data) - _HEADER_BYTES - 2) // _DIGEST.itemsize, _HEADER_BYTES)
        found = Digests.empty(bits)
        places = rows["bucket"].astype(np.int64)
        counts, highs, lows = (rows[name].astype(np.int64) for name in ("rows", "high", "low"))
        found.counts[places] = counts
        found.sums[places] = ((highs << 32) + lows + (counts << 31)).view(np.uint64)
        return found

    def rows(
        self, bits: int, buckets: Collection[int], losses: Losses = NO_LOSSES, by: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Read the table once more, and send the rows of these buckets."""
        if not buckets:
            return
        columns = self._columns(losses)
        wanted = np.zeros(max(1 << bits, 8) // 8, np.uint8)
        np.bitwise_or.at(wanted, [bucket >> 3 for bucket in buckets], [1 << (bucket & 7) for bucket in buckets])
        query = pg.SQL(
            "COPY (SELECT {values}, tableoid::pg_catalog.text OPERATOR(pg_catalog.||) ctid::pg_catalog.text AS {place},"
            " {row} AS {hash} FROM {table}"
            " WHERE pg_catalog.get_bit({wanted}::pg_catalog.bytea, {bucket}::integer) OPERATOR(pg_catalog.=) 1)"
            " TO STDOUT (FORMAT csv)"
        ).format(
            values=pg.SQL(", ").join(column.value() for column in columns),
            place=pg.Identifier(PLACE_COLUMN),
            hash=pg.Identifier(HASH_COLUMN),
            row=row_hash(columns, self.schema),
            table=self._table.identifier(),
            wanted=pg.Literal(f"\\x{wanted.tobytes().hex()}"),
            bucket=_bucket(bucket_hash(columns, self.schema, by), bits),
        )
        for batch in fetching.batches(columns, self.schema, self._copied(query)):
            fields = [*self.schema, batch.schema.field(PLACE_COLUMN), batch.schema.field(HASH_COLUMN)]
            arrays = [batch.column(field.name).cast(field.type) for field in fields]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _columns(self, losses: Losses) -> list[hashing.HashedColumn]:
        return compared_columns(self._table, losses | self.losses, self._connection)

    def _hashed(self, losses: Losses, by: Collection[str]) -> pg.Composed:
        """Return the query of the hashes of all rows.

        A function that is called for each row and whose answer nobody reads, ``pg_is_in_recovery``, is the cheapest
        that parallel workers may call and that keeps the server from computing a hash each time it is mentioned.
        """
        columns = self._columns(losses)
        divided = pg.SQL("{} AS by_hash, ").format(bucket_hash(columns, self.schema, by)) if by else pg.SQL("")
        return pg.SQL("SELECT {}{} AS row_hash, pg_catalog.pg_is_in_recovery() AS once FROM {}").format(
            divided, row_hash(columns, self.schema), self._table.identifier()
        )

    def _copied(self, query: pg.Composed) -> Iterator[bytes | bytearray | memoryview]:
        with self._session.explained(), self._connection.cursor().copy(query) as copy:
            yield from copy


_HEADER_BYTES = 19

_ESTIMATE = """
SELECT COALESCE(pg_catalog.sum(GREATEST(reltuples, 0)), 0)::bigint FROM pg_catalog.pg_class
WHERE oid OPERATOR(pg_catalog.=) %(table)s::pg_catalog.regclass
   OR oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(%(table)s::pg_catalog.regclass) WHERE isleaf)
"""


def compared(table: PostgresTable) -> pa.Schema:
    """Return the columns of a table that the pipeline writes."""
    return pa.schema([field for field in table.mode.stored(table.schema) if field.name != rewinds.EPOCH])


def compared_columns(table: PostgresTable, losses: Losses, connection: Connection) -> list[hashing.HashedColumn]:
    """Return these columns for statements."""
    names = compared(table).names
    found = hashing.hashed_columns(table, losses, connection.info.server_version)
    return [column for column in found if column.column.name in names]


def row_hash(columns: list[hashing.HashedColumn], schema: pa.Schema) -> pg.Composable:
    """Return the expression of a row's hash."""
    return hashing.mixed(hashing.joined(columns, schema.names), canonical.ROW)


def bucket_hash(columns: list[hashing.HashedColumn], schema: pa.Schema, by: Collection[str]) -> pg.Composable:
    """Return the expression of the hash whose upper bits are the bucket."""
    return hashing.mixed(hashing.joined(columns, by), canonical.KEY) if by else row_hash(columns, schema)


def _bucket(hash_: pg.Composable, bits: int) -> pg.Composed:
    return pg.SQL("pg_catalog.int8and(pg_catalog.int8shr({}, {}), {})").format(
        hash_,
        pg.SQL(str(min(64 - bits, 63))),
        pg.SQL(str((1 << bits) - 1)),
    )


@contextmanager
def opened(
    session: PostgresSession,
    table: PostgresTable,
    ours: tuple[str, str],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[PostgresContent, dict[str, Held]]]:
    """Open a snapshot in which everything that the ledgers of all shards say is visible; with what they hold.

    Prepared transactions are committed one by one after the ledger row has moved: until then rows are lacking.

    Raises
    ------
    Unavailable
        If a publication that was begun does not end: its run has died, and the next start completes it.
    InvalidPipeline
        If a column cannot be compared, or the server hashes otherwise than this one (another order of bytes).
    """
    canonical.check(compared(table))
    deadline = time.monotonic() + PUBLISHING_TIMEOUT_S
    while True:
        with session.snapshot() as connection:
            connection.execute(_SETTINGS, (WORK_MEMORY,))
            _check_hashes(connection, session)
            rows = shards(connection, table, *ours)
            begun = next(((name, row) for name, row in rows.items() if row.in_progress is not None), None)
            if begun is None:
                held = {name: row.held() for name, row in rows.items()}
                yield PostgresContent(connection, session, table, held.get(ours[0], Held())), held
                return
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{table.node}: table {table.name} is not whole: epoch {begun[1].epoch} of {begun[0]!r} is decided and "
                "not all visible.",
                why="its transactions are prepared, and whoever was to commit them has died.",
                do="start the pipeline once: it completes them; then compare again.",
                participant=table.node,
            )
        sleep(0.1)


def shards(
    connection: Connection, table: PostgresTable, pipeline: str, sink: str, suffix: str = ""
) -> dict[str, LedgerRow]:
    """Return the ledger rows of all shards that hold something, and the own one where it is there."""
    if not catalog.check_ledger(connection, table):
        return {}
    base = shard_of(pipeline)[0]
    found = connection.execute(
        pg.SQL(
            "SELECT pipeline, epoch, generation, positions, pts, in_progress FROM {} WHERE"
            " sink OPERATOR(pg_catalog.=) %s AND (pipeline OPERATOR(pg_catalog.=) %s"
            " OR pg_catalog.left(pipeline, %s) OPERATOR(pg_catalog.=) %s) ORDER BY pipeline {}"
        ).format(table.identifier(LEDGER), pg.SQL(suffix)),
        (sink, base, len(base) + 1, f"{base}-"),
    ).fetchall()
    return rows_of_shards(pipeline, ((name, LedgerRow(*row)) for name, *row in found))


_SETTINGS = """
SELECT pg_catalog.set_config('work_mem', %s, true), pg_catalog.set_config('extra_float_digits', '1', true),
       pg_catalog.set_config('DateStyle', 'ISO', true), pg_catalog.set_config('bytea_output', 'hex', true),
       pg_catalog.set_config('jit', 'off', true)  -- compiled in each worker, which takes longer than it saves
"""


def _check_hashes(connection: Connection, session: PostgresSession) -> None:
    row: Any = connection.execute(
        "SELECT pg_catalog.hashtextextended('holdfast' COLLATE pg_catalog.\"C\", 1::bigint)"
    ).fetchone()
    text = np.frombuffer(b"holdfast", np.uint8)
    if row[0] % 2**64 != int(lookup3.of_texts(np.array([0, len(text)]), text, 1)[0]):
        raise InvalidPipeline(
            f"{session.node}: PostgreSQL at {session.dsn} hashes texts otherwise than this version knows.",
            why="digests of the server and of the rows that it should hold would never be equal.",
            do="compare the table on a server of a little-endian processor, of a version that is supported.",
            participant=session.node,
        )
