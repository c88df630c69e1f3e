"""How many rows of which partitions a journal file has: as columns, since it may be of ten thousand partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FEW = 16
"""A lookup in a dict costs about as much as this many rows of a column, which are hashed first."""


@dataclass(frozen=True)
class PartitionRows:
    """Rows by partition.

    Parameters
    ----------
    partitions : pyarrow.StringArray
        Directories of partitions.  One is there several times where it is in several record batches, and where null and
        the empty text, which share a directory, both occur.
    rows : numpy.ndarray
        How many rows each has, at least one.
    """

    partitions: pa.StringArray
    rows: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.partitions)

    def without(self, partitions: Collection[str]) -> PartitionRows:
        """Return it without some partitions."""
        if not partitions:
            return self
        others = pc.invert(self._is_among(partitions))
        return PartitionRows(self.partitions.filter(others), self.rows[others.to_numpy(zero_copy_only=False)])

    def among(self, partitions: Collection[str]) -> list[str]:
        """Return which of some partitions it has, some perhaps several times."""
        found: list[str] = self.partitions.filter(self._is_among(partitions)).to_pylist()
        return found

    def unknown(self, known: Mapping[str, Any], names: pa.StringArray) -> list[str]:
        """Return the partitions that are not known, some perhaps several times; ``names`` are the keys of ``known``."""
        found: list[str]
        if len(self) * _FEW < len(names):
            found = [partition for partition in self.partitions.to_pylist() if partition not in known]
        else:
            found = self.partitions.filter(pc.invert(pc.is_in(self.partitions, names))).to_pylist()
        return found

    def _is_among(self, partitions: Collection[str]) -> pa.BooleanArray:
        return pc.is_in(self.partitions, pa.array(partitions, pa.string()))


def partition_rows(index: pa.Table) -> PartitionRows:
    """Return what the index of a journal file says."""
    partitions, rows = (index[name].combine_chunks() for name in ("partition", "rows"))
    return PartitionRows(partitions, rows.to_numpy().astype(np.int64))
