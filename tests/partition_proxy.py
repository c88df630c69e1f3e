"""A TCP proxy that parts some processes from a server: their bytes wait, or their connections break.

Everyone reaches the server through it.  Whose a connection is, the kernel says: the process that has its other end.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import psutil

Way = Literal["frozen", "cut"]


@dataclass(eq=False)
class Link:
    """One connection: the client's end and the server's."""

    client: socket.socket
    server: socket.socket
    passes: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        """Break it."""
        self.passes.set()
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class PartitionProxy:
    """Forwards everything to one server, whose port is said later; see :func:`partition_proxy`."""

    def __init__(self) -> None:
        self.server_port = 0
        self.hit_count = 0
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._parted: Callable[[], Collection[int]] | None = None
        self._way: Way = "frozen"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        _start(self._accept)

    def part(self, processes: Callable[[], Collection[int]], way: Way) -> None:
        """Part processes from the server until :meth:`join`; ``hit_count`` says how many connections that has hit.

        ``processes`` returns their ids, and is asked again for each new connection.
        """
        with self._lock:
            self._parted, self._way, self.hit_count = processes, way, 0
            hit = self._of_the_parted(self._links)
            self.hit_count += len(hit)
        for link in hit:
            link.passes.clear() if way == "frozen" else link.close()

    def join(self) -> None:
        """Let all pass; what has waited arrives now."""
        with self._lock:
            self._parted = None
            links = list(self._links)
        for link in links:
            link.passes.set()

    def close(self) -> None:
        """Break everything."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            _start(self._link, client)

    def _link(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port))
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, server)
        with self._lock:
            is_parted = bool(self._of_the_parted([link]))
            self.hit_count += is_parted
            if not is_parted:
                link.passes.set()
            self._links.add(link)
        if is_parted and self._way == "cut":
            self._forget(link)
            return
        _start(self._forward, link, client, server)
        self._forward(link, server, client)

    def _forward(self, link: Link, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                link.passes.wait()
                target.sendall(data)
        self._forget(link)

    def _forget(self, link: Link) -> None:
        link.close()
        with self._lock:
            self._links.discard(link)

    def _of_the_parted(self, links: Collection[Link]) -> list[Link]:
        if self._parted is None:
            return []
        ours = set(self._parted())
        ports = {each.laddr.port for each in psutil.net_connections("tcp4") if each.pid in ours and each.laddr}
        return [link for link in links if _port_of(link.client) in ports]


def _port_of(end: socket.socket) -> int | None:
    """Return the port of the other end; None where it has gone."""
    with suppress(OSError):
        return int(end.getpeername()[1])
    return None


def _start(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


@contextmanager
def partition_proxy() -> Iterator[PartitionProxy]:
    """Run a proxy for the length of the block; its port is known before the server's is set."""
    proxy = PartitionProxy()
    try:
        yield proxy
    finally:
        proxy.close()
