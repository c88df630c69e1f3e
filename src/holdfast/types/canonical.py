"""The canonical form of rows, and their hash: one for all systems that a row may be stored in (design/0024).

Whatever a database makes of a value that it was given, it is hashed as the value that was written; any other value has
another hash.  The same definition as a SQL expression: :mod:`holdfast.connectors.postgres.comparing.hashing`.

The hash of a row is that of the exclusive or of its columns' hashes, each with a seed from the column's name.  A null
counts nothing: a column that a row lacks is one that is null.

Digests of rows by bucket: what two holders of rows tell each other instead of the rows (design/0024).

A row has a 64-bit hash of its values in canonical form and, by the hash of its key, a bucket.  Two holders whose
buckets have equal counts and sums hold equal rows there; only the rows of the others are fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InvalidPipeline
from holdfast.types import lookup3
from holdfast.types.lookup3 import Hashes
from holdfast.types.plain import flat, flat_type, is_nested, json_text
from holdfast.values import NO_LOSSES, Losses, LossKind

SEED = 0x686F6C6466617374
"""Of the hash of a column's name, which is the seed of its values."""

ROW = 0x726F77
KEY = 0x6B6579
"""What row and key are hashed with at last: so that the bucket of a key says nothing of the row's hash."""

_EPOCH_2000_US = 946_684_800_000_000
_EPOCH_2000_DAYS = 10_957


def losses_of(column: str, losses: Losses) -> frozenset[LossKind]:
    """Return the kinds of one column."""
    return frozenset(loss.kind for loss in losses if loss.column == column)


def seed_of(column: str) -> int:
    """Return the seed of a column's values: the hash of its name."""
    name = np.frombuffer(column.encode(), np.uint8)
    return int(lookup3.of_texts(np.array([0, len(name)]), name, SEED)[0])


def row_hashes(rows: pa.RecordBatch, columns: Collection[str], losses: Losses = NO_LOSSES) -> Hashes:
    """Return the hash of each row, of some columns of it.

    Examples
    --------
    >>> rows = pa.RecordBatch.from_pydict({"id": [1, 1, 2], "value": [0.0, -0.0, None]})
    >>> one, same, other = row_hashes(rows, ["id", "value"])
    >>> one == same, one == other
    (np.True_, np.False_)
    """
    return row_hash(_join(rows, columns, losses))


def hashes(
    rows: pa.RecordBatch, columns: Collection[str], key: Collection[str], losses: Losses = NO_LOSSES
) -> tuple[Hashes, Hashes]:
    """Return the hash of each row, and the one whose upper bits are its bucket: that of its key, if rows have one."""
    key_joined = _join(rows, key, losses)
    others = [name for name in columns if name not in key]
    whole = row_hash(key_joined ^ _join(rows, others, losses))
    return whole, bucket_hash(key_joined) if key else whole


def row_hash(joined: Hashes) -> Hashes:
    """Return the hash of rows from the exclusive or of the hashes of all columns."""
    return lookup3.mixed(joined, ROW)


def bucket_hash(joined: Hashes) -> Hashes:
    """Return what buckets go by from the exclusive or of the hashes of the columns that rows are divided by."""
    return lookup3.mixed(joined, KEY)


def buckets(values: Hashes, bits: int) -> np.ndarray:
    """Return the bucket of each of some hashes, of ``2**bits``."""
    return (values >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(values), np.int64)


def unreadable(column: str) -> int:
    """Return the hash of a value that is none of its column's type: one that no value has, as far as hashes go."""
    return 0x756E72656164 ^ seed_of(column)


def _join(rows: pa.RecordBatch, columns: Collection[str], losses: Losses) -> Hashes:
    result = np.zeros(rows.num_rows, np.uint64)
    for name in columns:
        result ^= column_hashes(rows.column(name), name, losses_of(name, losses))
    return result


def column_hashes(values: pa.Array, name: str, lost: Collection[LossKind] = ()) -> Hashes:
    """Return the hash of each value of a column; 0 for a null.

    Raises
    ------
    InvalidPipeline
        If the type has no canonical form.
    """
    values = flat(values)
    if pa.types.is_floating(values.type):
        values = _without_lost_floats(values, lost)
    elif is_text(values.type):
        values = _spelled(values, lost)
    found: Hashes = _hasher(values.type, name)(values, seed_of(name))
    if values.null_count:
        found[pc.is_null(values).to_numpy(zero_copy_only=False)] = 0
    return found


def check(schema: pa.Schema) -> None:
    """Raise :class:`InvalidPipeline` if a column is of a type without a canonical form."""
    for field in schema:
        _hasher(flat_type(field.type), field.name)


