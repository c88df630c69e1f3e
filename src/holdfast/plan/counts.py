"""What is counted at sources and filters while an epoch is evaluated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ports import REJECT_COLUMN


@dataclass(frozen=True)
class Observed:
    """What was counted in one epoch at one source, or at one filter: the rows that came, and those turned away."""

    rows: int = 0
    rejects: int = 0
    timestamp_max: int | None = None

    def plus(self, other: Observed) -> Observed:
        """Return both together."""
        highest = [t for t in (self.timestamp_max, other.timestamp_max) if t is not None]
        return Observed(self.rows + other.rows, self.rejects + other.rejects, max(highest, default=None))


class Counts:
    """What is counted at sources and filters while batches pass."""

    def __init__(self, timestamps: Mapping[str, str | None]) -> None:
        self._timestamps = timestamps
        self.found: dict[str, Observed] = {}

    def add(self, source: str, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        rejects = 0
        if REJECT_COLUMN in batch.schema.names:
            column = batch.column(REJECT_COLUMN)
            rejects = len(column) - column.null_count
        timestamp = self._timestamps.get(source)
        highest = None if timestamp is None else pc.max(batch.column(timestamp).cast(pa.int64())).as_py()
        self._note(source, Observed(batch.num_rows, rejects, highest))

    def passed(self, name: str, came: int, dropped: int) -> None:
        """Count what came to a filter, and what it dropped."""
        self._note(name, Observed(came, dropped))

    def _note(self, name: str, observed: Observed) -> None:
        self.found[name] = self.found[name].plus(observed) if name in self.found else observed

    def to_json(self) -> dict[str, dict[str, int | None]]:
        """Return the counts as chunks have them."""
        return {
            name: {"rows": of.rows, "rejects": of.rejects, "max": of.timestamp_max} for name, of in self.found.items()
        }

    def to_batch(self) -> pa.RecordBatch:
        """Return the counts in the form of handles: no sink, the source as name."""
        references = [json.dumps([o.rejects, o.timestamp_max]) for o in self.found.values()]
        columns = [[""] * len(self.found), list(self.found), [o.rows for o in self.found.values()], references]
        kinds = [pa.string(), pa.string(), pa.int64(), pa.string()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=["sink", "name", "row_count", "reference"])
