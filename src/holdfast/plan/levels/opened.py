"""A subplan of Spark: chunks opened into typed rows before it, and closed to chunks behind it.

Opened rows are those of a wide frame (:mod:`holdfast.spark.fanout`): a tag says which head's row it is, and only that
head's columns are set.  Among them stand chunks, one to a row, which Spark's plan passes on unchanged and in their
turn, because one task hands rows on in their order.  Such a chunk is one that has no business in the plan, whole
(bounds, reports, wake-ups, and rows for others); or the *head* of one that was opened, and the rows behind it are those
that it held::

    chunks -> Opening -> heads and rows -> Spark's plan -> heads and what became of rows -> Closing -> chunks

So whatever Spark makes of a row stays behind the head of its chunk, and is closed to chunks of the same rank.  What one
chunk became is closed on its own, so neither the order of rows nor their places in chunks depend on how many tasks
there are, nor on how Spark cuts its batches.

What crosses into the JVM and back is paid for row by row and value by value, so little does (:class:`ThroughPlan`): of
a row the columns that the plan computes with, and back the columns that it computed.  Columns that come through as they
are stay in the head, as one value of bytes, and are put beside the computed ones again: by the places of the rows,
where the plan makes one of each, else by the number that each row then has.  A tag is there only where there are
several heads, or several ends.

Where what the plan computes follows from the values of one row, and these have few bytes each, a row of the plan is
thousands of opened rows: of each column one array goes in, or comes back (:mod:`holdfast.spark.plans.traced`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import crossing, invariant, present
from holdfast.plan.chunks import ROWS, SCHEMA, Chunk, Packer, Routing, decode, encode, from_batch
from holdfast.plan.counts import Counts
from holdfast.plan.laps import OTHER
from holdfast.plan.levels.taps import Taps, Wish
from holdfast.plan.routes import PASSING, STEP, TAG, column_name, end_column_name
from holdfast.plan.stages import Stage, Subplan
from holdfast.types.casting import fitted_column, nullable_type

CHUNK = "__holdfast_chunk"
"""Column of a chunk among opened rows: null for these.  What Spark's plan must keep."""

NUMBER = "__holdfast_number"
"""Column with the number of a row in its chunk, where it is needed.  What Spark's plan must keep."""

KEPT = (CHUNK, NUMBER)
"""All columns that Spark's plan must keep."""

ROWS_AT_ONCE = 2**16
"""So many rows are handed to Spark in a batch."""

GATHERED = 2**12
"""So many rows are one row of arrays.

With 512 it costs as much.  Spark asks whether a batch is large enough only between two of its rows.
"""

_ADDRESS = ("operator", "label", "data")
"""What of a chunk its head does not say: its address, which it has at a level, and its data, which follow."""

_LENGTH_BYTES = 4

BatchTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task makes of its batches: picklable."""


@dataclass(frozen=True)
class InOneTask:
    """One function of batches behind another one, in one process.  Picklable; called by ``mapInArrow``."""

    first: BatchTask
    then: BatchTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the second makes of what the first gives."""
        return self.then(self.first(batches))


@dataclass(frozen=True)
class ThroughPlan:
    """What of opened rows goes through Spark's plan, and what of it comes back.  Picklable.

    Parameters
    ----------
    reads : frozenset of str
        Columns of opened rows that the plan computes with.
    stays : tuple of tuple of str or None
        For each end, column by column: the column of opened rows that it is, as it was; None: a computed one.
    is_row_for_row : bool
        Whether the plan makes exactly one row of each, in their order.
    is_gathered : bool
        Whether a row of the plan holds the values of many rows, as arrays.  Then it is row for row, too, and there is
        one head and one end.
    """

    reads: frozenset[str]
    stays: tuple[tuple[str | None, ...], ...]
    is_row_for_row: bool
    is_gathered: bool = False

    @property
    def is_numbered(self) -> bool:
        """Whether rows need their numbers: to find what stayed."""
        return bool(self.kept) and not self.is_row_for_row

    @cached_property
    def kept(self) -> frozenset[str]:
        """The columns of opened rows that stay in the heads of their chunks."""
        return frozenset(name for end in self.stays for name in end if name is not None)

    def computed(self, end: int) -> list[int]:
        """Return which columns of an end come back from the plan."""
        return [index for index, name in enumerate(self.stays[end]) if name is None]


