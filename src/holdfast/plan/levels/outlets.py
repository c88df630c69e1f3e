"""The output of the last level: the rows of chunks, for their sinks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.plan.chunks import ROWS, Chunk, decode, in_order
from holdfast.plan.routes import Routes
from holdfast.plan.stages import Stages
from holdfast.types.casting import fitted


@dataclass(frozen=True)
class Outlets:
    """The sinks of a pipeline with state.  Picklable.

    Parameters
    ----------
    routes : Routes
        The sinks, with their schemas.
    sinks : mapping of int to str
        Target -> sink.
    """

    routes: Routes
    sinks: Mapping[int, str]

    @classmethod
    def of(cls, stages: Stages) -> Outlets:
        """Return those of a graph that was cut into stages."""
        return cls(stages.routes, stages.sinks)

    def rows(self, chunks: Sequence[Chunk]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each sink, in the order of arrival."""
        schemas = dict(zip(self.routes.sinks, self.routes.schemas, strict=True))
        for chunk in in_order([chunk for chunk in chunks if chunk.kind == ROWS]):
            sink = self.sinks[chunk.target]
            for batch in decode(chunk.data).to_batches():
                yield sink, fitted(batch, schemas[sink])

    def tables(self, chunks: Sequence[Chunk], sinks: Collection[str]) -> dict[str, pa.Table]:
        """Return the rows of some sinks."""
        return self.routes.gathered(self.rows(chunks), sinks)
