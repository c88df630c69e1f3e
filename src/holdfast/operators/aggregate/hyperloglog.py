"""``approx_count_distinct``: HyperLogLog of many groups at a time, which merges exactly (design/0061).

A sketch is a function of the set of values alone.  Of a small set it has the hashes, ascending, and counts exactly; of
a larger one the registers.  Equal values have equal hashes in every process and version: those of row ids.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.operators.aggregate.aggregates import Aggregate, of_column
from holdfast.state.keys import Ints
from holdfast.types.row_ids import key_of, lanes_of_columns

Registers = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

STATE = pa.struct([("hashes", pa.list_(pa.int64())), ("registers", pa.large_binary())])
"""Either the hashes of all values, ascending, or the registers; the other is empty."""

_KEY = key_of("approx_count_distinct")
_SCALE = 1.04
"""The standard deviation of an estimate, relative to the truth, is this by the root of the number of registers."""

_EXACT = 8
"""A hash takes as many bytes as eight registers: up to an eighth of the registers hashes take no more room."""

_BITS = 52
"""Bits of a hash that a register looks at, at most: a double holds them.  They tell 2**50 values apart."""


_LEAST_ERROR, _MOST_ERROR = 0.003, 0.26
"""With 131,072 registers, and with 16."""


def approx_count_distinct(column: str, *, where: str | None = None, relative_error: float = 0.02) -> Aggregate:
    """Approximate number of different values, BIGINT: the state of a window has a fixed size, however many there are.

    Parameters
    ----------
    column : str
        The column.
    where : str, optional
        A condition on the row: see :func:`count`.
    relative_error : float
        Standard deviation of the result relative to the truth, from 0.003 to 0.26: two in three results are within it,
        997 in 1000 within three times as much.

    Raises
    ------
    InvalidPipeline
        If ``column`` names no column, ``where`` is no condition, or ``relative_error`` is out of its range.

    Notes
    -----
    A HyperLogLog of a byte for each of 2^p registers, with the smallest p for which 1.04 / 2^(p/2) is at most
    ``relative_error``: 4096 at 0.02, 512 at 0.05.  Up to an eighth as many different values are counted exactly, and
    take eight bytes each.  It merges exactly, so the result depends on the rows alone.

    References
    ----------
    Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog", 2007; Ertl, "New cardinality estimation algorithms for HyperLogLog
    sketches", 2017.

    Examples
    --------
    >>> approx_count_distinct("tailnum").error
    0.02
    """
    is_number = isinstance(relative_error, int | float) and not isinstance(relative_error, bool)
    if not is_number or not _LEAST_ERROR <= relative_error <= _MOST_ERROR:
        raise InvalidPipeline(
            f"relative_error={relative_error!r} is not a relative error.",
            why=f"it is a share of the count, from {_LEAST_ERROR} to {_MOST_ERROR}.",
            do="write for instance relative_error=0.01 for one per cent; hf.distinct_count(...) is exact.",
        )
    return of_column("approx_count_distinct", column, where, error=float(relative_error))


def precision_of(error: float) -> int:
    """Return the binary logarithm of the number of registers for a relative error.

    Examples
    --------
    >>> [precision_of(error) for error in (0.05, 0.02, 0.01)]
    [9, 12, 14]
    """
    return math.ceil(2 * math.log2(_SCALE / error))


def can_hash(kind: pa.DataType) -> bool:
    """Return whether values of a type have a hash that is the same wherever it is computed."""
    try:
        lanes_of_columns(_KEY, [pa.array([], kind)])
    except InvalidPipeline:
        return False
    return True


def sketches_of(values: pa.Array, groups: Ints, size: int, precision: int) -> pa.Array:
    """Return the sketch of each group as :data:`STATE`; no value is null."""
    hashes = lanes_of_columns(_KEY, [values])[0].view(np.int64)
    return _sketches(hashes, groups, np.zeros((0, 1 << precision), np.uint8), groups[:0], size, precision)


def merge(states: pa.Array, groups: Ints, size: int, precision: int) -> pa.Array:
    """Return the sketch of all values of each group."""
    hashes, owners, registers, dense = _parts_of(states, precision)
    return _sketches(hashes, groups[owners], registers, groups[dense], size, precision)


def counts(states: pa.Array, precision: int) -> pa.Array:
    """Return how many different values each sketch has seen: exactly, where it has their hashes."""
    _, owners, registers, dense = _parts_of(states, precision)
    found = np.bincount(owners, minlength=len(states)).astype(np.int64)
    found[dense] = np.rint(np.minimum(estimates(registers), 2.0**62)).astype(np.int64)
    return pa.array(found)


def _parts_of(states: pa.Array, precision: int) -> tuple[Ints, Ints, Registers, Ints]:
    """Return all hashes and whose they are, and all registers and whose they are."""
    lists, blobs = states.field("hashes"), states.field("registers")
    owners = np.repeat(np.arange(len(states)), np.diff(np.asarray(lists.offsets)))
    _, ends, data = blobs.buffers()
    offsets = np.zeros(1, np.int64)
    if len(blobs):
        offsets = np.frombuffer(ends, np.int64)[blobs.offset : blobs.offset + len(blobs) + 1]
    octets = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    hashes = np.asarray(lists.flatten()).astype(np.int64, copy=False)
    return hashes, owners, octets.reshape(-1, 1 << precision), np.flatnonzero(np.diff(offsets))


def _sketches(
    hashes: Ints, groups: Ints, registers: Registers, of_registers: Ints, size: int, precision: int
) -> pa.Array:
    """Return the sketch of each group of hashes and of registers."""
    order = np.lexsort((hashes, groups))
    hashes, groups = hashes[order], groups[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (hashes[1:] != hashes[:-1]) | (groups[1:] != groups[:-1])
    hashes, groups = hashes[is_new], groups[is_new]
    is_dense = np.bincount(groups, minlength=size) > (1 << precision) // _EXACT
    is_dense[of_registers] = True
    dense = np.flatnonzero(is_dense)
    rows = np.cumsum(is_dense) - 1  # of a group with registers its row among them
    found = _highest(registers, rows[of_registers], len(dense), precision)
    counted = is_dense[groups]
    places, values = _places(hashes[counted], precision)
    np.maximum.at(found.reshape(-1), (rows[groups[counted]] << precision) + places, values)
    hashes, groups = hashes[~counted], groups[~counted]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=size))]).astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(is_dense)]).astype(np.int64) << precision
    blobs = pa.Array.from_buffers(pa.large_binary(), size, [None, pa.py_buffer(ends), pa.py_buffer(found)])
    return pa.StructArray.from_arrays(
        [pa.ListArray.from_arrays(pa.array(offsets), pa.array(hashes)), blobs], fields=list(STATE)
    )


def _highest(registers: Registers, rows: Ints, size: int, precision: int) -> Registers:
    """Return of each row the highest values of the registers that belong to it."""
    found = np.zeros((size, 1 << precision), np.uint8)
    if len(rows):
        order = np.argsort(rows, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(rows[order]) != 0])
        found[rows[order][starts]] = np.maximum.reduceat(registers[order], starts, axis=0)
    return found


def _places(hashes: Ints, precision: int) -> tuple[Ints, Registers]:
    """Return the register of each hash, and its value: one more than the zeros that the rest of it begins with."""
    words = hashes.view(np.uint64)
    rest = (words << np.uint64(precision)) >> np.uint64(11)  # 53 bits: as a double they are exact
    zeros = 53 - np.frexp(rest.astype(np.float64))[1]
    values = (np.minimum(zeros, _last(precision)) + 1).astype(np.uint8)
    return (words >> np.uint64(64 - precision)).astype(np.int64), values


def _last(precision: int) -> int:
    return min(64 - precision, _BITS)


def estimates(registers: Registers) -> Floats:
    """Return the number of different values that each row of registers has seen, by Ertl's estimator.

    References
    ----------
    Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog", 2007.  Ertl, "New cardinality estimation algorithms for
    HyperLogLog sketches", 2017, algorithm 6: without tables, and without a correction for small or large numbers.
    """
    size, count = registers.shape
    last = _last(count.bit_length() - 1)
    cells = np.arange(size)[:, None] * (last + 2) + registers
    having = np.bincount(cells.ravel(), minlength=size * (last + 2)).reshape(size, last + 2).astype(np.float64)
    total = count * _tau(1.0 - having[:, last + 1] / count)
    for value in range(last, 0, -1):
        total = 0.5 * (total + having[:, value])
    total = total + count * _sigma(having[:, 0] / count)
    with np.errstate(divide="ignore"):
        return np.asarray(count * count / (2.0 * math.log(2.0) * total))


def _sigma(share: Floats) -> Floats:
    """Return the sum that corrects for registers that have seen nothing; infinite where none has seen anything."""
    total, power, weight = share.copy(), share.copy(), 1.0
    is_all = share == 1.0
    power[is_all] = 0.0
    while True:
        power = power * power
        before = total
        total = total + power * weight
        weight += weight
        if (total == before).all():
            return np.where(is_all, np.inf, total)


def _tau(share: Floats) -> Floats:
    """Return the sum that corrects for registers that can hold no more."""
    root, weight = share.copy(), 1.0
    total = 1.0 - share
    is_edge = (share == 0.0) | (share == 1.0)
    root[is_edge], total[is_edge] = 1.0, 0.0
    while True:
        root = np.sqrt(root)
        before = total
        weight *= 0.5
        total = total - (1.0 - root) ** 2 * weight
        if (total == before).all():
            return np.asarray(total / 3.0)
