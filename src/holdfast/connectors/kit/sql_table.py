"""A table as a target, and the dialect of its system: what one system of SQL says otherwise than the others.

The table knows whether our columns fit, which it lacks, and how rows are written; the dialect has names, types,
statements and rules.  A sink of SQL (:mod:`holdfast.connectors.kit.sql_sink`) is one algorithm over both and a session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import refusals, rewinds, sql
from holdfast.connectors.kit.sql import TableMode
from holdfast.connectors.kit.stored import StoredColumn
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.values import LossKind

Connection = Any
"""A connection of the system's driver: ``execute(statement, values)`` returns what has ``fetchone``, ``fetchall``,
``rowcount`` and ``description``, and values are question marks; ``executemany(statement, rows)`` returns what has the
``rowcount`` of all of them.  ``COMMIT``, ``ROLLBACK`` and savepoints are statements; outside of a transaction each
statement commits itself.  Where there are no savepoints, it takes them in silence, and the dialect says behind one that
no transaction is open: what must go back then begins anew."""


@dataclass(frozen=True)
class SqlColumn:
    """A column that a table has.

    Parameters
    ----------
    name, declared : str
        Its name and type, as the system says them.
    is_required : bool
        Whether it takes no null.
    is_filled : bool
        Whether it has a value where a row has none: a default, or a number that the system draws.
    is_computed : bool
        Whether nobody can write it.
    details : mapping
        What else the dialect must know.
    """

    name: str
    declared: str
    is_required: bool
    is_filled: bool
    is_computed: bool
    details: Mapping[str, object]


@dataclass(frozen=True)
class SqlRules:
    """What a table refuses.

    Parameters
    ----------
    version : object
        Changes with the table: as long as it is the same, so are the rules.
    required : tuple of str
        Columns that take no null, besides the key.
    why_tried : str
        What else the table may refuse, which only writing shows; empty: nothing.
    """

    version: object
    required: tuple[str, ...] = ()
    why_tried: str = ""


@dataclass(frozen=True)
class RowPlace:
    """How a row is found again: by a number of the system's own, by a key, or by all that it holds.

    Parameters
    ----------
    names : tuple of str
        Expressions whose values are the place.
    condition : str
        The condition of one row, with a question mark for each value.
    """

    names: tuple[str, ...]
    condition: str


class SqlDialect(ABC):
    """A system of SQL.  Has no state: it is sent to the executors with the table."""

    system: ClassVar[str]
    """Its name, for people."""
    now: ClassVar[str]
    """The time of its clock, as an expression."""
    errors: ClassVar[type[Exception]]
    """What its driver raises."""
    begin: ClassVar[str]
    """What begins a transaction that writes."""
    lock: ClassVar[str] = ""
    """What locks the rows of a SELECT; empty where a transaction that writes has locked everything."""
    insert_new: ClassVar[str]
    """``INSERT``, that leaves a row alone whose key is there."""
    lease_left: ClassVar[str] = ""
    """Microseconds until a lease expires, where its row says when."""
    lease_expiry: ClassVar[str] = ""
    """When a lease expires whose length in microseconds is given; empty: the system has no clock of its own."""
    read_only: ClassVar[str]
    """What lets a connection change nothing."""
    losses_of_floats: ClassVar[frozenset[LossKind]]
    """What columns of floats do not keep."""
    delete_one: ClassVar[str] = ""
    """What follows a DELETE of the row at a place, where several may have it."""
    table_options: ClassVar[str] = ""
    """What follows the columns where a table is created."""
    own_tables: ClassVar[Mapping[str, str]]
    """Holdfast's own tables: name -> what creates it, unless it is there."""

    # --- names and types --------------------------------------------------------------------------------------------

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Return an identifier as a statement writes it."""

    @abstractmethod
    def declared_type(self, kind: pa.DataType, *, is_key: bool = False) -> str:
        """Return the type that a column is created with."""

    @abstractmethod
    def keeps(self, kind: pa.DataType, column: SqlColumn) -> bool:
        """Return whether a column keeps every value of a type unchanged."""

    # --- what is there ----------------------------------------------------------------------------------------------

    @abstractmethod
    def has_table(self, connection: Connection, name: str) -> bool:
        """Return whether a table is there."""

    @abstractmethod
    def columns(self, connection: Connection, table: str) -> list[SqlColumn]:
        """Return the columns of a table, in its order; none where it is not there."""

    @abstractmethod
    def check_table(self, connection: Connection, table: SqlTable) -> None:
        """Raise :class:`InvalidPipeline` where the table as a whole is no target: an upsert finds no unique index."""

    def hold(self, connection: Connection, table: SqlTable) -> None:
        """Raise as :meth:`check_table`, and keep the table so until the transaction ends: it may change in a run.

        Of a system whose statements say themselves what they count on this does nothing.
        """
        return

    @abstractmethod
    def rules_version(self, connection: Connection, table: SqlTable) -> object:
        """Return what changes with the rules of a table."""

    @abstractmethod
    def rules(self, connection: Connection, table: SqlTable, version: object) -> SqlRules:
        """Ask what a table refuses.  What is not understood is tried: slower, never wrong."""

    @abstractmethod
    def is_in_transaction(self, connection: Connection) -> bool:
        """Return whether a transaction is open."""

    # --- rows -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_values(self, node: str, batch: pa.RecordBatch, field: pa.Field) -> None:
        """Raise :class:`~holdfast.errors.BadRow` if a column has a value that the system cannot keep."""

    @abstractmethod
    def insert(self, connection: Connection, table: SqlTable, batch: pa.RecordBatch) -> None:
        """Write rows in their order; of an upsert the last one of a key wins."""

    @abstractmethod
    def delete(self, connection: Connection, table: SqlTable, keys: pa.RecordBatch) -> None:
        """Remove the rows of some keys."""

    # --- rows that are compared -------------------------------------------------------------------------------------

    @abstractmethod
    def place(self, connection: Connection, table: SqlTable) -> RowPlace:
        """Return how a row of the table is found again."""

    @abstractmethod
    def stored_column(self, field: pa.Field, column: SqlColumn, lost: frozenset[LossKind]) -> StoredColumn:
        """Return how the values of a column are read."""

    def read_row(self, connection: Connection, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        """Return a row."""
        found: Sequence[Any] | None = connection.execute(statement, values).fetchone()
        return found

    @abstractmethod
    def read_in_parts(self, connection: Connection, statement: str) -> Any:
        """Return what has ``fetchmany``, whose rows are not all held in memory."""


@dataclass(frozen=True)
class SqlTable:
    """The target.  Picklable: tasks check values with it.

    Parameters
    ----------
    node : str
        ``sink 'name'``, for errors.
    name : str
        The table's.
    schema : pa.Schema
        Of the rows.
    mode : TableMode
        How rows are written.
    dialect : SqlDialect
        Of its system.
    pipeline : str
        Who writes, where the table keeps epochs.
    """

    node: str
    name: str
    schema: pa.Schema
    mode: TableMode
    dialect: SqlDialect
    pipeline: str = ""

    @property
    def stored(self) -> pa.Schema:
        """The columns that the table holds."""
        return self.mode.stored(self.schema)

    @property
    def quoted_name(self) -> str:
        """Its name, as a statement writes it."""
        return self.dialect.quoted(self.name)

    def with_schema(self, schema: pa.Schema) -> SqlTable:
        """Return it with other columns."""
        return replace(self, schema=schema)

    # --- its columns ------------------------------------------------------------------------------------------------

    def create(self, connection: Connection) -> None:
        """Create the table unless it exists.  An upsert table gets the key as its primary key."""
        if self.exists(connection):
            return
        quoted = self.dialect.quoted
        columns = [self._definition(field) for field in self.stored]
        if self.mode.rewindable:
            columns.append(f"{quoted(rewinds.EPOCH)} {self._epoch_type}")
        if self.mode.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self.mode.key))})")
        statement = f"CREATE TABLE IF NOT EXISTS {self.quoted_name} ({', '.join(columns)})"
        connection.execute(statement + self.dialect.table_options)

    def _definition(self, field: pa.Field) -> str:
        is_key = field.name in self.mode.key
        kind = self.dialect.declared_type(field.type, is_key=is_key)
        return f"{self.dialect.quoted(field.name)} {kind}{' NOT NULL' if is_key else ''}"

    @property
    def _epoch_type(self) -> str:
        return self.dialect.declared_type(pa.int64())

    def exists(self, connection: Connection) -> bool:
        """Return whether the table is there."""
        return bool(self.dialect.columns(connection, self.name))

    def check(self, connection: Connection) -> None:
        """Check that every column fits, that no NOT NULL column stays empty, and that an upsert finds its index.

        Raises
        ------
        InvalidPipeline
            Naming the column and both types, or the index that is missing.
        """
        present = self._present(connection)
        quoted = self.dialect.quoted
        for field in self.stored:
            if field.name.lower() in present:
                self._check_column(field, present[field.name.lower()])
            elif not self.mode.adds(field.name):
                raise sql.unknown_column(self.node, self.name, field.name, [each.name for each in present.values()])
        if self.mode.rewindable and rewinds.EPOCH not in present:
            ddl = f"ALTER TABLE {self.quoted_name} ADD COLUMN {quoted(rewinds.EPOCH)} {self._epoch_type}"
            raise rewinds.no_epoch_column(self.node, self.name, ddl)
        filled = {name.lower() for name in self.stored.names}
        empty = [
            each.name
            for name, each in present.items()
            if name not in filled and each.is_required and not each.is_filled and not each.is_computed
        ]
        if empty:
            raise sql.unfilled_columns(self.node, self.name, empty)
        self.dialect.check_table(connection, self)

    def no_unique_index(self) -> InvalidPipeline:
        """Return the error of an upsert into a table that does not keep the key unique."""
        columns = ", ".join(map(self.dialect.quoted, self.mode.key))
        ddl = f"CREATE UNIQUE INDEX ... ON {self.quoted_name} ({columns})"
        return sql.no_unique_index(self.node, self.name, self.mode.key, ddl)

    def missing(self, connection: Connection) -> list[str]:
        """Return the columns that the table has not."""
        present = self._present(connection)
        return [name for name in self.stored.names if name.lower() not in present]

    def add_columns(self, connection: Connection) -> None:
        """Add the columns that are missing, in one statement each; others have been checked.

        A system whose DDL ends the transaction leaves some of them after a crash: then the next start adds the rest.
        """
        self.check(connection)
        for name in self.missing(connection):
            self.add_column(connection, name)

    def add_column(self, connection: Connection, name: str) -> None:
        """Add a column."""
        kind = self.dialect.declared_type(self.stored.field(name).type)
        connection.execute(f"ALTER TABLE {self.quoted_name} ADD COLUMN {self.dialect.quoted(name)} {kind}")

    def misfit(self, connection: Connection, field: pa.Field) -> str:
        """Return why a column of the table does not take a column of rows; empty if it does."""
        column = self._present(connection).get(field.name.lower())
        if column is None:
            return f"table {self.name} has no column {field.name!r}"
        try:
            self._check_column(field, column)
        except InvalidPipeline as error:
            return error.what.rstrip(".")
        return ""

    def _present(self, connection: Connection) -> dict[str, SqlColumn]:
        return {each.name.lower(): each for each in self.dialect.columns(connection, self.name)}

    def _check_column(self, field: pa.Field, column: SqlColumn) -> None:
        if column.is_computed:
            raise InvalidPipeline(
                f"{self.node}: column {field.name!r} of table {self.name} is computed by the database.",
                why="a generated column cannot be written.",
                do="leave it out with select(...) before the sink.",
            )
        if not self.dialect.keeps(sql.flat_type(field.type), column):
            raise sql.misfit(
                self.node,
                self.name,
                field.name,
                str(field.type),
                column.declared or "untyped",
                f"cast the column before the sink, or declare it {self.dialect.declared_type(field.type)} in the "
                "table.",
            )

    # --- its rows ---------------------------------------------------------------------------------------------------

    def check_values(self, batch: pa.RecordBatch) -> None:
        """Raise :class:`BadRow` if a row has a value that the system cannot keep, or no key.  Touches no single row."""
        sql.check_columns(self.node, self.schema, batch)
        self._check_keys(batch)
        for field in self.stored:
            self.dialect.check_values(self.node, batch, field)

    def _check_keys(self, batch: pa.RecordBatch) -> None:
        """Raise :class:`BadRow` if a key is null, or would be: floats that the system has not become null."""
        sql.check_keys(self.node, self.mode, batch)
        for name in self.mode.key:
            values = sql.flat(batch.column(name))
            if not pa.types.is_floating(values.type):
                continue
            values = values.cast(pa.float64())
            lost = pc.is_nan(values)
            if LossKind.INFINITE in self.dialect.losses_of_floats:
                lost = pc.or_(lost, pc.is_inf(values))
            if pc.any(lost).as_py():
                raise BadRow(
                    f"{self.node}: the key column {name!r} holds a number that {self.dialect.system} has not.",
                    why="NaN, or an infinity, would be stored as null, which is equal to nothing: no row would win.",
                    do="filter such rows out before the sink.",
                )

    def check_required(self, required: tuple[str, ...], rows: pa.Table) -> None:
        """Raise :class:`BadRow` where a row has a null in a column that takes none; rows that delete store nothing."""
        if self.mode.delete is not None and required:
            rows = rows.filter(pc.invert(pc.fill_null(rows.column(self.mode.delete), False)))
        for name in required:
            refusals.check_no_null(self.node, self.name, name, rows.column(name))

    def write(self, connection: Connection, batch: pa.RecordBatch, epoch: int) -> None:
        """Write a batch in its order, so that the last row of a key wins.  The caller holds the transaction."""
        if not batch.num_rows:
            return
        sql.check_columns(self.node, self.schema, batch)
        self._check_keys(batch)
        rows = batch.select(self.stored.names)
        if self.mode.rewindable:
            rows = rows.append_column(rewinds.EPOCH, rewinds.stamps(self.pipeline, epoch, batch.num_rows))
        if self.mode.delete is None:
            self.dialect.insert(connection, self, rows)
            return
        # Deletes and upserts take turns in row order: only so does the database itself say which keys are equal
        # (a NOCASE column holds "a" and "A" for one).
        flags = pc.fill_null(batch.column(self.mode.delete), False).to_numpy(zero_copy_only=False)
        edges = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(flags)]
        for first, end in pairwise(edges):
            some = rows.slice(first, end - first)
            if flags[first]:
                self.dialect.delete(connection, self, some.select(list(self.mode.key)))
            else:
                self.dialect.insert(connection, self, some)

    def withdraw(self, connection: Connection, after_epoch: int) -> None:
        """Remove the rows of later epochs of its writer."""
        statement = f"DELETE FROM {self.quoted_name} WHERE {self._is_later}"
        connection.execute(statement, rewinds.stamps_after(self.pipeline, after_epoch))

    def is_empty(self, connection: Connection) -> bool:
        """Return whether it has no row, of anybody."""
        return connection.execute(f"SELECT 1 FROM {self.quoted_name} LIMIT 1").fetchone() is None

    def count_after(self, connection: Connection, epoch: int) -> int:
        """Return how many rows later epochs of its writer have."""
        statement = f"SELECT count(*) FROM {self.quoted_name} WHERE {self._is_later}"
        return int(connection.execute(statement, rewinds.stamps_after(self.pipeline, epoch)).fetchone()[0])

    @property
    def _is_later(self) -> str:
        return f"{self.dialect.quoted(rewinds.EPOCH)} BETWEEN ? AND ?"

    def insertion(self, values: str) -> str:
        """Return the statement that adds rows."""
        names = [*self.stored.names, *([rewinds.EPOCH] if self.mode.rewindable else [])]
        return f"INSERT INTO {self.quoted_name} ({', '.join(map(self.dialect.quoted, names))}) VALUES {values}"

    @property
    def replaced_columns(self) -> list[str]:
        """Which columns an upsert replaces."""
        return [name for name in self.stored.names if name not in self.mode.key]
