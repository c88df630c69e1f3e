"""Secrets in texts: found by their form and masked before a text reaches a log, a terminal or a file.

The second line of defence.  The first is that nothing of Holdfast puts a secret into a text; but drivers, Spark and
users' code do (a DSN in an exception, the options of a reader).  Too much is masked rather than too little.
"""

from __future__ import annotations

import re
from typing import Any

COVER = "***"

# Without quotes, a backslash precedes a blank that belongs to the value: libpq reads it so.
_VALUE = r"""(?:'(?:\\.|''|[^'\\])*'|"(?:\\.|""|[^"\\])*"|\\"(?:[^"\\]|\\[^"])*\\"|(?:[^\s,;&)}\]'"\\]++|\\.?)++)"""
_WORDS = r"password|passwd|passphrase|pwd|secret|access[_.-]?key|api[_.-]?key|account[_.-]?key|token|credentials?"

# Each pattern reads a place of the text a few times at most, however long a word is: messages quote lines of users.
_WORD_WITH_URL = re.compile(r"(?<!\S)\S*?://\S*+")
_LOGIN = re.compile(r"://[^\s:/@]*+:")
# password=secret, PGPASSWORD = 'se cret', "db.password": "secret", &sslpassword=secret
_NAMED = re.compile(
    rf"(?i)(?<![\w.-])(?=[\w.-]*?(?:{_WORDS}))([\w.-]++\\?[\"']?\s*+[=:]\s*+){_VALUE}",
)
_SECRET = re.compile(rf"(?i){_WORDS}")
_AUTHORIZATION = re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}")


def masked(text: str) -> str:
    """Return the text with every password, token and key in it covered.

    Examples
    --------
    >>> masked("postgresql://app:hunter2@db/trips")
    'postgresql://app:***@db/trips'
    >>> masked("connect: host=db password=hunter2 user=app")
    'connect: host=db password=*** user=app'
    """
    if "://" in text:
        text = _WORD_WITH_URL.sub(_without_login, text)
    text = _NAMED.sub(rf"\1{COVER}", text)
    return _AUTHORIZATION.sub(rf"\1{COVER}", text)


def _without_login(found: re.Match[str]) -> str:
    """Cover the password in ``postgresql://user:secret@host``: up to the last @, for it may hold an @ itself."""
    word = found[0]
    end = word.rfind("@")
    login = _LOGIN.search(word, 0, end) if end >= 0 else None
    return word if login is None else f"{word[: login.end()]}{COVER}{word[end:]}"


def masked_json(value: Any) -> Any:
    """Return a JSON value with every text in it masked, and covered where its key is the name of a secret.

    Examples
    --------
    >>> masked_json({"dsn": "postgresql://app:hunter2@db/trips", "token": "hunter2", "tokens": 3, "key": {"token": []}})
    {'dsn': 'postgresql://app:***@db/trips', 'token': '***', 'tokens': 3, 'key': {'token': []}}
    """
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {_key(key): _covered(inner) if _is_secret(key) else masked_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked_json(inner) for inner in value]
    return value


def _key(key: Any) -> Any:
    return masked(key) if isinstance(key, str) else key


def _is_secret(key: Any) -> bool:
    return isinstance(key, str) and _SECRET.search(key) is not None


def _covered(value: Any) -> Any:
    """Cover a text, and texts in a list; what else a key of that name has may be no secret, such as counts."""
    if isinstance(value, str):
        return COVER if value else value
    return [_covered(inner) for inner in value] if isinstance(value, list | tuple) else masked_json(value)
