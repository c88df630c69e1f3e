"""Real PostgreSQL servers for tests: started once per session on a free loopback port, stopped at its end.

Two flavours: with prepared transactions (64) and without.  ``HOLDFAST_POSTGRES=<dsn>`` uses a server of yours
instead; then the flavour that it does not have is skipped.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.testing.servers.ports import free_port
from holdfast.testing.servers.postgres import NoPostgres, postgres_server

_SETTINGS = {
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "fsync": "off",  # tests kill clients, never the machine
    "full_page_writes": "off",
    "autovacuum": "off",
}


@dataclass(frozen=True)
class PostgresServer:
    """A server that answers.

    Parameters
    ----------
    dsn : str
        Of its maintenance database, as a role that may create databases.
    max_prepared : int
        Its ``max_prepared_transactions``.
    """

    dsn: str
    max_prepared: int

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for a proxy."""
        parts = conninfo_to_dict(self.dsn)
        return str(parts.get("host") or "127.0.0.1"), int(parts.get("port") or 5432)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database, yield its DSN, drop it with whatever was left prepared in it."""
        name = f"holdfast_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        dsn = make_conninfo(self.dsn, dbname=name)
        try:
            yield dsn
        finally:
            with psycopg.connect(dsn, autocommit=True) as inside:
                for (gid,) in inside.execute(
                    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                ).fetchall():
                    inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
            with psycopg.connect(self.dsn, autocommit=True) as admin:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def _server(max_prepared: int) -> Iterator[PostgresServer]:
    dsn = os.environ.get("HOLDFAST_POSTGRES")
    if not dsn:
        try:
            with postgres_server({**_SETTINGS, "max_prepared_transactions": str(max_prepared)}) as server:
                yield PostgresServer(server.dsn, max_prepared)
        except NoPostgres as error:
            pytest.skip(str(error))
        return
    with psycopg.connect(dsn) as connection:
        (found,) = map(int, connection.execute("SHOW max_prepared_transactions").fetchone() or ())
    if (found > 0) != (max_prepared > 0):
        pytest.skip(f"the server of HOLDFAST_POSTGRES has max_prepared_transactions = {found}")
    yield PostgresServer(dsn, found)


@pytest.fixture(scope="session")
def postgres_server_prepared() -> Iterator[PostgresServer]:
    """A server with prepared transactions, for the whole session."""
    with _server(64) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server_plain() -> Iterator[PostgresServer]:
    """A server with ``max_prepared_transactions = 0`` (the default), for the whole session."""
    with _server(0) as server:
        yield server


@pytest.fixture
def postgres_prepared(postgres_server_prepared: PostgresServer) -> Iterator[str]:
    """DSN of an empty database that allows prepared transactions."""
    with postgres_server_prepared.database() as dsn:
        yield dsn


@pytest.fixture
def postgres_plain(postgres_server_plain: PostgresServer) -> Iterator[str]:
    """DSN of an empty database without prepared transactions."""
    with postgres_server_plain.database() as dsn:
        yield dsn


@dataclass(frozen=True)
class MortalPostgres:
    """A server of the test's own that can be taken away and brought back.

    Parameters
    ----------
    dsn : str
        Of an empty database that allows prepared transactions.
    programs, data : Path
        Its programs and its data directory.
    """

    dsn: str
    programs: Path
    data: Path

    def stop(self) -> None:
        """Take it away as a crash does: connections break, and nothing answers any more."""
        self._control("-m", "immediate", "stop")

    def start(self) -> None:
        """Bring it back, if it is away; returns when it answers."""
        if not (self.data / "postmaster.pid").exists():
            self._control("-l", str(self.data.parent / "log"), "start")

    def forget_transactions(self) -> None:
        """Let it forget how every transaction so far has ended: their ids are older than it keeps the ends of."""
        self._control("-m", "fast", "stop")
        self._run("pg_resetwal", "-x", str(2 * 2**20), "-D", str(self.data))  # the first of a file of 2**20 ends
        self.start()
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            admin.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
            names = [name for (name,) in admin.execute("SELECT datname FROM pg_database").fetchall()]
        for name in names:
            with psycopg.connect(make_conninfo(self.dsn, dbname=name), autocommit=True) as connection:
                connection.execute("VACUUM (FREEZE)")

    def standby(self) -> MortalPostgres:
        """Return a standby of it, which streams asynchronously; it goes with this server's directory."""
        port = free_port()
        data = self.data.parent / "standby"
        self._run("pg_basebackup", "-d", self.dsn, "-D", str(data), "--write-recovery-conf", "--checkpoint=fast")
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"port = {port}\n")
        standby = MortalPostgres(make_conninfo(self.dsn, port=str(port)), self.programs, data)
        standby.start()
        return standby

    def asked(self, statement: LiteralString) -> Any:
        """Return the first value of a statement's answer."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(statement).fetchone()
            return None if row is None else row[0]

    def catch_up(self, primary: MortalPostgres) -> None:
        """Wait until a standby shows everything that its primary has written."""
        written = primary.asked("SELECT pg_current_wal_flush_lsn()::text")
        while not self.asked(f"SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn"):
            time.sleep(0.02)

    def lag(self) -> None:
        """Cut a standby off from its primary; returns when nothing comes any more."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
        while self.asked("SELECT count(*) FROM pg_stat_wal_receiver"):
            time.sleep(0.02)

    def promote(self) -> None:
        """Make a standby a primary; returns when it takes writes."""
        assert self.asked("SELECT pg_promote()")

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        # The server's own account: PostgreSQL refuses root.
        owner = self.data.parent.stat()
        account: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        command = [str(self.programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.data.parent, **account)


@pytest.fixture
def mortal_postgres() -> Iterator[MortalPostgres]:
    """A server of its own for one test, whatever ``HOLDFAST_POSTGRES`` says; running when the test begins."""
    try:
        with postgres_server({**_SETTINGS, "max_prepared_transactions": "64"}) as server:
            data = server.directory / "data"
            pid = int((data / "postmaster.pid").read_text().split()[0])
            mortal = MortalPostgres(server.dsn, Path(psutil.Process(pid).exe()).parent, data)
            try:
                yield mortal
            finally:
                mortal.start()  # the server's owner wants to stop it himself
    except NoPostgres as error:
        pytest.skip(str(error))