def is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether a value of either type has one canonical form, where both have it."""
    one, other = flat_type(one), flat_type(other)
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return (one.tz is None) == (other.tz is None)
    return any(matches(one) and matches(other) for matches, _ in _HASHERS)


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _hasher(kind: pa.DataType, name: str) -> Callable[[pa.Array, int], Hashes]:
    for matches, hasher in _HASHERS:
        if matches(kind):
            return hasher
    raise InvalidPipeline(
        f"column {name!r} of type {kind} cannot be compared.",
        why="its values have no canonical form.",
        do="cast the column before the sink.",
    )


# --- what a system does not keep ------------------------------------------------------------------------------------


def _without_lost_floats(values: pa.Array, lost: Collection[LossKind]) -> pa.Array:
    if LossKind.NAN in lost:
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    if LossKind.INFINITE in lost:
        values = pc.if_else(pc.is_inf(values), pa.scalar(None, values.type), values)
    return values


def _spelled(values: pa.Array, lost: Collection[LossKind]) -> pa.Array:
    if LossKind.EMPTY in lost:
        values = pc.if_else(pc.equal(values, pa.scalar("", values.type)), pa.scalar(None, values.type), values)
    if LossKind.PADDING in lost:
        values = pc.ascii_rtrim(values, " ")
    if LossKind.UUID in lost:
        values = pc.ascii_lower(pc.replace_substring_regex(values, "[-{}]", ""))
    if LossKind.JSON in lost:
        values = _parse(values)
    return values


# --- values of one type ---------------------------------------------------------------------------------------------


def _zeros(values: pa.Array, kind: pa.DataType) -> np.ndarray:
    """Return numbers, nulls as zeros."""
    filled = pc.cast(values, kind)
    if filled.null_count:
        filled = pc.fill_null(filled, pa.scalar(0, kind))
    return filled.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _nothing(values: pa.Array, seed: int) -> Hashes:
    return np.zeros(len(values), np.uint64)


def _integers(values: pa.Array, seed: int) -> Hashes:
    return lookup3.of_integers(_zeros(values, pa.int64()), seed)


def _floats(values: pa.Array, seed: int) -> Hashes:
    return lookup3.of_floats(_zeros(values, pa.float64()), seed)


def _durations(values: pa.Array, seed: int) -> Hashes:
    return _integers(pc.cast(pc.cast(values, pa.duration("us"), safe=False), pa.int64()), seed)


def _texts(values: pa.Array, seed: int) -> Hashes:
    if pa.types.is_string_view(values.type):
        values = pc.cast(values, pa.large_string())
    return lookup3.of_texts(*_offsets_and_bytes(values), seed)


def _offsets_and_bytes(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return texts or bytes as Arrow keeps them; a null may have any."""
    is_large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    word = np.dtype(np.int64 if is_large else np.int32)
    _, offsets, data = values.buffers()
    if not len(values):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    places = np.frombuffer(offsets, word, len(values) + 1, values.offset * word.itemsize)
    return places, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _bytes(values: pa.Array, seed: int) -> Hashes:
    offsets, data = _offsets_and_bytes(pc.cast(values, pa.large_binary()))
    return lookup3.of_texts((offsets - offsets[0]) * 2, _hexadecimal(data[offsets[0] : offsets[-1]]), seed)


def _hexadecimal(data: np.ndarray) -> np.ndarray:
    found: np.ndarray = _DIGITS[data].view(np.uint8)
    return found


_DIGITS = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
"""Both digits of each byte."""


def _wire(numbers: np.ndarray, wire: str, seed: int) -> Hashes:
    """Hash what PostgreSQL sends of a time, as hexadecimal digits."""
    data = numbers.astype(wire).view(np.uint8)
    offsets = np.arange(len(numbers) + 1, dtype=np.int64) * (2 * np.dtype(wire).itemsize)
    return lookup3.of_texts(offsets, _hexadecimal(data), seed)


def _timestamps(values: pa.Array, seed: int) -> Hashes:
    """Microseconds since 2000, whatever the unit and the zone: what is finer is cut off, as sinks do."""
    microseconds = pc.cast(values, pa.timestamp("us", values.type.tz), safe=values.type.unit != "ns")
    return _wire(_zeros(pc.cast(microseconds, pa.int64()), pa.int64()) - _EPOCH_2000_US, ">i8", seed)


def _dates(values: pa.Array, seed: int) -> Hashes:
    days = _zeros(pc.cast(pc.cast(values, pa.date32()), pa.int32()), pa.int32())
    return _wire(days - _EPOCH_2000_DAYS, ">i4", seed)


def _times(values: pa.Array, seed: int) -> Hashes:
    microseconds = pc.cast(values, pa.time64("us"), safe=False)
    return _wire(_zeros(pc.cast(microseconds, pa.int64()), pa.int64()), ">i8", seed)


