"""Row ids: UUIDs that are computed from what a row is, and are the same whenever it is computed again (design/0022).

With a time an id has the layout of version 7 of RFC 9562: 48 bits of time, then 74 bits of a hash, so ids sort by time.
Without one it has that of version 8: 122 bits of a hash.

The hash is that of a *key*, 128 bits which say where ids come from, and of one of two things: a number that no other
row of the key has, or the values of some columns.  It is computed in two lanes of 64 bits, each of them a
permutation of what it takes.  An id takes one lane as a whole: numbers of one key never collide.

The bits of an id are an interface: ids of years ago must come out the same.  ``tests/unit/types/test_row_ids.py``
holds some of them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline

U64 = npt.NDArray[np.uint64]
Key = tuple[int, int]
Lanes = tuple[U64, U64]

TIME_END = 1 << 48
"""Milliseconds, or ticks, from which on times have no bits of their own: the year 10889."""

_ROWS_AT_ONCE = 1 << 14
"""Rows whose lanes fit a core's own cache: twice as fast as a whole batch."""

_LONG = 512
"""Bytes from which on a value is hashed on its own: fewer are hashed eight at a time, for all rows together."""

_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_NULL: Key = (0x6E756C6C5F5F5F31, 0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(33)
_ALL = (1 << 64) - 1

_NIBBLES = np.frombuffer(b"0123456789abcdef", np.uint8)
_FOUR = np.stack([_NIBBLES[np.arange(1 << 16) >> shift & 15] for shift in (12, 8, 4, 0)], 1).copy().view(np.uint32)
_HEX = _FOUR.reshape(-1)
"""The four digits of each number of 16 bits."""

_LENGTH = 36
_GROUPS = ((0, 0), (4, 1), (9, 2), (14, 3), (19, 4), (24, 5), (28, 6), (32, 7))
"""Where in a text each of the eight numbers of 16 bits stands."""


def key_of(*parts: str) -> Key:
    """Return the key of some texts, in their order.

    Examples
    --------
    >>> key_of("a", "bc") == key_of("ab", "c")
    False
    """
    text = b"".join(len(part.encode()).to_bytes(8, "little") + part.encode() for part in parts)
    digest = hashlib.blake2b(text, digest_size=16, person=b"holdfast row id").digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def ids_of_numbers(key: Key | Lanes, numbers: U64, times: pa.Array | None) -> pa.StringArray:
    """Return the ids of rows that have a number, each another one.

    Parameters
    ----------
    key : Key, or pair of ndarray of uint64
        Where the numbers are from: all of them, or each.
    numbers : ndarray of uint64
        One for each row.
    times : pa.Array, optional
        Their times, TIMESTAMP or BIGINT.
    """
    first, second = (np.broadcast_to(np.asarray(lane, np.uint64), len(numbers)) for lane in key)

    def lanes(start: int, end: int) -> Lanes:
        return _of_numbers((first[start:end], second[start:end]), numbers[start:end])

    return _in_parts(len(numbers), times, lanes)


def ids_of_columns(key: Key, columns: Sequence[pa.Array], times: pa.Array | None) -> pa.StringArray:
    """Return the ids of rows by the values of some columns: equal values have equal ids; null equals null.

    Whole numbers of every width are equal where their values are; so are floating-point numbers, 0.0 and -0.0, and
    every NaN.

    Raises
    ------
    InvalidPipeline
        If a column is of a type that has no canonical value.
    """
    return _in_parts(len(columns[0]), times, _lanes_of(key, columns))


def lanes_of_columns(key: Key, columns: Sequence[pa.Array]) -> Lanes:
    """Return the hashes that :func:`ids_of_columns` makes ids of, whole: 128 bits of each row.

    Raises
    ------
    InvalidPipeline
        If a column is of a type that has no canonical value.

    Examples
    --------
    >>> wide, narrow = (lanes_of_columns(key_of("k"), [pa.array([7, None], kind)]) for kind in (pa.int64(), pa.int8()))
    >>> (np.array(wide) == np.array(narrow)).all()
    np.True_
    """
    count, lanes = len(columns[0]), _lanes_of(key, columns)
    parts = [lanes(start, min(count, start + _ROWS_AT_ONCE)) for start in range(0, max(1, count), _ROWS_AT_ONCE)]
    first, second = (np.concatenate([part[lane] for part in parts]) for lane in (0, 1))
    return first, second


def _lanes_of(key: Key, columns: Sequence[pa.Array]) -> Callable[[int, int], Lanes]:
    kinds = [_kind(f"column {number + 1}", column.type) for number, column in enumerate(columns)]
    plain = [_plain(column, kind) for column, kind in zip(columns, kinds, strict=True)]

    def lanes(start: int, end: int) -> Lanes:
        a, b = (np.full(end - start, lane, np.uint64) for lane in key)
        for column, kind in zip(plain, kinds, strict=True):
            _take(a, b, column.slice(start, end - start), kind)
        return a, b

    return lanes


@dataclass(frozen=True)
class ReadId:
    """What an id says by itself: its time, where it has one, and what is left of the lanes.

    Parameters
    ----------
    ticks : int, optional
        Milliseconds of Unix time, or ticks; None: it has no time.
    first : int
        The first lane.
    second, known : int
        Bits of the second one, and which these are.
    """

    ticks: int | None
    first: int
    second: int
    known: int

    @staticmethod
    def of(text: str) -> ReadId:
        """Read an id.

        Raises
        ------
        ValueError
            If the text is no row id.
        """
        value = uuid.UUID(text).int
        high, low = value >> 64, value & _ALL
        if high >> 12 & 15 not in (7, 8) or low >> 62 != 2:
            raise ValueError("it is a UUID of another version")
        first = (low << 2 | high >> 10 & 3) & _ALL
        if high >> 12 & 15 == 7:
            return ReadId(high >> 16, first, (high & 1023) << 54, 1023 << 54)
        return ReadId(None, first, (high & 1023) << 54 | high >> 16, 1023 << 54 | (1 << 48) - 1)

    def number(self, key: Key) -> int | None:
        """Return the number that has this id under a key; None where none has.

        The lanes are permutations, so the number is computed and not searched.  One key in 2**10 has a number by chance
        (2**58 without a time), and that one is anywhere below 2**64.
        """
        inner = _unmixed(self.first) ^ key[0]
        if (inner * int(_SECOND) & _ALL & self.known) != self.second:
            return None
        return (_unmixed(inner) - key[1]) * pow(int(_STEP), -1, 1 << 64) & _ALL


def check_columns(schema: pa.Schema, columns: Sequence[str], timestamp: str | None) -> None:
    """Check that ids can be made of columns, and their time of another one.

    Raises
    ------
    InvalidPipeline
        If a column has another type: says which, and what to do.
    """
    for name in columns:
        _kind(repr(name), schema.field(name).type)
    if timestamp is not None:
        check_time(timestamp, schema.field(timestamp).type)


def check_time(column: str, kind: pa.DataType) -> None:
    """Check that a column can be the time of ids.

    Raises
    ------
    InvalidPipeline
        If it is neither a TIMESTAMP nor a BIGINT.
    """
    if not pa.types.is_timestamp(kind) and kind != pa.int64():
        raise InvalidPipeline(
            f"timestamp={column!r} is a column of type {kind}.",
            why="the first 48 bits of an id are a time, so that ids sort by it.",
            do="name a TIMESTAMP or a BIGINT, or write timestamp=False for ids without a time.",
        )


# --- lanes ------------------------------------------------------------------------------------------------------------


def _mix(lane: U64) -> U64:
    """Permute a lane in place: the finalizer of MurmurHash3 (Appleby), which passes every bit on to every other one."""
    lane ^= lane >> _SHIFT
    lane *= _FIRST
    lane ^= lane >> _SHIFT
    lane *= _SECOND
    lane ^= lane >> _SHIFT
    return lane


def _unmixed(value: int) -> int:
    """Return what :func:`_mix` makes a value of."""
    for factor in (_SECOND, _FIRST):
        value = (value ^ value >> 33) * pow(int(factor), -1, 1 << 64) & _ALL
    return value ^ value >> 33


def _of_numbers(keys: Lanes, numbers: U64) -> Lanes:
    """Return the lanes of numbers; the first one is a permutation of them."""
    inner = numbers * _STEP
    inner += keys[1]
    _mix(inner)
    other = inner * _SECOND
    inner ^= keys[0]
    return _mix(inner), other


def _kind(column: str, kind: pa.DataType) -> str:
    """Return which family of values a type is of; part of the hash."""
    if pa.types.is_dictionary(kind):
        return _kind(column, kind.value_type)
    types = pa.types
    families = {
        "int": types.is_integer(kind) and kind != pa.uint64(),
        "bool": types.is_boolean(kind),
        "float": types.is_floating(kind),
        "time": types.is_timestamp(kind),
        "date": types.is_date(kind),
        "text": types.is_string(kind) or types.is_large_string(kind),
        "bytes": types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind),
        "decimal": types.is_decimal(kind),
        "null": types.is_null(kind),
    }
    found = next((family for family, is_it in families.items() if is_it), None)
    if found is None:
        raise InvalidPipeline(
            f"a row id cannot be made of {column}, of type {kind}.",
            why="ids are made of numbers, texts, bytes, booleans, dates and timestamps.",
            do='name columns of its parts: hf.select("*", "address.city as city") | hf.row_id("city", ...); '
            "or its text: to_json(address) as address_text.",
        )
    return found


