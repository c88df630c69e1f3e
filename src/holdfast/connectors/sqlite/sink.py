"""A SQLite table during a run, on the driver.

Invariants: the rows of an epoch and the ledger row move in one transaction, with ``synchronous=FULL``; executors
never open the database, they write Arrow files beside it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.control.columns import Awaited, ControlColumns
from holdfast.connectors.kit import refusals, rewinds, sql
from holdfast.connectors.kit.believed import fresh, is_moved
from holdfast.connectors.kit.compared_columns import Moved
from holdfast.connectors.kit.files.staged import ArrowStaging, ArrowWriterFactory, unchecked
from holdfast.connectors.kit.refusals import TableRows
from holdfast.connectors.kit.sql import LedgerRow
from holdfast.connectors.sqlite.commands import SqliteControl
from holdfast.connectors.sqlite.content import SqliteContent
from holdfast.connectors.sqlite.epochs import SqliteEpochs
from holdfast.connectors.sqlite.explained import SqliteExplanations
from holdfast.connectors.sqlite.file import DatabaseFile
from holdfast.connectors.sqlite.ledger import claimed, ledger_row, move
from holdfast.connectors.sqlite.repairing import repair_rows
from holdfast.connectors.sqlite.rules import SqliteRules, check_required, rules_of, schema_version
from holdfast.connectors.sqlite.table import SqliteTable
from holdfast.errors import BadRow, Corrupt, HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import (
    Carried,
    Explanation,
    Guarantee,
    Held,
    Outcome,
    Part,
    Publication,
    Refused,
    Repair,
    RunIdentity,
    Sink,
    Staged,
    Withdrawal,
)
from holdfast.positions import Positions
from holdfast.store import durable


class SqliteSink:
    """One SQLite table during a run."""

    guarantee = Guarantee.EXACTLY_ONCE
    staging = "Arrow files"

    def __init__(
        self, name: str, pipeline: str, path: str, table: SqliteTable, control: ControlColumns | None = None
    ) -> None:
        self.name = name
        self._pipeline = pipeline
        self._path = path
        self._table = table
        self._node = table.node
        self._control = None if control is None else SqliteControl(table, control, pipeline, name)
        self._awaited = None if control is None else Awaited(control)
        check = table.check_values if control is None else unchecked
        self._staging = ArrowStaging(f"{path}-holdfast", pipeline, name, check)
        self._epochs = SqliteEpochs(table, pipeline, name) if table.mode.rewindable else None
        self._explanations = SqliteExplanations(table.node, pipeline, name)
        self._rules: SqliteRules | None = None
        self._trials = DatabaseFile(path, table.node, creates=False)
        """Of ``admit``, which may be called while another thread is in ``publish``."""
        self._generation = 0
        self._file = DatabaseFile(path, table.node)

    def prepare(self) -> None:
        """Create the file and the table when absent; check that every column fits."""
        try:
            durable.make_directory(os.path.dirname(self._path), is_published=True)
            if not os.access(os.path.dirname(self._path), os.W_OK):
                raise PermissionError(f"{os.path.dirname(self._path)} is not writable")
        except OSError as error:
            raise InvalidPipeline(
                f"{self._node}: the database {self._path} cannot be created.",
                why=f"{error.strerror or error}.",
                do="give this user write permission to the directory, or choose another path.",
            ) from error
        durable.tighten(self._staging.directory)
        with self._transaction() as connection:
            self._table.create(connection)
            self._table.check(connection)

    def open(self, run: RunIdentity) -> Held:
        """Create the ledger and take the sink for this generation."""
        with self._transaction() as connection:
            row = claimed(connection, self._node, self.name, run)
            if self._epochs is not None:
                self._epochs.begin(connection, row)
            self._explanations.begin(connection, row)
            explained = self._explanations.held(connection)
            recent_ends = self._explanations.recent_ends(connection, row.epoch)
            if row.epoch and self._table.is_empty(connection):
                sql.warn_of_empty(self._node, row.epoch)
        self._generation = run.generation
        return replace(row.held(), explained=explained, recent_ends=recent_ends)

    def add_columns(self) -> list[str]:
        """Add the columns that the table lacks, in a transaction of this generation; return them."""
        with self._explained():
            missing = self._table.missing(self._file.connection())
        if missing:
            with self._transaction() as connection:
                row = sql.check_generation(self._node, self._pipeline, self._generation, self._row(connection))
                self._table.add_columns(connection)
                faults.reach("columns-uncommitted", row.epoch)
        return missing

    def writer_factory(self) -> ArrowWriterFactory:
        """Return the factory of writers: each leaves one Arrow file."""
        return self._staging.factory()

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check the values; try the rows where the table has rules of its own (``rules.py``)."""
        if self._awaited is not None:
            return self._admit_commands(publication, earlier, self._awaited)
        carried = [part.rows for part in publication.parts if isinstance(part, Carried)]
        for rows in carried:
            for batch in rows.to_batches():
                self._table.check_values(batch)
        with self._explained():
            connection = self._trials.connection()
            # The table may be changed during the run.
            if self._rules is None or self._rules.version != schema_version(connection):
                self._rules = rules_of(connection, self._table)
        rules = self._rules
        for rows in carried:
            check_required(self._node, self._table, rules.required, rows)
        if not rules.why_tried and (not rules.required or len(carried) == len(publication.parts)):
            return False
        refusals.try_behind(*self._behind(earlier), (self, publication), self._try)
        return True

    def _admit_commands(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]], awaited: Awaited
    ) -> bool:
        """Try the rows, behind the commands of epochs that wait: what they may be depends on these."""
        if not any(part.row_count for part in publication.parts):
            awaited.forget(publication.record.epoch)
            return False
        with self._explained():
            row = self._row(self._trials.connection())
        before = [(self, each) for each in awaited.before(publication.record.epoch, row.epoch if row else 0)]
        refusals.try_behind(*self._behind(earlier), (self, publication), lambda writes: self._try([*before, *writes]))
        awaited.note(publication, (batch for part in publication.parts for batch in self._batches(part)))
        return True

    def _behind(
        self, earlier: Sequence[tuple[Sink, Publication]]
    ) -> tuple[list[tuple[SqliteSink, Publication]], list[tuple[SqliteSink, Publication]]]:
        """Return what other sinks write to the same file, and of these to the same table."""
        beside = self._beside(earlier)
        return beside, [each for each in beside if each[0]._table.name.lower() == self._table.name.lower()]

    def shares(self, other: SqliteSink) -> bool:
        """Return whether another sink writes to the same file."""
        return self._path == other._path

    def _beside(self, earlier: Sequence[tuple[Sink, Publication]]) -> list[tuple[SqliteSink, Publication]]:
        """Return those of other sinks that write to the same file."""
        return [(sink, theirs) for sink, theirs in earlier if isinstance(sink, SqliteSink) and sink.shares(self)]

    def _try(self, writes: Sequence[tuple[SqliteSink, Publication]]) -> None:
        """Write, and roll back: nothing is kept open, because a second writer of the file would wait for it."""
        with self._rolled_back() as connection:
            for sink, publication in writes:
                sink._write_rows(connection, publication)

    @contextmanager
    def _rolled_back(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            connection = self._trials.connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            finally:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the rows that the table refuses, in a transaction that is rolled back."""
        epoch = publication.record.epoch
        with self._rolled_back() as connection:
            taken = [partial(sink._write_rows, connection, theirs) for sink, theirs in self._beside(earlier)]
            for write_theirs in taken:
                write_theirs()

            def rows_of(part: Part) -> TableRows:
                batches = list(self._batches(part))
                rows = pa.Table.from_batches(batches) if batches else pa.table({})
                return TableRows(part, rows, partial(self._refusal, connection, rows, epoch, taken))

            return refusals.rejected(publication, rows_of)

    def _refusal(
        self,
        connection: sqlite3.Connection,
        rows: pa.Table,
        epoch: int,
        taken: list[partial[None]],
        low: int,
        high: int,
    ) -> BadRow | None:
        """Write rows after what was ``taken``, and add them there; return why they are refused, if they are."""
        write = partial(self._write_checked, connection, rows.slice(low, high - low), epoch)
        connection.execute("SAVEPOINT holdfast_rows")
        try:
            write()
        except BadRow as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK TO holdfast_rows")
                connection.execute("RELEASE holdfast_rows")
                return error
            connection.execute("BEGIN IMMEDIATE")  # a rule with ON CONFLICT ROLLBACK has ended the whole transaction
            for write_again in taken:
                write_again()
            return error
        connection.execute("RELEASE holdfast_rows")
        taken.append(write)
        return None

    def _write_checked(self, connection: sqlite3.Connection, rows: pa.Table, epoch: int) -> None:
        with self._explained():
            for batch in rows.to_batches():
                if self._control is None:
                    self._table.check_values(batch)
                self._write_batch(connection, batch, epoch)

    def publish(self, publications: Sequence[Publication], believed: Held) -> None:
        """Write the epochs' rows and move the ledger row, in one transaction."""
        with self._transaction() as connection:
            row = sql.check_generation(self._node, self._pipeline, self._generation, self._row(connection))
            new = fresh(self._node, self._pipeline, publications, row.held(), believed)
            for publication in new:
                self._write(connection, publication)
            self._explanations.take(connection, new)
            if new:  # none: it was in doubt whether a COMMIT was kept, it was, and the run publishes again
                last = new[-1].record
                move(connection, self.name, last)
                faults.reach("publish-uncommitted", last.epoch)
        # Only now: a crash in between leaves files of a held epoch, which the next sweep finds by their names.
        with suppress(Unavailable, InvalidPipeline):
            for publication in publications:
                self._staging.remove(publication.parts)

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose files are gone."""
        return self._staging.expired(parts)

    def outcome(self, epoch: int) -> Outcome:
        """Ask the ledger row."""
        try:
            with self._explained():
                row = self._row(self._file.again())
        except Unavailable:
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if row is not None and row.epoch >= epoch else Outcome.ABSENT

    def inspect(self) -> tuple[Held, list[str]]:
        """Return the ledger row, and the names of staged files."""
        with self._explained():
            row = self._row(self._file.connection())
        return row.held() if row else Held(), self._staging.names()

    def control_counts(self) -> dict[str, int]:
        """Return how many control rows of each kind were carried out."""
        with self._explained():
            return self._control.counts(self._file.connection()) if self._control is not None else {}

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        with self._explained():
            connection = self._file.connection()
            return self._explanations.all(connection, self._row(connection))

    def sweep(self, *, below_epoch: int) -> int:
        """Remove files of lower generations, and of this one below the epoch."""
        return self._staging.sweep(self._generation, below_epoch)

    def close(self) -> None:
        """Close the database."""
        self._file.close()
        self._trials.close()

    def withdrawal(self, to: Positions) -> Withdrawal:
        """Say what going back to some positions would withdraw."""
        if self._epochs is None:
            return rewinds.declared(self._table.mode)
        with self._explained():
            connection = self._file.connection()
            return self._epochs.withdrawal(connection, to, self._row(connection))

    @contextmanager
    def content(self) -> Iterator[SqliteContent]:
        """Open a view of the rows, on a connection of its own: others may write meanwhile, their log (-wal) grows."""
        file = DatabaseFile(self._path, self._node, creates=False)
        try:
            with self._explained():
                connection = file.connection()
                connection.execute("BEGIN")
                row = self._row(connection)
                if missing := self._table.missing(connection):
                    raise sql.not_added_yet(self._node, self._table.name, missing)
                yield SqliteContent(connection, self._table_now(connection), row.held() if row else Held())
        finally:
            file.close()

    def repair(self, repair: Repair) -> int | None:
        """Remove and write rows.  Durable writes: 1. the transaction; after a crash it is there or it is not."""
        try:
            with self._transaction() as connection:
                row = sql.check_generation(self._node, self._pipeline, self._generation, self._row(connection))
                if is_moved(row.held(), repair.held):
                    return None
                count = repair_rows(connection, self._table_now(connection), repair)
                if self._epochs is not None and repair.written.num_rows:
                    # Which of its epochs a row belongs to is not known: so no rewind goes to before the last one.
                    self._epochs.restart(connection, row)
                faults.reach("repair-uncommitted", repair.held.epoch)
        except Moved:
            return None
        return count

    def _table_now(self, connection: sqlite3.Connection) -> SqliteTable:
        if self._control is None:
            return self._table
        return replace(self._table, schema=self._control.now(connection).schema)

    def _write(self, connection: sqlite3.Connection, publication: Publication) -> None:
        record = publication.record
        if record.rewound_to is not None:
            if self._epochs is not None:
                self._epochs.withdraw(connection, record)
            elif not rewinds.declared(self._table.mode).is_recomputed:
                raise rewinds.cannot_go_back(self._node, record, [])
            return
        self._write_rows(connection, publication)
        if self._epochs is not None:
            self._epochs.note(connection, record.epoch, record.positions)

    def _write_rows(self, connection: sqlite3.Connection, publication: Publication) -> None:
        for part in publication.parts:
            for batch in self._batches(part):
                self._write_batch(connection, batch, publication.record.epoch)

    def _write_batch(self, connection: sqlite3.Connection, batch: pa.RecordBatch, epoch: int) -> None:
        (self._control or self._table).write(connection, batch, epoch)

    def _batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        if isinstance(part, Carried):
            yield from part.rows.to_batches()
        else:
            yield from self._staging.batches(part)

    def _row(self, connection: sqlite3.Connection) -> LedgerRow | None:
        return ledger_row(connection, self._pipeline, self.name)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the block's end; an error in the block rolls back, an error of COMMIT itself is in doubt."""
        with self._explained():
            connection = self._file.connection()
            # IMMEDIATE: the ledger row is read under the write lock, so no other run takes the sink over in between.
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._file.check()
                yield connection
                self._file.check()
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._file.close()
            raise self._in_doubt(f"SQLite said: {error}.") from error
        if not self._file.is_ours():  # the COMMIT may have gone into a file that is no longer at the path
            raise self._in_doubt("another file is there now: it was renamed or replaced meanwhile.")

    def _in_doubt(self, why: str) -> InDoubt:
        return InDoubt(
            f"{self._node}: it is unknown whether a COMMIT into {self._path} was kept.",
            why=why,
            do="nothing by hand: the sink is asked next.",
            pipeline=self._pipeline,
            participant=self.name,
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> HoldfastError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        where = f"{self._node}: table {self._table.name} in {self._path}"
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
            return BadRow(
                f"{where} refused a row.",
                why=f"SQLite said: {error}.",
                do='correct the row before the sink, or use mode="upsert" where a row may occur again.',
                pipeline=self._pipeline,
                participant=self.name,
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Corrupt(
                f"{where} cannot be read.",
                why=f"SQLite said: {error}.",
                do="restore the file from a backup, or choose another path.",
                participant=self.name,
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return InvalidPipeline(
                f"{where} cannot be written.",
                why=f"SQLite said: {error}.",
                do="give this user write permission to the file and its directory.",
                participant=self.name,
            )
        if code in _TRANSIENT:
            return Unavailable(
                f"{where} did not accept the transaction; nothing was changed.",
                why=f"SQLite said: {error}.",
                do="it is retried; if the problem persists, look for another writer (lsof) and for disk space (df).",
                participant=self.name,
            )
        return InvalidPipeline(
            f"{where} refused a statement.",
            why=f"SQLite said: {error}.",
            do="check that the table has not changed since the run began.",
            participant=self.name,
        )


_TRANSIENT = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
