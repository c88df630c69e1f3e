"""A stand-in that keeps no rows: digests of all of them, or the rows of some buckets alone (design/0024).

For a sink that is larger than the disk.  A task reduces its rows to what is kept of them, and throws them away; what
differs is found by digests, and rows are computed again, in a second run, of the buckets that differ alone.

Invariant: what is kept and the ledger row move in one transaction, so an epoch that is given again after a crash is
counted once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit.book import SqlBook
from holdfast.connectors.kit.expected import unpublished
from holdfast.connectors.kit.files.staged import ArrowStaging, unchecked
from holdfast.connectors.kit.sql import APPEND, LEDGER, TableMode
from holdfast.connectors.sqlite.dialect import SQLITE
from holdfast.connectors.sqlite.file import DatabaseFile
from holdfast.connectors.sqlite.session import asking
from holdfast.errors import InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import (
    NO_LOSSES,
    Carried,
    Guarantee,
    Held,
    Losses,
    Outcome,
    Part,
    Publication,
    Repair,
    RunIdentity,
    Sink,
    SinkLedger,
    SinkSpec,
)
from holdfast.reconcile import digests
from holdfast.reconcile.digests import DigestContent, ReducingWriterFactory, Reduction, Wanted
from holdfast.reconcile.united import view_of
from holdfast.store import durable
from holdfast.values import Loss, LossKind


@dataclass(frozen=True)
class DigestSpec:
    """Declaration of a stand-in.

    Parameters
    ----------
    path : str
        Of its file.
    of : SinkSpec, optional
        The sink that it stands in for, which is asked once what it does not keep of values: hashes depend on that.
        None where nobody will compare it: only its ledger is of use.
    mode : TableMode
        How its rows meet.
    by : tuple of str
        Columns by which rows are divided into buckets.
    wanted : Wanted, optional
        Whose rows are kept; None: no rows are, but digests of all.
    """

    path: str
    of: SinkSpec | None
    mode: TableMode = APPEND
    by: tuple[str, ...] = ()
    wanted: Wanted | None = None

    kind = "digests"
    guarantee = Guarantee.EXACTLY_ONCE

    def arguments(self) -> Mapping[str, object]:
        """Return the arguments for display and fingerprint."""
        wanted = None if self.wanted is None else [self.wanted.bits, *self.wanted.buckets]
        return {"path": self.path, **self.mode.arguments(), "by": list(self.by), "wanted": wanted}

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Any columns will do: the sink itself has checked them."""

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the ledger in the file says."""
        with asking(os.path.abspath(self.path), name) as connection:
            return None if connection is None else SqlBook(SQLITE, pipeline, name).ledger(connection)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> DigestSink:
        """Open the file; when it is new, ask the sink itself what it does not keep of values."""
        sink = DigestSink(name, pipeline, self, schema)
        try:
            sink.prepare()
        except BaseException:
            sink.close()
            raise
        return sink


class DigestSink:
    """The stand-in during a run, on the driver; see :class:`holdfast.ports.Sink`."""

    guarantee = Guarantee.EXACTLY_ONCE
    staging = "digests in Arrow files"

    def __init__(self, name: str, pipeline: str, spec: DigestSpec, schema: pa.Schema) -> None:
        self.name = name
        self._pipeline = pipeline
        self._spec = spec
        self._schema = schema
        self._node = f"sink {name!r}"
        path = os.path.abspath(spec.path)
        self._file = DatabaseFile(path, self._node)
        self._staging = ArrowStaging(f"{path}-holdfast", pipeline, name, unchecked)
        self._book = SqlBook(SQLITE, pipeline, name)
        self._generation = 0

    def prepare(self) -> None:
        """Create the file; note in it what the sink itself does not keep of values."""
        durable.make_directory(os.path.dirname(self._file.path))
        with self._transaction() as connection:
            if digests.exist(connection):
                return
            digests.create(connection)
            connection.execute("CREATE TABLE rows (batch BLOB NOT NULL)")
            connection.execute("CREATE TABLE losses (name TEXT NOT NULL, kind TEXT NOT NULL)")
            losses = [(loss.column, loss.kind.name) for loss in self._asked()]
            connection.executemany("INSERT INTO losses VALUES (?, ?)", losses)

    def open(self, run: RunIdentity) -> Held:
        """Take the sink for this generation."""
        with self._transaction() as connection:
            self._book.create(connection, [LEDGER])
            row = self._book.claim(connection, run)
        self._generation = run.generation
        return row.held()

    def writer_factory(self) -> ReducingWriterFactory:
        """Return the factory that executors call."""
        return ReducingWriterFactory(self._staging.factory(), self._reduction)

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Take all rows."""
        return False

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Count the epochs in and move the ledger row, in one transaction."""
        with self._transaction() as connection:
            row = self._book.own_row(connection, self._generation)
            new = unpublished(self._node, self._pipeline, publications, row.held(), expected)
            for part in (part for publication in new for part in publication.parts):
                self._take(connection, part)
            if new:
                self._book.move(connection, new[-1].record)
                faults.reach("publish-uncommitted", new[-1].record.epoch, new[-1].record.pipeline)
        with suppress(Unavailable, InvalidPipeline):  # a later sweep finds them
            for publication in publications:
                self._staging.remove(publication.parts)

    def outcome(self, epoch: int) -> Outcome:
        """Ask the ledger row."""
        try:
            with self._explained():
                row = self._book.row(self._file.again())
        except Unavailable:
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if row is not None and row.epoch >= epoch else Outcome.ABSENT

    def sweep(self, *, below_epoch: int) -> int:
        """Remove files of lower generations, and of this one below the epoch."""
        return self._staging.sweep(self._generation, below_epoch)

    def close(self) -> None:
        """Close the connection."""
        self._file.close()

    @contextmanager
    def content(self) -> Iterator[DigestContent]:
        """Open a view of what is kept."""
        with closing(sqlite3.connect(self._file.path, isolation_level=None, check_same_thread=False)) as connection:
            with self._explained():
                connection.execute("BEGIN")
                row = self._book.row(connection)
            held = Held() if row is None else row.held()
            yield DigestContent(connection, held, self._spec.mode.stored(self._schema), self._reduction)

    def repair(self, repair: Repair) -> int | None:
        """Refuse: others are repaired by it."""
        return None

    # --- inside -----------------------------------------------------------------------------------------------------

    @cached_property
    def _reduction(self) -> Reduction:
        with self._explained():
            found = self._file.connection().execute("SELECT name, kind FROM losses").fetchall()
        losses = frozenset(Loss(column, LossKind[kind]) for column, kind in found)
        spec = self._spec
        columns = () if spec.of is None else tuple(spec.mode.stored(self._schema).names)
        by = tuple(name for name in spec.by if name in columns)
        return Reduction(columns, by, losses, spec.mode, spec.wanted)

    def _asked(self) -> Losses:
        """Return what the sink itself does not keep of values."""
        if self._spec.of is None:
            return NO_LOSSES
        sink = self._spec.of.connect(self.name, self._pipeline, self._schema)
        try:
            with view_of(sink, self._pipeline) as (content, _):
                return content.losses
        finally:
            sink.close()

    def _take(self, connection: sqlite3.Connection, part: Part) -> None:
        is_carried = isinstance(part, Carried)
        for batch in part.rows.to_batches() if isinstance(part, Carried) else self._staging.whole(part):
            kept = self._reduction.of(batch) if is_carried else batch
            if self._spec.wanted is None:
                digests.take(connection, kept)
            elif kept.num_rows:
                connection.execute("INSERT INTO rows VALUES (?)", (_pack(kept),))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            connection = self._file.connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._file.close()
            raise InDoubt(
                f"{self._node}: it is unknown whether a COMMIT into {self._file.path} was kept.",
                why=f"SQLite said: {error}.",
                do="nothing by hand: the sink is asked next.",
                pipeline=self._pipeline,
                participant=self.name,
            ) from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Unavailable(
                f"{self._node}: the digests in {self._file.path} cannot be read or written.",
                why=f"SQLite said: {error}.",
                do="look at the disk (df). The directory can be removed: what is in it is computed again.",
                pipeline=self._pipeline,
                participant=self.name,
            ) from error


def _pack(rows: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(out.getvalue())