def _plain(column: pa.Array, kind: str) -> pa.Array:
    """Return a column as int64, double or binary: what equal values have in common."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind == "float":
        return pc.cast(column, pa.float64())
    if kind == "time":
        column = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False)
    if kind == "date":
        column = pc.cast(column, pa.date32()).cast(pa.int32())
    if kind == "decimal":  # the shortest spelling: 1.50 of one scale is 1.5 of another
        text = pc.cast(column, pa.string())
        has_point = pc.match_substring(text, ".")
        text = pc.if_else(has_point, pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), "."), text)
        return pc.cast(text, pa.large_binary())
    if kind in ("text", "bytes"):
        return pc.cast(column, pa.large_binary())
    return pc.cast(column, pa.int64())


def _take(a: U64, b: U64, column: pa.Array, kind: str) -> None:
    """Take the values of a column into both lanes."""
    tag = key_of("column", kind)
    a ^= np.uint64(tag[0])
    b ^= np.uint64(tag[1])
    is_null = np.asarray(pc.is_null(column)) if column.null_count else None
    if pa.types.is_large_binary(column.type):
        _take_bytes(a, b, column, is_null)
        return
    zero = 0.0 if kind == "float" else 0
    values = np.asarray(pc.fill_null(column, zero) if column.null_count else column)
    if kind == "float":
        values = np.where(np.isnan(values), np.nan, values + 0.0)  # -0.0 + 0.0 is 0.0
    words = values.view(np.uint64)
    if is_null is None:
        _take_words(a, b, words, words)
    else:
        _take_words(a, b, *(np.where(is_null, np.uint64(null), words) for null in _NULL))


def _take_words(a: U64, b: U64, one: U64, other: U64) -> None:
    a ^= one
    _mix(a)
    b += other * _STEP
    _mix(b)


def _take_bytes(a: U64, b: U64, column: pa.Array, is_null: npt.NDArray[np.bool_] | None) -> None:
    """Take the lengths of values, then their bytes, eight at a time; those of long ones by a digest."""
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    first, last = (int(offsets[0]), int(offsets[-1])) if len(column) else (0, 0)
    data = np.zeros(last - first + 8, np.uint8)
    if last > first:
        data[:-8] = np.frombuffer(column.buffers()[2], np.uint8)[first:last]
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    if is_null is not None:
        lengths = np.where(is_null, 0, lengths)
    sizes = lengths.astype(np.uint64)
    if is_null is None:
        _take_words(a, b, sizes, sizes)
    else:
        _take_words(a, b, *(np.where(is_null, np.uint64(null), sizes) for null in _NULL))
    anywhere = np.ndarray((len(data) - 7,), "<u8", data.data, strides=(1,))  # the eight bytes from each place on
    is_long = lengths >= _LONG
    short = np.where(is_long, 0, lengths) if is_long.any() else lengths
    for at in range(0, int(short.max(initial=0)), 8):
        rows = np.flatnonzero(short > at)
        is_all = len(rows) == len(short)
        words = anywhere[starts + at if is_all else starts[rows] + at]
        left = 8 - np.minimum((short if is_all else short[rows]) - at, 8)
        words &= np.uint64(0xFFFFFFFFFFFFFFFF) >> (left * 8).astype(np.uint64)
        if is_all:
            _take_words(a, b, words, words)
        else:
            some_a, some_b = a[rows], b[rows]
            _take_words(some_a, some_b, words, words)
            a[rows], b[rows] = some_a, some_b
    for row in np.flatnonzero(is_long).tolist():
        digest = hashlib.blake2b(data[starts[row] : starts[row] + lengths[row]].tobytes(), digest_size=16).digest()
        one, other = np.frombuffer(digest, "<u8").reshape(2, 1)
        _take_words(a[row : row + 1], b[row : row + 1], one, other)


# --- ids --------------------------------------------------------------------------------------------------------------


def _in_parts(count: int, times: pa.Array | None, lanes: Callable[[int, int], Lanes]) -> pa.StringArray:
    text = np.empty(count * _LENGTH, np.uint8)
    ticks = None if times is None else _ticks(times)
    for start in range(0, count, _ROWS_AT_ONCE):
        end = min(count, start + _ROWS_AT_ONCE)
        high, low = _layout(*lanes(start, end), None if ticks is None else ticks[start:end])
        _spell(high, low, text[start * _LENGTH : end * _LENGTH])
    offsets = np.arange(count + 1, dtype=np.int64) * _LENGTH
    if count * _LENGTH < 1 << 31:
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text))
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text)).cast(pa.string())


def _ticks(times: pa.Array) -> U64:
    """Return times as milliseconds of Unix time, BIGINTs as they are; those without bits of their own are the last."""
    is_timed = pa.types.is_timestamp(times.type)
    if is_timed:
        times = pc.cast(times, pa.timestamp("us", times.type.tz), safe=False).view(pa.int64())
    ticks = np.asarray(pc.fill_null(times, 0) if times.null_count else times)
    if is_timed:
        ticks = ticks // 1000
    taken: U64 = np.clip(ticks, 0, TIME_END - 1).astype(np.uint64)
    return taken


def _layout(a: U64, b: U64, ticks: U64 | None) -> Lanes:
    """Return the two halves of ids: 122 bits of a hash, or 48 of time and 74 of a hash; version and variant."""
    low = (a >> np.uint64(2)) | np.uint64(1 << 63)
    rest = (a & np.uint64(3)) << np.uint64(10)  # so that nothing of the first lane is lost
    rest |= b >> np.uint64(54)
    if ticks is None:
        return (b << np.uint64(16)) | np.uint64(0x8000) | rest, low
    return (ticks << np.uint64(16)) | np.uint64(0x7000) | rest, low


def _spell(high: U64, low: U64, text: npt.NDArray[np.uint8]) -> None:
    for at in (8, 13, 18, 23):
        text[at::_LENGTH] = ord("-")
    for at, number in _GROUPS:
        half = high if number < 4 else low
        digits = _HEX[(half >> np.uint64(48 - 16 * (number % 4))) & np.uint64(0xFFFF)]
        np.ndarray((len(high),), np.uint32, text.data, at, (_LENGTH,))[:] = digits
