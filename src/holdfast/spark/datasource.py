"""Holdfast's sources as one Python data source of Spark.

Spark asks for offsets in a Python process on the driver's machine, one per source and run, and reads
spans in Python workers on executors.  An offset is a source's positions plus running totals::

    {"positions": {"log": 17}, "size_bytes": 81234, "row_count": null, "newest": {"log": 20}, "behind_us": 1790000000}

The totals tell the driver the size of an epoch before it runs, and ``newest`` its lag, without further requests.
Where an operator has an idle rule, ``behind_us`` is the time at which the source was found to have more rows than the
epoch took, and ``given_us`` when it had delivered all: so a replay decides the same about idle sources.

A small epoch is *prefetched*: the planning process reads it and hands it to the JVM as Arrow, so that no
Python worker takes part (89 ms an epoch instead of 149).  Spark does that for ``SimpleDataSourceStreamReader``
only; our reader declares itself to be its wrapper (:func:`holdfast.spark.private.prefetching_reader`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.capabilities import offers
from holdfast.checkpoint.directory_header import read_origin
from holdfast.checkpoint.replay_floor import held_by_all, read_floor, read_named_floor
from holdfast.checkpoint.spark_log import MARKS, SIGNATURE, has_more, plain
from holdfast.checkpoint.targets import read_targets
from holdfast.connectors.reading.bounds import MarkedSource, schema_of_rows
from holdfast.connectors.reading.until import has_passed
from holdfast.connectors.reading.wrapped import innermost, of_columns
from holdfast.errors import Corrupt, crossing
from holdfast.plan.chunks import SCHEMA
from holdfast.plan.operation import due_file, hold_file, is_due, is_held, limit_file, read_limit
from holdfast.ports import Backlogged, Bounded, Exhaustible, Source, Span
from holdfast.positions import SourcePositions, lag_between
from holdfast.quarantine.mask import lettered, mask_file, read_mask, readable
from holdfast.spark import private
from holdfast.spark.controls import ControlSpec, end_of_range, mark_end
from holdfast.spark.reading import Reading
from holdfast.spark.spark_versions import running
from holdfast.spark.wishes import taps_here
from holdfast.steer.holding import SourceHolding

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from holdfast.plan.levels.packing import Packing
    from holdfast.plan.levels.taps import Taps

_Prefetching: Any = private.prefetching_reader() or DataSourceStreamReader
_AvailableNow: Any = private.available_now() or object

FORMAT = "holdfast"
"""Name under which the data source is registered."""

HELD_TICK_US = 1_000_000
"""How often an epoch is planned for a source that is held, where the run waits for more rows."""


class HoldfastDataSource(DataSource):  # type: ignore[misc]
    """The data source ``holdfast``: option ``reading`` holds a :class:`Reading`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the source read."""
        reading = Reading.from_option(self.options["reading"])
        if reading.packing is not None:
            return private.spark_schema(SCHEMA)
        return private.spark_schema(schema_of_rows(reading.spec, with_bounds=reading.with_bounds))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for a stream."""
        return _Reader(Reading.from_option(self.options["reading"]), schema)


@dataclass
class _SpanPartition(InputPartition):  # type: ignore[misc]
    span: Span | None
    ordinal: int
    ended: tuple[str, ...] = ()


