"""A throw-away MariaDB on loopback, from the programs that are installed: ``mariadbd`` and ``mariadb-install-db``.

The server listens on 127.0.0.1 on a free port, asks for a password that is
drawn for it, and is durable as installed.  ``HOLDFAST_MYSQL=<url>`` names another server, MariaDB or MySQL, whose user
may create databases.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.testing.servers.ports import free_port

SETTINGS: Mapping[str, str] = {
    "innodb_buffer_pool_size": "128M",
    "innodb_flush_log_at_trx_commit": "1",
    "skip_name_resolve": "1",
    "character_set_server": "utf8mb4",
}
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/usr/libexec"])


class NoMysql(RuntimeError):
    """There is no MariaDB here."""


@dataclass
class MysqlServer:
    """A server that can be killed and started again; its data stays.

    Parameters
    ----------
    program : str
        ``mariadbd``.
    user : str, optional
        The account that it runs as; None: our own.
    directory : Path
        Where its data is.
    port : int
        On 127.0.0.1.
    settings : mapping of str to str
        Of the server.
    """

    program: str
    user: str | None
    directory: Path
    port: int
    settings: Mapping[str, str]
    password: str = field(default_factory=lambda: secrets.token_hex(12), repr=False)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is, with the password; without a database."""
        return f"mysql://holdfast:{self.password}@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, if it is away; returns when it answers."""
        if self._process is not None:
            return
        first = self.directory / "first.sql"
        first.write_text(
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{self.password}';\n"
            f"CREATE USER IF NOT EXISTS 'holdfast'@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            "GRANT ALL ON *.* TO 'holdfast'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        first.chmod(0o644 if self.user else 0o600)
        options = {
            "datadir": self.directory / "data", "socket": self.directory / "socket", "port": self.port,
            "bind_address": "127.0.0.1", "pid_file": self.directory / "pid", "init_file": first, **self.settings,
        }  # fmt: skip
        command = [self.program, "--no-defaults", *(f"--{name}={value}" for name, value in options.items())]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
                **_account(self.user),
            )  # fmt: skip
        end = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"mariadbd did not start: {(self.directory / 'log').read_text()[-2000:]}")
            time.sleep(0.01)
        first.unlink()

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Take it away, as a crash does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return bool(connection.recv(1))  # its greeting
        except OSError:
            return False


@contextmanager
def mysql_server(settings: Mapping[str, str] | None = None, below: str | None = None) -> Iterator[MysqlServer]:
    """Start a server, yield it, stop it and remove its data.

    Parameters
    ----------
    settings : mapping of str to str, optional
        Settings that replace or add to ``SETTINGS``.
    below : str, optional
        Where its directory is made; by default among the system's temporary files.

    Raises
    ------
    NoMysql
        If MariaDB is not installed.
    """
    program, install = _programs()
    user = _user()
    directory = Path(
        tempfile.mkdtemp(prefix="holdfast-my-", dir=below)
    )  # short: the path of its socket has 107 characters
    try:
        if user is not None:
            os.chown(directory, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        made = subprocess.run(
            [install, "--no-defaults", f"--datadir={directory / 'data'}", "--auth-root-authentication-method=normal",
             "--skip-test-db"],
            stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/", **_account(user),
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"mariadb-install-db failed: {made.stderr.decode(errors='replace')[-2000:]}")
        server = MysqlServer(program, user, directory, free_port(), {**SETTINGS, **(settings or {})})
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def mysql_address(settings: Mapping[str, str] | None = None, below: str | None = None) -> Iterator[str]:
    """Yield the address in ``HOLDFAST_MYSQL``, or that of a server of our own for as long as the block runs."""
    if given := os.environ.get("HOLDFAST_MYSQL"):
        yield given
        return
    with mysql_server(settings, below) as server:
        yield server.url


def _programs() -> tuple[str, str]:
    """Return ``mariadbd`` and ``mariadb-install-db``, which need ``my_print_defaults``."""
    names = ("mariadbd", "mariadb-install-db", "my_print_defaults")
    server, install, others = (shutil.which(name, path=_PATH) for name in names)
    if server is None or install is None or others is None:
        raise NoMysql(
            "There is no MariaDB here: apt-get install mariadb-server-core mariadb-client-core, or set "
            "HOLDFAST_MYSQL=mysql://user:password@host:3306."
        )
    return server, install


def _user() -> str | None:
    """Return the account that the server runs as: it refuses root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid != 0}
    return next((name for name in ("mysql", "nobody") if name in known), None)


def _account(user: str | None) -> dict[str, Any]:
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}


def main() -> int:
    """Say where the programs are."""
    try:
        sys.stdout.write(f"mysql: {_programs()[0]}\n")
    except NoMysql as error:
        sys.stderr.write(f"mysql: {error} The tests that need one are skipped.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
