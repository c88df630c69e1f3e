"""The host of columnar state: steps inside Spark's ``transformWithState``, one call per bucket and epoch.

Spark gives a bucket's chunks to :meth:`Level.handleInputRows`; rows leave as chunks for the next level.
The Row variant of the Python API is used: for a few binary rows per key it does least (no DataFrame is made of them).

Batch time and epoch come as local properties of the job, which the driver sets from Spark's offset log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from holdfast.checkpoint.barriers import KEPT
from holdfast.checkpoint.snapshot import Bucket
from holdfast.errors import crossing
from holdfast.operators.waits import longest_waits
from holdfast.plan.bounds import all_keys
from holdfast.plan.chunks import (
    BOUNDS,
    CHUNKS,
    PLACED,
    ROWS,
    Chunk,
    Packer,
    Routing,
    decode,
    divided,
    in_order,
    rank_of,
)
from holdfast.plan.counts import Counts
from holdfast.plan.levels.due import DUE
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds, adopted
from holdfast.plan.levels.store import Cache, HeldTables, Record, advance, compacted, load
from holdfast.plan.pressure import PRESSURE, pressure_of
from holdfast.plan.report import WAITS, Pace
from holdfast.plan.stages import CLOSED_ONLY, EVERY, Hosted, Stage
from holdfast.spark import private
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Arrivals, Result, Step, StepTime

EPOCH_PROPERTY, BATCH_TIME_PROPERTY = "holdfast.epoch", "holdfast.batch_us"
"""Local properties of an epoch's job."""

HEARD_PROPERTY = "holdfast.heard"
"""Local property: the time up to which each source's silence says nothing, as JSON."""

BARRIER_PROPERTY = "holdfast.barrier"
"""Set for the job of an epoch whose state is wanted for a snapshot."""

# NB types and no texts: for a text each task asks the JVM, three times for each state variable.
RECORD = StructType([StructField("value", StringType())])
PART = StructType([StructField("part", LongType()), StructField("piece", IntegerType())])
PIECE = StructType([StructField("data", BinaryType())])

_cache = Cache()
"""What this worker holds: workers are reused from epoch to epoch."""

_pace = Pace()
"""How often this worker looks who waits on whom."""


