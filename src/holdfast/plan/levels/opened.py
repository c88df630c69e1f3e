"""A detour through Spark's plan: chunks opened into typed rows before it, and closed to chunks behind it.

Opened rows are those of a wide frame (:mod:`holdfast.spark.fanout`): a tag says which head's row it is, and only that
head's columns are set.  Among them stand rows without a tag, which Spark's plan passes on unchanged and in their turn,
because one task hands rows on in their order.  Each of these is a chunk: one that has no business in the plan, whole
(bounds, reports, wake-ups, and rows for others); or the *head* of one that was opened, without its data, and the rows
behind it are those that it held::

    chunks -> Opening -> heads and rows -> Spark's plan -> heads and what became of rows -> Closing -> chunks

So whatever Spark makes of a row stays behind the head of its chunk, and is closed to chunks of the same rank.  What one
chunk became is closed on its own, so neither the order of rows nor their places in chunks depend on how many tasks
there are, nor on how Spark cuts its batches.  And a row carries nothing beside its columns but a tag: what crosses into
the JVM and back is paid for value by value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import crossing, present
from holdfast.plan.chunks import ROWS, SCHEMA, Chunk, Packer, Routing, decode, from_batch
from holdfast.plan.counts import Counts
from holdfast.plan.routes import PASSING, STEP, TAG, column_name, struct_name
from holdfast.plan.stages import Detour, Stage
from holdfast.types.casting import fitted, fitted_column, nullable_type

CHUNK = "__holdfast_chunk"
"""Column of a row without a tag: the chunk that it is, or whose rows follow.  What Spark's plan must keep."""

CHUNK_TYPE = pa.struct([field for field in SCHEMA if field.name not in ("operator", "label")])
"""A chunk without its address; without data where its rows follow."""

ROWS_AT_ONCE = 2**16
"""So many rows are handed to Spark in a batch."""


