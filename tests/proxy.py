"""A TCP proxy that cuts the connection during COMMIT: before it reaches the server, or after, before the reply.

It reads PostgreSQL's messages only as far as it must: a simple query is ``Q``, four bytes of length, the text and a
zero byte.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum


class Cut(Enum):
    """When the connection is cut."""

    BEFORE = "before it reaches the server"
    AFTER = "after the server has answered, before the reply"
    DURING = "as soon as it is on its way to the server"
    SILENT = "before it reaches the server, which is not told"


class CommitProxy:
    """Forwards everything; once armed, cuts the connection at the next statement that begins with the given words."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._armed: tuple[bytes, Cut, int] | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: set[socket.socket] = set()
        self.cut_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    def arm(self, statement: str, cut: Cut, *, skip: int = 0) -> None:
        """Cut at the next ``statement`` (its first words), after letting ``skip`` of them pass."""
        with self._lock:
            self._armed = (statement.encode(), cut, skip)

    def close(self) -> None:
        """Cut everything and wait for the threads."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for opened in sockets:
            _shut(opened)
        for thread in self._threads:
            thread.join(timeout=10)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            swallow = threading.Event()
            self._start(self._forward_replies, server, client, swallow)
            self._start(self._forward_statements, client, server, swallow)

    def _forward_statements(self, client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        for data in _received(client):
            cut = self._cut_for(data)
            if cut is Cut.SILENT:
                _shut(client)
                return
            if cut is Cut.BEFORE:
                break
            if cut is not None:
                swallow.set()
            with suppress(OSError):
                server.sendall(data)
            if cut is Cut.AFTER:  # the other thread cuts, once the server has answered
                return
            if cut is Cut.DURING:
                break
        self._drop(client, server)

    def _forward_replies(self, server: socket.socket, client: socket.socket, swallow: threading.Event) -> None:
        for data in _received(server):
            if swallow.is_set():
                break
            with suppress(OSError):
                client.sendall(data)
        self._drop(client, server)

    def _cut_for(self, data: bytes) -> Cut | None:
        """Return how to cut these bytes, and disarm."""
        with self._lock:
            if self._armed is None or data[:1] != b"Q" or not data[5:].startswith(self._armed[0]):
                return None
            words, cut, skip = self._armed
            if skip:
                self._armed = (words, cut, skip - 1)
                return None
            self._armed = None
            self.cut_count += 1
            return cut

    def _drop(self, *ends: socket.socket) -> None:
        for end in ends:
            _shut(end)
        with self._lock:
            self._sockets -= set(ends)


def _received(end: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            data = end.recv(1 << 16)
        except OSError:
            return
        if not data:
            return
        yield data


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def commit_proxy(server: tuple[str, int]) -> Iterator[CommitProxy]:
    """Run a proxy for the length of the block."""
    proxy = CommitProxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
