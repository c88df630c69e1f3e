"""A real HTTP server for tests, that takes each key once; and a proxy before it that drops, delays and repeats."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What the server answers in the place of taking a request; a status of 0 cuts the connection."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Received:
    """A request as it came in."""

    key: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows in the body: an object, an array, or lines."""
        if self.headers["Content-Type"] == "application/x-ndjson":
            return [json.loads(line) for line in self.body.splitlines()]
        found = json.loads(self.body)
        return found if isinstance(found, list) else [found]


class KeyedServer:
    """A server with a unique index: a request whose key it has is answered, and not taken again.

    Parameters
    ----------
    id : str
        The column that is unique in the rows, where requests have several of them; None: the key alone counts.
    """

    def __init__(self, id: str | None = None) -> None:
        self.received: list[Received] = []
        self.rows: list[dict[str, Any]] = []
        self.replies: list[Reply] = []
        """What is answered next, first things first; then everything is taken."""
        self.reply_to: Callable[[Received], Reply | None] = lambda _: None
        self._id = id
        self._keys: set[str] = set()
        self._lock = threading.Lock()

    def take(self, request: Received) -> Reply:
        """Take the rows, unless their key (or their id) is there."""
        with self._lock:
            self.received.append(request)
            scripted = self.replies.pop(0) if self.replies else self.reply_to(request)
            if scripted is not None:
                return scripted
            if self._id is None and request.key in self._keys:
                return Reply(200)
            self._keys.add(request.key)
            known = {row[self._id] for row in self.rows} if self._id is not None else set()
            self.rows += [row for row in request.rows if self._id is None or row[self._id] not in known]
            return Reply(201)

    def forget(self) -> None:
        """Be empty again."""
        with self._lock:
            self.received.clear()
            self.rows.clear()
            self._keys.clear()


class Quiet(BaseHTTPRequestHandler):
    """A handler that keeps connections and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, reply: Reply) -> None:
        if not reply.status:
            self.close_connection = True
            return
        data = reply.text.encode()
        if "Date" in reply.headers:
            self.send_response_only(reply.status)
        else:
            self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(data)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving_with(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve for the length of the block; yields the port."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """A client that is gone is no error here."""

    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


@contextmanager
def serving(server: KeyedServer) -> Iterator[str]:
    """Serve for the length of the block; yields the address."""

    class Handler(Quiet):
        def do_POST(self) -> None:
            body = self.body()
            self._answer(server.take(Received(self.headers.get("Idempotency-Key", ""), dict(self.headers), body)))

    with serving_with(Handler) as port:
        yield f"http://127.0.0.1:{port}/rows"


@dataclass
class Unreliable:
    """What a proxy does to requests, in an order by chance: each of it in every thirteen; and how often it did."""

    seed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    is_calm: bool = False

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()
        self._deck: list[str] = []

    def next(self) -> str:
        """Draw what becomes of the next request."""
        with self._lock:
            if self.is_calm:
                return "pass"
            if not self._deck:
                self._deck = ["pass"] * 8 + ["drop", "swallow", "repeat", "repeat", "delay"]
                self._random.shuffle(self._deck)
            way = self._deck.pop()
            self.counts[way] = self.counts.get(way, 0) + 1
            return way


@contextmanager
def unreliable_proxy(address: str, chance: Unreliable) -> Iterator[str]:
    """Forward requests, but for those that are dropped, repeated or delayed, or whose answer is swallowed."""
    host, _, path = address.removeprefix("http://").partition("/")

    class Handler(Quiet):
        def do_POST(self) -> None:
            body, way = self.body(), chance.next()
            reply = Reply(0)
            if way == "delay":
                time.sleep(0.02)
            if way != "drop":
                for _ in range(2 if way == "repeat" else 1):
                    reply = self._forwarded(body)
            self._answer(Reply(0) if way in ("drop", "swallow") else reply)

        def _forwarded(self, body: bytes) -> Reply:
            connection = http.client.HTTPConnection(host, timeout=30)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                connection.request("POST", f"/{path}", body, headers)
                answer = connection.getresponse()
                return Reply(answer.status, {}, answer.read().decode())
            finally:
                connection.close()

    with serving_with(Handler) as port:
        yield f"http://127.0.0.1:{port}/{path}"
