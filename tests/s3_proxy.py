"""A proxy before an S3 server that delays, refuses and throttles requests, loses replies, and lets listings lag."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from holdfast.retry import RetryPolicy
from holdfast.store.objects.errors import RequestLimits
from tests.http_servers import Quiet, serving_with
from tests.s3_server import S3Bucket

AT_ONCE = RetryPolicy(3, first_s=0.001, cap_s=0.002, jitter=1.0)
HASTY = RequestLimits(AT_ONCE, AT_ONCE, timeout_s=5)
"""Three attempts of each request, at once."""


@dataclass(frozen=True)
class Fault:
    """What becomes of one request.

    Parameters
    ----------
    status : int
        What is answered; 200 without a code is the server's own answer, 0 cuts the connection.
    code : str
        Of the answer.
    is_done : bool
        Whether the server gets the request all the same.
    delay_s : float
        Before the reply.
    """

    status: int = 0
    code: str = ""
    is_done: bool = False
    delay_s: float = 0.0


DROPPED = Fault()
REPLY_LOST = Fault(is_done=True)
SLOW_DOWN = Fault(503, "SlowDown")
CONFLICT = Fault(409, "ConditionalRequestConflict")
DENIED = Fault(403, "AccessDenied")
FAILED_AFTER = Fault(500, "InternalError", is_done=True)


@dataclass(frozen=True)
class Request:
    """A request as it came in."""

    method: str
    path: str
    key_id: str
    at_s: float = 0.0
    """When, by the monotonic clock, which is one for all processes of a machine."""

    @property
    def is_listing(self) -> bool:
        """Whether it asks for keys."""
        return self.method == "GET" and ("list-type=" in self.path or self.path.endswith("?uploads"))


@dataclass
class S3Proxy:
    """What the proxy does.

    Parameters
    ----------
    faults : list of (str, Fault)
        What happens to the next requests of a method, or of one whose path has a word: ``"POST uploadId="``; each once,
        in this order.
    """

    faults: list[tuple[str, Fault]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    accepts: Callable[[str], bool] = lambda _: True
    """Whether an access key is valid; with another one the answer is ExpiredToken."""
    faulty: Callable[[Request], Fault | None] = lambda _: None
    """What happens to a request for which there is nothing in ``faults``."""
    before: Callable[[Request], None] = lambda _: None
    """Called before a request goes on to the server."""
    ignored_header: str = ""
    """Of requests, in small letters: the server does not get it."""
    are_listings_old: bool = False
    """Whether listings are answered with what was answered before."""
    endpoint: str = ""
    _listings: dict[str, tuple[int, list[tuple[str, str]], bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_fault(self, request: Request) -> Fault | None:
        """Take the fault for a request."""
        with self._lock:
            self.requests.append(request)
            if not self.accepts(request.key_id):
                return Fault(400, "ExpiredToken")
            for number, (method, fault) in enumerate(self.faults):
                verb, _, word = method.partition(" ")
                if verb == request.method and word in request.path:
                    del self.faults[number]
                    return fault
            return self.faulty(request)

    @property
    def methods(self) -> list[str]:
        """The methods of the requests so far."""
        return [request.method for request in self.requests]


@contextmanager
def s3_proxy(endpoint: str) -> Iterator[S3Proxy]:
    """Run a proxy for the length of the block."""
    proxy = S3Proxy()
    host = urlsplit(endpoint).netloc

    class Handler(Quiet):
        def _answer_any(self) -> None:
            body = self.body()
            credential = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
            request = Request(self.command, self.path, credential, time.monotonic())
            fault = proxy.next_fault(request)
            if fault is None or fault.is_done:
                proxy.before(request)
                reply = self._forwarded(request, body)
            if fault is not None:
                time.sleep(fault.delay_s)
            if fault is not None and (fault.status != 200 or fault.code):
                text = f"<Error><Code>{fault.code}</Code><Message>as the test wants it</Message></Error>"
                reply = (fault.status, [("Content-Type", "application/xml")], text.encode())
            self._send(*reply)

        def _forwarded(self, request: Request, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            if request.is_listing and proxy.are_listings_old:
                return proxy._listings[request.path]
            connection = http.client.HTTPConnection(host, timeout=30)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() != proxy.ignored_header}
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                reply = (answer.status, answer.getheaders(), answer.read())
            finally:
                connection.close()
            if request.is_listing:
                proxy._listings[request.path] = reply
            return reply

        def _send(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            if not status:
                self.close_connection = True
                return
            self.send_response_only(status)
            kept = [(name, value) for name, value in headers if name.lower() not in _OF_THE_HOP]
            length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            for name, value in [*kept, ("Content-Length", length)]:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer_any

    with serving_with(Handler) as port:
        proxy.endpoint = f"http://127.0.0.1:{port}"
        yield proxy


_OF_THE_HOP = {"content-length", "connection", "transfer-encoding", "keep-alive"}


@pytest.fixture
def proxy(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """Return a proxy by which every client that is made in the test reaches the bucket's server."""
    with s3_proxy(s3_bucket.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
