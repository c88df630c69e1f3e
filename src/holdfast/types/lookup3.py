"""Bob Jenkins' lookup3 with 64 bits of result, over whole columns: the hash that PostgreSQL has for its own types.

The very values of ``hashtextextended``, ``hashint8extended`` and ``hashfloat8extended`` of a little-endian server
(``src/common/hashfn.c``, https://burtleburtle.net/bob/c/lookup3.c), so that a row is hashed alike here and there.
Columns are taken in blocks that stay in the processor's cache; nothing is done for a single row.
"""

from __future__ import annotations

import numpy as np

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]
_Words = np.ndarray[tuple[int], np.dtype[np.uint32]]

BLOCK_ROWS = 16_384
"""Rows that are hashed at once: about ten arrays of four bytes for each."""

_START = 0x9E3779B9 + 3923095
_TABLE_BYTES = 4096
"""The beginning depends on length and seed alone: up to this length it is looked up."""


def of_integers(values: np.ndarray, seed: int) -> Hashes:
    """Return ``hashint8extended(value, value # seed)`` of int64.

    PostgreSQL folds the halves of the integer into one, so that many distinct ones have one hash: the seed is made to
    depend on the value.
    """
    return _in_blocks(lambda part: _integers(part, part.view(np.uint64) ^ np.uint64(seed)), values.astype(np.int64))


def of_floats(values: np.ndarray, seed: int) -> Hashes:
    """Return ``hashfloat8extended(value, seed)`` of float64: -0.0 is 0.0, and one NaN as good as another."""
    return _in_blocks(lambda part: _floats(part, seed), values.astype(np.float64))


def of_texts(offsets: np.ndarray, data: np.ndarray, seed: int) -> Hashes:
    """Return ``hashtextextended(text COLLATE "C", seed)`` of texts as Arrow keeps them.

    Parameters
    ----------
    offsets : numpy.ndarray
        int32 or int64: where each begins in ``data``, and the end of the last.
    data : numpy.ndarray
        uint8.
    seed : int
        64 bits.
    """
    count = len(offsets) - 1
    result = np.empty(count, np.uint64)
    for first in range(0, count, BLOCK_ROWS):
        part = offsets[first : first + BLOCK_ROWS + 1].astype(np.int64)
        result[first : first + BLOCK_ROWS] = _texts(part - part[0], data[part[0] : part[-1]], seed)
    return result


def mixed(values: Hashes, constant: int) -> Hashes:
    """Return ``hashint8extended(constant, value)``: every bit of the result depends on every bit of the value."""
    return _in_blocks(lambda part: _uint32(np.uint32(constant), part), values)


def _in_blocks(function: object, values: np.ndarray) -> Hashes:
    result = np.empty(len(values), np.uint64)
    for first in range(0, len(values), BLOCK_ROWS):
        result[first : first + BLOCK_ROWS] = function(values[first : first + BLOCK_ROWS])  # type: ignore[operator]
    return result


def _integers(values: np.ndarray, seeds: Hashes) -> Hashes:
    halves = values.view(np.uint32).reshape(-1, 2)
    signs = (values >> np.int64(63)).astype(np.uint32)  # all ones for a negative value
    return _uint32(halves[:, 0] ^ halves[:, 1] ^ signs, seeds)


def _uint32(value: _Words | np.uint32, seeds: Hashes) -> Hashes:
    start = np.uint32(_START + 4 & 0xFFFFFFFF)
    halves = seeds.view(np.uint32).reshape(-1, 2)
    a, b, c = halves[:, 1] + start, halves[:, 0] + start, np.full(len(seeds), start, np.uint32)
    _mix(a, b, c)
    if not seeds.all():  # a seed of zero is none
        without = seeds == 0
        a[without] = b[without] = c[without] = start
    a += value
    return _final(a, b, c)


