"""Chunks: the rows of one task for one bucket as one binary row, so that Spark moves a handful and not millions.

A chunk is addressed to a *target* (an input of a stateful operator, a sink, or a downstream operator) and, where the
target has state, to a *bucket*.  ``rank`` and ``seq`` say in which order chunks arrived; they follow from positions
alone, so a replay has the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import invariant
from holdfast.plan.counts import EpochReport
from holdfast.state.keys import ordinals_from
from holdfast.state.labels import label
from holdfast.state.step import PLACE, Combining, with_places
from holdfast.types.casting import fitted

ROWS, BOUNDS, REPORT, WAKE, PLACED, COMBINED = range(6)
"""What a chunk holds: rows; bounds that follow all rows of the epoch; a report to the driver; nothing, but the step is
to be called; bounds that keep the place of their chunk among the rows; partial rows."""

CHUNKS = (
    "operator string, label int, target int, bucket int, kind int, rank bigint, seq int, source string, data binary"
)
"""Schema of chunks as Spark writes it.  ``operator`` and ``label`` are the key that Spark groups and keeps state by."""

SCHEMA = pa.schema(
    [
        ("operator", pa.string()),
        ("label", pa.int32()),
        ("target", pa.int32()),
        ("bucket", pa.int32()),
        ("kind", pa.int32()),
        ("rank", pa.int64()),
        ("seq", pa.int32()),
        ("source", pa.string()),
        ("data", pa.binary()),
    ]
)

DRIVER = -1
"""Target of what only the driver reads: reports."""

CHUNK_BYTES = 32 * 2**20
"""Rows are gathered up to this size before they are cut into chunks: bounds a task's memory."""

BATCH_BYTES = 64 * 2**20
"""Chunks are handed to Spark in batches up to this size, or one by one: Arrow cannot hold 2 GiB in one of them."""

COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
"""How large chunks are written.  The JVM copies a chunk several times, on both sides of the shuffle."""

COMPRESSED_FROM = 2**16
"""Size from which compressing a chunk costs less than moving it, bytes."""


@dataclass(frozen=True)
class Chunk:
    """One chunk.

    Parameters
    ----------
    target : int
        Number of the target in :class:`Routing`, or :data:`DRIVER`.
    bucket : int
        The bucket at a stateful operator; else the number of the passage.
    kind : int
        ``ROWS``, ``BOUNDS``, ``REPORT``, ``WAKE``, ``PLACED`` or ``COMBINED``.
    rank, seq : int
        Order of arrival.
    source : str
        Where bounds and reports come from.
    data : bytes or pa.Buffer
        Arrow IPC stream; JSON of counts.
    """

    target: int
    bucket: int
    kind: int
    rank: int
    seq: int
    source: str
    data: bytes | pa.Buffer


@dataclass(frozen=True)
class ChunkTarget:
    """Where chunks go.

    Parameters
    ----------
    number : int
        Its place in :attr:`Routing.targets`.
    level : int
        The level that takes it; levels are passed one after the other.
    operator : str
        The stateful operator whose input it is; empty for a sink, or a downstream operator.
    input : str
        The input's name there; the sink's name; or the name of the rows.
    schema : pa.Schema
        Of its rows.
    key : pa.Schema
        The key columns that decide the bucket; empty where there is none.
    combiner : Combining, optional
        What makes partial rows of rows before they are sent; None: they are sent as they are.
    """

    number: int
    level: int
    operator: str
    input: str
    schema: pa.Schema
    key: pa.Schema = field(default_factory=lambda: pa.schema([]))
    combiner: Combining | None = None


