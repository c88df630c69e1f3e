"""The topics of one source: planning in the driver's process, reading anywhere.

Invariants: the position of a segment is the offset that is read next; an epoch ends at most where the fate of every
message before is decided, so what it is does not change; positions that were given are never taken back, and a segment
that has gone is never left out in silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from holdfast.clock import SystemClock
from holdfast.connectors.formats.blocks import RowRules
from holdfast.connectors.formats.json_new_columns import parser_of
from holdfast.connectors.kafka.avro_registry import Registry, schemas_of
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.fields import FIELDS
from holdfast.connectors.kafka.source import payloads
from holdfast.connectors.kafka.source.cluster import (
    TIMEOUT_S,
    Cluster,
    begin,
    dealt,
    diverged,
    gone,
    record,
)
from holdfast.connectors.kafka.source.consuming import Access, MessageRun, chunks_of
from holdfast.connectors.kafka.source.payloads import PayloadReader, json_rows
from holdfast.connectors.kafka.source.reading import KafkaReading
from holdfast.connectors.kafka.topics import PartitionOf
from holdfast.connectors.reading.bounds import OffsetRange, PartitionBounds
from holdfast.connectors.reading.identified import Numbered, PlaceRun, Recorded
from holdfast.connectors.reading.partitioned import BOUND, BOUND_ROW_SIZE, bound_row, of_partitions, share, with_bound
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.limits import ReadLimit, rows_within
from holdfast.ports import REJECT_COLUMN, Span
from holdfast.positions import SourcePositions

LOOK_S = 5.0
"""How often topics and partitions are looked for that were added."""

_BACK_LOOK_S = 0.2
_BACK_S = 10.0
"""So long a partition may end before a position: the new leader of a partition learns the end a little later."""

_SAMPLE_ROWS = 50
_ROW_SIZE = 64
"""What a message takes besides key and value, in bytes, about."""


class KafkaTask(NamedTuple):
    """What a task reads: everything in it, so that an executor needs neither a checkpoint nor an environment."""

    address: Brokers
    ranges: tuple[OffsetRange, ...]
    bound: int | None = None
    """A bound that holds for all keys, behind all rows of the epoch."""
    registry: Registry | None = None


class KafkaSource:
    """The messages of some topics.

    Parameters
    ----------
    spec : KafkaReading
        The declaration.
    name, workspace : str
        The node's name, and its directory below the checkpoint: where reading began.

    Notes
    -----
    Pickles to its declaration.  :meth:`latest` asks each broker that leads partitions once, and, where there is
    something new, which topics there are.
    """

    def __init__(self, spec: KafkaReading, name: str, workspace: str) -> None:
        self.spec = spec
        self.name = name
        self.workspace = workspace
        self._asked: Cluster | None = None
        self._parts: dict[str, PartitionOf] = {}
        self._looked_s: float | None = None
        self._ends: dict[str, int] = {}
        self._frozen: dict[str, int] | None = None
        self._is_seen_there = False
        self._back_since: dict[str, float] = {}
        self._row_size: float | None = None
        self._most: Mapping[str, int] | None = None
        self._bounds = None if spec.times is None else PartitionBounds(spec.times, self._highest_times)

    def __reduce__(self) -> tuple[Any, ...]:
        return (KafkaSource, (self.spec, self.name, self.workspace))

    # --- planning ---------------------------------------------------------------------------------------------------

    def initial(self) -> SourcePositions:
        """Positions where reading begins: recorded by the first process that asks, and never looked up again."""
        recorded = Recorded(self.workspace, self.name)
        if not recorded.has_start:
            parts = self._look()
            self._check_topics(parts)
            # Of all partitions, also where a part of them is read: each part finds what the first one has recorded.
            recorded.put_start({part.segment: at for part, at in self._start(list(parts.values())).items()})
        return {segment: at for segment, at in recorded.start.items() if segment in self.spec.reads}

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End of the next epoch: what is decided now, of each partition the same share of ``max_rows_per_epoch``."""
        ends = self._frozen_ends(start) if bounded else self._new_ends(start)
        self._note_begins(start, ends)
        counts = {}
        for segment, end in (ends if self._most is None else _lower(ends, self._most)).items():
            low = self._low(segment, start)
            if end > low:
                counts[segment] = end - low
        found = dict(start)
        most = rows_within(
            self.spec.max_rows_per_epoch,
            limit,
            sum(counts.values()),
            lambda: self.size_between(start, {**start, **ends}),
        )
        for segment, count in share(counts, most).items():
            if count:
                found[segment] = self._low(segment, start) + count
        return found if self._bounds is None else self._with_bound(self._bounds, start, found, ends)

    def freeze(self) -> None:
        """Record what is there now."""
        self._frozen = self._new_ends({})

    def _frozen_ends(self, start: SourcePositions) -> dict[str, int]:
        """Return where a bounded run ends, once it is seen that positions lead somewhere."""
        if self._frozen is None:
            self.freeze()
        while not self._is_seen_there:
            self._new_ends(start)
            self._is_seen_there = not self._back_since
            time.sleep(0 if self._is_seen_there else _BACK_LOOK_S)
        return dict(self._frozen or {})

    def newest(self) -> SourcePositions | None:
        """Positions after everything that was there when it was looked last."""
        if not self._ends:
            self._new_ends({})
        return dict(self._ends)

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """About how many bytes there are between two positions, by a sample of them."""
        count = self._offsets_between(start, end)
        if not count:
            return 0
        if self._row_size is None:
            self._row_size = self._sampled(start, end)
        return max(1, round(count * self._row_size))

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Offsets between two positions: as many messages, less what transactions and compaction leave out."""
        return self._offsets_between(start, end)

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Deal the offsets between two positions to tasks, in the order of segments."""
        address = self._address()
        registry = self._registry()
        found = []
        for ranges in dealt(self._between(start, end), parallelism):
            count = sum(each.last - each.first for each in ranges)
            size = None if self._row_size is None else round(count * self._row_size)
            found.append(Span(KafkaTask(address, ranges, registry=registry), count, size))
        if end.get(BOUND) != start.get(BOUND):
            found.append(Span(KafkaTask(address, (), int(end[BOUND])), 1, BOUND_ROW_SIZE))
        return found

    # --- runs up to a time (design/0038, section 10) ----------------------------------------------------------------

    def low_of(self, segment: str, start: SourcePositions) -> int:
        """Return the offset that is read next of a partition."""
        return self._low(segment, start)

    def ends_up_to(self, before: int) -> Mapping[str, int] | None:
        """Return where partitions end now; None while the time lies ahead.

        Where it is known how far a message may be below the highest before it, a partition ends before the first
        message that is so far above the time: no row below it follows.
        """
        ends = self._new_ends({})
        self._note_begins(Recorded(self.workspace, self.name).start, ends)
        spec = self.spec
        if pa.types.is_timestamp(spec.schema.field(spec.timestamp).type) and SystemClock().now_us() < before:
            return None
        if spec.times is None or not spec.has_message_time:
            return ends
        parts = [part for segment, part in self._own().items() if segment in ends]
        found = self._cluster().at_time(parts, _ms(before + (spec.times.disorder or 0)), committed=self._is_committed)
        return _lower(ends, {part.segment: at for part, at in found.items()})

    def limits(self, starts: Mapping[str, int], before: int) -> Mapping[str, Sequence[tuple[int, bool]]]:
        """Return from which offset on rows may be at or above a time.

        The cluster knows it where the timestamp is that of the message: before the first such message there is none.
        """
        if not self.spec.has_message_time:
            return {segment: [(at, True)] for segment, at in starts.items()}
        parts = [self._parts[segment] for segment in starts if segment in self._parts]
        found = self._cluster().at_time(parts, _ms(before), committed=self._is_committed)
        firsts = {part.segment: at for part, at in found.items()}
        return {segment: [(at, False), (max(at, firsts.get(segment, at)), True)] for segment, at in starts.items()}

    def hold_to(self, ends: Mapping[str, int]) -> None:
        """Plan no message from now on that is at or after the end of its partition."""
        self._most = ends

    def most_entries(self, count: int, size: Callable[[], int | None], limit: ReadLimit | None) -> int | None:
        """Return how many of so many offsets an epoch takes."""
        return rows_within(self.spec.max_rows_per_epoch, limit, count, size)

    def committed(self, end: SourcePositions) -> None:
        """Nothing is kept for a replay: how long messages stay is for the cluster to say."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span.

        Raises
        ------
        Diverged
            If messages are not there any more, with the exact range.
        Unavailable
            If the cluster does not answer.
        BadRow
            If a payload cannot be read and is not to be rejected.
        """
        for _, batch in self.read_numbered(span):
            yield batch

    def read_numbered(self, span: Span) -> Iterator[Numbered]:
        """Yield the rows of a span with their offsets."""
        task: KafkaTask = span.value
        if task.bound is not None:
            number = np.array([task.bound], np.int64).view(np.uint64)
            schema = RowRules(self.spec.schema, self.spec.rejects).read_schema
            yield Numbered((PlaceRun(BOUND, number),), bound_row(schema, self.spec.timestamp, task.bound))
        access = Access(task.address, self._node, self.spec.isolation == "read_committed")
        read = self._payload_reader(task.registry)
        for chunk in chunks_of(access, task.ranges):
            numbers = chunk.messages.offsets().view(np.uint64)
            yield Numbered((PlaceRun(chunk.segment, numbers),), self._batch(chunk, read))

    def _payload_reader(self, registry: Registry | None) -> PayloadReader:
        """Return what makes rows of payloads."""
        if registry is None:
            return partial(json_rows, parser_of(self.spec.payload, self.spec.on_new))
        from holdfast.connectors.kafka.source.avro_payloads import AvroReader  # its libraries are another extra

        return AvroReader(schemas_of(registry, self._node), self.spec.payload).rows

    def _batch(self, chunk: MessageRun, read: PayloadReader) -> pa.RecordBatch:
        part, messages, spec = PartitionOf.of(chunk.segment), chunk.messages, self.spec
        beside = [
            pa.nulls(len(messages), FIELDS[of].type)
            if name in spec.unread
            else payloads.column(of, part.topic, part.number, messages)
            for name, of in spec.metadata
        ]
        beside += [] if spec.times is None else [pa.nulls(len(messages), pa.bool_())]
        if spec.format == "bytes":
            return pa.RecordBatch.from_arrays(beside, schema=spec.schema)
        rows, offsets = RowRules(spec.payload, spec.rejects, spec.schema_file), messages.offsets()

        def place(at: int) -> str:
            return f"{part.topic}/{part.number}/{offsets[at]}"

        batch = read(messages.values().to_pylist(), rows, place)
        payload = batch.columns[: len(spec.payload)]
        rejects = [batch.column(REJECT_COLUMN)] if spec.rejects else []
        return pa.RecordBatch.from_arrays(
            [*payload, *beside, *rejects], schema=RowRules(spec.schema, spec.rejects).read_schema
        )

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _node(self) -> str:
        return f"source {self.name!r}"

    @property
    def _is_committed(self) -> bool:
        return self.spec.isolation == "read_committed"

    def _address(self) -> Brokers:
        return self.spec.address.expanded()

    def _registry(self) -> Registry | None:
        return None if self.spec.registry is None else self.spec.registry.expanded(self._node)

    def _cluster(self) -> Cluster:
        if self._asked is None:
            self._asked = Cluster(self._address(), self._node, TIMEOUT_S)
        return self._asked

    def _look(self) -> dict[str, PartitionOf]:
        """Look which partitions there are."""
        self._parts = self._cluster().partitions(self.spec.selection)
        self._looked_s = time.monotonic()
        return self._parts

    def _own(self) -> dict[str, PartitionOf]:
        """Return those that this part of the source reads."""
        return {segment: part for segment, part in self._parts.items() if segment in self.spec.reads}

    def _start(self, parts: Sequence[PartitionOf]) -> Mapping[PartitionOf, int]:
        cluster, start = self._cluster(), self.spec.start
        if start == "latest":
            return cluster.ends(parts, committed=self._is_committed)
        times = [] if start == "earliest" else [int(start)]
        if self.spec.since is not None and self.spec.has_message_time:
            times.append(self.spec.since)  # before the first message at or after a time all are before it
        if not times:
            return cluster.begins(parts)
        return cluster.at_time(parts, max(times) // 1000, committed=self._is_committed)

    def _new_ends(self, start: SourcePositions) -> dict[str, int]:
        """Return where each partition ends now; what goes on from a position is still the same partition."""
        start = of_partitions(start)
        if self._looked_s is None or time.monotonic() - self._looked_s > LOOK_S:
            self._look()
        known = self._own()
        found = self._cluster().ends(known.values(), committed=self._is_committed)
        ends = {part.segment: end for part, end in found.items()}
        if ends != self._ends or start.keys() - ends.keys():
            # Ids are compared after the ends were read: they are those of topics that were there before and after.
            self._look()
            now = self._own()
            if now.keys() != known.keys():
                found = self._cluster().ends(now.values(), committed=self._is_committed)
                ends = {part.segment: end for part, end in found.items()}
        self._check_there(start, ends)
        self._ends = {**{segment: at for segment, at in start.items() if segment not in ends}, **ends}
        return ends

    def _with_bound(
        self, bounds: PartitionBounds, start: SourcePositions, found: SourcePositions, ends: Mapping[str, int]
    ) -> SourcePositions:
        """Return positions with the bound that holds after them; it never falls."""
        positions = {segment: at for segment, at in of_partitions(found).items() if segment in ends}
        unseen = bounds.unseen(positions)
        lows = {segment: self._low(segment, start) for segment in unseen}
        old = [self._parts[each] for each in unseen if lows[each] == positions[each] and each in self._parts]
        lows |= {part.segment: at for part, at in self._cluster().begins(old).items()}
        now_us = time.monotonic_ns() // 1000
        bound = bounds.after(positions, ends, lows, now_us)
        bounds.warn_of_silence(ends, now_us, self._node, _show)
        return with_bound(found, start, bound)

    def _highest_times(self, ranges: Collection[OffsetRange]) -> dict[str, int]:
        """Return the highest time of the messages in ranges, by segment."""
        access = Access(self._address(), self._node, self._is_committed, looks=True)
        found: dict[str, int] = {}
        read = self._payload_reader(self._registry())
        for chunk in chunks_of(access, list(ranges)):
            if self.spec.times is not None and self.spec.times.disorder is None:
                self._check_append_time(chunk)
            try:
                times = self._batch(chunk, read).column(self.spec.timestamp).cast(pa.int64())
            except BadRow:  # it is said where the row is read
                continue
            if (highest := pc.max(times).as_py()) is not None:
                found[chunk.segment] = max(highest, found.get(chunk.segment, highest))
        return found

    def _check_append_time(self, chunk: MessageRun) -> None:
        if chunk.messages.timestamp_kinds() != {TIMESTAMP_LOG_APPEND_TIME}:
            topic = PartitionOf.of(chunk.segment).topic
            raise InvalidPipeline(
                f"{self._node}: the times of topic {topic!r} are those of producers, and nothing is known of their "
                "order.",
                why="only times that the broker sets when it appends a message ascend by themselves.",
                do='say how far a message may be below the highest before it in its partition: disorder="5 s"; or '
                "set message.timestamp.type=LogAppendTime of the topic: messages that are there already keep theirs.",
                participant=self.name,
            )

    def _check_there(self, start: SourcePositions, ends: Mapping[str, int]) -> None:
        """Stop where positions lead nowhere: a topic that is another one, a partition that is gone or shorter."""
        named = self.spec.selection.pattern is None
        for segment in start.keys() - ends.keys():
            part = PartitionOf.of(segment)
            is_new = any(each.topic == part.topic for each in self._parts.values())
            if named or is_new or int(start[segment]) < self._ends.get(segment, 0):
                why = gone(self._cluster(), {segment: _at(start, segment)}, committed=False)
                if why:  # else a broker has told less than there is
                    raise diverged(self._node, why)
        now = time.monotonic()
        for segment, end in ends.items():
            if end >= int(start.get(segment, 0)):
                self._back_since.pop(segment, None)
            elif now - self._back_since.setdefault(segment, now) > _BACK_S:
                why = gone(self._cluster(), {segment: _at(start, segment)}, committed=self._is_committed)
                if why:
                    raise diverged(self._node, why)
                del self._back_since[segment]

    def _check_topics(self, parts: Mapping[str, PartitionOf]) -> None:
        there = {part.topic for part in parts.values()}
        lacking = [topic for topic in self.spec.selection.topics if topic not in there]
        if lacking:
            raise InvalidPipeline(
                f"{self._node}: topic {lacking[0]!r} is not on the Kafka cluster {self.spec.address}.",
                why="no topic of this name is there, or this user may not describe it.",
                do="create it, or correct its name; Holdfast creates no topic of yours.",
                participant=self.name,
            )

    def _low(self, segment: str, start: SourcePositions) -> int:
        """Return where a partition is read next; one that appeared later from what there was of it at the first look.

        NB never asked here: a replay must not begin behind what retention has taken meanwhile.
        """
        if segment in start:
            return int(start[segment])
        return begin(self.workspace, self.name, segment) or 0

    def _note_begins(self, start: SourcePositions, segments: Iterable[str]) -> None:
        """Record where partitions begin that appeared since the start."""
        seen = (each for each in segments if each not in start and each in self._parts)
        new = [self._parts[each] for each in seen if begin(self.workspace, self.name, each) is None]
        for part, offset in self._cluster().begins(new).items():
            record(self.workspace, self.name, part.segment, offset)

    def _between(self, start: SourcePositions, end: SourcePositions) -> list[OffsetRange]:
        found = []
        for segment in sorted(of_partitions(end), key=PartitionOf.of):
            if int(end[segment]) > int(start.get(segment, 0)):
                low = self._low(segment, start)
                if int(end[segment]) > low:
                    found.append(OffsetRange(segment, low, int(end[segment])))
        return found

    def _offsets_between(self, start: SourcePositions, end: SourcePositions) -> int:
        return sum(each.last - each.first for each in self._between(start, end))

    def _sampled(self, start: SourcePositions, end: SourcePositions) -> float:
        """Return the size of a message between two positions, by the first ones of the longest range."""
        longest = max(self._between(start, end), key=lambda each: each.last - each.first)
        some = longest._replace(last=min(longest.last, longest.first + _SAMPLE_ROWS))
        access = Access(self._address(), self._node, self._is_committed, looks=True)
        sizes = [size for chunk in chunks_of(access, [some]) for size in chunk.messages.sizes().tolist()]
        return _ROW_SIZE + (sum(sizes) / len(sizes) if sizes else 0)


def _at(start: SourcePositions, segment: str) -> tuple[int, int]:
    return int(start[segment]), int(start[segment])


def _lower(ends: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
    return {segment: min(end, most.get(segment, 0)) for segment, end in ends.items()}


def _ms(time_us: int) -> int:
    """Return the first millisecond that is not before a time."""
    return -(-time_us // 1000)


def _show(segment: str) -> str:
    part = PartitionOf.of(segment)
    return f"partition {part.number} of topic {part.topic}"