def opened_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema of opened rows: tag, chunk, and the columns of every head; all may be null."""
    columns = [
        pa.field(column_name(tag, index), nullable_type(column.type))
        for tag, schema in enumerate(schemas)
        for index, column in enumerate(schema)
    ]
    return pa.schema([pa.field(STEP, pa.int32()), pa.field(CHUNK, CHUNK_TYPE), *columns])


@dataclass(frozen=True)
class Opening:
    """Chunks to rows.  Picklable; called by ``mapInArrow``.

    Parameters
    ----------
    detour : Detour
        Whose chunks are opened.
    schema : pa.Schema
        Of what comes out: that of :func:`opened_schema`, as Spark has it.
    """

    detour: Detour
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of this task's chunks, in their order."""
        tags = {target: tag for tag, (target, _) in enumerate(self.detour.heads)}
        with crossing():
            for batch in batches:
                passing: list[dict[str, Any]] = []
                for chunk in from_batch(batch):
                    tag = tags.get(chunk.target) if chunk.kind == ROWS else None
                    passing.append(_values(chunk, is_whole=tag is None))
                    if tag is not None:
                        yield from self._passing(passing)
                        passing = []
                        yield from self._opened(chunk, tag)
                yield from self._passing(passing)

    def _opened(self, chunk: Chunk, tag: int) -> Iterator[pa.RecordBatch]:
        names = [column_name(tag, index) for index in range(len(self.detour.heads[tag][1]))]
        for rows in decode(chunk.data).combine_chunks().to_batches(max_chunksize=ROWS_AT_ONCE):
            yield self._batch(rows.num_rows, tag, dict(zip(names, rows.columns, strict=True)))

    def _passing(self, chunks: Sequence[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        if chunks:
            yield self._batch(len(chunks), PASSING, {CHUNK: pa.array(chunks, CHUNK_TYPE)})

    def _batch(self, count: int, tag: int, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        given = {STEP: pa.repeat(pa.scalar(tag, pa.int32()), count), **columns}
        arrays = [
            fitted_column(given[field.name], field.type) if field.name in given else pa.nulls(count, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _values(chunk: Chunk, *, is_whole: bool) -> dict[str, Any]:
    """Return a chunk as a row has it; its bytes as an array has them, which takes no views."""
    values = {field.name: getattr(chunk, field.name) for field in CHUNK_TYPE}
    return {**values, "data": memoryview(chunk.data) if is_whole else None}


@dataclass(frozen=True)
class Closing:
    """Rows to chunks, and what the stage behind the level makes of them.  Picklable; called by ``mapInArrow``.

    Rows come with a tag, the number of an end of the detour, and its columns in a struct; chunks come without.

    Parameters
    ----------
    number : int
        The level.
    stage : Stage
        The stage behind it.
    routing : Routing
        Where chunks go.
    """

    number: int
    stage: Stage
    routing: Routing

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield this task's chunks, addressed to the level behind this one."""
        closed = _Closed(self.stage, self.routing)
        with crossing():
            for batch in batches:
                yield from self._sent(closed.take(batch))
            yield from self._sent(closed.rest())

    def _sent(self, chunks: Iterator[Chunk]) -> Iterator[pa.RecordBatch]:
        listed = list(chunks)
        if listed:
            yield self.routing.to_batch(listed, self.number + 1)


class _Closed:
    """What one task has taken and not given yet: the rows of one chunk, and those of one rank that were computed."""

    def __init__(self, stage: Stage, routing: Routing) -> None:
        assert stage.detour is not None
        assert stage.program is not None
        self._routes = stage.detour.routes
        self._program = stage.program
        self._relays = stage.relays
        self._routing = routing
        self._waiting: list[pa.RecordBatch] = []
        self._head: Chunk | None = None
        self._packers: dict[int, Packer] = {}
        self._rank: int | None = None
        self._counts = Counts({})

    def take(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Take a batch; yield what is complete."""
        places = np.flatnonzero(np.asarray(batch.column(TAG).is_null()))
        chunks = _chunks(batch.column(CHUNK).take(pa.array(places)))
        start = 0
        for place, (chunk, is_whole) in zip(places.tolist(), chunks, strict=True):
            self._wait(batch.slice(start, place - start))
            start = place + 1
            yield from self._computed()
            if is_whole:
                yield from self._passed(chunk)
            else:
                self._head = chunk
        self._wait(batch.slice(start))

    def rest(self) -> Iterator[Chunk]:
        """Yield everything that is still here, and what was counted."""
        yield from self._computed()
        for packer in self._packers.values():
            yield from packer.rows()
        if self._counts.found:
            packer = next(iter(self._packers.values()))
            yield packer.report("", self._counts.report())

    def _wait(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._waiting.append(rows)

    def _passed(self, chunk: Chunk) -> Iterator[Chunk]:
        head = self._relays.get(chunk.target) if chunk.kind == ROWS else None
        if head is None:
            yield chunk
            return
        yield from self._run(head, decode(chunk.data), chunk)

    def _computed(self) -> Iterator[Chunk]:
        """Compute what the rows of one chunk became, end by end."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        head_of = present(self._head, "rows came back from Spark's plan before the head of their chunk.")
        rows = pa.Table.from_batches(waiting)
        tags = rows.column(TAG)
        for tag, (head, schema) in enumerate(zip(self._routes.sinks, self._routes.schemas, strict=True)):
            mine = rows.column(struct_name(tag))
            if len(self._routes.sinks) > 1:
                mine = mine.filter(pc.equal(tags, tag))
            if len(mine):
                batch = pa.RecordBatch.from_struct_array(pa.concat_arrays(mine.chunks))
                yield from self._run(head, pa.Table.from_batches([fitted(batch, schema)]), head_of)

    def _run(self, head: str, rows: pa.Table, of: Chunk) -> Iterator[Chunk]:
        if self._rank is not None and self._rank != of.rank:
            yield from self._packers[self._rank].rows()  # it is done, but for what another chunk of it may bring
        self._rank = of.rank
        packer = self._packers.setdefault(of.rank, Packer(self._routing, of.rank, of.bucket))
        for batch in rows.to_batches():
            for target, made in self._program.run(head, batch, self._counts.passed):
                yield from packer.add(int(target), made)


def _chunks(column: pa.StructArray) -> Iterator[tuple[Chunk, bool]]:
    """Yield the chunks of a column, each with whether it is whole."""
    data = column.field(CHUNK_TYPE.get_field_index("data"))
    others = [(field.name, column.field(index)) for index, field in enumerate(CHUNK_TYPE) if field.name != "data"]
    for row in range(len(column)):
        values: dict[str, Any] = {name: values[row].as_py() for name, values in others}
        is_whole = data[row].is_valid
        yield Chunk(data=data[row].as_buffer() if is_whole else b"", **values), is_whole
