"""Who may read the page, and who may tell the run something (design/0049, section 6).

Invariants: a request is answered only if its ``Host`` is a name of this page, so no other site can rebind its own name
to it; a command is carried out only with the cookie of somebody who knew the token, and with the token of a form that
this page made for that cookie; every answer forbids whatever is not this page's own.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

TOKEN_MIN = 16
"""Characters of a token."""

COOKIE = "holdfast"

ATTEMPTS, ATTEMPTS_S = 10, 60.0
"""How many wrong tokens are looked at in how many seconds."""

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; without a host this machine alone.

    Raises
    ------
    ValueError
        If it is none.

    Examples
    --------
    >>> split_address("127.0.0.1:8080"), split_address("[::1]:80"), split_address(":8080")
    (('127.0.0.1', 8080), ('::1', 80), ('127.0.0.1', 8080))
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("db.example")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Guard:
    """Decides on each request.

    Parameters
    ----------
    host : str
        Where the page listens.
    token : str
        Whoever knows it may tell the run something; empty: nobody may.
    now_s : callable
        Time that only grows, seconds.
    """

    host: str
    token: str = field(default="", repr=False)
    now_s: Callable[[], float] = time.monotonic
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _wrong: deque[float] = field(default_factory=lambda: deque(maxlen=ATTEMPTS))

    @property
    def needs_token(self) -> bool:
        """Whether also who reads must have shown the token."""
        return not is_loopback(self.host)

    def knows_host(self, given: str) -> bool:
        """Return whether a ``Host`` names this page: an address in numbers, or a name of this machine.

        An address in numbers cannot be bound to another one; a name can, by whoever owns it.
        """
        name = given.rpartition("]")[0].lstrip("[") if given.startswith("[") else given.partition(":")[0]
        if is_loopback(name):
            return True
        if not self.needs_token:
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name.lower() in {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}

    def opens(self, token: str) -> str | None:
        """Return the value of the cookie for who knows the token; None for who does not, or tries too often."""
        now = self.now_s()
        if len(self._wrong) == ATTEMPTS and now - self._wrong[0] < ATTEMPTS_S:
            return None
        if not self.token or not hmac.compare_digest(token.encode(), self.token.encode()):
            self._wrong.append(now)
            return None
        session = secrets.token_urlsafe(24)
        return f"{session}.{self._sign('cookie', session)}"

    def knows_cookie(self, cookie: str) -> bool:
        """Return whether this page made a cookie."""
        session, _, signature = cookie.partition(".")
        return bool(self.token) and hmac.compare_digest(signature.encode(), self._sign("cookie", session).encode())

    def form_token(self, cookie: str) -> str:
        """Return what the forms of a page send back that is shown to who has a cookie; empty for others."""
        return self._sign("form", cookie) if self.knows_cookie(cookie) else ""

    def may_command(self, cookie: str, form_token: str) -> bool:
        """Return whether a form is one of this page, and its sender has shown the token."""
        return self.knows_cookie(cookie) and hmac.compare_digest(form_token.encode(), self.form_token(cookie).encode())

    def _sign(self, what: str, text: str) -> str:
        return hmac.new(self._key, f"{what}:{text}".encode(), hashlib.sha256).hexdigest()
