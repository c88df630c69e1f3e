"""Digests of rows by bucket: what two holders of rows tell each other instead of the rows (design/0024).

A row has a 64-bit hash of its values in canonical form and, by the hash of its key, a bucket.  Two holders whose
buckets have equal counts and sums hold equal rows there; only the rows of the others are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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

    def differing(self, other: Digests) -> np.ndarray:
        """Return the buckets, ascending, in which two holders differ."""
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))
