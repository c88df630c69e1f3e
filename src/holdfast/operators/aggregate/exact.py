"""Exact sums of floating-point numbers, of many groups at a time.

A sum is a row of *limbs*: limb ``b`` counts units of ``2 ** (32 * b)`` and is an int64, so that adding is adding
integers: associative, whatever the order.  Only the span of limbs in use is kept.  A sum is rounded when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BITS = 32
_MASK = np.int64(2**_BITS - 1)
_ROWS_MAX = 1 << 20
"""This many limbs below 2**32 add up below 2**53, where a double still counts exactly."""

INFINITE, NEGATIVE_INFINITE, NAN = 1, 2, 4
"""What else was among the numbers: bits of ``special``."""

STATE = pa.struct([("low", pa.int16()), ("limbs", pa.list_(pa.int64())), ("special", pa.int8())])
"""The form of a sum in a state table: number of the lowest limb, the limbs from there up, and bits like :data:`NAN`."""


@dataclass(frozen=True)
class Sums:
    """Exact sums of several groups.

    Parameters
    ----------
    low : int
        Number of the first column of ``limbs``.
    limbs : ndarray of int64, groups by limbs
        In normal form every limb but the highest is in [0, 2**32).
    special : ndarray of int8
        Bits that say which numbers that are not finite were among them.
    """

    low: int
    limbs: Ints
    special: npt.NDArray[np.int8]


def summed(values: Floats, groups: Ints, size: int) -> Sums:
    """Return the sum of each group.

    Parameters
    ----------
    values : ndarray of float64
        The numbers.
    groups : ndarray of int64
        For each its group, below ``size``.
    size : int
        Number of groups; one without numbers has the sum 0.
    """
    special = np.zeros(size, np.int8)
    finite = np.isfinite(values)
    if not finite.all():
        odd, where = values[~finite], groups[~finite]
        for bit, is_so in ((NAN, np.isnan(odd)), (INFINITE, odd == np.inf), (NEGATIVE_INFINITE, odd == -np.inf)):
            special[where[is_so]] |= bit
        values, groups = values[finite], groups[finite]
    if not len(values):
        return Sums(0, np.zeros((size, 1), np.int64), special)
    low, lower, middle, upper, places, width = split(values)
    limbs = np.zeros(size * width, np.int64)
    for start in range(0, len(values), _ROWS_MAX):
        part = slice(start, start + _ROWS_MAX)
        cells = groups[part] * width + places[part]
        for step, limb in enumerate((lower, middle, upper)):
            counted = np.bincount(cells + step, weights=limb[part], minlength=size * width)
            limbs += counted.astype(np.int64)
    return Sums(low, normal(limbs.reshape(size, width)), special)


def split(values: Floats) -> tuple[int, Floats, Floats, Floats, Ints, int]:
    """Cut finite numbers into three limbs each, as doubles with the number's sign.

    Returns
    -------
    low : int
        Number of the lowest limb of all.
    lower, middle, upper : ndarray of float64
        Whole numbers of less than 2**32.
    places : ndarray of int64
        For each number the place of its lower limb, counted from ``low``.
    width : int
        Number of limbs that all of them span, with one to carry into.
    """
    mantissas, exponents = np.frexp(values)
    whole = mantissas * 2.0**53  # |whole| < 2**53, value = whole * 2**(exponents - 53)
    shifts = exponents.astype(np.int64) - 53
    bins = shifts >> 5
    nonzero = values != 0
    low = int(bins[nonzero].min()) if nonzero.any() else 0
    bins = np.where(nonzero, bins, low)
    scale = np.ldexp(1.0, (shifts & 31).astype(np.int32))
    upper = np.trunc(whole * (scale * 2.0**-64))
    # the product with a power of two is exact, and so is each difference: only leading bits go
    rest = whole * scale - upper * 2.0**64
    middle = np.trunc(rest * 2.0**-32)
    lower = rest - middle * 2.0**32
    places = bins - low
    return low, lower, middle, upper, places, int(places.max()) + 4


def normal(limbs: Ints) -> Ints:
    """Carry until every limb but the highest is in [0, 2**32); the highest has the sum's sign."""
    limbs = limbs.copy()
    for place in range(limbs.shape[1] - 1):
        limbs[:, place + 1] += limbs[:, place] >> _BITS
        limbs[:, place] &= _MASK
    return limbs


