"""The comparison of two contents: digests of both, then the rows of the buckets that differ, some at a time.

Memory is bounded by the number of buckets and by ``ROWS_MAX``, not by the tables.  Nothing is decided by a digest but
what is fetched: two buckets with equal counts and sums hold equal rows, up to a collision of 64-bit sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.ports import PLACE_COLUMN, Content
from holdfast.types import canonical
from holdfast.types.digests import BITS_MAX, Digests
from holdfast.values import Losses

ROWS_PER_BUCKET = 32
"""How many rows a bucket is to have: one row that differs fetches so many, on each side."""

ROWS_MAX = 1_000_000
"""How many rows of both sides are fetched and compared at a time."""


@dataclass(frozen=True)
class RowDifference:
    """In what some buckets of two contents differ.

    Parameters
    ----------
    missing : pyarrow.Table
        Rows that the actual content lacks.
    extra : pyarrow.Table
        Rows that it has too many, with ``PLACE_COLUMN``.
    changed_count : int
        How many keys are in both: their rows have other values.  0 where rows have no key.
    fetched_count : int
        How many rows of the actual content were fetched to find that.
    """

    missing: pa.Table
    extra: pa.Table
    changed_count: int
    fetched_count: int


class ContentComparison:
    """Two contents, of which one should be as the other.

    Parameters
    ----------
    expected, actual : Content
        Views at the same positions, with the same columns and the same key.
    row_count : int
        About how many rows there are, for the number of buckets.
    rows_max : int
        How many rows of both are compared at a time.

    Raises
    ------
    InvalidPipeline
        If the two have other columns or another key: one is not the expectation of the other.
    """

    def __init__(self, expected: Content, actual: Content, *, row_count: int, rows_max: int = ROWS_MAX) -> None:
        one, other = set(expected.schema.names), set(actual.schema.names)
        if one != other or expected.key != actual.key:
            raise InvalidPipeline(
                f"The expected content has the columns {sorted(one)} and the key {list(expected.key)}, the sink has "
                f"{sorted(other)} and {list(actual.key)}.",
                why="only rows of the same columns can be compared.",
                do="compare with the graph that writes the sink.",
            )
        self.bits = bits_for(row_count)
        self._expected, self._actual = expected, actual
        self._losses: Losses = expected.losses | actual.losses
        self._rows_max = rows_max

    @cached_property
    def digests(self) -> tuple[Digests, Digests]:
        """Those of the expected and of the actual content; asked of both once."""
        expected = self._expected.digests(self.bits, self._losses)
        return expected, self._actual.digests(self.bits, self._losses)

    @property
    def row_counts(self) -> tuple[int, int]:
        """How many rows either side has, exactly."""
        expected, actual = self.digests
        return int(expected.counts.sum()), int(actual.counts.sum())

    @property
    def is_equal(self) -> bool:
        """Whether both sides hold the same rows."""
        expected, actual = self.digests
        return not len(expected.differing(actual))

    def differences(self) -> Iterator[RowDifference]:
        """Yield what differs, some buckets at a time; nothing where the contents are equal."""
        expected, actual = self.digests
        differing = expected.differing(actual)
        sizes = expected.counts[differing] + actual.counts[differing]
        for buckets in _parts(differing, sizes, self._rows_max):
            yield self._difference(buckets)

    def _difference(self, buckets: np.ndarray) -> RowDifference:
        chosen = [int(bucket) for bucket in buckets]
        wanted, wanted_hashes, wanted_keys = self._rows(self._expected, chosen)
        found, found_hashes, found_keys = self._rows(self._actual, chosen)
        missing = surplus(wanted_hashes, found_hashes)
        extra = surplus(found_hashes, wanted_hashes)
        changed = np.intersect1d(wanted_keys[missing], found_keys[extra]) if self._actual.key else ()
        return RowDifference(wanted.take(pa.array(missing)), found.take(pa.array(extra)), len(changed), found.num_rows)

    def _rows(self, content: Content, buckets: Collection[int]) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """Return the rows, their hashes, and those of their keys."""
        names = self._actual.schema.names
        batches, hashes, keys = [], [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for batch in content.rows(self.bits, buckets, self._losses):
            whole, by = canonical.hashes(batch, names, content.key, self._losses)
            batches.append(batch)
            hashes.append(whole)
            keys.append(by)
        schema = batches[0].schema if batches else content.schema.append(pa.field(PLACE_COLUMN, pa.binary()))
        return pa.Table.from_batches(batches, schema), np.concatenate(hashes), np.concatenate(keys)


def bits_for(row_count: int) -> int:
    """Return the number of bits whose buckets have about ``ROWS_PER_BUCKET`` rows.

    Examples
    --------
    >>> bits_for(0), bits_for(1_000), bits_for(10_000_000), bits_for(10**12)
    (0, 5, 19, 24)
    """
    return min(BITS_MAX, max(0, row_count // ROWS_PER_BUCKET).bit_length())


def surplus(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return which of our values are more than theirs, as multisets; of equal ones the last.

    Examples
    --------
    >>> surplus(np.array([7, 5, 7, 7]), np.array([7, 6, 7]))
    array([1, 3])
    """
    order = np.argsort(ours, kind="stable")
    ascending = ours[order]
    nth = np.arange(len(ours)) - np.searchsorted(ascending, ascending, "left")
    known = np.sort(theirs)
    count = np.searchsorted(known, ascending, "right") - np.searchsorted(known, ascending, "left")
    return np.sort(order[nth >= count])


def _parts(buckets: np.ndarray, sizes: np.ndarray, rows_max: int) -> Iterator[np.ndarray]:
    """Divide buckets, in order, so that each part has at most so many rows; one that is larger stands alone."""
    start = size = 0
    for at, more in enumerate(sizes.tolist()):
        if at > start and size + more > rows_max:
            yield buckets[start:at]
            start, size = at, 0
        size += more
    if start < len(buckets):
        yield buckets[start:]
