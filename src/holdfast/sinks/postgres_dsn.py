"""Connection strings: ``${VARIABLE}`` filled in, and what of them may be shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from holdfast.errors import InvalidPipeline

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_KEYWORD = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:\\.|[^\s'\\])(?:\\.|[^\s\\])*)")
_SHOWN = ("host", "port", "dbname", "user")
"""Only these are ever shown: a list of what is safe cannot forget a new kind of secret."""


@dataclass(frozen=True)
class Dsn:
    """A connection string whose text is never shown.

    Parameters
    ----------
    text : str
        URL (``postgresql://...``) or keywords (``host=... dbname=...``); ``${NAME}`` is an environment variable.
    """

    text: str = field(repr=False)

    def expanded(self, environment: Mapping[str, str] = os.environ) -> Dsn:
        """Return it with the variables filled in.

        Raises
        ------
        InvalidPipeline
            If a variable is not set.
        """

        def value(match: re.Match[str]) -> str:
            if match[1] not in environment:
                raise InvalidPipeline(
                    f"write.postgres: the DSN names the environment variable {match[1]}, which is not set.",
                    why="it is filled in when the run starts, on the driver.",
                    do=f"set it: export {match[1]}=...",
                )
            return environment[match[1]]

        return Dsn(_VARIABLE.sub(value, self.text))

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
        if self.text.startswith(("postgresql://", "postgres://")):
            return self._shown_url()
        found = {keyword.lower(): value for keyword, value in _KEYWORD.findall(self.text)}
        return " ".join(f"{keyword}={found[keyword]}" for keyword in _SHOWN if keyword in found)

    def _shown_url(self) -> str:
        try:
            parts = urlsplit(self.text)
            address = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
        except ValueError:  # an unfinished address; the rest of the text may hold the password
            return "postgresql://..."
        user = f"{parts.username}@" if parts.username else ""
        return f"postgresql://{user}{address}{parts.path}"
