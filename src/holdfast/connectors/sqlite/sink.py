"""A SQLite table during a run, on the driver: what control rows ask of it is carried out with the rows.

Executors never open the database, they write Arrow files beside it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa

from holdfast.connectors.control.columns import Awaited, ControlColumns
from holdfast.connectors.kit.files.staged import ArrowStaging
from holdfast.connectors.kit.sql_sink import SqlSink
from holdfast.connectors.kit.sql_table import Connection, SqlTable
from holdfast.connectors.sqlite.commands import SqliteControl
from holdfast.connectors.sqlite.session import SqliteSession
from holdfast.errors import InvalidPipeline
from holdfast.ports import Publication, Sink
from holdfast.store import durable


class SqliteSink(SqlSink):
    """One SQLite table during a run.

    Parameters
    ----------
    name, pipeline : str
        Identity.
    path : str
        The file, absolute.
    table : SqlTable
        The target.
    staging : ArrowStaging
        The directory beside the file.
    control : ControlColumns, optional
        Which columns of the rows are not data.
    """

    def __init__(
        self,
        name: str,
        pipeline: str,
        path: str,
        table: SqlTable,
        staging: ArrowStaging,
        control: ControlColumns | None = None,
    ) -> None:
        session = SqliteSession(table.node, path, table.name, pipeline, name)
        super().__init__(name, pipeline, session, table, staging, "Arrow files")
        self._path = path
        self._files = staging.directory
        self._control = None if control is None else SqliteControl(table, control, pipeline, name)
        self._awaited = None if control is None else Awaited(control)

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
        durable.tighten(self._files)
        super().prepare()

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check the values; try the rows where the table has rules of its own.

        Rows with commands are always tried, behind the commands of epochs that wait: what they may be depends on these.
        """
        awaited = self._awaited
        if awaited is None:
            return super().admit(publication, earlier)
        if not any(part.row_count for part in publication.parts):
            awaited.forget(publication.record.epoch)
            return False
        with self._trials.explained():
            row = self._book.row(self._trials.connection())
        before = awaited.before(publication.record.epoch, row.epoch if row else 0)
        self._try_behind(publication, earlier, [(self, each) for each in before])
        awaited.note(publication, (batch for part in publication.parts for batch in self._batches(part)))
        return True

    def control_counts(self) -> dict[str, int]:
        """Return how many control rows of each kind were carried out."""
        with self._session.explained():
            return self._control.counts(self._session.connection()) if self._control is not None else {}

    def _check_batch(self, batch: pa.RecordBatch) -> None:
        if self._control is None:
            super()._check_batch(batch)

    def _write_batch(self, connection: Connection, batch: pa.RecordBatch, epoch: int) -> None:
        (self._control or self._table).write(connection, batch, epoch)

    def _table_now(self, connection: Connection) -> SqlTable:
        return self._table if self._control is None else self._table.with_schema(self._control.now(connection).schema)