def opened_schema(schemas: Sequence[pa.Schema], through: ThroughPlan | None = None) -> pa.Schema:
    """Return the schema of opened rows: tag, chunk, number, and columns of the heads; all may be null.

    Parameters
    ----------
    schemas : sequence of pa.Schema
        Of the heads.
    through : ThroughPlan, optional
        What is left out; None: nothing.
    """
    is_gathered = through is not None and through.is_gathered
    columns = [
        pa.field(column_name(tag, index), pa.list_(column.type) if is_gathered else nullable_type(column.type))
        for tag, schema in enumerate(schemas)
        for index, column in enumerate(schema)
        if through is None or column_name(tag, index) in through.reads
    ]
    tag = [pa.field(STEP, pa.int32())] if len(schemas) > 1 else []
    number = [pa.field(NUMBER, pa.int32())] if through is None or through.is_numbered else []
    return pa.schema([*tag, pa.field(CHUNK, pa.binary()), *number, *columns])


@dataclass(frozen=True)
class Opening:
    """Chunks to rows.  Picklable; called by ``mapInArrow``.

    Parameters
    ----------
    subplan : Subplan
        Whose chunks are opened.
    schema : pa.Schema
        Of what comes out: that of :func:`opened_schema`, as Spark has it.
    through : ThroughPlan
        What goes through the plan.
    """

    subplan: Subplan
    schema: pa.Schema
    through: ThroughPlan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of this task's chunks, in their order."""
        tags = {target: tag for tag, (target, _) in enumerate(self.subplan.heads)}
        with crossing():
            for batch in batches:
                passing: list[bytes] = []
                for chunk in from_batch(batch):
                    tag = tags.get(chunk.target) if chunk.kind == ROWS else None
                    if tag is None:
                        passing.append(_pack(chunk, is_whole=True))
                        continue
                    rows = self._named(decode(chunk.data), tag)
                    stay = rows.select([name for name in rows.schema.names if name in self.through.kept])
                    head = replace(chunk, data=encode(stay) if stay.num_columns else b"")
                    yield self._chunks([*passing, _pack(head, is_whole=False)])
                    passing = []
                    yield from self._opened(rows, tag)
                if passing:
                    yield self._chunks(passing)

    def _named(self, rows: pa.Table, tag: int) -> pa.Table:
        return rows.rename_columns([column_name(tag, index) for index in range(rows.num_columns)])

    def _opened(self, rows: pa.Table, tag: int) -> Iterator[pa.RecordBatch]:
        read = rows.select([name for name in rows.schema.names if name in self.through.reads])
        for start in range(0, rows.num_rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows.num_rows - start)
            columns = {name: _as_one(read.column(name).slice(start, count)) for name in read.schema.names}
            if self.through.is_gathered:
                yield self._gathered(count, columns)
                continue
            numbers = pa.array(np.arange(start, start + count, dtype=np.int32))
            yield self._batch(count, {STEP: pa.repeat(pa.scalar(tag, pa.int32()), count), NUMBER: numbers, **columns})

    def _gathered(self, count: int, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return rows as few rows of arrays."""
        ends = pa.array([*range(0, count, GATHERED), count], pa.int32())
        kinds = {name: self.schema.field(name).type for name in columns}
        arrays = {
            name: pa.ListArray.from_arrays(ends, fitted_column(column, kinds[name].value_type), kinds[name])
            for name, column in columns.items()
        }
        return self._batch(len(ends) - 1, arrays)

    def _chunks(self, chunks: Sequence[bytes]) -> pa.RecordBatch:
        tags = pa.repeat(pa.scalar(PASSING, pa.int32()), len(chunks))
        return self._batch(len(chunks), {STEP: tags, CHUNK: pa.array(chunks, pa.binary())})

    def _batch(self, count: int, given: Mapping[str, pa.Array]) -> pa.RecordBatch:
        arrays = [
            fitted_column(given[field.name], field.type) if field.name in given else pa.nulls(count, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _pack(chunk: Chunk, *, is_whole: bool) -> bytes:
    """Return a chunk as the one value that a row of it has."""
    said = {field.name: getattr(chunk, field.name) for field in SCHEMA if field.name not in _ADDRESS}
    head = json.dumps([is_whole, said]).encode()
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, memoryview(chunk.data)])


def _unpacked(data: pa.Buffer) -> tuple[Chunk, bool]:
    """Return a chunk, and whether it is whole; its data are a view."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    is_whole, said = json.loads(bytes(data[_LENGTH_BYTES:end]))
    return Chunk(data=data.slice(end), **said), is_whole


def _scattered(rows: pa.Table) -> pa.Table:
    """Return rows of arrays as the rows that they hold."""
    columns = {name: rows.column(name) for name in rows.schema.names if name != CHUNK}
    return pa.table(
        {name: pa.chunked_array([part.flatten() for part in column.chunks]) for name, column in columns.items()}
    )


def _as_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


@dataclass(frozen=True)
class Closing:
    """Rows to chunks, and what the stage behind the level makes of them.  Picklable; called by ``mapInArrow``.

    Rows come with the columns of their end that were computed, and with its number where there are several ends.

    Parameters
    ----------
    number : int
        The level.
    stage : Stage
        The stage behind it.
    routing : Routing
        Where chunks go.
    through : ThroughPlan
        What went through the plan.
    wish : callable
        Returns of which rows somebody wants to see some, in the epoch of the task that calls.
    """

    number: int
    stage: Stage
    routing: Routing
    through: ThroughPlan
    wish: Callable[[], Wish] = dict

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield this task's chunks, addressed to the level behind this one."""
        with crossing():
            closed = _Closed(self.stage, self.routing, self.through, f"{self.number}", Taps(self.wish()))
            for batch in batches:
                yield from self._sent(closed, closed.take(batch))
            yield from self._sent(closed, closed.rest())

    def _sent(self, closed: _Closed, chunks: Iterator[Chunk]) -> Iterator[pa.RecordBatch]:
        closed.counts.laps.to(OTHER)
        listed = list(chunks)
        closed.counts.laps.to(None)  # Spark's plan has the turn
        if listed:
            yield self.routing.to_batch(listed, self.number + 1)


class _Closed:
    """What one task has taken and not given yet: the rows of one chunk, and those of one rank that were computed."""

    def __init__(self, stage: Stage, routing: Routing, through: ThroughPlan, wave: str, taps: Taps) -> None:
        assert stage.subplan is not None
        assert stage.program is not None
        self._routes = stage.subplan.routes
        self._program = stage.program
        self._relays = stage.relays
        self._routing = routing
        self._through = through
        self._waiting: list[pa.RecordBatch] = []
        self._head: Chunk | None = None
        self._packers: dict[int, Packer] = {}
        self._rank: int | None = None
        self._wave = wave
        self.counts = Counts({}, taps=taps)

    def take(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Take a batch; yield what is complete."""
        values = batch.column(CHUNK)
        start = 0
        for place in np.flatnonzero(np.asarray(values.is_valid())).tolist():
            self._wait(batch.slice(start, place - start))
            start = place + 1
            yield from self._computed()
            chunk, is_whole = _unpacked(values[place].as_buffer())
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
        if self.counts.tally:
            packer = next(iter(self._packers.values()))
            yield packer.report("", replace(self.counts.report(), waves={self._wave: self.counts.laps.take()}))

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
        if self._through.is_gathered:
            rows = _scattered(rows)
        stayed = decode(head_of.data) if len(head_of.data) else None
        for end, (head, schema) in enumerate(zip(self._routes.sinks, self._routes.schemas, strict=True)):
            mine = rows.filter(pc.equal(rows.column(TAG), end)) if len(self._routes.sinks) > 1 else rows
            if mine.num_rows:
                yield from self._run(head, self._united(end, mine, stayed, schema), head_of)

    def _united(self, end: int, rows: pa.Table, stayed: pa.Table | None, schema: pa.Schema) -> pa.Table:
        """Return rows of an end: what was computed, and beside it what stayed in the head of their chunk."""
        through = self._through
        numbers = _as_one(rows.column(NUMBER)) if through.is_numbered else None
        columns = []
        for index, name in enumerate(through.stays[end]):
            if name is None:
                columns.append(_as_one(rows.column(end_column_name(end, index))))
                continue
            column = _as_one(present(stayed, "a chunk came back without the columns that stayed in it.").column(name))
            columns.append(column if numbers is None else column.take(numbers))
        invariant(
            all(len(column) == rows.num_rows for column in columns),
            f"Spark's plan made {rows.num_rows} rows of {'?' if stayed is None else stayed.num_rows}.",
            why="columns that did not go through it are put beside the others by the places of rows.",
        )
        fields = zip(columns, schema, strict=True)
        return pa.Table.from_arrays([fitted_column(column, field.type) for column, field in fields], schema=schema)

    def _run(self, head: str, rows: pa.Table, of: Chunk) -> Iterator[Chunk]:
        if self._rank is not None and self._rank != of.rank:
            yield from self._packers[self._rank].rows()  # it is done, but for what another chunk of it may bring
        self._rank = of.rank
        packer = self._packers.setdefault(of.rank, Packer(self._routing, of.rank, of.bucket))
        for batch in rows.to_batches():
            for target, made in self._program.run(head, batch, self.counts):
                yield from packer.add(int(target), made)
