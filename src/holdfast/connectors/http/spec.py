"""``write.http``: rows posted as JSON, each request with a key by which the server recognises it."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.http.bodies import FORMATS, Bodies, Format
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.graph.row_ids import AUTO, RowIds, check_id, id_column
from holdfast.ports import Guarantee, Sink
from holdfast.types import units
from holdfast.types.variables import filled_in

Auth = str | tuple[str, str] | Mapping[str, str]
"""The value of ``Authorization``; user and password; or headers by name."""

_SECRET_NAME = re.compile(r"(?i)authori[sz]ation|cookie|token|secret|password|api[-_]?key|credential|signature")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2
_OURS = ("content-type", "content-length", "host", "transfer-encoding")


def http(
    url: str,
    *,
    id: str = AUTO,
    batch_rows: int = 1,
    format: Format = "json",
    headers: Mapping[str, str] | None = None,
    auth: Auth | None = None,
    key_header: str = "Idempotency-Key",
    duplicate_status: Sequence[int] = (),
    at_once: int = 1,
    timeout: str = "30 s",
    attempts: int = 10,
    control: None = None,
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Post rows to an HTTP server, each under its id; at-least-once, and once in effect where it honours the key.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``; ``${NAME}`` is an environment variable.  Shown without its query.
    id : str
        The column that identifies a row: ``"auto"``, the one that ``hf.row_id`` made, or a column of which you know
        that it is unique.
    batch_rows : int
        Rows of a request.  With 1 its key is the row's id, which never changes.  With more it is made of the ids in the
        request: the server must then be unique by the id in each row, because after a crash rows can come in other
        batches.
    format : {"json", "lines"}
        ``"json"``: an object, or with ``batch_rows`` above 1 an array of objects.  ``"lines"``: an object in each line.
    headers : mapping of str to str, optional
        Headers of each request; not for secrets.
    auth : str, (str, str) or mapping of str to str, optional
        What is secret, shown nowhere: the value of ``Authorization`` (``"Bearer ${API_TOKEN}"``), user and password, or
        headers (``{"X-Api-Key": "${API_KEY}"}``).  ``${NAME}`` is an environment variable.
    key_header : str
        The header that has the key.
    duplicate_status : sequence of int
        Answers by which the server says that it has the row already, for instance ``(409,)``.
    at_once : int
        Requests on their way at the same time.  With more than 1 their order is not kept.
    timeout : str
        For connecting, and for the server's silence.
    attempts : int
        Tries of a request, before the run's own retries.
    control : None
        Other sinks have it (``docs/control-rows.md``): this one cannot carry out commands, and says so.
    name : str, optional
        The node's name.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.
    backfill : bool
        Whether the sink, added to a pipeline that has run, gets everything from the beginning: ``docs/state.md``.

    Returns
    -------
    SinkNode
        To be used to the right of ``stream |``.

    Raises
    ------
    InvalidPipeline
        If an argument is wrong, or holds a secret where one is shown.

    Notes
    -----
    Needs ``pip install 'holdfast[http]'``.  The driver sends.  What is waited for, and which answers stop a run:
    ``docs/sinks/http.md``.
    """
    with building("sink", name):
        check_no_control("write.http", control)
        timeout_us = units.duration_us(timeout, argument="timeout")
        spec = HttpSpec(
            url,
            check_id(id),
            batch_rows,
            format,
            tuple(sorted((headers or {}).items())),
            auth if isinstance(auth, str | tuple) or auth is None else tuple(sorted(auth.items())),
            key_header,
            tuple(duplicate_status),
            at_once,
            timeout_us,
            attempts,
        )
    return nodes.sink(spec, name=name, backfill=backfill, freshness=freshness)