class Level(StatefulProcessor):  # type: ignore[misc]
    """All stateful operators of one depth, and the stateless ones behind them.

    Parameters
    ----------
    number : int
        The level.
    stage : Stage
        Its operators, and the program behind them.
    routing : Routing
        Where chunks go.
    token : str
        Unique for the run.
    seeds : Seeds, optional
        Where state begins that the store does not have.
    parts : SnapshotParts, optional
        Takes the tables of each bucket that is called in a barrier.
    """

    def __init__(
        self,
        number: int,
        stage: Stage,
        routing: Routing,
        token: str,
        seeds: Seeds | None = None,
        parts: SnapshotParts | None = None,
    ) -> None:
        self._number = number
        self._stage = stage
        self._routing = routing
        self._token = token
        self._seeds = seeds
        self._snapshot_parts = parts

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        private.silence_state_planning()

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables."""
        self._record = handle.getValueState("record", RECORD)
        self._parts = handle.getMapState("parts", PART, PIECE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Take the chunks of one bucket, or of one passage; yield chunks."""
        with crossing():
            yield from self._addressed(self._given(key, in_order([_from_row(row) for row in rows])))

    def close(self) -> None:
        """Do nothing: the store commits by itself."""

    # --- inside -------------------------------------------------------------------------------------------------

    def _given(self, key: Any, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        operator = key[0]
        if not operator:
            return self._passed(chunks)
        return self._called(self._stage.hosted[operator], key[1] % self._routing.buckets, chunks)

    def _addressed(self, chunks: Iterator[Chunk]) -> Iterator[Row]:
        for chunk in chunks:
            label_operator, label = self._routing.address(chunk, self._number + 1)
            yield Row(
                operator=label_operator,
                label=label,
                target=chunk.target,
                bucket=chunk.bucket,
                kind=chunk.kind,
                rank=chunk.rank,
                seq=chunk.seq,
                source=chunk.source,
                data=chunk.data,
            )

    def _passed(self, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        """Let chunks pass; compute what the stage behind this level does to rows that come past it."""
        packers: dict[int, Packer] = {}
        counts = Counts({})
        for chunk in chunks:
            head = self._stage.relays.get(chunk.target) if chunk.kind == ROWS else None
            if head is None:
                yield chunk
                continue
            packer = packers.setdefault(chunk.rank, Packer(self._routing, chunk.rank, chunk.bucket))
            yield from self._computed(head, decode(chunk.data), packer, counts)
        for packer in packers.values():
            yield from packer.rows()
        if counts.found:
            yield packer.report("", counts.report())

    def _computed(self, head: str, rows: pa.Table, packer: Packer, counts: Counts) -> Iterator[Chunk]:
        assert self._stage.program is not None
        for batch in rows.to_batches():
            for target, given in self._stage.program.run(head, batch, counts.passed):
                yield from packer.add(int(target), given)

    def _called(self, hosted: Hosted, bucket: int, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        """Call an operator's step for one bucket."""
        cells = _Variables(self._record, self._parts)
        found = cells.record()
        record = before = Record.from_json(found)
        _cache.drop_others(self._token)
        cached = (self._token, hosted.name, str(bucket))
        if found is None and self._seeds is not None:
            seed = adopted(cells, self._seeds, hosted.name, bucket, hosted.step)
            if seed is not None:
                record, held = seed
                _cache.put(cached, held)
        state = load(cells, record, hosted.step, _cache.get(cached))
        feeds = _Feeds(hosted, record.feeds, self._routing.buckets)
        arrivals = arrivals_of(hosted, chunks, feeds)
        at = _moment(hosted)
        result = call(hosted.step, state, arrivals, at, operator=hosted.name, bucket=bucket)
        changes = {
            name: change
            for name, change in result.changes.items()
            if change.upserts.num_rows or change.deletes.num_rows
        }
        if changes:
            state = compacted(tables.apply_changes(state, hosted.step.tables, changes))
            record = advance(cells, record, hosted.step.tables, changes, state, at.epoch)
        if feeds.has_moved:
            record = replace(record, feeds=feeds.bounds)
        if record is not before:
            cells.put_record(record.to_json())
        size = sum(table.nbytes for table in state.values())
        _cache.put(cached, HeldTables(record.version, record.token, state, size))
        packer = Packer(self._routing, rank_of(self._number, hosted.number, bucket), bucket)
        counts = Counts({})
        for output, rows in result.outputs.items():
            if rows.num_rows:
                yield from self._computed(f"{hosted.name}/{output}", rows, packer, counts)
        yield from packer.rows()
        yield from self._bounds(hosted, bucket, result, packer)
        rows_held = sum(table.num_rows for table in state.values())
        report = {**result.counts, "state_rows": rows_held, "state_bytes": record.size_bytes}
        if result.due_us is not None:
            report[DUE] = result.due_us
        waits = _pace.measured("/".join(cached), lambda: longest_waits(hosted.step, state, at))
        if waits is not None:
            report[WAITS] = waits
        pressure = pressure_of(hosted.step, state)
        if pressure is not None:
            report[PRESSURE] = pressure
        if self._snapshot_parts is not None:
            is_barrier = _is_barrier()
            report[KEPT] = [record.version, record.token]
            if feeds.has_moved or is_barrier:
                report[KEPT].append(record.feeds)
            if is_barrier and record.version:
                kept = Bucket(hosted.name, bucket, record.version, record.token, record.feeds, state)
                self._snapshot_parts.offer(kept)
        yield packer.report(hosted.name, counts.report({f"{hosted.name}/{bucket}": report}))

    def _bounds(self, hosted: Hosted, bucket: int, result: Result, packer: Packer) -> Iterator[Chunk]:
        """Yield the bounds of an operator's output for the operators behind it."""
        if result.bounds is None or not result.bounds.num_rows:
            return
        for number, passes in hosted.onward:
            target = self._routing.targets[number]
            for to, bounds in bounds_for(result.bounds, hosted.step.key, target.key, passes, self._routing.buckets):
                yield packer.bounds(number, to, f"{hosted.name}/{bucket}", bounds)


def bounds_for(
    bounds: pa.Table, key: pa.Schema, wanted: pa.Schema, passes: str, buckets: int
) -> Iterator[tuple[int, pa.Table]]:
    """Yield (bucket, bounds) of an operator's output for an input that has its own key.

    Bounds of single keys hold only where the key is the same; those for all keys go to every bucket.
    """
    everywhere = bounds.filter(bounds.column(ALL_KEYS))
    if passes == CLOSED_ONLY:
        everywhere = everywhere.filter(pc.equal(everywhere.column(BOUND), CLOSED))
    if everywhere.num_rows:
        highest = pc.max(everywhere.column(BOUND)).as_py()
        for bucket in range(buckets):
            yield bucket, all_keys(wanted, highest)
    if passes == EVERY and len(key) and sorted(key.names) == sorted(wanted.names):
        keyed = bounds.filter(pc.invert(bounds.column(ALL_KEYS)))
        schema = tables.bounds_schema(wanted)
        yield from divided(keyed.select(schema.names).cast(schema), wanted, buckets)


class _Feeds:
    """The bounds for all keys that an operator was told, by where they come from.

    An input with several feeds (a union, or an operator of several buckets) is bounded by the least of them.
    """

    def __init__(self, hosted: Hosted, known: Mapping[str, Mapping[str, int]], buckets: int) -> None:
        self.bounds = {name: dict(of) for name, of in known.items()}
        self.has_moved = False
        self._expected = {
            name: [
                source
                for feed in feeds
                for source in (
                    [f"{feed.source}/{bucket}" for bucket in range(buckets)] if feed.is_operator else [feed.source]
                )
            ]
            for name, feeds in hosted.feeds.items()
        }
        self._is_single = {name: len(feeds) == 1 for name, feeds in hosted.feeds.items()}

    def heard(self, name: str, source: str, bound: int) -> int | None:
        """Note a bound for all keys; return that of the input where it has risen."""
        of = self.bounds.setdefault(name, {})
        before = self._least(name)
        if bound <= of.get(source, bound - 1):
            return None
        of[source] = bound
        self.has_moved = True
        after = self._least(name)
        return after if after is not None and (before is None or after > before) else None

    def are_keyed_heard(self, name: str) -> bool:
        """Tell whether bounds of single keys hold: where there is one feed."""
        return self._is_single[name]

    def _least(self, name: str) -> int | None:
        of = self.bounds.get(name, {})
        return min(of.values()) if all(source in of for source in self._expected[name]) else None


def arrivals_of(hosted: Hosted, chunks: Sequence[Chunk], feeds: _Feeds) -> dict[str, Arrivals]:
    """Return what the chunks of one bucket bring to each input.

    Places are numbered in the order of :func:`~holdfast.plan.chunks.in_order`; bounds come behind the rows, but
    for the bound rows of sources, which stand between them.
    """
    step: Step = hosted.step
    names = {number: name for name, number in hosted.targets.items()}
    rows: dict[str, list[pa.Table]] = {name: [] for name in hosted.targets}
    bounds: dict[str, list[pa.Table]] = {name: [] for name in hosted.targets}
    place = 0
    for chunk in chunks:
        if chunk.kind == ROWS:
            table = decode(chunk.data)
            rows[names[chunk.target]].append(_placed(table, place))
            place += table.num_rows
        elif chunk.kind == PLACED:
            name = names[chunk.target]
            for table in _told(decode(chunk.data), name, chunk.source, step.key, feeds):
                bounds[name].append(_placed(table, place))
                place += table.num_rows
    for chunk in chunks:
        if chunk.kind == BOUNDS:
            name = names[chunk.target]
            for table in _told(decode(chunk.data), name, chunk.source, step.key, feeds):
                bounds[name].append(_placed(table, place))
                place += table.num_rows
    found = {}
    for name, schema in step.inputs.items():
        row_schema = schema.append(pa.field(PLACE, pa.int64()))
        bound_schema = tables.bounds_schema(step.key).append(pa.field(PLACE, pa.int64()))
        found[name] = Arrivals(_united(rows[name], row_schema), _united(bounds[name], bound_schema))
    return found


def _told(told: pa.Table, name: str, source: str, key: pa.Schema, feeds: _Feeds) -> Iterator[pa.Table]:
    everywhere = told.filter(told.column(ALL_KEYS))
    keyed = told.filter(pc.invert(told.column(ALL_KEYS)))
    if keyed.num_rows and feeds.are_keyed_heard(name):
        yield keyed
    if everywhere.num_rows:
        risen = feeds.heard(name, source, pc.max(everywhere.column(BOUND)).as_py())
        if risen is not None:
            yield all_keys(key, risen)


def _placed(table: pa.Table, first: int) -> pa.Table:
    places = pa.array(np.arange(first, first + table.num_rows, dtype=np.int64))
    return table.append_column(pa.field(PLACE, pa.int64()), places)


def _united(parts: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    if not parts:
        return schema.empty_table()
    return pa.concat_tables([tables.fitted(part, schema) for part in parts])


def _moment(hosted: Hosted) -> StepTime:
    context = TaskContext.get()
    assert context is not None
    epoch, batch_us = context.getLocalProperty(EPOCH_PROPERTY), context.getLocalProperty(BATCH_TIME_PROPERTY)
    assert epoch is not None, "the driver says which epoch it is"
    assert batch_us is not None, "the driver says when it was planned"
    heard = json.loads(context.getLocalProperty(HEARD_PROPERTY) or "{}")
    return StepTime(int(epoch), int(batch_us), hosted.heard(heard))


def _is_barrier() -> bool:
    context = TaskContext.get()
    assert context is not None
    return bool(context.getLocalProperty(BARRIER_PROPERTY) == "1")


def _from_row(row: Row) -> Chunk:
    return Chunk(row.target, row.bucket, row.kind, row.rank, row.seq, row.source, row.data)


@dataclass(frozen=True)
class _Variables:
    """A bucket's cells in Spark's state variables."""

    record_state: Any
    parts: Any

    def record(self) -> str | None:
        value = self.record_state.get()
        return None if value is None else str(value[0])

    def put_record(self, record: str) -> None:
        self.record_state.update((record,))

    def piece(self, part: int, number: int) -> bytes:
        return bytes(self.parts.getValue((part, number))[0])

    def put_piece(self, part: int, number: int, data: bytes) -> None:
        self.parts.updateValue((part, number), (data,))

    def drop_piece(self, part: int, number: int) -> None:
        self.parts.removeKey((part, number))


POOL_VARIABLE = "HOLDFAST_POOL"
"""Levels get workers of their own, by a variable of their environment.

So few processes hold state, and one that held a bucket in the last epoch is likely to get it again.
"""


def with_levels(
    frame: DataFrame,
    stages: Sequence[Stage],
    routing: Routing,
    token: str,
    seeds: Seeds | None = None,
    parts: SnapshotParts | None = None,
) -> DataFrame:
    """Return a frame of chunks after all levels."""
    for number, stage in enumerate(stages[1:], start=1):
        with private.workers_apart(frame, POOL_VARIABLE, f"level-{number}"):
            level = Level(number, stage, routing, token, seeds, parts)
            frame = frame.groupBy("operator", "label").transformWithState(level, CHUNKS, "append", "none")
    return frame
