"""Connection strings: ``${VARIABLE}`` filled in, and which parts of them may be shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from holdfast.errors import InvalidPipeline

_URL = ("postgresql://", "postgres://")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_KEYWORD = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:\\.|[^\s'\\])(?:\\.|[^\s\\])*)")
_SHOWN = ("host", "port", "dbname", "user")
"""Only these are ever shown: a list of what is safe cannot forget a new kind of secret."""

_STRUCTURE = ":,[]=&"
"""What a variable may hold for more than one value of a URL: ``host:port,host:port``, ``name=value&...``."""


@dataclass(frozen=True)
class Dsn:
    """A connection string whose text is never shown.

    Parameters
    ----------
    text : str
        URL (``postgresql://...``) or keywords (``host=... dbname=...``); ``${NAME}`` is an environment variable.
        In a URL its value is percent-encoded; one that is the whole text is used unchanged.
    """

    text: str = field(repr=False)

    def expanded(self, environment: Mapping[str, str] = os.environ) -> Dsn:
        """Return it with the variables filled in.

        Raises
        ------
        InvalidPipeline
            If a variable is not set; as :meth:`check`.
        """
        is_url, login_end = _is_url(self.text), _login_end(self.text)

        def value(match: re.Match[str]) -> str:
            if match[1] not in environment:
                raise InvalidPipeline(
                    f"the DSN names the environment variable {match[1]}, which is not set.",
                    why="it is filled in when the run starts, on the driver.",
                    do=f"set it: export {match[1]}=...",
                )
            text = environment[match[1]]
            if not is_url:
                return text
            is_value = match.start() < login_end or self.text[match.start() - 1] == "="
            return quote(text, safe="" if is_value else _STRUCTURE)

        dsn = Dsn(_VARIABLE.sub(value, self.text))
        dsn.check()
        return dsn

    @property
    def has_password(self) -> bool:
        """Whether the text holds a password, and leaves it neither to a file nor to the environment."""
        login = self.text[: _login_end(self.text)].partition("://")[2]
        return ":" in login or re.search(r"(?i)password\s*=", self.text) is not None

    def check(self) -> None:
        """Raise :class:`InvalidPipeline` if a part of a password is where PostgreSQL expects something else.

        The driver and the server would quote it as a host or a database that cannot be found.
        """
        host, database = _asked(self.text)
        if "@" in host + database:
            where = "host" if "@" in host else "database"
            raise InvalidPipeline(
                f"what the DSN says of the {where} has an @ in it.",
                why="a user or password with @ or / in it ends there, and its rest would be looked for as a "
                f"{where} (and be shown in messages).",
                do="write such characters as %40 and %2F; or name an environment variable for it, "
                "postgresql://user:${PASSWORD}@host/database: what is filled in is encoded.",
            )

    def __str__(self) -> str:
        r"""Return what may be shown: host, port, database and user.

        Examples
        --------
        >>> str(Dsn("postgresql://ann:secret@db.example:5433/trips?sslmode=require"))
        'postgresql://ann@db.example:5433/trips'
        >>> str(Dsn("host=db.example password='s e c' dbname=trips"))
        'host=db.example dbname=trips'
        >>> str(Dsn(r"host=db.example password=top\ user=secret dbname=trips"))
        'host=db.example dbname=trips'
        >>> str(Dsn("${TRIPS_DSN}"))
        '${TRIPS_DSN}'
        """
        if _VARIABLE.fullmatch(self.text):
            return self.text
        if _is_url(self.text):
            return self._shown_url()
        found = {keyword.lower(): value for keyword, value in _KEYWORD.findall(self.text)}
        return " ".join(f"{key}={'...' if '@' in found[key] else found[key]}" for key in _SHOWN if key in found)

    def _shown_url(self) -> str:
        try:
            self.check()
            parts = urlsplit(self.text)
            address = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
        except (ValueError, InvalidPipeline):  # an unfinished address; the rest of the text may hold the password
            return "postgresql://..."
        user = f"{parts.username}@" if parts.username else ""
        return f"postgresql://{user}{address}{parts.path}"


def _is_url(text: str) -> bool:
    return text.startswith(_URL)


def _login_end(text: str) -> int:
    """Return where user and password end in a URL, as PostgreSQL's client library reads it; 0 where there is none."""
    if not _is_url(text):
        return 0
    start = text.index("://") + 3
    end = next((at for at in range(start, len(text)) if text[at] in "@/"), len(text))
    return end if text[end : end + 1] == "@" else 0


def _asked(text: str) -> tuple[str, str]:
    """Return hosts with ports, and the database, as PostgreSQL's client library reads them."""
    if not _is_url(text):
        found = {keyword.lower(): value for keyword, value in _KEYWORD.findall(text)}
        return found.get("host", ""), found.get("dbname", "")
    login_end = _login_end(text)
    rest = text[login_end + 1 :] if login_end else text[text.index("://") + 3 :]
    hosts = re.split("[/?]", rest, maxsplit=1)[0]
    path = rest[len(hosts) :].partition("?")[0]
    return hosts, path
