"""Secrets in texts: found by their form and covered, before a text reaches a log, a terminal or a file.

The second line of defence.  The first is that nothing of Holdfast puts a secret into a text; but drivers, Spark and
users' code do (a DSN in an exception, the options of a reader).  Rather too much is covered than too little.
"""

from __future__ import annotations

import re
from typing import Any

COVER = "***"

_VALUE = r"""(?:'(?:\\.|''|[^'\\])*'|"(?:\\.|""|[^"\\])*"|\\"(?:[^"\\]|\\[^"])*\\"|[^\s,;&)}\]'"]+)"""
_WORDS = r"password|passwd|passphrase|pwd|secret|access[_.-]?key|api[_.-]?key|account[_.-]?key|token|credentials?"

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # postgresql://user:secret@host/db: up to the last @ before a blank, because a password may hold an @ itself.
    (re.compile(r"(://[^\s:/@]*:)\S*@"), rf"\1{COVER}@"),
    # password=secret, PGPASSWORD = 'se cret', "db.password": "secret", &sslpassword=secret
    (re.compile(rf"(?i)([\w.-]*(?:{_WORDS})[\w.-]*\\?[\"']?\s*[=:]\s*){_VALUE}"), rf"\1{COVER}"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"), rf"\1{COVER}"),
)


def masked(text: str) -> str:
    """Return the text with every password, token and key in it covered.

    Examples
    --------
    >>> masked("postgresql://app:hunter2@db/trips")
    'postgresql://app:***@db/trips'
    >>> masked("connect: host=db password=hunter2 user=app")
    'connect: host=db password=*** user=app'
    """
    for pattern, cover in _PATTERNS:
        text = pattern.sub(cover, text)
    return text


def masked_json(value: Any) -> Any:
    """Return a JSON value with every text in it masked."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {key: masked_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked_json(inner) for inner in value]
    return value
