"""One request at a time: sent until it is answered, with waits in between that the server may make longer.

Invariant: nothing is sent before the time that the server has named, by whichever request it was told.
"""

from __future__ import annotations

import email.utils
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

import urllib3

from holdfast.connectors.http.bodies import Request
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline, Unavailable
from holdfast.masking import COVER, masked
from holdfast.ports import Clock
from holdfast.retry import Retrier, RetryPolicy

log = logging.getLogger("holdfast.connectors.http")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 30.0
"""The wait before the second try, and the longest that is not the server's; doubled in between."""

OBEYED_S = 600.0
"""How long a server is waited for in one go; where it names a later time, the try fails until then."""

_LATER = frozenset({408, 425, 429})
"""Answers of the 4xx that say: not now."""

_NOT_THE_ROW = frozenset({401, 403, 404, 405, 407, 410})
"""Those that say: whatever the row is."""

_TEXT_MAX = 300
_READ_MAX = 1 << 20


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and what each of them says.

    Parameters
    ----------
    node : str
        ``sink 'name'``, for errors.
    url : str
        With all variables filled in.
    shown : str
        Of the address what may be shown.
    headers : mapping of str to str
        Of every request.
    secrets : mapping of str to str
        Headers that are shown nowhere.
    covered : tuple of str
        Texts that are taken out of what the server says.
    key_header : str
        Which header has the key.
    """

    node: str
    url: str = field(repr=False)
    shown: str
    headers: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    covered: tuple[str, ...] = field(default=(), repr=False)
    key_header: str = "Idempotency-Key"


class Posting:
    """Sends requests; several threads may.

    Parameters
    ----------
    address : Endpoint
        Where to.
    clock : Clock
        For the waits.
    timeout_s : float
        For connecting, and for each read.
    attempts : int
        Tries of a request, the first included.
    at_once : int
        Connections that are kept.
    held_status : frozenset of int
        Answers that say that the server has the row already.
    """

    def __init__(
        self,
        address: Endpoint,
        clock: Clock,
        *,
        timeout_s: float = 30.0,
        attempts: int = 10,
        at_once: int = 1,
        held_status: frozenset[int] = frozenset(),
    ) -> None:
        self._address = address
        self._clock = clock
        policy = RetryPolicy(attempts, FIRST_WAIT_S, LONGEST_WAIT_S, jitter=0.5)
        self._retrier = Retrier(policy, clock, on_retry=self._log_retry)
        self._held_status = held_status
        self._lock = threading.Lock()
        self._not_before_us = 0
        timeout = urllib3.Timeout(connect=timeout_s, read=timeout_s)
        self._pool = urllib3.PoolManager(retries=False, timeout=timeout, maxsize=at_once, block=True)

    def post(self, request: Request) -> None:
        """Send a request until the server has taken it.

        Raises
        ------
        BadRow, InvalidPipeline
            If the server refuses the row, or any row.
        Unavailable
            After the last try, or where the server names a time that is far away.
        """
        for attempt in count(1):
            self._wait_for_the_server()
            failure = self._try(request)
            if failure is None:
                return
            if not self._retrier.wait_after(attempt, "post", failure):
                raise failure

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _log_retry(self, doing: str, attempt: int, failure: HoldfastError) -> None:
        log.info("%s It is tried again (%d of %d).", failure.what, attempt, self._retrier.policy.attempts)

    def _try(self, request: Request) -> Unavailable | None:
        """Send it once; return why it must be sent again, if it must."""
        address = self._address
        said = {**address.headers, **address.secrets, address.key_header: request.key}
        try:
            answer = self._pool.request(
                "POST", address.url, body=request.body, headers=said, redirect=False, preload_content=False
            )
            text = self._text(answer)
        except urllib3.exceptions.LocationValueError as error:
            raise self._invalid(f"{address.shown} is no address.", self._safe(str(error))) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return self._unavailable("did not answer", f"{type(error).__name__}: {self._safe(str(error))}")
        status = answer.status
        if 200 <= status < 300 or status in self._held_status:
            return None
        if status in _LATER or status >= 500:
            self._note_time(answer.headers)
            return self._unavailable(f"answered {status}", text)
        if status in _NOT_THE_ROW or status < 400:
            raise self._invalid(f"the server at {address.shown} answered {status}.", text)
        raise BadRow(
            f"{address.node}: the server at {address.shown} refused {_rows(request)}: {status}.",
            why=f"it said: {text or '(nothing)'}",
            do="correct or filter such rows before the sink, or let the server take them.  Where the answer means that "
            f"it has the row already: duplicate_status=({status},).",
            participant=address.node,
        )

    def _text(self, answer: urllib3.BaseHTTPResponse) -> str:
        """Return the beginning of an answer's text, and give the connection back."""
        try:
            data = answer.read(4 * _TEXT_MAX, decode_content=True)
            if int(answer.headers.get("Content-Length") or 0) > _READ_MAX:
                answer.close()
            else:
                answer.drain_conn()
        except ValueError:
            data = b""
        finally:
            answer.release_conn()
        return self._safe(data.decode("utf-8", "replace"))

    def _safe(self, text: str) -> str:
        for secret in self._address.covered:
            text = text.replace(secret, COVER)
        return masked(" ".join(text.split()))[:_TEXT_MAX]

    # --- the server's wish ------------------------------------------------------------------------------------------

    def _note_time(self, headers: Mapping[str, str]) -> None:
        wait_s = retry_after_s(headers, self._clock.now_us())
        with self._lock:
            self._not_before_us = max(self._not_before_us, self._clock.now_us() + int(wait_s * 1_000_000))

    def _wait_for_the_server(self) -> None:
        with self._lock:
            left_s = (self._not_before_us - self._clock.now_us()) / 1_000_000
        if left_s > OBEYED_S:
            raise self._unavailable("is not to be asked yet", f"it named a time in {left_s:.0f} s (Retry-After)")
        if left_s > 0:
            log.info("%s: the server asks to wait %.1f s.", self._address.node, left_s)
            self._clock.sleep_s(left_s)

    # --- errors -----------------------------------------------------------------------------------------------------

    def _unavailable(self, did: str, text: str) -> Unavailable:
        return Unavailable(
            f"{self._address.node}: the server at {self._address.shown} {did}.",
            why=f"{text or 'it said nothing more'}.",
            do="it is tried again, with the same key; if the problem persists, look at the server.",
            participant=self._address.node,
        )

    def _invalid(self, what: str, text: str) -> HoldfastError:
        return InvalidPipeline(
            f"{self._address.node}: {what}",
            why=f"it said: {text or '(nothing)'}",
            do="correct the address, or auth=; the server must take POST there, and is followed to no other address.",
            participant=self._address.node,
        )


def retry_after_s(headers: Mapping[str, str], now_us: int) -> float:
    """Return how long a server asks to wait: a number of seconds, or until a date, by its own clock where it says it.

    Examples
    --------
    >>> retry_after_s({"Retry-After": "7"}, 0)
    7.0
    >>> date = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT", "Date": "Wed, 21 Oct 2026 07:27:30 GMT"}
    >>> retry_after_s(date, 0), retry_after_s({"Retry-After": "soon"}, 0), retry_after_s({}, 0)
    (30.0, 0.0, 0.0)
    """
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text[:9])
    until = _date_s(text)
    if until is None:
        return 0.0
    here = _date_s(headers.get("Date", ""))
    return max(0.0, until - (now_us / 1_000_000 if here is None else here))


def _date_s(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _rows(request: Request) -> str:
    if request.row_count == 1:
        return f"the row {request.key!r}"
    return f"a request of {request.row_count} rows (key {request.key})"
