"""A proxy before a Redis server that drops commands, swallows answers, repeats commands and delays them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from tests.http_servers import Unreliable

_UNRELIABLE = {b"EVAL", b"EVALSHA", b"EXEC", b"HGETALL", b"SMEMBERS", b"SCRIPT"}
"""Commands that something happens to; others are how a connection begins, or parts of a transaction."""

_ALONE = _UNRELIABLE - {b"EXEC"}
"""Those that can be repeated: a transaction ends once."""


def _frame(stream: IO[bytes]) -> bytes | None:
    """Read one value of the protocol, whatever it is; None at the end."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        return None
    kind, said = line[:1], line[1:-2]
    if kind in b"$=!" and int(said) >= 0:
        return line + stream.read(int(said) + 2)
    if kind in b"*~>%" and int(said) > 0:
        parts = [_frame(stream) for _ in range(int(said) * (2 if kind == b"%" else 1))]
        return None if None in parts else line + b"".join(part for part in parts if part is not None)
    return line


def _name(command: bytes) -> bytes:
    return command.split(b"\r\n", 3)[2].upper() if command.startswith(b"*") else b""


class RedisProxy:
    """Forwards to a server; what becomes of a command is drawn."""

    def __init__(self, port: int, chance: Unreliable) -> None:
        self._server = port
        self._chance = chance
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut everything."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            _shut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                return
            self._sockets += [client, server]
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client.makefile("rb") as asked, server.makefile("rb") as answered:
            while (command := _frame(asked)) is not None:
                name = _name(command)
                way = self._chance.next() if name in _UNRELIABLE else "pass"
                if way == "drop":
                    break
                if way == "delay":
                    time.sleep(0.01)
                reply = None
                for _ in range(2 if way == "repeat" and name in _ALONE else 1):
                    server.sendall(command)
                    reply = _frame(answered)
                if way == "swallow" or reply is None:
                    break
                client.sendall(reply)
        _shut(client)
        _shut(server)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def unreliable_redis(port: int, chance: Unreliable) -> Iterator[int]:
    """Run a proxy for the length of the block; yields its port."""
    proxy = RedisProxy(port, chance)
    try:
        yield proxy.port
    finally:
        proxy.close()
