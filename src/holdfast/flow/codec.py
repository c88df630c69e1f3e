"""Values as bytes: of packets that wait, and of what calculators save.

What is kept is never a pickle, so whoever can write to a checkpoint cannot make code run by it (SECURITY.md).  Values
have one form each: plain ones, those of rows (times, decimals), NumPy arrays, dataclasses that a port of the graph
names, and those for which the graph says how (``Graph(keeps=...)``).  A form changes only with a new tag.
"""

from __future__ import annotations

import datetime
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.flow.queues import ABSENT, Payload

_LENGTH = struct.Struct(">I")
_INT = struct.Struct(">q")
_FLOAT = struct.Struct(">d")
_PLAIN = {b"N": None, b"T": True, b"F": False, b"A": ABSENT}
_BITS = 63

Keeping = tuple[Callable[[Payload], Payload], Callable[[Payload], Payload]]
"""How a value becomes one of plain values, and is made of it again."""

_AS_TEXT: dict[type, tuple[bytes, Callable[[Any], str], Callable[[str], Any]]] = {
    datetime.datetime: (b"Z", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: (b"Y", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: (b"H", datetime.time.isoformat, datetime.time.fromisoformat),
    Decimal: (b"C", str, Decimal),
    UUID: (b"V", str, UUID),
}
_OF_TEXT = {tag: make for tag, _, make in _AS_TEXT.values()}
_MICROSECOND = datetime.timedelta(microseconds=1)


class Codec:
    """Makes bytes of values, and values of bytes.

    Parameters
    ----------
    keeps : mapping of type to (callable, callable)
        Class -> how a value of it becomes one of plain values, and is made of that again.
    dataclasses : iterable of type
        Dataclasses that are kept field by field.

    Examples
    --------
    >>> codec = Codec()
    >>> codec.decode(codec.encode({"a": [1, (2.5, None)], "b": b"x"}, of="the example"), of="the example")
    {'a': [1, (2.5, None)], 'b': b'x'}
    """

    def __init__(self, keeps: Mapping[type, Keeping] | None = None, dataclasses: Iterable[type] = ()) -> None:
        self._kinds: dict[str, Keeping] = {_name_of(each): (_fields_of, _made_of(each)) for each in dataclasses}
        self._kinds |= {_name_of(each): keeping for each, keeping in (keeps or {}).items()}

    def encode(self, value: Payload, *, of: str) -> bytes:
        """Return a value as bytes; ``of`` says whose it is, for the error.

        Raises
        ------
        InvalidPipeline
            If nobody says how values of its class are kept.
        """
        parts: list[bytes] = []
        self._write(value, parts, of)
        return b"".join(parts)

    def decode(self, data: bytes, *, of: str) -> Payload:
        """Return the value of some bytes.

        Raises
        ------
        Corrupt
            If they are none.
        InvalidPipeline
            If nobody says any more how values of a class are made.
        """
        try:
            value, end = self._read(memoryview(data), 0, of)
        except (struct.error, IndexError, ValueError, KeyError, ArithmeticError) as error:
            raise _corrupt(of) from error
        if end != len(data):
            raise _corrupt(of)
        return value

    def _write(self, value: Payload, parts: list[bytes], of: str) -> None:
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
                _write_sized(b"J", str(value).encode(), parts)
        elif kind is float:
            parts += (b"D", _FLOAT.pack(value))
        elif kind is str:
            _write_sized(b"S", value.encode("utf-8", "surrogatepass"), parts)
        elif kind is bytes:
            _write_sized(b"B", value, parts)
        elif kind in (list, tuple):
            parts += (b"L" if kind is list else b"U", _LENGTH.pack(len(value)))
            for each in value:
                self._write(each, parts, of)
        elif kind is dict:
            parts += (b"M", _LENGTH.pack(len(value)))
            for key, each in value.items():
                self._write(key, parts, of)
                self._write(each, parts, of)
        elif kind is datetime.datetime and (zone := _zone_of(value)) is not None:
            parts.append(b"P")
            self._write([value.replace(tzinfo=None).isoformat(), zone, value.fold], parts, of)
        elif kind in _AS_TEXT:
            tag, text_of, _ = _AS_TEXT[kind]
            _write_sized(tag, text_of(value).encode(), parts)
        elif kind is datetime.timedelta:
            _write_sized(b"R", str(value // _MICROSECOND).encode(), parts)
        elif kind in (set, frozenset):
            parts.append(b"E" if kind is set else b"K")
            self._write(sorted(self.encode(each, of=of) for each in value), parts, of)
        elif _is_of_numpy(value):
            parts.append(b"Q" if type(value) is sys.modules["numpy"].ndarray else b"G")
            self._write([_dtype_of(value), list(value.shape), value.tobytes()], parts, of)
        else:
            self._write_object(value, parts, of)

    def _write_object(self, value: Payload, parts: list[bytes], of: str) -> None:
        name = _name_of(type(value))
        if name not in self._kinds:
            raise InvalidPipeline(
                f"A {type(value).__name__} of {of} cannot be kept between epochs.",
                why="what waits, or is saved, becomes bytes, and nothing says how for values of this class.",
                do="send or save plain values, NumPy arrays, or a dataclass that a port of the calculator names; or "
                f"say how it is kept: hf.flow.Graph(keeps={{{type(value).__name__}: (to_plain, from_plain)}}).  What "
                'a decoder holds is made again from its input: Contract(replay_from="is_key").',
            )
        parts.append(b"O")
        self._write([name, self._kinds[name][0](value)], parts, of)

    def _read(self, data: memoryview, at: int, of: str) -> tuple[Payload, int]:
        tag = bytes(data[at : at + 1])
        at += 1
        if tag in _PLAIN:
            return _PLAIN[tag], at
        if tag == b"I":
            return _INT.unpack_from(data, at)[0], at + 8
        if tag == b"D":
            return _FLOAT.unpack_from(data, at)[0], at + 8
        if tag in (b"Q", b"G"):
            (kind, shape, raw), at = self._read(data, at, of)
            array = _array(kind, shape, raw)
            return array if tag == b"Q" else array[()], at
        if tag in (b"E", b"K"):
            members, at = self._read(data, at, of)
            found_members = {self.decode(each, of=of) for each in members}
            return found_members if tag == b"E" else frozenset(found_members), at
        if tag == b"P":
            (text, zone, fold), at = self._read(data, at, of)
            tz = ZoneInfo(zone) if zone else None
            return datetime.datetime.fromisoformat(text).replace(tzinfo=tz, fold=fold), at
        if tag == b"O":
            (name, plain), at = self._read(data, at, of)
            return self._object(name, plain, of), at
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        if tag in (b"L", b"U"):
            items = []
            for _ in range(length):
                item, at = self._read(data, at, of)
                items.append(item)
            return (items if tag == b"L" else tuple(items)), at
        if tag == b"M":
            found = {}
            for _ in range(length):
                key, at = self._read(data, at, of)
                found[key], at = self._read(data, at, of)
            return found, at
        end = at + length
        if end > len(data):
            raise IndexError(end)
        raw = bytes(data[at:end])
        if tag == b"B":
            return raw, end
        if tag == b"S":
            return raw.decode("utf-8", "surrogatepass"), end
        if tag in (b"J", b"R"):
            return int(raw) if tag == b"J" else int(raw) * _MICROSECOND, end
        return _OF_TEXT[tag](raw.decode()), end

    def _object(self, name: str, plain: Payload, of: str) -> Payload:
        if name not in self._kinds:
            raise InvalidPipeline(
                f"A value of {of} is of class {name}, which nothing says how to make.",
                why="it was kept when a port of the graph named this class, or keeps= did.",
                do="bring the class back under its old name until what waits has gone on.",
            )
        return self._kinds[name][1](plain)


def dataclasses_in(types: Iterable[Payload]) -> list[type]:
    """Return the dataclasses among the types of ports, in the order in which they are named."""
    several = [each for one in types for each in (one if isinstance(one, tuple) else (one,))]
    return list(dict.fromkeys(each for each in several if isinstance(each, type) and is_dataclass(each)))


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _fields_of(value: Payload) -> dict[str, Payload]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _made_of(kind: type) -> Callable[[Any], Any]:
    """Return what makes an object of its fields: one that it had not then has its default, one that is gone is left."""

    def make(plain: Any) -> Any:
        made: Any = object.__new__(kind)
        for each in fields(kind):
            if each.name in plain:
                object.__setattr__(made, each.name, plain[each.name])
            elif each.default_factory is not MISSING:
                object.__setattr__(made, each.name, each.default_factory())
            elif each.default is not MISSING:
                object.__setattr__(made, each.name, each.default)
        return made

    return make


def _zone_of(value: datetime.datetime) -> str | None:
    """Return the zone of a time whose text does not say all of it: the name, or nothing where it has none."""
    if isinstance(value.tzinfo, ZoneInfo):
        return value.tzinfo.key
    return "" if value.fold and value.tzinfo is None else None


def _is_of_numpy(value: Payload) -> bool:
    """Return whether a value is an array, or one number of NumPy's; of those whose type says all of it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return False
    if value.dtype.hasobject or value.dtype.fields is None:
        return not value.dtype.hasobject
    try:
        return bool(numpy.dtype(value.dtype.descr) == value.dtype)
    except ValueError:  # its fields overlap
        return False


def _dtype_of(value: Payload) -> Payload:
    """Return the type of an array as plain values; one with fields as (name, type, ...) of each."""
    return value.dtype.str if value.dtype.fields is None else [list(each) for each in value.dtype.descr]


def _array(kind: Payload, shape: list[int], raw: bytes) -> Payload:
    import numpy  # where one was kept; a graph without arrays needs none

    dtype = numpy.dtype(kind if isinstance(kind, str) else [tuple(each) for each in kind])
    if not dtype.itemsize:  # of an empty text
        return numpy.zeros(shape, dtype)
    return numpy.frombuffer(raw, dtype).reshape(shape).copy()


def _write_sized(tag: bytes, data: bytes, parts: list[bytes]) -> None:
    parts += (tag, _LENGTH.pack(len(data)), data)


def _corrupt(of: str) -> Corrupt:
    return Corrupt(
        f"What is kept of {of} cannot be read.",
        why="the bytes are no value that was written.",
        do="restore the checkpoint from a copy.",
    )
