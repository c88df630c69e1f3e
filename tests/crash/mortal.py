"""Real targets as a SIGKILL leaves them, though the death is simulated and the process of the test goes on.

A simulated death is an exception, and on its way out it runs every ``finally`` and ``except``: ROLLBACK, a goodbye to
the server, temporary files tidied.  A killed process does none of that.  So at the instant of death

- PostgreSQL: the sockets of the driver's connections are shut, without a word to the server; and a statement that is
  tried afterwards raises before it is sent.  Workers are other processes: theirs stay;
- files and SQLite: what is below the directory is noted, and put back before the next life looks at it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from holdfast.ports import RunIdentity, Sink
from holdfast.testing import SCHEMA, Failures, Process, SinkUnderTest
from holdfast.testing.simulation.world import PIPELINE
from tests.specs import postgres_spec

_ENDS = ("COMMIT", "PREPARE TRANSACTION", "ROLLBACK PREPARED")
_CHANGES_NOTHING = ("SELECT", "SET ", "BEGIN", "ROLLBACK")
_CATALOGS = "pg_class, pg_attribute, pg_type, pg_index, pg_constraint, pg_attrdef, pg_depend, pg_description"

# NB temporary tables go with their session, and the server may still be ending the one that was just closed.
_LEFT_BEHIND = """
SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL SELECT 'table ' || relname FROM pg_class
 WHERE relkind = 'r' AND relpersistence <> 't' AND starts_with(relname, 'holdfast')
 AND relname NOT IN ('holdfast_ledger', 'holdfast_positions')