@dataclass(frozen=True)
class Routing:
    """All targets of a pipeline, and how many buckets and partitions there are.  Picklable."""

    targets: tuple[ChunkTarget, ...]
    buckets: int
    partitions: int

    def address(self, chunk: Chunk, level: int) -> tuple[str, int]:
        """Return the key under which Spark takes a chunk to a level: the operator's bucket, or a passage."""
        target = None if chunk.target == DRIVER else self.targets[chunk.target]
        if target is not None and target.operator and target.level == level:
            return target.operator, label(target.operator, chunk.bucket, self.buckets, self.partitions)
        return "", label("", chunk.bucket % self.partitions, self.partitions, self.partitions)

    def batches(self, chunks: Iterable[Chunk], level: int) -> Iterator[pa.RecordBatch]:
        """Return chunks, addressed to a level, in batches."""
        return (self.to_batch(together, level) for together in by_size(chunks))

    def to_batch(self, chunks: Sequence[Chunk], level: int) -> pa.RecordBatch:
        """Return chunks, addressed to a level, as Spark takes them."""
        addresses = [self.address(chunk, level) for chunk in chunks]
        columns: list[Sequence[Any]] = [
            [operator for operator, _ in addresses],
            [number for _, number in addresses],
            [chunk.target for chunk in chunks],
            [chunk.bucket for chunk in chunks],
            [chunk.kind for chunk in chunks],
            [chunk.rank for chunk in chunks],
            [chunk.seq for chunk in chunks],
            [chunk.source for chunk in chunks],
        ]
        arrays = [pa.array(column, of.type) for column, of in zip(columns, SCHEMA, strict=False)]
        return pa.RecordBatch.from_arrays([*arrays, _binary([chunk.data for chunk in chunks])], schema=SCHEMA)


def by_size(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Yield chunks, in their order, together up to the one that makes them ``BATCH_BYTES``."""
    together: list[Chunk] = []
    size = 0
    for chunk in chunks:
        together.append(chunk)
        size += len(memoryview(chunk.data))
        if size >= BATCH_BYTES:
            yield together
            together, size = [], 0
    if together:
        yield together


def _binary(values: Sequence[bytes | pa.Buffer]) -> pa.Array:
    """Return bytes as an array.

    NB: not of memory views.  pyarrow (seen in 26.0) never frees one that was put into an array, nor the bytes in it.
    """
    arrays = [
        pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, size], np.int32)), value])
        for value, size in ((given, given.size) for given in map(pa.py_buffer, values))
    ]
    return pa.concat_arrays(arrays) if arrays else pa.array([], pa.binary())


def from_batch(batch: pa.RecordBatch) -> list[Chunk]:
    """Return the chunks of a batch; their data are views of it."""
    rows = batch.select(["target", "bucket", "kind", "rank", "seq", "source"]).to_pylist()
    data = batch.column("data")
    return [Chunk(data=data[index].as_buffer(), **row) for index, row in enumerate(rows)]


def encode(table: pa.Table, *, moves: bool = True) -> bytes:
    """Return a table as an Arrow IPC stream; compressed where it is large, unless it stays in its process."""
    sink = pa.BufferOutputStream()
    options = COMPRESSED if moves and table.nbytes >= COMPRESSED_FROM else None
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def decode(data: bytes | pa.Buffer) -> pa.Table:
    """Return the table of an Arrow IPC stream: a view, where it is not compressed."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


# --- buckets ----------------------------------------------------------------------------------------------------

_A, _B, _C = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_PRIME = np.uint64(0x100000001B3)
_NULL = np.uint64(0x6E756C6C)

Hashes = npt.NDArray[np.uint64]
_SAMPLED = 1024
"""Values that show whether a column has the same ones again and again."""


def bucket_of(rows: pa.Table | pa.RecordBatch, key: pa.Schema, buckets: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each row.

    Parameters
    ----------
    rows : pa.Table or pa.RecordBatch
        With the key columns.
    key : pa.Schema
        Names and types of the key columns; without any, all rows go to bucket 0.
    buckets : int
        How many there are.

    Notes
    -----
    State is found by it later, so it must be the same on every machine and in every version: splitmix64 over the
    values of whole numbers, and over a polynomial in the bytes of strings.  Equal values have equal hashes: -0.0 and
    0.0, every NaN.

    References
    ----------
    Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014): splitmix64.

    Examples
    --------
    >>> bucket_of(pa.table({"k": ["JFK", "LGA", "EWR", None]}), pa.schema([("k", pa.string())]), 4).tolist()
    [2, 2, 2, 3]
    """
    if not len(key) or buckets == 1:
        return np.zeros(rows.num_rows, np.int64)
    mixed = np.zeros(rows.num_rows, np.uint64)
    with np.errstate(over="ignore"):
        for part in key:
            mixed = _splitmix(mixed * _PRIME + _hashes(pc.cast(rows.column(part.name), part.type)))
    return ((mixed >> np.uint64(33)) % np.uint64(buckets)).astype(np.int64)


def _splitmix(values: Hashes) -> Hashes:
    values = values + _A
    values = (values ^ (values >> np.uint64(30))) * _B
    values = (values ^ (values >> np.uint64(27))) * _C
    return values ^ (values >> np.uint64(31))


def _hashes(column: pa.ChunkedArray | pa.Array) -> Hashes:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate([_hashes(chunk) for chunk in array.chunks])
    kind = array.type
    if pa.types.is_floating(kind):
        numbers = np.asarray(pc.fill_null(array.cast(pa.float64()), 0.0), np.float64) + 0.0
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        values: Hashes = numbers.view(np.uint64)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        values = _hashes_of_bytes(array)
    elif pa.types.is_decimal(kind):
        values = _hashes_of_bytes(pc.cast(array, pa.string()))
    else:
        whole = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
        if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            array = array.cast(whole[kind.bit_width])
        filled = pc.fill_null(array, False if pa.types.is_boolean(kind) else 0).cast(pa.int64())
        values = np.asarray(filled).astype(np.int64, copy=False).view(np.uint64)
    if array.null_count:
        values = np.where(np.asarray(pc.is_null(array)), _NULL, values)
    return values


def _hashes_of_bytes(array: pa.Array) -> Hashes:
    """Return the polynomial hash of each value's bytes, modulo 2**64; values that come often are hashed once."""
    sample = array.slice(0, _SAMPLED)
    if len(sample.unique()) > len(sample) // 2:
        return _hashes_of_each(array)
    encoded = array.dictionary_encode(null_encoding="encode")
    return np.take(_hashes_of_each(encoded.dictionary), np.asarray(encoded.indices))


def _hashes_of_each(array: pa.Array) -> Hashes:
    array = pc.fill_null(array.cast(pa.large_binary()), b"")
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(array) + 1, array.offset * 8)
    lengths = np.diff(offsets)
    total = int(lengths.sum())
    hashes = lengths.astype(np.uint64)
    if not total:
        return hashes
    octets = np.frombuffer(data, np.uint8, total, int(offsets[0])).astype(np.uint64) + np.uint64(1)
    places = np.arange(total, dtype=np.int64) - np.repeat(offsets[:-1] - offsets[0], lengths)
    powers = np.cumprod(np.full(int(lengths.max()) + 1, _PRIME, np.uint64), dtype=np.uint64)
    filled = np.flatnonzero(lengths)
    starts = (offsets[:-1] - offsets[0])[filled]
    hashes[filled] += np.add.reduceat(octets * powers[places], starts)
    return hashes


