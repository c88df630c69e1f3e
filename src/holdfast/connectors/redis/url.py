"""The address of a server: ``${VARIABLE}`` filled in, and which parts of it may be shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from holdfast.errors import InvalidPipeline
from holdfast.types.variables import VARIABLE, filled_in_url

_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True)
class RedisUrl:
    """An address whose text is never shown.

    Parameters
    ----------
    text : str
        ``redis://[user:password@]host[:port][/database]``, ``rediss://`` for TLS, ``unix://[...@]path[?db=...]``.
        ``${NAME}`` is an environment variable; its value is percent-encoded, unless it is the whole text.
    """

    text: str = field(repr=False)

    def check(self) -> None:
        """Raise :class:`InvalidPipeline` if it is none."""
        if VARIABLE.fullmatch(self.text):
            return
        try:
            parts = urlsplit(self.text)
            is_right = parts.scheme in _SCHEMES and (parts.scheme == "unix" or bool(parts.hostname)) and parts.port != 0
        except ValueError:
            is_right = False
        if not is_right:
            raise InvalidPipeline(
                f"write.redis: {self} is no address of a Redis server.",
                why=f"it begins with {', '.join(f'{scheme}://' for scheme in _SCHEMES)}, and names a host or a path.",
                do='write for instance "redis://localhost:6379/0", or '
                '"rediss://app:${REDIS_PASSWORD}@redis.example:6379".',
            )

    def expanded(self, environment: Mapping[str, str] = os.environ) -> RedisUrl:
        """Return it with the variables filled in; raise :class:`InvalidPipeline` where one is not set."""
        url = RedisUrl(filled_in_url(self.text, "write.redis: the address", environment))
        url.check()
        return url

    @property
    def has_password(self) -> bool:
        """Whether the text holds a password."""
        return ":" in urlsplit(self.text).netloc.rpartition("@")[0] or "password=" in self.text

    def __str__(self) -> str:
        """Return what may be shown: host, port, database or path, and user.

        Examples
        --------
        >>> str(RedisUrl("rediss://app:secret@redis.example:6380/2?protocol=3"))
        'rediss://app@redis.example:6380/2'
        >>> str(RedisUrl("unix://app:secret@/run/redis.sock?db=1")), str(RedisUrl("${REDIS_URL}"))
        ('unix://app@/run/redis.sock', '${REDIS_URL}')
        """
        if VARIABLE.fullmatch(self.text):
            return self.text
        try:
            parts = urlsplit(self.text)
            user = f"{parts.username}@" if parts.username else ""
            port = f":{parts.port}" if parts.port else ""
            host = parts.hostname or ""
        except ValueError:  # an unfinished address; the rest of the text may hold the password
            return "..."
        if parts.scheme not in _SCHEMES or "@" in parts.path:
            return "..."
        return f"{parts.scheme}://{user}{host}{port}{parts.path}"