class _Reader(_Prefetching, _AvailableNow):  # type: ignore[misc]
    """Planning (one process, driver's machine) and reading (executors) of one source."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self.reading = reading
        self.arrow_schema = private.arrow_schema(schema)
        self._last_planned_s = time.monotonic()
        self.bounded = False
        self.simple_reader = self  # read by Spark where it asks the wrapper's inner reader for AvailableNow
        self._source: Source | None = None
        self._narrowed: Source | None = None
        self._seek: list[SourcePositions] | None = None
        self._is_placed = not running().names_sources
        self._reached: dict[str, Any] | None = None
        """The end of the last epoch that was planned: where the next one begins, should Spark not say it."""
        self.holding = SourceHolding(reading.stop_file, reading.name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None, "_narrowed": None, "simple_reader": None}

    @property
    def source(self) -> Source:
        if self._source is None:
            reading = self.reading
            self._source = reading.open()
            if reading.spec.kind != ControlSpec.kind:
                self._source = lettered(self._source, read_mask(mask_file(reading.stop_file), reading.name))
        return self._source

    @property
    def seek(self) -> list[SourcePositions]:
        """Where the first epochs must end, so that a sink holds the whole of an epoch or nothing; usually empty."""
        if self._seek is None:
            origin = read_origin(Path(self.reading.origin_file))
            first = origin.retired.get(self.reading.name) or dict(self.source.initial())
            self._seek = [stop.get(self.reading.name) or first for stop in origin.seek]
        return self._seek

    # --- planning -----------------------------------------------------------------------------------

    @crossing()
    def initialOffset(self) -> dict[str, Any]:
        seek = self.seek
        positions, marks = plain(seek[0] if seek else self.source.initial())
        newest = dict(self.source.newest() or {})
        start = {"positions": positions, "size_bytes": 0, "row_count": 0, "newest": newest, **marks}
        return self._sign({**start, "sought": 1} if seek else start)

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming.datasource import ReadAllAvailable  # older Sparks have none, and do not ask

        return ReadAllAvailable()  # the source itself bounds an epoch

    @crossing()
    def prepareForTriggerAvailableNow(self) -> None:
        if not self.reading.targets_file:
            self.source.freeze()
        self.bounded = True

    @crossing()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        if start is None:  # before 4.2: this process has lived as long as the query, and saw the last end in its log
            start = self.initialOffset() if self._reached is None else self._reached
        if self.reading.freezes and not self.bounded:
            self.prepareForTriggerAvailableNow()
        self._reached = self._sign(self._latest(start))
        return self._reached

    def _latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the end of the epoch that begins here."""
        sought = start.get("sought", 0)
        if sought and sought < len(self.seek):
            # All sources take these steps together, one per epoch, with rows or without; nothing, not even a stop, may
            # come between two of them.
            positions, marks = plain(self.seek[sought])
            # NB the marks that were logged, and no new ones: with one more, the sink at this position would hold only a
            # part of the epoch.
            return {**self._end(start, positions), **marks, "sought": sought + 1}
        if os.path.exists(self.reading.stop_file):
            return start
        if self.reading.targets_file:
            return self._followed(start)
        if self.reading.is_backfill and start.get("has_ended"):
            # Also where rows of the range have come since.  A power cut may have lost the mark.
            return end_of_range(start, self.reading.end_mark)
        if not self.holding.lets_pass(is_bounded=self.bounded):
            return self._end_while_paused(start)
        if is_held(hold_file(self.reading.stop_file), self.reading.name):
            return self._held(start)
        known = self.source.newest() if self.reading.notes_silence else None
        given = read_limit(limit_file(self.reading.stop_file), self.reading.name)
        until = self.holding.latest(self.source, start["positions"], given, is_bounded=self.bounded)
        if dict(until) == start["positions"]:
            if self.reading.passed_mark and has_passed(self.source, until):
                Path(self.reading.passed_mark).touch()
            if self.reading.is_backfill and self.bounded:
                return end_of_range(start, self.reading.end_mark)
            silent = {} if self.bounded else self._silence(start, until, known)
            return self._without_rows(start) if not silent else {**start, **silent}
        self.holding.took(self.source, start["positions"], until)
        self._last_planned_s = time.monotonic()
        marks = {"has_ended": True} if self._reports_end(start, until) else {}
        more = {**({"sought": sought} if sought else {}), **marks}
        return {**self._end(start, until), **self._silence(start, until, known), **more}

    @crossing()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # Of the newest entry of its log, too: Spark calls this once before it asks for the first end.
        self._check_own(end)
        self._reached = end
        if not self.reading.has_rows:
            return []
        if self._is_prefetched(start, end):
            # Spark accepts prefetched rows for exactly one partition.
            return [_SpanPartition(Span(None), 0)]
        spans = self.source.spans(start["positions"], end["positions"], parallelism=self.reading.parallelism)
        partitions = [_SpanPartition(span, ordinal) for ordinal, span in enumerate(spans)]
        if self.reading.packing is not None and self._has_controls(start, end):
            partitions.append(_SpanPartition(None, len(spans), self._ended(start, end)))
        return partitions

    @crossing()
    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a small epoch; Spark calls it right after :meth:`partitions`."""
        return self._prefetched(start, end) if self._is_prefetched(start, end) else None

    @crossing()
    def commit(self, end: dict[str, Any]) -> None:
        if self.reading.targets_file or self.reading.is_backfill:
            return
        if not self.reading.floor_file:
            self._commit_unnamed(end["positions"])
            return
        # Rows after a snapshot are replayed: they must stay until the oldest usable snapshot includes them.
        floor = read_floor(Path(self.reading.floor_file)).get(self.reading.name)
        if floor is not None:
            self._let_go(end["positions"], plain(floor)[0])

    def _commit_unnamed(self, positions: dict[str, Any]) -> None:
        """Release what is published, as far as no named checkpoint needs it."""
        named_file = self.reading.named_floor_file
        reading = self.reading
        needed = read_named_floor(Path(named_file), reading.pipeline, reading.name) if named_file else {}
        if needed is not None:
            self._let_go(positions, plain(needed)[0])

    def _let_go(self, end: dict[str, Any], needed: dict[str, Any]) -> None:
        """Release what is below both: an older floor may be ahead of a directory that began anew."""
        let_go = {segment: min(at, needed.get(segment, at)) for segment, at in end.items()}
        if self.reading.held_file:
            held = read_floor(Path(self.reading.held_file)).get(self.reading.name, {})
            let_go = held_by_all(let_go, plain(held)[0])
        self.source.committed(let_go)

    def stop(self) -> None:
        pass

    # --- reading ------------------------------------------------------------------------------------

    def read(self, partition: _SpanPartition) -> Iterator[pa.RecordBatch]:
        with crossing():
            yield from self._read(partition)

    # --- inside -------------------------------------------------------------------------------------

    def _sign(self, offset: dict[str, Any]) -> dict[str, Any]:
        """Return an offset that says whose it is, where Spark's log does not."""
        return {**offset, SIGNATURE: self.reading.name} if self._is_placed else offset

    def _check_own(self, offset: Mapping[str, Any]) -> None:
        """Refuse an offset of another source: it would be read as if it were one of this source."""
        if self._is_placed and offset.get(SIGNATURE) != self.reading.name:
            spark = os.path.dirname(self.reading.origin_file)
            raise Corrupt(
                f"{spark} has a position of {offset.get(SIGNATURE)!r} where source {self.reading.name!r} is read.",
                why="this Spark logs positions by the place of a source in its plan, and the places have changed.",
                do=f"move the directory {spark} out of the checkpoint: the next start continues where the sinks are, "
                "with state from a snapshot.",
                participant=self.reading.name,
            )

    def _prefetched(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        with crossing():
            yield from self._rows(start, end)

    def _read(self, partition: _SpanPartition) -> Iterator[pa.RecordBatch]:
        packing = self.reading.packing
        if partition.span is None:
            assert packing is not None
            yield from packing.routing.batches(packing.controls(partition.ordinal, partition.ended), 1)
        elif packing is not None:
            taps = taps_here(self.reading.stop_file)
            for chunks in self._chunks(packing, partition.ordinal, partition.span, taps):
                yield self._fitted(chunks)
        else:
            for batch in self._given(readable(self.source, partition.span), partition.span):
                yield self._fitted(batch)

    def _rows(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        spans = list(self.source.spans(start["positions"], end["positions"], parallelism=1))
        packing, taps = self.reading.packing, taps_here(self.reading.stop_file)
        for ordinal, span in enumerate(spans):
            read = self._given(self.source, span) if packing is None else self._chunks(packing, ordinal, span, taps)
            for batch in read:
                yield self._fitted(batch)
        if packing is not None and self._has_controls(start, end):
            for batch in packing.routing.batches(packing.controls(len(spans), self._ended(start, end)), 1):
                yield self._fitted(batch)

    def _chunks(self, packing: Packing, ordinal: int, span: Span, taps: Taps) -> Iterator[pa.RecordBatch]:
        """Yield the chunks of a span: of the columns that are used, unless somebody wants to see rows as they are."""
        reading, program = self.reading, packing.program
        if self._narrowed is None and program is not None:
            spec = of_columns(reading.spec, program.reads(reading.name))
            self._narrowed = spec.open(reading.name, reading.workspace)
        source = self.source if taps.are_wanted or self._narrowed is None else self._narrowed
        chunks = packing.rows(ordinal, packing.read(readable(source, span), span), taps=taps)
        return packing.routing.batches(chunks, 1)

    def _given(self, source: Source, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span as Spark's plan takes them."""
        is_marked = self.reading.with_bounds and isinstance(source, MarkedSource)
        return source.read_marked(span) if is_marked else source.read(span)  # type: ignore[attr-defined]

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Spark compares schemas exactly, names inside lists and nullability included.
        if batch.schema.equals(self.arrow_schema):
            return batch
        columns = [batch.column(field.name).cast(field.type) for field in self.arrow_schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _is_prefetched(self, start: dict[str, Any], end: dict[str, Any]) -> bool:
        if _Prefetching is DataSourceStreamReader or not self.reading.has_rows or self.reading.prefetch_bytes == 0:
            return False
        program = None if self.reading.packing is None else self.reading.packing.program
        if program is not None and program.runs_user_code:
            return False  # a user's function and its set-up do not run where sources are planned
        size, _ = self._size(start["positions"], end["positions"])
        return size is not None and size <= self.reading.prefetch_bytes

    def _has_controls(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
        packing = self.reading.packing
        return packing is not None and (bool(packing.waking) or bool(self._ended(start, end)))

    def _ended(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the sources whose end this epoch reports."""
        if self.reading.spec.kind == ControlSpec.kind:
            return tuple(name for name in end["positions"] if name not in start["positions"])
        return (self.reading.name,) if end.get("has_ended") and not start.get("has_ended") else ()

    def _followed(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the next of the positions that are followed; sources that look at different times meet at the last."""
        targets = read_targets(Path(self.reading.targets_file), after=start.get("targets", 0))
        if not targets:
            return start
        next_ = targets[0]
        positions, marks = plain(next_.positions.get(self.reading.name) or start["positions"])
        self._source = None  # what the positions mean was written before them, and by another process
        return {**self._end(start, positions), **marks, "targets": next_.number}

    def _without_rows(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the end of an epoch without rows where one is needed: the source has ended, or it is time."""
        packing = self.reading.packing
        if packing is None:
            if self.reading.end_mark and self._has_ended(start["positions"]):
                mark_end(self.reading.end_mark)
            return start
        if self._reports_end(start, start["positions"]):
            return {**start, "has_ended": True}
        if packing.tick_us is None or self.bounded:
            return start
        if not is_due(due_file(self.reading.stop_file), time.time_ns() // 1000):
            return start
        return self._ticked(start, packing.tick_us)

    def _end_while_paused(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the end where this source delivers nothing, as it was told; it is not idle: it may have more rows."""
        if self.reading.notes_silence and not has_more(start):
            return {**start, "behind_us": max(time.time_ns() // 1000, start.get("given_us", 0) + 1)}
        return start

    def _held(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the end of an epoch in which back-pressure lets this source deliver nothing.

        The epoch is planned all the same, at once where the run ends when no source delivers anything: the driver must
        decide whether waiting still makes sense.  A source that is held is not idle: it may have more rows.
        """
        if (end := self._end_while_paused(start)) != start:
            return end
        end = self._without_rows(start)
        return end if end != start else self._ticked(start, 0 if self.bounded else HELD_TICK_US)

    def _ticked(self, start: dict[str, Any], after_us: int) -> dict[str, Any]:
        """Return an end without rows that differs from the start, if no epoch was planned for this long."""
        now_s = time.monotonic()
        if now_s - self._last_planned_s < after_us / 1e6:
            return start
        self._last_planned_s = now_s
        return {**start, "ticks": start.get("ticks", 0) + 1}

    def _silence(self, start: Mapping[str, Any], end: SourcePositions, known: SourcePositions | None) -> dict[str, int]:
        """Return what is logged for idle rules: since when this source has more rows, or has delivered all.

        Parameters
        ----------
        start : mapping of str to Any
            The offset before.
        end : SourcePositions
            The end of the epoch.
        known : SourcePositions, optional
            The newest positions before the source was asked: what arrives meanwhile is no backlog.
        """
        if not self.reading.notes_silence:
            return {}
        source = innermost(self.source)
        is_behind = source.has_more(end) if offers(source, Backlogged) else bool(lag_between(end, known))
        if is_behind == has_more(start):
            return {}
        now_us = time.time_ns() // 1000
        if is_behind:
            return {"behind_us": max(now_us, start.get("given_us", 0) + 1)}
        return {"given_us": max(now_us, start["behind_us"])}

    def _reports_end(self, start: Mapping[str, Any], positions: SourcePositions) -> bool:
        """Return whether an epoch up to these positions reports the end of the source to operators."""
        packing = self.reading.packing
        is_asked = packing is not None and bool(packing.closing.get(self.reading.name))
        return is_asked and not start.get("has_ended") and self._has_ended(positions)

    def _has_ended(self, positions: SourcePositions) -> bool:
        """Return whether a source that was declared bounded has delivered everything."""
        spec, source = self.reading.spec, innermost(self.source)
        is_bounded = offers(spec, Bounded) and spec.bounded
        return is_bounded and offers(source, Exhaustible) and source.has_ended(positions)

    def _end(self, start: Mapping[str, Any], end: SourcePositions) -> dict[str, Any]:
        size, rows = self._size(start["positions"], end)
        kept = {name: start[name] for name in MARKS if name in start}
        return {
            **kept,
            "positions": dict(end),
            "size_bytes": _plus(start["size_bytes"], size),
            "row_count": _plus(start["row_count"], rows),
            "newest": dict(self.source.newest() or {}),
        }

    def _size(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[int | None, int | None]:
        return self.source.size_between(start, end), self.source.rows_between(start, end)


def _plus(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more
