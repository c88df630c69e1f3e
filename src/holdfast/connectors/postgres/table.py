"""A PostgreSQL table as a target: its columns, and the statements that stage rows and insert them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from psycopg import Connection
from psycopg import sql as pg

from holdfast.connectors.kit import rewinds, sql
from holdfast.connectors.kit.sql import RESERVED_PREFIX, TableMode
from holdfast.connectors.postgres.copy import CopyColumn
from holdfast.connectors.postgres.types import TableColumn

ORDER = f"{RESERVED_PREFIX}_row"
DELETE = f"{RESERVED_PREFIX}_delete"


@dataclass(frozen=True)
class PostgresTable:
    """The target.  Picklable: it is sent to the executors.

    Parameters
    ----------
    node : str
        ``sink 'name'``, for errors.
    schema_name, name : str
        Where it is.
    columns : tuple of TableColumn
        The columns that rows fill, in the order of the rows' schema.
    schema : pa.Schema
        Of the rows.
    mode : TableMode
        How rows are written.
    obstacle : str
        Why tasks may not write into it side by side, as one row could wait for another's transaction; empty: they may.
    key_equals : tuple of str
        For each column of an upsert's key the equality of the unique index, as a statement writes it: of another type
        than the catalog's, only its own operator finds the rows that the index finds.
    missing : tuple of str
        Those of ``columns`` that the table had not when it was looked at, described as they will be.
    pipeline : str
        Who writes, where the table keeps epochs.
    """

    node: str
    schema_name: str
    name: str
    columns: tuple[TableColumn, ...]
    schema: pa.Schema
    mode: TableMode
    obstacle: str = ""
    key_equals: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    pipeline: str = ""

    @property
    def declared(self) -> pa.Schema:
        """The columns of the rows as they come: without the epoch's."""
        return pa.schema([field for field in self.schema if field.name != rewinds.EPOCH])

    def add_columns(self) -> pg.Composed:
        """Return the statement that adds the columns that are missing."""
        added = [
            pg.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(pg.Identifier(column.name), pg.SQL(column.qualified))
            for column in self.columns
            if column.name in self.missing
        ]
        return pg.SQL("ALTER TABLE {} {}").format(self.identifier(), pg.SQL(", ").join(added))

    def numbered(self, batch: pa.RecordBatch, epoch: int) -> pa.RecordBatch:
        """Return rows with the epoch they are published with, where the table keeps it."""
        if not self.mode.rewindable:
            return batch
        return batch.append_column(rewinds.EPOCH, rewinds.stamps(self.pipeline, epoch, batch.num_rows))

    def withdraw(self, epoch: int) -> pg.Composed:
        """Return the statement that removes the rows of its writer's epochs after one."""
        return pg.SQL("DELETE FROM {} WHERE {}").format(self.identifier(), self._is_after(epoch))

    def count_after(self, epoch: int) -> pg.Composed:
        """Return the statement that counts them."""
        return pg.SQL("SELECT pg_catalog.count(*) FROM {} WHERE {}").format(self.identifier(), self._is_after(epoch))

    def _is_after(self, epoch: int) -> pg.Composed:
        first, last = map(pg.Literal, rewinds.stamps_after(self.pipeline, epoch))
        return pg.SQL("{0} OPERATOR(pg_catalog.>=) {1} AND {0} OPERATOR(pg_catalog.<=) {2}").format(
            pg.Identifier(rewinds.EPOCH), first, last
        )

    def identifier(self, name: str | None = None) -> pg.Identifier:
        """Return the table's name, or another one in its schema, for a statement."""
        return pg.Identifier(self.schema_name, self.name if name is None else name)

    def is_empty(self, connection: Connection) -> bool:
        """Return whether it has no row that is visible, of anybody."""
        statement = pg.SQL("SELECT 1 FROM {} LIMIT 1").format(self.identifier())
        return connection.execute(statement).fetchone() is None

    @property
    def copied(self) -> tuple[CopyColumn, ...]:
        """The columns of the target as COPY writes them."""
        return tuple(
            CopyColumn(column.name, sql.flat_type(self.schema.field(column.name).type), column.base)
            for column in self.columns
        )

    @property
    def copied_to_stage(self) -> tuple[CopyColumn, ...]:
        """The columns of a staging table: the target's, and for an upsert the row's place and its delete flag."""
        if self.mode.mode == "append":
            return self.copied
        return (*self.copied, CopyColumn(ORDER, pa.int64(), "int8"), CopyColumn(DELETE, pa.bool_(), "bool"))

    def create_stage(self, stage: pg.Composable, *, temporary: bool) -> pg.Composed:
        """Return the DDL of a staging table (or of the driver's temporary one, emptied by each COMMIT)."""
        definitions = [self._definition(column) for column in self.columns]
        if self.mode.mode == "upsert":
            definitions += [
                pg.SQL("{} bigint").format(pg.Identifier(ORDER)),
                pg.SQL("{} boolean").format(pg.Identifier(DELETE)),
            ]
        form = (
            "CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}) ON COMMIT DELETE ROWS"
            if temporary
            else "CREATE TABLE {} ({})"
        )
        return pg.SQL(form).format(stage, pg.SQL(", ").join(definitions))

    def _definition(self, column: TableColumn) -> pg.Composed:
        # NOT NULL here already: a row that cannot be stored stops its task and not a decided epoch.
        required = column.is_required and self.mode.delete is None
        return pg.SQL("{} {}{}{}").format(
            pg.Identifier(column.name),
            pg.SQL(column.qualified),  # from the server's own format_type
            pg.SQL(f" COLLATE {column.collation}" if column.collation else ""),
            pg.SQL(" NOT NULL" if required else ""),
        )

    def from_stage(self, stage: pg.Composable) -> list[pg.Composed]:
        """Return the statements that insert a staging table's rows into the target; the last row of a key wins."""
        names = pg.SQL(", ").join(pg.Identifier(column.name) for column in self.columns)
        if self.mode.mode == "append":
            return [pg.SQL("INSERT INTO {0} ({1}) SELECT {1} FROM {2}").format(self.identifier(), names, stage)]
        key = pg.SQL(", ").join(map(pg.Identifier, self.mode.key))
        last = pg.SQL("(SELECT DISTINCT ON ({0}) * FROM {1} ORDER BY {0}, {2} DESC) AS last_rows").format(
            key, stage, pg.Identifier(ORDER)
        )
        statements = []
        if self.mode.delete is not None:
            same = pg.SQL(" AND ").join(
                pg.SQL("target.{0} {1} last_rows.{0}").format(pg.Identifier(name), pg.SQL(equals))
                for name, equals in zip(self.mode.key, self.key_equals, strict=True)
            )
            statements.append(
                pg.SQL("DELETE FROM {} AS target USING {} WHERE last_rows.{} AND {}").format(
                    self.identifier(), last, pg.Identifier(DELETE), same
                )
            )
        others = [column.name for column in self.columns if column.name not in self.mode.key]
        action = (
            pg.SQL("UPDATE SET ")
            + pg.SQL(", ").join(pg.SQL("{0} = EXCLUDED.{0}").format(pg.Identifier(name)) for name in others)
            if others
            else pg.SQL("NOTHING")
        )
        statements.append(
            pg.SQL("INSERT INTO {0} ({1}) SELECT {1} FROM {2} WHERE NOT {3} ON CONFLICT ({4}) DO {5}").format(
                self.identifier(), names, last, pg.Identifier(DELETE), key, action
            )
        )
        return statements
