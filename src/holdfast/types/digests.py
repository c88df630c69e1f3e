"""Digests of rows by bucket: what two holders of rows tell each other instead of the rows (design/0024).

A row has a 64-bit hash of its values in canonical form and, by the hash of its key, a bucket.  Two holders whose
buckets have equal counts and sums hold equal rows there; only the rows of the others are fetched.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

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
