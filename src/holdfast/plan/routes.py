"""Which row goes to which sink: the tagged rows of one epoch, and how they are separated again.

A pipeline with one sink has plain rows.  With several, a row is ``(TAG: int, sink_0: struct, sink_1: struct, ...)``
where only the struct that the tag names is set; one Spark job then serves them all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.types.casting import fitted

TAG = "__holdfast_sink"
"""Column that holds the index of the sink a row goes to."""

STEP = "__holdfast_step"
"""Column that says which step's row this is, where several steps share one frame."""


PASSING = -1
"""Step of a row that is no row of any: it passes unchanged."""


def struct_name(index: int) -> str:
    """Return the name of the column that holds the rows of one sink."""
    return f"sink_{index}"


def end_column_name(end: int, index: int) -> str:
    """Return the name of a column of one end, where the columns of all ends stand side by side."""
    return f"{struct_name(end)}_{index}"


def column_name(step: int, index: int) -> str:
    """Return the name of a step's column where several steps share one frame: unique, whatever users call theirs."""
    return f"c{step}_{index}"


@dataclass(frozen=True)
class Routes:
    """The sinks of a pipeline in their order, with the schemas of their rows.  Picklable."""

    sinks: tuple[str, ...]
    schemas: tuple[pa.Schema, ...]

    @property
    def is_tagged(self) -> bool:
        """Whether rows carry a tag: with more than one sink."""
        return len(self.sinks) > 1

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each sink in a batch; sinks without rows are left out."""
        if batch.num_rows == 0:
            return
        if not self.is_tagged:
            yield self.sinks[0], fitted(batch, self.schemas[0])
            return
        tags = batch.column(TAG)
        present = pc.unique(tags).to_pylist()
        for index in sorted(present):
            rows = batch if len(present) == 1 else batch.filter(pc.equal(tags, index))
            structs = rows.column(struct_name(index))
            yield self.sinks[index], fitted(pa.RecordBatch.from_struct_array(structs), self.schemas[index])

    def split_table(self, table: pa.Table) -> dict[str, pa.Table]:
        """Return the rows of each sink in a whole epoch, every sink included."""
        return self.gathered((part for batch in table.to_batches() for part in self.split(batch)), self.sinks)

    def gathered(self, rows: Iterable[tuple[str, pa.RecordBatch]], sinks: Collection[str]) -> dict[str, pa.Table]:
        """Return the rows of some sinks, in the order in which they are given; those of others are left out."""
        batches: dict[str, list[pa.RecordBatch]] = {sink: [] for sink in self.sinks if sink in sinks}
        for sink, batch in rows:
            if sink in batches:
                batches[sink].append(batch)
        schemas = dict(zip(self.sinks, self.schemas, strict=True))
        return {sink: pa.Table.from_batches(several, schemas[sink]) for sink, several in batches.items()}
