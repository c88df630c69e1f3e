"""A table of a system of SQL during a run, on the driver: one algorithm for all of them.

Invariants: the rows of an epoch and the ledger row move in one transaction, which has locked that row first; tasks
never write to the table, the driver writes what they staged.  Design: 0043, "SqlSink".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit import refusals, rewinds, sql
from holdfast.connectors.kit.book import SqlBook
from holdfast.connectors.kit.compared_columns import Moved
from holdfast.connectors.kit.expected import are_moved, unpublished
from holdfast.connectors.kit.explained import EXPLANATIONS
from holdfast.connectors.kit.refusals import TableRows
from holdfast.connectors.kit.rewinds import EPOCHS
from holdfast.connectors.kit.sql import LEDGER
from holdfast.connectors.kit.sql_content import SqlContent, repair_rows
from holdfast.connectors.kit.sql_session import SqlSession
from holdfast.connectors.kit.sql_table import Connection, SqlRules, SqlTable
from holdfast.connectors.kit.staging import Staging
from holdfast.errors import BadRow, InvalidPipeline, Unavailable
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
    WriterFactory,
)
from holdfast.positions import Positions

Writes = Sequence[tuple["SqlSink", Publication]]


class SqlSink:
    """One table during a run; see :class:`holdfast.ports.Sink`.

    Parameters
    ----------
    name, pipeline : str
        Identity.
    session : SqlSession
        Where the table is.
    table : SqlTable
        The target.
    staging : Staging
        Where tasks leave their rows.
    staged_as : str
        What that is, for people.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self, name: str, pipeline: str, session: SqlSession, table: SqlTable, staging: Staging, staged_as: str
    ) -> None:
        self.name = name
        self.staging = staged_as
        self._pipeline = pipeline
        self._session = session
        self._trials = session.beside()
        """Of ``admit``, which may be called while another thread is in ``publish``."""
        self._table = table
        self._node = table.node
        self._staging = staging
        self._book = SqlBook(table.dialect, pipeline, name)
        self._rules: SqlRules | None = None
        self._generation = 0

    def prepare(self) -> None:
        """Create the table when absent; check that every column fits."""
        with self._session.transaction() as connection:
            self._table.create(connection)
            self._table.check(connection)

    # --- the ledger -------------------------------------------------------------------------------------------------

    def open(self, run: RunIdentity) -> Held:
        """Create the ledger and take the sink for this generation.

        The durable writes: 1. the tables of the book, where they are absent: DDL ends a transaction in some systems;
        2. the transaction that takes the row.  A crash in between leaves empty tables.
        """
        tables = [LEDGER, EXPLANATIONS, *([EPOCHS] if self._table.mode.rewindable else []), *self._staging.tables]
        with self._session.transaction() as connection:
            self._book.create(connection, tables)
        try:
            return self._take(run)
        except Unavailable as error:
            if not self._session.end_owner(error):
                raise
        return self._take(run)

    def _take(self, run: RunIdentity) -> Held:
        with self._session.transaction() as connection:
            row = self._book.claim(connection, run)
            if self._table.mode.rewindable:
                self._book.begin_epochs(connection, self._table, row)
            self._book.forget_explanations(connection, row)
            explained = self._book.explanation_numbers(connection)
            recent_ends = self._book.recent_ends(connection, row.epoch)
            if row.epoch and self._table.is_empty(connection):
                sql.warn_of_empty(self._node, row.epoch)
        self._generation = run.generation
        return replace(row.held(), explained=explained, recent_ends=recent_ends)

    def outcome(self, epoch: int) -> Outcome:
        """Ask the ledger row, behind whatever holds it: a COMMIT of ours may still be on its way."""
        try:
            with self._session.after_commits() as connection:
                row = self._book.row(connection, locks=True)
        except Unavailable:
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if row is not None and row.epoch >= epoch else Outcome.ABSENT

    def inspect(self) -> tuple[Held, list[str]]:
        """Return the ledger row, and the names of what is staged."""
        with self._session.explained():
            row = self._book.row(self._session.connection())
        return row.held() if row else Held(), self._staging.names()

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        with self._session.explained():
            connection = self._session.connection()
            return self._book.explanations(connection, self._book.row(connection))

    def withdrawal(self, to: Positions) -> Withdrawal:
        """Say what going back to some positions would withdraw."""
        if not self._table.mode.rewindable:
            return rewinds.declared(self._table.mode)
        with self._session.explained():
            connection = self._session.connection()
            return self._book.withdrawal(connection, self._table, to, self._book.row(connection))

    def add_columns(self) -> list[str]:
        """Add the columns that the table lacks, in a transaction of this generation; return them."""
        with self._session.explained():
            missing = self._table.missing(self._session.connection())
        if missing:
            with self._session.transaction() as connection:
                row = self._book.own_row(connection, self._generation)
                self._table.add_columns(connection)
                faults.reach("columns-uncommitted", row.epoch, self._pipeline)
        return missing

    def close(self) -> None:
        """Close the connections."""
        self._session.close()
        self._trials.close()
        self._staging.close()

    # --- rows that are staged ---------------------------------------------------------------------------------------

    def writer_factory(self) -> WriterFactory:
        """Return the factory of writers."""
        return self._staging.factory()

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose rows are gone."""
        return self._staging.expired(parts)

    def sweep(self, *, below_epoch: int) -> int:
        """Remove what lower generations staged, and this one below the epoch."""
        return self._staging.sweep(self._generation, below_epoch)

    def _batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        if isinstance(part, Carried):
            yield from part.rows.to_batches()
        else:
            yield from self._staging.batches(part)

    # --- publish ----------------------------------------------------------------------------------------------------

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Write the epochs' rows and move the ledger row, in one transaction.

        The durable writes: 1. the transaction; 2. what tasks staged is removed.  A crash in between leaves staged rows
        of a held epoch, which the next sweep finds by their names.
        """
        with self._session.transaction() as connection:
            row = self._book.own_row(connection, self._generation)
            new = unpublished(self._node, self._pipeline, publications, row.held(), expected)
            self._table.dialect.hold(connection, self._table)
            for publication in new:
                self._write(connection, publication)
            self._book.explain(connection, new)
            if new:  # none: it was in doubt whether a COMMIT was kept, it was, and the run publishes again
                last = new[-1].record
                self._book.move(connection, last)
                faults.reach("publish-uncommitted", last.epoch, self._pipeline)
        with suppress(Unavailable, InvalidPipeline):
            for publication in publications:
                self._staging.remove(publication.parts)

    def _write(self, connection: Connection, publication: Publication) -> None:
        record, is_rewindable = publication.record, self._table.mode.rewindable
        if record.rewound_to is not None:
            if is_rewindable:
                self._book.withdraw(connection, self._table, record)
            elif not rewinds.declared(self._table.mode).is_recomputed:
                raise rewinds.cannot_go_back(self._node, record, [])
            return
        self._write_rows(connection, publication)
        if is_rewindable:
            self._book.note_epoch(connection, self._table, record.epoch, record.positions)

    def _write_rows(self, connection: Connection, publication: Publication) -> None:
        for part in publication.parts:
            for batch in self._batches(part):
                self._write_batch(connection, batch, publication.record.epoch)

    def _write_batch(self, connection: Connection, batch: pa.RecordBatch, epoch: int) -> None:
        self._table.write(connection, batch, epoch)

    # --- rows that are refused --------------------------------------------------------------------------------------

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check the values; try the rows where the table has rules of its own."""
        carried = [part.rows for part in publication.parts if isinstance(part, Carried)]
        for rows in carried:
            for batch in rows.to_batches():
                self._table.check_values(batch)
        rules = self._rules_now()
        for rows in carried:
            self._table.check_required(rules.required, rows)
        if not rules.why_tried and (not rules.required or len(carried) == len(publication.parts)):
            return False
        self._try_behind(publication, earlier)
        return True

    def _rules_now(self) -> SqlRules:
        """Return what the table refuses: it may be changed during the run."""
        dialect = self._table.dialect
        with self._trials.explained():
            connection = self._trials.connection()
            version = dialect.rules_version(connection, self._table)
            if self._rules is None or self._rules.version != version:
                self._rules = dialect.rules(connection, self._table, version)
        return self._rules

    def _try_behind(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]], before: Writes = ()
    ) -> None:
        beside = self._beside(earlier)
        same = [each for each in beside if each[0]._table.name.lower() == self._table.name.lower()]
        refusals.try_behind(beside, same, (self, publication), lambda writes: self._try([*before, *writes]))

    def _beside(self, earlier: Sequence[tuple[Sink, Publication]]) -> list[tuple[SqlSink, Publication]]:
        """Return those of other sinks that write to the same database."""
        ours = self._session.address
        return [
            (sink, theirs) for sink, theirs in earlier if isinstance(sink, SqlSink) and sink._session.address == ours
        ]

    def _try(self, writes: Writes) -> None:
        """Write, and roll back: nothing is kept open, because another writer would wait for it."""
        with self._trials.rolled_back() as connection:
            for sink, publication in writes:
                sink._write_rows(connection, publication)

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the rows that the table refuses, in a transaction that is rolled back."""
        epoch = publication.record.epoch
        with self._trials.rolled_back() as connection:
            taken = [partial(sink._write_rows, connection, theirs) for sink, theirs in self._beside(earlier)]
            for write_theirs in taken:
                write_theirs()

            def rows_of(part: Part) -> TableRows:
                batches = list(self._batches(part))
                rows = pa.Table.from_batches(batches) if batches else pa.table({})
                return TableRows(part, rows, partial(self._refusal, connection, rows, epoch, taken))

            return refusals.rejected(publication, rows_of)

    def _refusal(
        self, connection: Connection, rows: pa.Table, epoch: int, taken: list[partial[None]], low: int, high: int
    ) -> BadRow | None:
        """Write rows after what was ``taken``, and add them there; return why they are refused, if they are."""
        write = partial(self._write_checked, connection, rows.slice(low, high - low), epoch)
        connection.execute("SAVEPOINT holdfast_rows")
        try:
            write()
        except BadRow as error:
            if self._table.dialect.is_in_transaction(connection):
                connection.execute("ROLLBACK TO holdfast_rows")
                connection.execute("RELEASE SAVEPOINT holdfast_rows")
                return error
            self._trials.begin(connection, "write")  # a rule has ended the whole transaction
            for write_again in taken:
                write_again()
            return error
        connection.execute("RELEASE SAVEPOINT holdfast_rows")
        taken.append(write)
        return None

    def _write_checked(self, connection: Connection, rows: pa.Table, epoch: int) -> None:
        with self._trials.explained():
            for batch in rows.to_batches():
                self._check_batch(batch)
                self._write_batch(connection, batch, epoch)

    def _check_batch(self, batch: pa.RecordBatch) -> None:
        self._table.check_values(batch)

    # --- rows that are compared -------------------------------------------------------------------------------------

    @contextmanager
    def content(self) -> Iterator[SqlContent]:
        """Open a view of the rows, on a connection of its own: others may write meanwhile."""
        with self.content_of_shards() as (content, held):
            sql.check_one_shard(self._node, self._table.name, held)
            yield content

    @contextmanager
    def content_of_shards(self) -> Iterator[tuple[SqlContent, dict[str, Held]]]:
        """Open the same view, with the ledgers of all shards in it."""
        session = self._session.beside()
        try:
            with session.snapshot() as connection:
                rows = self._book.shards(connection)
                if missing := self._table.missing(connection):
                    raise sql.not_added_yet(self._node, self._table.name, missing)
                held = {name: row.held() for name, row in rows.items()}
                own = held.get(self._pipeline, Held())
                yield SqlContent(connection, self._table_now(connection), own), held
        finally:
            session.close()

    def repair(self, repair: Repair) -> int | None:
        """Remove and write rows.  Durable writes: 1. the transaction; after a crash it is there or it is not."""
        return self.repair_of_shards(repair, {self._pipeline: repair.held})

    def repair_of_shards(self, repair: Repair, held: Mapping[str, Held]) -> int | None:
        """Remove and write rows under the locks of all shards' ledger rows; durable writes as of ``repair``."""
        try:
            with self._session.transaction() as connection:
                rows = self._book.shards(connection, locks=True)
                sql.check_generation(self._node, self._pipeline, self._generation, rows.get(self._pipeline))
                if are_moved({name: row.held() for name, row in rows.items()}, held):
                    return None
                self._table.dialect.hold(connection, self._table)
                count = repair_rows(connection, self._table_now(connection), repair)
                if self._table.mode.rewindable and repair.written.num_rows:
                    # Which of its epochs a row belongs to is not known: so no rewind goes to before the last one.
                    for name, row in rows.items():
                        replace(self._book, pipeline=name).restart_epochs(connection, self._table, row)
                faults.reach("repair-uncommitted", repair.held.epoch, self._pipeline)
        except Moved:
            return None
        return count

    def _table_now(self, connection: Connection) -> SqlTable:
        """Return the table with the columns that it has in a transaction."""
        return self._table
