"""The comparison of two contents: digests of both, then the rows of the buckets that differ, some at a time.

Both sides are asked at the same time: one is a server that computes for itself.

Memory is bounded by the number of buckets and by ``ROWS_MAX``, not by the tables.  Nothing is decided by a digest but
what is fetched: two buckets with equal counts and sums hold equal rows, up to a collision of 64-bit sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Content
from holdfast.types.canonical import BITS_MAX, Digests
from holdfast.values import Losses

ROWS_PER_BUCKET = 128
"""At most how many rows a bucket is to have: one row that differs fetches so many, on each side."""

COARSER_MAX = 1
"""By how many bits the digests may be coarser than suits the rows before both sides are asked again."""

ROWS_MAX = 1_000_000
"""How many rows of both sides are fetched and compared at a time."""


T = TypeVar("T")


@dataclass(frozen=True)
class RowDifference:
    """In what some buckets of two contents differ.

    Parameters
    ----------
    missing : pyarrow.Table
        Rows that the actual content lacks.
    extra : pyarrow.Table
        Rows that it has too many, with ``PLACE_COLUMN`` and ``HASH_COLUMN``.
    fetched_count : int
        How many rows of the actual content were fetched to find that.
    """

    missing: pa.Table
    extra: pa.Table
    fetched_count: int


class ContentComparison:
    """Two contents, of which one should be as the other.

    Parameters
    ----------
    expected, actual : Content
        Views at the same positions, with the same columns and the same key.
    by : collection of str
        Columns by which rows are divided into buckets: those that tell rows apart, if there are some.  Then only they
        are hashed where rows of some buckets are looked for.  None: all columns.
    rows_max : int
        How many rows of both are compared at a time.

    Raises
    ------
    InvalidPipeline
        If the two have other columns or another key: one is not the expectation of the other.
    """

    def __init__(
        self, expected: Content, actual: Content, *, by: Collection[str] = (), rows_max: int = ROWS_MAX
    ) -> None:
        one, other = set(expected.schema.names), set(actual.schema.names)
        if one != other or expected.key != actual.key:
            raise InvalidPipeline(
                f"The expected content has the columns {sorted(one)} and the key {list(expected.key)}, the sink has "
                f"{sorted(other)} and {list(actual.key)}.",
                why="only rows of the same columns can be compared.",
                do="compare with the graph that writes the sink.",
            )
        self._expected, self._actual = expected, actual
        self.losses: Losses = expected.losses | actual.losses
        """What one side does not keep of values, so that neither is asked for it."""
        self._by = tuple(by)
        self._rows_max = rows_max

    @cached_property
    def digests(self) -> tuple[Digests, Digests]:
        """Those of the expected and of the actual content; asked of both once."""
        bits = bits_for(self._expected.row_count())
        found = self._digests(bits)
        needed = bits_for(int(found[0].counts.sum()))
        return found if needed <= bits + COARSER_MAX else self._digests(needed)

    def _digests(self, bits: int) -> tuple[Digests, Digests]:
        one, other = self._of_both(lambda content: content.digests(bits, self.losses, self._by))
        known = min(one.bits, other.bits)
        return one.coarser(known), other.coarser(known)

    @cached_property
    def differing(self) -> np.ndarray:
        """The buckets in which the two differ, ascending."""
        expected, actual = self.digests
        return expected.differing(actual)

    def fetch_from(self, expected: Content) -> None:
        """Fetch expected rows from another content, which has those of the buckets that differ."""
        self._expected = expected

    @property
    def row_counts(self) -> tuple[int, int]:
        """How many rows either side has, exactly."""
        expected, actual = self.digests
        return int(expected.counts.sum()), int(actual.counts.sum())

    @property
    def is_equal(self) -> bool:
        """Whether both sides hold the same rows."""
        return not len(self.differing)

    def differences(self) -> Iterator[RowDifference]:
        """Yield what differs, some buckets at a time; nothing where the contents are equal."""
        expected, actual = self.digests
        sizes = expected.counts[self.differing] + actual.counts[self.differing]
        for buckets in _parts(self.differing, sizes, self._rows_max):
            yield self._difference(buckets)

    def _difference(self, buckets: np.ndarray) -> RowDifference:
        chosen = [int(bucket) for bucket in buckets]
        wanted, found = self._of_both(lambda content: self._rows(content, chosen))
        missing = surplus(_hashes(wanted), _hashes(found))
        extra = surplus(_hashes(found), _hashes(wanted))
        return RowDifference(wanted.take(pa.array(missing)), found.take(pa.array(extra)), found.num_rows)

    @property
    def no_rows(self) -> pa.Table:
        """An empty table with the columns of differences."""
        own = [pa.field(PLACE_COLUMN, pa.binary()), pa.field(HASH_COLUMN, pa.uint64())]
        return pa.schema([*self._actual.schema, *own]).empty_table()

    def _rows(self, content: Content, buckets: Collection[int]) -> pa.Table:
        """Return rows in the columns of the sink: a stand-in may have them in another order."""
        schema = self.no_rows.schema
        batches = [
            batch.select(schema.names).cast(schema)
            for batch in content.rows(self.digests[0].bits, buckets, self.losses, self._by)
        ]
        return pa.Table.from_batches(batches, schema)

    def _of_both(self, ask: Callable[[Content], T]) -> tuple[T, T]:
        """Ask both sides at the same time."""
        with ThreadPoolExecutor(1, "holdfast-compare") as pool:
            expected = pool.submit(ask, self._expected)
            actual = ask(self._actual)
            return expected.result(), actual


def _hashes(rows: pa.Table) -> np.ndarray:
    hashes: np.ndarray = rows.column(HASH_COLUMN).to_numpy()
    return hashes


def bits_for(row_count: int) -> int:
    """Return the number of bits whose buckets have about ``ROWS_PER_BUCKET`` rows.

    Examples
    --------
    >>> bits_for(0), bits_for(1_000), bits_for(10_000_000), bits_for(10**12)
    (0, 3, 17, 24)
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