@dataclass(frozen=True)
class HttpSpec:
    """Declaration of an HTTP server as a sink; parameters as in :func:`http`, mappings as tuples of pairs."""

    url: str = field(repr=False)
    id: str = AUTO
    batch_rows: int = 1
    format: Format = "json"
    headers: tuple[tuple[str, str], ...] = ()
    auth: str | tuple[Any, ...] | None = field(default=None, repr=False)
    key_header: str = "Idempotency-Key"
    duplicate_status: tuple[int, ...] = ()
    at_once: int = 1
    timeout_us: int = 30_000_000
    attempts: int = 10
    id_column: str | None = None

    kind = "http"
    guarantee = Guarantee.AT_LEAST_ONCE

    def __post_init__(self) -> None:
        _check_url(self.url)
        for argument in ("batch_rows", "at_once", "attempts"):
            value = getattr(self, argument)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidPipeline(
                    f"write.http: {argument}={value!r} is not a number above 0.",
                    do=f"leave it out, or write for instance {argument}=10.",
                )
        if self.format not in FORMATS:
            raise InvalidPipeline(
                f"write.http: format={self.format!r} is not known.", do=f"choose one of {', '.join(FORMATS)}."
            )
        if not all(isinstance(status, int) and 400 <= status < 500 for status in self.duplicate_status):
            raise InvalidPipeline(
                f"write.http: duplicate_status={self.duplicate_status!r} are not answers of 400 to 499.",
                do="write for instance duplicate_status=(409,).",
            )
        for header, value in (*self.headers, (self.key_header, ""), *self._secret_templates()):
            _check_header(header, value)
        for header, _ in self.headers:
            if _SECRET_NAME.search(header):
                raise InvalidPipeline(
                    f"write.http: the header {header} looks like a secret, and headers= is shown.",
                    why="arguments of a sink are in displays, fingerprints and logs.",
                    do=f'write auth={{"{header}": "${{NAME}}"}}, with an environment variable.',
                )

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: of the address and of ``auth`` nothing secret."""
        said: dict[str, Any] = {
            "url": shown(self.url),
            "id": self.id_column or self.id,
            "batch_rows": self.batch_rows,
            "format": self.format,
            "headers": dict(self.headers),
            "auth": [header for header, _ in self._secret_templates()],
            "key_header": self.key_header,
            "duplicate_status": list(self.duplicate_status),
        }
        return {name: value for name, value in said.items() if value not in ([], {})}

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Any columns will do; the id is checked with the stream's ids."""

    def identified(self, columns: Collection[str] | None, ids: RowIds | None) -> HttpSpec:
        """Return the declaration for a stream: with the column that identifies its rows."""
        return replace(self, id_column=id_column(self.id, columns, ids))

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Sink:
        """Return the sink.  The server is not asked: only rows could be sent to it."""
        with _driver(name):
            from holdfast.connectors.http.posting import Endpoint, Posting
            from holdfast.connectors.http.sink import HttpSink
        bodies = Bodies(self.id_column or self.id, self.batch_rows, self.format)
        url = filled_in(self.url, "write.http: the address", lambda text: quote(text, safe=":/?&=%"))
        _check_url(url)
        secrets = {header: filled_in(value, "write.http: auth") for header, value in self._secret_templates()}
        words = [*secrets.values()]
        if isinstance(self.auth, tuple) and self.auth and isinstance(self.auth[0], str):
            user, password = (filled_in(part, "write.http: auth") for part in self.auth)
            secrets = {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
            words = [password, *secrets.values()]
        words += [word.rpartition(" ")[2] for word in words]
        covered = tuple(sorted({word for word in words if word}, key=len, reverse=True))
        for header, value in secrets.items():
            _check_header(header, value)
        headers = {**dict(self.headers), "Content-Type": bodies.content_type, "User-Agent": f"holdfast ({pipeline})"}
        address = Endpoint(f"sink {name!r}", url, shown(self.url), headers, secrets, covered, self.key_header)
        posting = Posting(
            address,
            SystemClock(),
            timeout_s=self.timeout_us / 1_000_000,
            attempts=self.attempts,
            at_once=self.at_once,
            held_status=frozenset(self.duplicate_status),
        )
        return HttpSink(name, schema, bodies, posting, at_once=self.at_once)

    def _secret_templates(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of ``auth``, as they are written."""
        if self.auth is None:
            return ()
        if isinstance(self.auth, str):
            return (("Authorization", self.auth),)
        if len(self.auth) == 2 and all(isinstance(part, str) for part in self.auth):
            return (("Authorization", ""),)
        return self.auth


def shown(url: str) -> str:
    """Return what may be shown of an address: all but its query.

    Examples
    --------
    >>> shown("https://api.example:8443/v1/rows?key=secret"), shown("https://${HOST}/rows")
    ('https://api.example:8443/v1/rows', 'https://${HOST}/rows')
    """
    return url.partition("#")[0].partition("?")[0]


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.netloc)
        has_login = "@" in parts.netloc
    except ValueError:
        is_right, has_login = False, True
    if has_login:
        raise InvalidPipeline(
            "write.http: the address has a login, or is none.",
            why="addresses are shown.",
            do='write url="https://api.example/rows", auth=("user", "${PASSWORD}").',
        )
    if not is_right and not re.match(r"\$\{\w+\}", url):
        raise InvalidPipeline(
            f"write.http: {shown(url)!r} is no address of an HTTP server.",
            why="it begins with http:// or https://, and names a host.",
            do='write for instance "https://api.example/rows".',
        )


def _check_header(header: str, value: str) -> None:
    is_text = isinstance(header, str) and isinstance(value, str)
    if not is_text or not _TOKEN.fullmatch(header) or "\n" in value or "\r" in value or header.lower() in _OURS:
        raise InvalidPipeline(
            f"write.http: {header!r} is no header that can be set.",
            why=f"a header has a name and a text of one line, and {', '.join(_OURS)} are the sink's own.",
            do='write for instance headers={"X-Tenant": "air"}.',
        )


@contextmanager
def _driver(name: str) -> Iterator[None]:
    """Import what needs the library in the block."""
    try:
        yield
    except ImportError as error:
        raise InvalidPipeline(
            f"sink {name!r}: the HTTP library is not installed.",
            why=f"{error}.",
            do="pip install 'holdfast[http]'",
        ) from error