def to_state(sums: Sums) -> pa.Array:
    """Return sums as :data:`STATE`, each cut to the limbs that are in use."""
    width = sums.limbs.shape[1]
    used = sums.limbs != 0
    is_zero = ~used.any(axis=1)
    first = np.where(is_zero, 0, used.argmax(axis=1))
    # The highest limb carries the sign, so a sum below zero reaches up to it; -1 above is the same number as the
    # limb below less 2**32, which gives each sum one form whatever the span it was computed in.  The lowest limb stays:
    # below it there is nothing to borrow for.
    limbs = sums.limbs.copy()
    for place in range(width - 1, 0, -1):
        above = (limbs[:, place] == -1) & (first < place)
        limbs[above, place - 1] -= np.int64(2**_BITS)
        limbs[above, place] = 0
    used = limbs != 0
    last = np.where(is_zero, -1, width - 1 - used[:, ::-1].argmax(axis=1))
    columns = np.arange(width)
    kept = (columns >= first[:, None]) & (columns <= last[:, None])
    offsets = np.concatenate([[0], np.cumsum(last - first + 1)]).astype(np.int32)
    low = np.where(is_zero, 0, first + sums.low).astype(np.int16)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(limbs[kept]))
    return pa.StructArray.from_arrays([pa.array(low), lists, pa.array(sums.special)], fields=list(STATE))


def merged(states: pa.Array, groups: Ints, size: int) -> Sums:
    """Return the sum of the sums of each group."""
    low = np.asarray(states.field("low")).astype(np.int64)
    lists = states.field("limbs")
    lengths = np.diff(np.asarray(lists.offsets)).astype(np.int64)
    flat = np.asarray(lists.flatten())
    special = np.zeros(size, np.int8)
    np.bitwise_or.at(special, groups, np.asarray(states.field("special")))
    if not len(flat):
        return Sums(0, np.zeros((size, 1), np.int64), special)
    used = lengths > 0
    lowest = int(low[used].min())
    width = int((low + lengths)[used].max()) - lowest + 2
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(flat)) - starts[rows] + (low[rows] - lowest)
    limbs = np.zeros(size * width, np.int64)
    np.add.at(limbs, groups[rows] * width + places, flat)
    return Sums(lowest, normal(limbs.reshape(size, width)), special)


def rounded(sums: Sums) -> tuple[Floats, Floats]:
    """Return each sum as the nearest double, to one unit in the last place, and what is left of it.

    The pair has about 106 bits; its second half is 0 where the sum is not finite.
    """
    size, width = sums.limbs.shape
    is_negative = sums.limbs[:, -1] < 0
    limbs = normal(np.where(is_negative[:, None], -sums.limbs, sums.limbs))
    high, rest = np.zeros(size), np.zeros(size)
    with np.errstate(over="ignore", invalid="ignore"):
        for place in range(width):  # from the lowest up: every limb dwarfs all below it
            term = np.ldexp(limbs[:, place].astype(np.float64), np.int32(_BITS * (sums.low + place)))
            total = term + high
            rest = rest + np.where(np.isfinite(total), high - (total - term), 0.0)
            high = total
        total = high + rest
        rest = np.where(np.isfinite(total), rest - (total - high), 0.0)
    sign = np.where(is_negative, -1.0, 1.0)
    total = total * sign + 0.0
    is_nan = ((sums.special & NAN) != 0) | ((sums.special & 3) == 3)
    total = np.where((sums.special & INFINITE) != 0, np.inf, total)
    total = np.where((sums.special & NEGATIVE_INFINITE) != 0, -np.inf, total)
    total = np.where(is_nan, np.nan, total)
    return total, np.where(sums.special == 0, rest * sign, 0.0)


def squares(values: Floats) -> tuple[Floats, Floats]:
    """Return the square of each number as an exact sum of two doubles (Dekker), where nothing over- or underflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = values * values
        wide = values * 134217729.0  # 2**27 + 1 cuts the 53 bits in two halves
        upper = wide - (wide - values)
        lower = values - upper
        error = lower * lower - ((product - upper * upper) - 2.0 * (upper * lower))
    return product, np.where(np.isfinite(error) & np.isfinite(product), error, 0.0)


def spread(count: Floats, total: tuple[Floats, Floats], square: tuple[Floats, Floats]) -> Floats:
    """Return sum of squares less square of the sum by the count, with 106 bits until the last difference."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = total[0] / count
        product, error = _product(mean, count)
        mean_rest = ((total[0] - product) - error + total[1]) / count
        # (m + r) * (T + t) with m * T exact
        high, low = _product(mean, total[0])
        low = low + (mean * total[1] + mean_rest * total[0])
        return np.asarray((square[0] - high) + (square[1] - low))


def _product(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    product = left * right
    halves = []
    for number in (left, right):
        wide = number * 134217729.0
        upper = wide - (wide - number)
        halves.append((upper, number - upper))
    (a, b), (c, d) = halves
    return product, b * d - (((product - a * c) - b * c) - a * d)
