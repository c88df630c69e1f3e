"""A PostgreSQL table during a run, on the driver.

Invariant: the ledger row (:mod:`holdfast.connectors.postgres.ledger`) is locked before anything else of an epoch is
done,
and moves in the transaction that writes (or decides to commit) the rows.  Design: 0003.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
from psycopg import sql as pg

from holdfast import faults
from holdfast.connectors.control.columns import ControlColumns
from holdfast.connectors.kit import rewinds, sql
from holdfast.connectors.kit.expected import unpublished
from holdfast.connectors.kit.sql import LedgerRow, TableMode
from holdfast.connectors.postgres import catalog
from holdfast.connectors.postgres import copy as postgres_copy
from holdfast.connectors.postgres.command_blobs import BlobWriterFactory, blob_table
from holdfast.connectors.postgres.commands import PostgresControl
from holdfast.connectors.postgres.comparing import content as comparing
from holdfast.connectors.postgres.comparing.content import PostgresContent
from holdfast.connectors.postgres.comparing.repairing import repaired
from holdfast.connectors.postgres.dsn import Dsn
from holdfast.connectors.postgres.epochs import PostgresEpochs
from holdfast.connectors.postgres.ledger import Begun, PostgresExplanations, PostgresLedger, RowBefore, set_lock_timeout
from holdfast.connectors.postgres.prepared import PreparedTransactions, xact_status
from holdfast.connectors.postgres.session import Connection, PostgresSession
from holdfast.connectors.postgres.staging import (
    PostgresStaging,
    PostgresWriterFactory,
    copying,
    tables_of,
    taken,
    with_order,
)
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.connectors.postgres.trials import CARRIED, LOCK_TIMEOUT, Earlier, PostgresTrials
from holdfast.errors import InDoubt, InvalidPipeline, Unavailable
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

logger = logging.getLogger("holdfast.connectors.postgres")

ADD_LOCK_TIMEOUT = "2s"
"""How long a new column waits for those who read the table: meanwhile others wait behind it."""

TAKEOVER_LOCK_TIMEOUT = "500ms"
"""How long a takeover waits for the ledger row before it ends the session that holds it: a frozen main's, mostly."""


@dataclass(frozen=True)
class Attempt:
    """A transaction of ours whose COMMIT may be in doubt: its epochs (none: ``open``) and its id."""

    first: int
    last: int
    xid: str