UNION ALL SELECT 'in progress: ' || in_progress FROM holdfast_ledger WHERE in_progress IS NOT NULL
"""


class MortalConnection(psycopg.Connection[tuple[Any, ...]]):
    """A driver's connection: each statement that makes something durable is a place to die, before and after it."""

    process: Process
    label: str

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        text = query if isinstance(query, str) else query.as_string(None)
        work = partial(super().execute, query, *arguments, **options)
        if not self._is_durable(text.strip()):
            return work()
        return self.process.write(f"sink {self.label} {text[:60]}", work)

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        """Every statement and every COPY begins here."""
        self.process.check()
        return super().cursor(*arguments, **options)

    def _is_durable(self, text: str) -> bool:
        is_alone = self.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        return text.startswith(_ENDS) or (is_alone and not text.startswith(_CHANGES_NOTHING))

    def close(self) -> None:
        """Say goodbye, unless the process is dead: then the socket stays as death left it."""
        if self.process.is_alive:
            super().close()

    def bury(self) -> None:
        """Close for good."""
        super().close()

    def cut(self) -> None:
        """Shut the socket as the kernel does for a dead process: the server gets no message, only the end."""
        with suppress(psycopg.OperationalError, OSError), socket.socket(fileno=os.dup(self.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


class Database:
    """A database whose drivers die; emptied between worlds.

    Parameters
    ----------
    dsn : str
        Of a database of its own.
    is_deaf : bool
        The machine is lost, not just the process: the server is not told that its clients are dead, and keeps what
        they hold.
    """

    def __init__(self, dsn: str, *, is_deaf: bool = False) -> None:
        self.dsn = dsn
        self._is_deaf = is_deaf
        self._outside = psycopg.Connection.connect(dsn, autocommit=True)
        self._opened: list[MortalConnection] = []
        self._names: set[str] = set()
        self._reset_count = 0
        self._process = Process()

    def connect(self, conninfo: str = "", **parameters: Any) -> psycopg.Connection[Any]:
        """Stand in for ``psycopg.connect``: a worker's connection is its own, a driver's dies with the driver."""
        name = str(parameters["application_name"])
        if name.startswith("holdfast writer"):
            return psycopg.Connection.connect(conninfo, **parameters)
        MortalConnection.process, MortalConnection.label = self._process, name.rpartition("/")[2]
        connection = MortalConnection.connect(conninfo, **parameters)
        connection.process, connection.label = MortalConnection.process, MortalConnection.label
        self._opened.append(connection)
        return connection

    def sink(self, name: str, schema: pa.Schema = SCHEMA, **arguments: Any) -> SinkUnderTest:
        """Return a table as a sink: any durable statement of it is a place to die."""
        spec = postgres_spec(self.dsn, name, **arguments)
        self._names.add(name)

        def connect(process: Process, _: Failures) -> Sink:
            self._process = process
            if not self._is_deaf and self._cut not in process.at_death:
                process.at_death.append(self._cut)
            return spec.connect(name, PIPELINE, schema)

        return SinkUnderTest(name, connect, lambda: self.rows(name, schema), self.leftovers)

    def take(self, name: str, **arguments: Any) -> None:
        """Let a run have existed before: tables and ledger row are there, owned by generation 1."""
        self._process = Process()
        first = postgres_spec(self.dsn, name, **arguments).connect(name, PIPELINE, SCHEMA)
        first.open(RunIdentity(PIPELINE, 1))
        first.close()

    def rows(self, table: str, schema: pa.Schema = SCHEMA) -> list[tuple[Any, ...]]:
        """Return what any reader sees, in the order of the first column."""
        columns = sql.SQL(", ").join(map(sql.Identifier, schema.names))
        query = sql.SQL("SELECT {} FROM {} ORDER BY 1").format(columns, sql.Identifier(table))
        return self._outside.execute(query).fetchall()

    def pts(self, sink: str) -> int | None:
        """Return the pts in a sink's ledger row; None before there is one."""
        with suppress(psycopg.errors.UndefinedTable):
            found = self._outside.execute("SELECT pts FROM holdfast_ledger WHERE sink = %s", [sink]).fetchone()
            return None if found is None else found[0]
        return None

    def leftovers(self) -> Sequence[str]:
        """Name everything that a pipeline at rest must not have in the database."""
        return [name for (name,) in self._outside.execute(_LEFT_BEHIND).fetchall()]

    def _has(self, name: str) -> bool:
        found = self._outside.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
        return found is not None and bool(found[0])

    def reset(self) -> None:
        """Drop every table; a new database for each world would take seconds."""
        self._let_go()
        # Sessions whose end the server was not told, or has not noticed yet; DROP waits for what they have locked.
        self._outside.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for gid in self._prepared():
            self._outside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        self._reset_count += 1
        # That a process dies when it makes this table is tried in some worlds; to make it in each takes long.
        is_kept = self._reset_count % 8 and self._has("holdfast_positions")
        if is_kept:
            self._outside.execute("DELETE FROM holdfast_positions")
        for name in ("holdfast_ledger", *([] if is_kept else ["holdfast_positions"]), *self._names):
            self._outside.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(name)))
        self._names.clear()
        if self._reset_count % 100 == 0:  # thousands of dropped tables make the catalogs slow
            self._outside.execute(f"VACUUM {_CATALOGS}")

    def _prepared(self) -> list[str]:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        return [gid for (gid,) in self._outside.execute(query).fetchall()]

    def close(self) -> None:
        """Leave the database to its owner."""
        self._let_go()
        self._outside.close()

    def _cut(self) -> None:
        for connection in self._opened:
            connection.cut()

    def _let_go(self) -> None:
        self._cut()
        for connection in self._opened:
            connection.bury()
        self._opened.clear()


class Disk:
    """What a directory holds at the instant of a death."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._content: dict[Path, bytes] | None = None

    def remember(self) -> None:
        """Note every file."""
        self._content = {path: path.read_bytes() for path in self._files()}

    def restore(self) -> None:
        """Undo what the dead process did on its way out; a file that it left alone is not touched."""
        content, self._content = self._content, None
        if content is None:
            return
        for path in self._files():
            if path not in content:
                path.unlink()
        for path, data in content.items():
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def _files(self) -> list[Path]:
        return [path for path in self._directory.rglob("*") if path.is_file()]


def as_killed(make: Callable[[str, Path], SinkUnderTest], name: str, directory: Path) -> SinkUnderTest:
    """Return a sink that keeps its target below a directory, its drivers killed without a way out."""
    directory.mkdir()
    disk = Disk(directory)
    sink = make(name, directory / "target")

    def connect(process: Process, failures: Failures) -> Sink:
        disk.restore()
        process.at_death.append(disk.remember)
        return sink.connect(process, failures)

    return replace(sink, connect=connect)