def divided(rows: pa.Table, key: pa.Schema, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (bucket, rows) for each bucket that has rows; rows keep their order."""
    if not len(key) or buckets == 1:
        yield 0, rows
        return
    numbers = bucket_of(rows, key, buckets).astype(np.uint16 if buckets <= 2**16 else np.int64)
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers, minlength=buckets)
    invariant(len(counts) == buckets, f"a key belongs to bucket {len(counts) - 1}, and there are {buckets}.")
    sorted_rows = rows.take(pa.array(order))
    start = 0
    for bucket, count in enumerate(counts.tolist()):
        if count:
            yield bucket, sorted_rows.slice(start, count)
        start += count


def _within_buckets(chosen: pa.Table, rows: pa.Table, key: pa.Schema, buckets: int) -> pa.Table:
    """Return rows chosen of others whose places are those among the rows of their bucket, and not among all."""
    numbers = bucket_of(rows, key, buckets)
    places = ordinals_from(np.zeros(buckets, np.int64), numbers, buckets)
    return with_places(chosen, lambda among_all: pa.array(places[np.asarray(among_all)]))


# --- packing ------------------------------------------------------------------------------------------------------


class Packer:
    """Gathers the rows of one task, or of one bucket, and cuts them into chunks.

    Parameters
    ----------
    routing : Routing
        The targets.
    rank : int
        Order of this task among all, see :func:`rank_of`.
    passage : int
        Number under which chunks without a bucket travel.
    staying : collection of int
        Targets, without state, whose chunks the same task takes up again.
    """

    def __init__(self, routing: Routing, rank: int, passage: int, staying: Collection[int] = ()) -> None:
        self._routing = routing
        self._rank = rank
        self._passage = passage
        self._staying = staying
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self._size = 0
        self._seq = 0

    def add(self, target: int, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Take rows for a target; yield chunks once there is enough for them."""
        self._gathered.setdefault(target, []).append(batch)
        self._size += batch.nbytes
        if self._size >= CHUNK_BYTES:
            yield from self.rows()

    def rows(self) -> Iterator[Chunk]:
        """Yield everything gathered so far."""
        gathered, self._gathered, self._size = self._gathered, {}, 0
        for number, batches in sorted(gathered.items()):
            target = self._routing.targets[number]
            rows = pa.Table.from_batches([fitted(batch, target.schema) for batch in batches], target.schema)
            if not target.operator:
                data = encode(rows, moves=number not in self._staying)
                yield self._chunk(number, self._passage, ROWS, "", data)
                continue
            combined = None if target.combiner is None else target.combiner.combine(rows)
            if combined is not None and PLACE in combined.column_names:
                combined = _within_buckets(combined, rows, target.key, self._routing.buckets)
            sent, kind = (rows, ROWS) if combined is None else (combined, COMBINED)
            for bucket, part in divided(sent, target.key, self._routing.buckets):
                yield self._chunk(number, bucket, kind, "", encode(part))

    def bounds(self, target: int, bucket: int, source: str, bounds: pa.Table) -> Chunk:
        """Return bounds for one bucket."""
        return self._chunk(target, bucket, BOUNDS, source, encode(bounds))

    def placed(self, target: int, bucket: int, source: str, bounds: pa.Table) -> Chunk:
        """Return bounds for one bucket that follow the chunks so far, and precede those to come."""
        return self._chunk(target, bucket, PLACED, source, encode(bounds))

    def wake(self, target: int, bucket: int) -> Chunk:
        """Return the chunk that makes a bucket be called although nothing arrives."""
        return self._chunk(target, bucket, WAKE, "", b"")

    def report(self, source: str, report: EpochReport) -> Chunk:
        """Return a report to the driver."""
        return self._chunk(DRIVER, self._passage, REPORT, source, report.to_json().encode())

    def _chunk(self, target: int, bucket: int, kind: int, source: str, data: bytes) -> Chunk:
        self._seq += 1
        return Chunk(target, bucket, kind, self._rank, self._seq, source, data)


_ORDINAL = 2**32 - 1


def rank_of(stage: int, number: int, ordinal: int) -> int:
    """Return the rank of chunks: by stage, then by the number of source or operator, then by span or bucket."""
    return stage << 56 | number << 32 | ordinal


def reported(chunks: Iterable[Chunk]) -> Iterator[EpochReport]:
    """Yield the reports among chunks."""
    for chunk in chunks:
        if chunk.kind == REPORT:
            yield EpochReport.from_json(bytes(chunk.data))


def in_order(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return chunks in the order of arrival: source by source, there target by target, there span by span.

    It does not depend on how many tasks read an epoch, nor on where their batches were cut.
    """
    ordered = sorted(chunks, key=_place)
    # Those that a task or a bucket makes of rows are numbered.  Reports are only added up.
    places = [_place(chunk) for chunk in ordered if chunk.kind != REPORT]
    invariant(
        all(one < next_ for one, next_ in pairwise(places)),
        "two chunks of an epoch have one place.",
        why="the order of arrival follows from positions alone: a task was read twice, or two have one rank.",
        story=lambda: f"(stage and number, target, ordinal, whether it follows the rows, seq): {places}",
    )
    return ordered


def _place(chunk: Chunk) -> tuple[int, int, int, bool, int]:
    # Rows may be packed anew on their way, under the rank that they have: their numbers then begin again, and those of
    # the bounds that were packed with them do not.  Bounds follow all rows in any case.
    return chunk.rank >> 32, chunk.target, chunk.rank & _ORDINAL, chunk.kind in (BOUNDS, WAKE), chunk.seq
