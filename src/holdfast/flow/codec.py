"""Values as bytes: of packets that wait, and of what calculators save.

Plain values have one form only; a value of another class is pickled.  A checkpoint holds these bytes, so their form
changes only with a new tag.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.flow.queues import ABSENT

_LENGTH = struct.Struct(">I")
_INT = struct.Struct(">q")
_FLOAT = struct.Struct(">d")
_PLAIN = {b"N": None, b"T": True, b"F": False, b"A": ABSENT}
_BITS = 63


def encode(value: Any, *, of: str) -> bytes:
    """Return a value as bytes.

    Parameters
    ----------
    value : object
        None, bool, int, float, str, bytes, list, tuple, dict, of these or of what can be pickled.
    of : str
        Whose it is, for the error.

    Raises
    ------
    InvalidPipeline
        If it cannot be pickled.

    Examples
    --------
    >>> decode(encode({"a": [1, (2.5, None)], "b": b"x"}, of="the example"), of="the example")
    {'a': [1, (2.5, None)], 'b': b'x'}
    """
    parts: list[bytes] = []
    _write(value, parts, of)
    return b"".join(parts)


def _write(value: Any, parts: list[bytes], of: str) -> None:
    kind = type(value)
    if value is None:
        parts.append(b"N")
    elif kind is bool:
        parts.append(b"T" if value else b"F")
    elif value is ABSENT:
        parts.append(b"A")
    elif kind is int:
        if value.bit_length() <= _BITS:
            parts += (b"I", _INT.pack(value))
        else:
            _sized(b"J", str(value).encode(), parts)
    elif kind is float:
        parts += (b"D", _FLOAT.pack(value))
    elif kind is str:
        _sized(b"S", value.encode(), parts)
    elif kind is bytes:
        _sized(b"B", value, parts)
    elif kind in (list, tuple):
        parts += (b"L" if kind is list else b"U", _LENGTH.pack(len(value)))
        for each in value:
            _write(each, parts, of)
    elif kind is dict:
        parts += (b"M", _LENGTH.pack(len(value)))
        for key, each in value.items():
            _write(key, parts, of)
            _write(each, parts, of)
    else:
        _sized(b"P", _pickled(value, of), parts)


def _sized(tag: bytes, data: bytes, parts: list[bytes]) -> None:
    parts += (tag, _LENGTH.pack(len(data)), data)


def _pickled(value: Any, of: str) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise InvalidPipeline(
            f"A {type(value).__name__} of {of} cannot be kept between epochs: {error}.",
            why="what waits, or is saved, becomes bytes; values of classes are pickled.",
            do="send or save plain values, bytes, or objects of a class that can be pickled; what a decoder holds is "
            'made again from its input: Contract(replay_from="is_key").',
        ) from error


def decode(data: bytes, *, of: str) -> Any:
    """Return the value of some bytes.

    Raises
    ------
    Corrupt
        If they are none.
    InvalidPipeline
        If the class of a pickled value is gone.
    """
    try:
        value, end = _read(memoryview(data), 0, of)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise _corrupt(of) from error
    if end != len(data):
        raise _corrupt(of)
    return value


def _corrupt(of: str) -> Corrupt:
    return Corrupt(
        f"What is kept of {of} cannot be read.",
        why="the bytes are no value that was written.",
        do="restore the checkpoint from a copy.",
    )


def _read(data: memoryview, at: int, of: str) -> tuple[Any, int]:
    tag = bytes(data[at : at + 1])
    at += 1
    if tag in _PLAIN:
        return _PLAIN[tag], at
    if tag == b"I":
        return _INT.unpack_from(data, at)[0], at + 8
    if tag == b"D":
        return _FLOAT.unpack_from(data, at)[0], at + 8
    (length,) = _LENGTH.unpack_from(data, at)
    at += 4
    if tag in (b"L", b"U"):
        items = []
        for _ in range(length):
            item, at = _read(data, at, of)
            items.append(item)
        return (items if tag == b"L" else tuple(items)), at
    if tag == b"M":
        found = {}
        for _ in range(length):
            key, at = _read(data, at, of)
            found[key], at = _read(data, at, of)
        return found, at
    end = at + length
    if end > len(data):
        raise IndexError(end)
    raw = bytes(data[at:end])
    if tag == b"S":
        return raw.decode(), end
    if tag == b"B":
        return raw, end
    if tag == b"J":
        return int(raw), end
    if tag == b"P":
        return _unpickled(raw, of), end
    raise KeyError(tag)


def _unpickled(raw: bytes, of: str) -> Any:
    try:
        return pickle.loads(raw)
    except Exception as error:
        raise InvalidPipeline(
            f"A value of {of} cannot be read again: {type(error).__name__}: {error}.",
            why="its class was moved, renamed or changed since it was kept.",
            do="bring the class back under its old name until what waits has gone on.",
        ) from error
