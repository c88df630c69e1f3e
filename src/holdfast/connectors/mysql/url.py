"""The address of a database: ``${VARIABLE}`` filled in, and which parts of it may be shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import InvalidPipeline
from holdfast.types.variables import VARIABLE, filled_in_url

_SCHEMES = ("mysql", "mariadb")
_OPTIONS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity", "unix_socket")


@dataclass(frozen=True)
class MysqlUrl:
    """An address whose text is never shown.

    Parameters
    ----------
    text : str
        ``mysql://user[:password]@host[:port]/database[?ssl_ca=...]``.  ``${NAME}`` is an environment variable; its
        value is percent-encoded, unless it is the whole text.
    """

    text: str = field(repr=False)

    def check(self) -> None:
        """Raise :class:`InvalidPipeline` if it is none."""
        if VARIABLE.fullmatch(self.text):
            return
        try:
            parts = urlsplit(self.text)
            is_right = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
            is_right = is_right and len(parts.path) > 1 and "/" not in parts.path[1:] and "@" not in parts.path
            is_right = is_right and {name for name, _ in parse_qsl(parts.query)}.issubset(_OPTIONS)
        except ValueError:
            is_right = False
        if not is_right:
            raise InvalidPipeline(
                f"write.mysql: {self} is no address of a database of MySQL or MariaDB.",
                why=f"it begins with mysql://, names a host and a database, and knows {', '.join(_OPTIONS)}.",
                do='write for instance "mysql://app:${MYSQL_PASSWORD}@db.example:3306/shop"; letters like / and @ of a '
                "password are written %2F and %40.",
            )

    def expanded(self, environment: Mapping[str, str] = os.environ) -> MysqlUrl:
        """Return it with the variables filled in; raise :class:`InvalidPipeline` where one is not set."""
        url = MysqlUrl(filled_in_url(self.text, "write.mysql: the address", environment))
        url.check()
        return url

    @property
    def has_password(self) -> bool:
        """Whether the text holds a password."""
        return urlsplit(self.text).password is not None

    def parameters(self) -> dict[str, Any]:
        """Return what the driver connects by."""
        parts = urlsplit(self.text)
        found: dict[str, Any] = dict(parse_qsl(parts.query))
        if "ssl_verify_identity" in found:
            found["ssl_verify_identity"] = found["ssl_verify_identity"].lower() not in ("", "0", "false", "no")
        return {
            **found,
            "host": parts.hostname,
            "port": parts.port or 3306,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path[1:]),
        }

    def __str__(self) -> str:
        """Return what may be shown: host, port, database and user.

        Examples
        --------
        >>> str(MysqlUrl("mysql://ann:secret@db.example:3307/shop?ssl_ca=/etc/ca.pem"))
        'mysql://ann@db.example:3307/shop'
        >>> str(MysqlUrl("mysql://ann:s@cret@db.example/shop")), str(MysqlUrl("mysql://ann:se/cret@db.example/shop"))
        ('mysql://ann@db.example/shop', 'mysql://...')
        >>> str(MysqlUrl("${SHOP_URL}"))
        '${SHOP_URL}'
        """
        if VARIABLE.fullmatch(self.text):
            return self.text
        try:
            parts = urlsplit(self.text)
            if "@" in parts.path or not parts.hostname:  # an unfinished address; the rest may hold the password
                return "mysql://..."
            user = f"{parts.username}@" if parts.username else ""
            return f"{parts.scheme}://{user}{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        except ValueError:
            return "mysql://..."