def _floats(values: np.ndarray, seed: int) -> Hashes:
    nans = np.isnan(values)
    if nans.any():
        values = np.where(nans, np.nan, values)
    halves = values.view(np.uint32).reshape(-1, 2)
    a, b, c = _begun(np.array([8]), seed)
    a, b, c = a + halves[:, 0], b + halves[:, 1], np.full(len(values), c[0], np.uint32)
    return np.where(values == 0, np.uint64(seed), _final(a, b, c))


def _texts(offsets: np.ndarray, data: np.ndarray, seed: int) -> Hashes:
    lengths = np.diff(offsets)
    starts = offsets[:-1]
    # Twelve bytes from any byte on: of a type without alignment, so that they are copied as they are.
    padded = np.concatenate([data, np.zeros(12, np.uint8)])
    twelve = np.ndarray((len(data) + 1,), "V12", padded, strides=(1,))
    longest = int(lengths.max(initial=0))
    if longest <= _TABLE_BYTES:
        a, b, c = (table[lengths] for table in _begun(np.arange(longest + 1), seed))
    else:
        a, b, c = _begun(lengths, seed)
    for at in range(0, longest - 11, 12):
        rows = np.flatnonzero(lengths >= at + 12)
        words = twelve[starts[rows] + at].view(np.uint32).reshape(-1, 3)
        if len(rows) == len(lengths):
            a += words[:, 0]
            b += words[:, 1]
            c += words[:, 2]
            _mix(a, b, c)
        else:
            some_a, some_b, some_c = a[rows] + words[:, 0], b[rows] + words[:, 1], c[rows] + words[:, 2]
            _mix(some_a, some_b, some_c)
            a[rows], b[rows], c[rows] = some_a, some_b, some_c
    rest = lengths % 12
    words = twelve[starts + (lengths - rest)].view(np.uint32).reshape(-1, 3)
    masks = _REST[rest]
    a += words[:, 0] & masks[:, 0]
    b += words[:, 1] & masks[:, 1]
    c += (words[:, 2] & masks[:, 2]) << np.uint32(8)  # the lowest byte is reserved for the length
    return _final(a, b, c)


_REST = np.array(
    [[sum(0xFF << 8 * byte for byte in range(4) if 4 * word + byte < rest) for word in range(3)] for rest in range(12)],
    np.uint32,
)
"""For the number of bytes that are left: which bits of the three words count."""


def _begun(lengths: np.ndarray, seed: int) -> tuple[_Words, _Words, _Words]:
    """Return the state before the first byte."""
    start = (lengths + _START).astype(np.uint32)
    a, b, c = start.copy(), start.copy(), start
    if seed:
        a += np.uint32(seed >> 32)
        b += np.uint32(seed & 0xFFFFFFFF)
        _mix(a, b, c)
    return a, b, c


def _mix(a: _Words, b: _Words, c: _Words) -> None:
    turned, rest = np.empty_like(a), np.empty_like(a)
    for one, two, three, bits in (
        (a, b, c, 4),
        (b, c, a, 6),
        (c, a, b, 8),
        (a, b, c, 16),
        (b, c, a, 19),
        (c, a, b, 4),
    ):
        np.subtract(one, three, out=one)
        _turn(three, bits, turned, rest)
        np.bitwise_xor(one, turned, out=one)
        np.add(three, two, out=three)


def _final(a: _Words, b: _Words, c: _Words) -> Hashes:
    turned, rest = np.empty_like(a), np.empty_like(a)
    for one, two, bits in ((c, b, 14), (a, c, 11), (b, a, 25), (c, b, 16), (a, c, 4), (b, a, 14), (c, b, 24)):
        np.bitwise_xor(one, two, out=one)
        _turn(two, bits, turned, rest)
        np.subtract(one, turned, out=one)
    result = np.empty((len(a), 2), np.uint32)
    result[:, 0], result[:, 1] = c, b
    return result.view(np.uint64).reshape(-1)


def _turn(words: _Words, bits: int, out: _Words, rest: _Words) -> None:
    np.left_shift(words, bits, out=out)
    np.right_shift(words, 32 - bits, out=rest)
    np.bitwise_or(out, rest, out=out)
