"""Histograms with buckets of relative width, of many groups at a time: approximate quantiles that merge exactly.

Each power of two is cut into equally many buckets, so that a bucket's middle differs from each of its values by at most
the relative error.  A bucket follows from the bits of the number by additions and products alone, the same on every
machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state.keys import Ints, coded_pairs

Floats = npt.NDArray[np.float64]

STATE = pa.struct([("buckets", pa.list_(pa.int64())), ("counts", pa.list_(pa.int64()))])
"""Numbers of the buckets in use, ascending, and how many values each holds."""

_MIDDLE = np.int64(2**40)  # added to the number of a bucket, so that those of numbers above zero are above zero
_INFINITE, _NAN = np.int64(2**42), np.int64(2**43)  # after all finite numbers; minus infinity before


def buckets_per_octave(error: float) -> int:
    """Return into how many buckets a power of two is cut, so that a value errs by at most this share of itself.

    Examples
    --------
    >>> buckets_per_octave(0.01)
    50
    """
    return math.ceil((1 - error) / (2 * error))


def made(values: Floats, groups: Ints, size: int, octave: int) -> pa.Array:
    """Return the histogram of each group as :data:`STATE`."""
    with np.errstate(invalid="ignore"):
        mantissas, exponents = np.frexp(np.abs(values))
        places = np.floor((2.0 * mantissas - 1.0) * octave)
        places = np.minimum(np.nan_to_num(places, nan=0.0, posinf=0.0), octave - 1).astype(np.int64)
    buckets = exponents.astype(np.int64) * octave + places + _MIDDLE
    buckets = np.where(np.isinf(values), _INFINITE, buckets)
    buckets = np.where(values < 0, -buckets, buckets)
    buckets = np.where(values == 0, 0, np.where(np.isnan(values), _NAN, buckets))
    return _state(buckets, np.ones(len(buckets), np.int64), groups, size)


def merged(states: pa.Array, groups: Ints, size: int) -> pa.Array:
    """Return the histogram of all values of each group."""
    lists = states.field("buckets")
    rows = np.repeat(np.arange(len(states)), np.diff(np.asarray(lists.offsets)))
    counts = np.asarray(states.field("counts").flatten())
    return _state(np.asarray(lists.flatten()), counts, groups[rows], size)


def quantiles(states: pa.Array, ranks: Sequence[float], octave: int) -> Floats:
    """Return, per histogram and rank, the middle of the bucket that holds the value of that rank.

    Of n values the one of rank q is the ceil(q * n)-th smallest.  NaN where there are no values.
    """
    lists = states.field("buckets")
    offsets = np.asarray(lists.offsets).astype(np.int64)
    offsets = offsets - (offsets[0] if len(offsets) else 0)
    buckets, counts = np.asarray(lists.flatten()), np.asarray(states.field("counts").flatten())
    before = np.concatenate([[0], np.cumsum(counts)])
    totals = before[offsets[1:]] - before[offsets[:-1]]
    found = np.full((len(totals), len(ranks)), np.nan)
    filled = totals > 0
    for place, rank in enumerate(ranks):
        wanted = np.maximum(np.ceil(rank * totals), 1).astype(np.int64) + before[offsets[:-1]]
        found[filled, place] = _middles(buckets[np.searchsorted(before, wanted[filled], side="left") - 1], octave)
    return found


def _state(buckets: Ints, counts: Ints, groups: Ints, size: int) -> pa.Array:
    codes, first = coded_pairs(groups, buckets)
    added = np.zeros(len(first), np.int64)
    np.add.at(added, codes, counts)
    order = np.lexsort((buckets[first], groups[first]))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(groups[first], minlength=size))]).astype(np.int32)
    lists = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(column[order])) for column in (buckets[first], added)]
    return pa.StructArray.from_arrays(lists, fields=list(STATE))


def _middles(buckets: Ints, octave: int) -> Floats:
    size = np.abs(buckets)
    exponents, places = np.divmod(size - _MIDDLE, octave)
    start = 1.0 + places / octave
    end = 1.0 + (places + 1) / octave
    with np.errstate(over="ignore"):
        middle = np.ldexp(start * end / (start + end), np.clip(exponents, -2000, 2000).astype(np.int32))
    middle = np.where(size == _INFINITE, np.inf, np.where(size == 0, 0.0, middle))
    return np.where(buckets == _NAN, np.nan, np.where(buckets < 0, -middle, middle))