class PostgresSink:
    """One PostgreSQL table during a run."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        name: str,
        pipeline: str,
        session: PostgresSession,
        table: PostgresTable,
        *,
        prepares: bool,
        is_asked_to_prepare: bool = False,
        control: ControlColumns | None = None,
    ) -> None:
        self.name = name
        self._pipeline = pipeline
        self._session = session
        self._table = table
        self._node = table.node
        self._prepares = prepares
        self._is_asked_to_prepare = is_asked_to_prepare
        self._is_grouped = False
        self._ledger = PostgresLedger(session, table, pipeline, name)
        self._control = None if control is None else PostgresControl(table, control, pipeline, name, self._write_rows)
        self._trials = PostgresTrials(session, table, self._write_part, self._ledger, self._control)
        self._prepared = PreparedTransactions(session, table, self._ledger, pipeline, name)
        self._staging = PostgresStaging(session, table, pipeline, name)
        self._epochs = PostgresEpochs(table, pipeline, name) if table.mode.rewindable else None
        self._explanations = PostgresExplanations(table, pipeline, name)
        self._generation = 0
        self._has_all_columns = not table.missing
        self._attempt: Attempt | None = None

    @staticmethod
    def connected(
        name: str,
        pipeline: str,
        dsn: Dsn,
        table: str,
        schema: pa.Schema,
        mode: TableMode,
        stage: str,
        control: ControlColumns | None = None,
    ) -> PostgresSink:
        """Connect, find or create the table, check that rows fit, and choose how tasks stage."""
        node = f"sink {name!r}"
        session = PostgresSession(dsn, node, table, f"holdfast {pipeline}/{name}")
        try:
            with session.transaction() as connection:
                target = replace(catalog.find(connection, node, table, schema, mode), pipeline=pipeline)
                prepares = catalog.checked_way(connection, target, stage, with_commands=control is not None)
        except BaseException:
            session.drop()
            raise
        return PostgresSink(
            name, pipeline, session, target, prepares=prepares, is_asked_to_prepare=stage == "prepared", control=control
        )

    @property
    def staging(self) -> str:
        """How large epochs are staged."""
        if self._prepares:
            return "prepared transactions"
        if self._control is not None:
            return "staging tables (of Arrow blobs: control rows have an order, so the driver writes)"
        why = self._table.obstacle or ("epochs wait for their group" if self._is_grouped else "")
        return f"staging tables ({why})" if why else "staging tables"

    # --- open ---------------------------------------------------------------------------------------------------------

    def open(self, run: RunIdentity) -> Held:
        """Create the ledger, take the sink for this generation, and complete what was in progress."""
        before = self._ledger.take(run.generation, lock_timeout=TAKEOVER_LOCK_TIMEOUT)
        with self._session.transaction() as connection:
            if self._epochs is not None:
                self._epochs.begin(connection, before)
            self._explanations.begin(connection, before)
            explained = self._explanations.held(connection)
            recent_ends = "" if explained is None else self._explanations.recent_ends(connection, before.epoch)
            if before.epoch and before.in_progress is None and self._table.is_empty(connection):
                sql.warn_of_empty(self._node, before.epoch)
        self._generation = run.generation
        self._is_grouped = run.is_grouped
        if run.is_grouped and self._prepares and not self._is_asked_to_prepare:
            # Prepared rows keep their locks on the table until their group is due.  Meanwhile an ALTER TABLE or CREATE
            # INDEX would wait for them, the COPY of the next epoch for that, and the group for the next epoch.
            with self._session.transaction() as connection:
                catalog.check_may_create(connection, self._node, self._table.schema_name, "staging tables")
            self._prepares = False
        begun = Begun.parsed(before.in_progress)
        if begun is not None:  # a predecessor died after its decision, before it had committed all that it names
            logger.info(
                "%s: generation %d had decided epochs %d to %d; completing %d prepared transactions",
                self._node,
                before.generation,
                begun.first,
                before.epoch,
                len(begun.gids),
            )
            if not self._prepared.complete(begun, before.epoch):
                return replace(self._taken_back(begun, before), explained=explained)
        return replace(before.held(), explained=explained, recent_ends=recent_ends)

    def _taken_back(self, begun: Begun, row: LedgerRow) -> Held:
        """Let the ledger say what it said before a decision of which every row was rolled back; one durable write.

        A crash before leaves a decision without rows: found, and taken back, by the next ``open``.
        """
        logger.warning(
            "%s: all rows of epochs %d to %d were rolled back by somebody: they are produced again",
            self._node,
            begun.first,
            row.epoch,
        )
        before = begun.before
        assert before is not None
        with self._session.transaction() as connection:
            if self._ledger.take_back(connection, begun):  # else another run has done so, and perhaps gone on
                if self._epochs is not None:
                    self._epochs.forget(connection, after_epoch=before.epoch)
                if before.recent_ends:
                    self._explanations.set_recent_ends(connection, before.epoch, before.recent_ends)
        held = LedgerRow(before.epoch, row.generation, before.positions, before.pts).held()
        return replace(held, recent_ends=before.recent_ends)

    def add_columns(self) -> tuple[str, ...]:
        """Add the columns that the table lacked, in a transaction of this generation; return them."""
        if self._has_all_columns:
            return ()
        try:
            with self._session.transaction() as connection:
                connection.execute(set_lock_timeout(ADD_LOCK_TIMEOUT))
                row = sql.check_generation(
                    self._node, self._pipeline, self._generation, self._ledger.locked_row(connection)
                )
                catalog.add_columns(connection, self._table)
                faults.reach("columns-uncommitted", row.epoch, self._pipeline)
        except InDoubt as doubt:  # they are there or they are not: to add them again is the same
            raise Unavailable(doubt.what, why=doubt.why, do="it is tried again.") from doubt
        self._has_all_columns = True
        return self._table.missing

    # --- publish ------------------------------------------------------------------------------------------------------

    def writer_factory(self) -> WriterFactory:
        """Return the factory of writers."""
        if self._control is not None:
            return BlobWriterFactory(
                PostgresWriterFactory(self._session.dsn, blob_table(self._table), self.name, prefers_prepared=False)
            )
        return PostgresWriterFactory(self._session.dsn, self._table, self.name, self._prepares)

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check the values; try the rows where the table has rules of its own."""
        with self._noticing_gone([publication]):
            return self._trials.admit(publication, _trials_of(earlier))

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the rows that the table refuses; prepared ones were all taken."""
        return self._trials.reject(publication, _trials_of(earlier))

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Write carried and staging-table rows, decide on prepared ones, move the ledger row; then complete.

        Durable writes, in order: 1. the transaction with rows and ledger row (the decision); 2. COMMIT PREPARED, one by
        one; 3. ``in_progress`` is cleared.  A crash after 1 or 2 leaves ``in_progress``: ``open`` or ``publish``
        completes it.
        """
        with self._noticing_gone(publications):
            earlier, begun, last = self._decide(publications, expected)
            if earlier is not None:  # an earlier publish of this run stopped half-way
                self._complete(*earlier)
                _, begun, last = self._decide(publications, expected)
        if begun is not None:
            self._complete(begun, last)

    def _complete(self, begun: Begun, last: int) -> None:
        if self._prepared.complete(begun, last):
            return
        with self._session.explained():
            row = self._ledger.row(self._session.connection())
        if row is not None and row.in_progress == begun.text:
            self._taken_back(begun, row)
        raise self._staging.gone(next(iter(begun.gids)))

    @contextmanager
    def _noticing_gone(self, publications: Sequence[Publication]) -> Iterator[None]:
        """Tell a staging table that somebody has dropped from a change of the target: the server says the same."""
        try:
            yield
        except InvalidPipeline as error:
            if not isinstance(error.__cause__, psycopg.errors.UndefinedTable):
                raise
            parts = [part for each in publications for part in each.parts if isinstance(part, Staged)]
            for name in self.expired(parts):
                raise self._staging.gone(name) from error
            raise

    def _decide(
        self, publications: Sequence[Publication], expected: Held
    ) -> tuple[tuple[Begun, int] | None, Begun | None, int]:
        """Write everything but prepared rows, and the ledger row.

        Returns what an earlier publish left in progress (then nothing was written), what this one leaves, and the
        row's epoch.
        """
        with self._session.transaction() as connection:
            connection.execute(set_lock_timeout(LOCK_TIMEOUT))
            row = sql.check_generation(
                self._node, self._pipeline, self._generation, self._ledger.locked_row(connection)
            )
            left = Begun.parsed(row.in_progress)
            if left is not None:  # the connection broke between a decision of this run and its completion
                return (left, row.epoch), None, row.epoch
            new = unpublished(self._node, self._pipeline, publications, row.held(), expected)
            if not new:  # the reply to the COMMIT was lost, it was kept, and the run publishes again
                return None, None, row.epoch
            first, last = new[0].record, new[-1].record
            parts = [part for publication in new for part in publication.parts]
            prepared = self._staging.check_present(connection, parts)
            for publication in new:
                self._write(connection, publication)
            self._explanations.take(connection, new)
            begun = Begun(first.epoch, prepared, self._before(connection, row, new)) if prepared else None
            xid = self._ledger.move(connection, last, begun)
            self._attempt = Attempt(first.epoch, last.epoch, xid)
            faults.reach("publish-uncommitted", last.epoch, self._pipeline)
        self._attempt = None
        return None, begun, last.epoch

    def _before(self, connection: Connection, row: LedgerRow, new: Sequence[Publication]) -> RowBefore | None:
        """Return what the row says now; None where more than prepared rows is published."""
        parts = [part for publication in new for part in publication.parts]
        if any(isinstance(part, Carried) or tables_of([part]) for part in parts if part.row_count):
            return None
        has_ends = bool(new[-1].record.recent_ends)
        recent_ends = self._explanations.recent_ends(connection, row.epoch) if has_ends else ""
        return RowBefore(row.epoch, row.positions, row.pts, recent_ends)

    def _write(self, connection: Connection, publication: Publication) -> None:
        record = publication.record
        if record.rewound_to is not None:
            if self._epochs is not None:
                self._epochs.withdraw(connection, record)
            elif not rewinds.declared(self._table.mode).is_recomputed:
                raise rewinds.cannot_go_back(self._node, record, [])
            return
        for part in publication.parts:
            self._write_part(connection, part, record.epoch)
            for name in tables_of([part]):
                connection.execute(pg.SQL("DROP TABLE {}").format(self._table.identifier(name)))
        if self._epochs is not None:
            self._epochs.note(connection, record.epoch, record.positions)

    def _write_part(self, connection: Connection, part: Part, epoch: int) -> None:
        if self._control is not None:
            self._control.write(connection, self._control.batches(connection, part), epoch)
            return
        if isinstance(part, Carried):
            sql.check_columns(self._node, self._table.declared, part.rows)
            self._write_rows(connection, self._table, part.rows, epoch)
            return
        for name in tables_of([part]):
            for statement in self._table.from_stage(taken(self._table.identifier(name), part)):
                connection.execute(statement)

    def _write_rows(self, connection: Connection, table: PostgresTable, rows: pa.Table, epoch: int) -> None:
        if not rows.num_rows:
            return
        sql.check_keys(self._node, table.mode, rows)
        is_append = table.mode.mode == "append"
        target: pg.Composable = table.identifier() if is_append else CARRIED
        columns = table.copied if is_append else table.copied_to_stage
        if not is_append:
            if self._control is not None:  # it may have the columns of before
                connection.execute(pg.SQL("DROP TABLE IF EXISTS {}").format(CARRIED))
            connection.execute(table.create_stage(CARRIED, temporary=True))
            connection.execute(pg.SQL("DELETE FROM {}").format(CARRIED))  # another part of this transaction
        with copying(connection, target, columns) as copy:
            place = 0
            for batch in rows.to_batches():
                numbered = table.numbered(batch, epoch)
                ordered = numbered if is_append else with_order(table, numbered, place)
                place += batch.num_rows
                for piece in postgres_copy.encoded(self._node, columns, ordered):
                    copy.write(piece)
        if not is_append:
            for statement in table.from_stage(CARRIED):
                connection.execute(statement)

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Ask for prepared transactions and staging tables by their names."""
        with self._session.explained():
            # Tables of blobs have fewer rows than were written.
            return self._staging.expired(self._session.connection(), parts, counts_rows=self._control is None)

    # --- outcome ------------------------------------------------------------------------------------------------------

    def outcome(self, epoch: int) -> Outcome:
        """Ask the ledger row, then the server about our own transaction of that epoch; log question and answer."""
        try:
            with self._session.explained():
                answer, said = self._asked(self._session.connection(), epoch)
        except Unavailable as error:
            answer, said = Outcome.UNKNOWN, error.what
        logger.info("%s: asked about epoch %d; %s; answered %s", self._node, epoch, said, answer.value)
        return answer

    def _asked(self, connection: Connection, epoch: int) -> tuple[Outcome, str]:
        row = self._ledger.row_if_any(connection)
        said = f"its ledger row says epoch {row.epoch if row else 'none'}"
        if row is not None and row.epoch >= epoch:
            return _of(row, epoch), said
        attempt = self._attempt
        if attempt is None or not attempt.first <= epoch <= attempt.last:  # no COMMIT of ours is without a reply
            return Outcome.ABSENT, said
        status = xact_status(connection, attempt.xid)
        said = f"{said}, pg_xact_status({attempt.xid}) says {status}"
        if status == "in progress":  # the reply was lost before the server had ended it
            self._end_transaction(connection, attempt.xid)
            return Outcome.UNKNOWN, said
        # It may have ended between the two questions.  "Committed" alone proves nothing: after a failover to a standby
        # that lagged, the same id is assigned again, to another transaction.
        row = self._ledger.row_if_any(connection)
        said = f"{said}, its ledger row now says epoch {row.epoch if row else 'none'}"
        return (_of(row, epoch) if row is not None and row.epoch >= epoch else Outcome.ABSENT), said

    def _end_transaction(self, connection: Connection, xid: str) -> None:
        """End the server process that still runs our transaction: its client, we, left it, so it may wait for long.

        Either it had begun to commit, then it still does, or it rolls back: the next question has an answer.
        """
        ended = connection.execute(
            "SELECT pid, pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
            " WHERE backend_xid OPERATOR(pg_catalog.=) %s::pg_catalog.xid8::pg_catalog.xid"
            " AND pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()"
            # Ours only: after a failover the id may be that of another transaction.
            " AND application_name OPERATOR(pg_catalog.=) pg_catalog.current_setting('application_name')",
            (xid,),
        ).fetchall()
        for pid, _ in ended:
            logger.info("%s: ended server process %d, which was left with transaction %s", self._node, pid, xid)

    def withdrawal(self, to: Positions) -> Withdrawal:
        """Say what going back to some positions would withdraw."""
        if self._epochs is None:
            return rewinds.declared(self._table.mode)
        with self._session.explained():
            connection = self._session.connection()
            return self._epochs.withdrawal(connection, to, self._ledger.row_if_any(connection))

    def inspect(self) -> tuple[Held, list[str]]:
        """Return the ledger row, and the names of what is staged and not decided on."""
        with self._session.explained():
            row = self._ledger.row_if_any(self._session.connection())
        begun = Begun.parsed(row.in_progress) if row else None
        decided = begun.gids if begun else {}
        names = {label.name for found, label in self._staging.labelled() if found not in decided}
        return row.held() if row else Held(), sorted(names)

    @contextmanager
    def content(self) -> Iterator[PostgresContent]:
        """Open a view of the rows, on a connection of its own."""
        with self.content_of_shards() as (content, held):
            sql.check_one_shard(self._node, self._table.name, held)
            yield content

    @contextmanager
    def content_of_shards(self) -> Iterator[tuple[PostgresContent, dict[str, Held]]]:
        """Open the same view, with the ledgers of all shards in it."""
        if not self._has_all_columns:
            raise sql.not_added_yet(self._node, self._table.name, self._table.missing)
        session = replace(self._session, _connection=None)
        try:
            with comparing.opened(session, self._table, (self._pipeline, self.name)) as found:
                yield found
        finally:
            session.drop()

    def repair(self, repair: Repair) -> int | None:
        """Remove and write rows in one transaction."""
        return self.repair_of_shards(repair, {self._pipeline: repair.held})

    def repair_of_shards(self, repair: Repair, held: Mapping[str, Held]) -> int | None:
        """Remove and write rows under the locks of all shards' ledger rows."""
        ours = (self._pipeline, self.name)
        return repaired(self._session, self._table, ours, repair, held, self._write_rows, generation=self._generation)

    def control_counts(self) -> dict[str, int]:
        """Return how many control rows of each kind were carried out."""
        with self._session.explained():
            return self._control.counts(self._session.connection()) if self._control is not None else {}

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        with self._session.explained():
            connection = self._session.connection()
            return self._explanations.all(connection, self._ledger.row_if_any(connection))

    def sweep(self, *, below_epoch: int) -> int:
        """Roll back prepared transactions and drop staging tables by their labels, unless the ledger names them."""
        gids, tables = self._staging.orphans(self._generation, below_epoch)
        if not gids and not tables:
            return 0
        with self._session.explained():
            row = self._ledger.row(self._session.connection())
        if row is None or row.generation > self._generation:
            return 0  # fenced: what is staged belongs to the newer run
        decided = Begun.parsed(row.in_progress)
        kept = set(decided.gids) if decided else set()
        return self._staging.drop([gid for gid in gids if gid not in kept], tables)

    def close(self) -> None:
        """Close the connections."""
        self._session.drop()
        self._trials.close()


def _trials_of(earlier: Sequence[tuple[Sink, Publication]]) -> Earlier:
    """Return what those of other sinks that are PostgreSQL's write."""
    return [(sink._trials, theirs) for sink, theirs in earlier if isinstance(sink, PostgresSink)]


def _of(row: LedgerRow, epoch: int) -> Outcome:
    begun = Begun.parsed(row.in_progress)
    return Outcome.STAGED if begun is not None and epoch >= begun.first else Outcome.PUBLISHED