def _decimals(values: pa.Array, seed: int) -> Hashes:
    """The number in units of its last digit, as text: 1.50 of scale 2 is ``150``."""
    kind = values.type
    scale = kind.scale
    if kind.bit_width < 128:
        values = pc.cast(values, pa.decimal128(kind.precision, scale))
    make, digits = (pa.decimal128, 38) if kind.bit_width <= 128 else (pa.decimal256, 76)
    whole = pa.Array.from_buffers(make(digits, 0), len(values), values.buffers(), offset=values.offset)
    return _texts(pc.cast(whole, pa.string()), seed)


def _large_integers(values: pa.Array, seed: int) -> Hashes:
    return _texts(pc.cast(values, pa.string()), seed)


def _nest(values: pa.Array, seed: int) -> Hashes:
    return _texts(_parse(json_text(values)), seed)


_HASHERS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, int], Hashes]]] = (
    (pa.types.is_null, _nothing),
    (pa.types.is_uint64, _large_integers),
    (lambda kind: pa.types.is_integer(kind) or pa.types.is_boolean(kind), _integers),
    (pa.types.is_floating, _floats),
    (is_text, _texts),
    (
        lambda kind: (
            pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
            or pa.types.is_fixed_size_binary(kind)
            or pa.types.is_binary_view(kind)
        ),
        _bytes,
    ),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_date, _dates),
    (pa.types.is_time, _times),
    (pa.types.is_duration, _durations),
    (pa.types.is_decimal, _decimals),
    (is_nested, _nest),
)


# --- JSON -----------------------------------------------------------------------------------------------------------


def _parse(texts: pa.Array) -> pa.Array:
    """Return JSON texts as ``jsonb`` writes them: one text for one meaning.

    Notes
    -----
    Python for each row, as for writing nested values: Arrow has no kernel for it.
    """
    return pa.array([None if text is None else _canonical_json(text) for text in texts.to_pylist()], pa.large_string())


def _canonical_json(text: str) -> str:
    try:
        return _jsonb(json.loads(text, parse_float=Decimal, parse_int=Decimal))
    except (ValueError, ArithmeticError, RecursionError):
        return text


def _jsonb(value: Any) -> str:
    """Return what ``jsonb`` writes: keys by length and bytes, numbers without exponent, a space after , and :."""
    match value:
        case dict():
            members = sorted(value.items(), key=lambda item: (len(item[0].encode()), item[0].encode()))
            return "{" + ", ".join(f"{_quote(name)}: {_jsonb(item)}" for name, item in members) + "}"
        case list():
            return "[" + ", ".join(map(_jsonb, value)) + "]"
        case Decimal():
            return format(value if value else abs(value), "f")
        case str():
            return _quote(value)
    return json.dumps(value)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


BITS_MAX = 24
"""Of the number of buckets: 2**24 of them take 256 MB on either side."""


@dataclass(frozen=True)
class Digests:
    """Count of rows, and sum of their hashes modulo 2**64, for each bucket.

    Parameters
    ----------
    bits : int
        There are ``2**bits`` buckets: a row lies in the one that the upper bits of its bucket hash name.
    counts : numpy.ndarray
        int64, of ``2**bits``.
    sums : numpy.ndarray
        uint64, of ``2**bits``.
    """

    bits: int
    counts: np.ndarray
    sums: np.ndarray

    @staticmethod
    def empty(bits: int) -> Digests:
        """Return those of no rows."""
        return Digests(bits, np.zeros(1 << bits, np.int64), np.zeros(1 << bits, np.uint64))

    def add(self, buckets: np.ndarray, hashes: np.ndarray) -> None:
        """Count rows in: the bucket and the hash (uint64) of each."""
        if len(buckets) < len(self.counts):
            np.add.at(self.counts, buckets, 1)
        else:
            self.counts[:] += np.bincount(buckets, minlength=len(self.counts))
        np.add.at(self.sums, buckets, hashes)

    def coarser(self, bits: int) -> Digests:
        """Return those of fewer buckets; the same where there are no more than ``2**bits``.

        Examples
        --------
        >>> found = Digests(2, np.array([1, 2, 0, 4]), np.array([10, 20, 0, 40], np.uint64)).coarser(1)
        >>> found.counts.tolist(), found.sums.tolist()
        ([3, 4], [30, 40])
        """
        if bits >= self.bits:
            return self
        return Digests(bits, *(each.reshape(1 << bits, -1).sum(axis=1) for each in (self.counts, self.sums)))

    def differing(self, other: Digests) -> np.ndarray:
        """Return the buckets, ascending, in which two holders differ."""
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))


def is_wanted(buckets: Collection[int], bits: int) -> np.ndarray:
    """Return for each of ``2**bits`` buckets whether it is one of some."""
    found = np.zeros(1 << bits, bool)
    found[list(buckets)] = True
    return found
