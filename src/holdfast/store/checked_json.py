"""Small JSON objects of a checkpoint with a checksum in them: damage that leaves valid JSON is detected too.

The member ``#sha256`` holds the checksum of all others.  An object without it was written by an older version, and is
accepted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from holdfast.errors import invariant

_CHECK = "#sha256"


def dump(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of an object; equal objects have equal bytes.

    Examples
    --------
    >>> dump({"buckets": 2})
    b'{"#sha256":"8b05c6e6fd0ff8ca","buckets":2}'
    """
    invariant(_CHECK not in value, f"a record is to have a member {_CHECK!r} of its own.")
    return _text({**value, _CHECK: _checksum(value)})


def load(data: bytes) -> dict[str, Any]:
    """Return what :func:`dump` was given.

    Raises
    ------
    ValueError
        If the bytes are no JSON object, or not the one that was written.

    Examples
    --------
    >>> load(dump({"buckets": 2}))
    {'buckets': 2}
    >>> load(dump({"buckets": 2}).replace(b":2", b":3"))
    Traceback (most recent call last):
    ValueError: its checksum does not match: it was changed
    """
    try:
        value = json.loads(data)
    except ValueError:
        raise ValueError("it is not the JSON that was written there: it was truncated or changed") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - the bytes are wrong, not the argument
    check = value.pop(_CHECK, None)
    if check is not None and check != _checksum(value):
        raise ValueError("its checksum does not match: it was changed")
    return value


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(value)).hexdigest()[:16]


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
