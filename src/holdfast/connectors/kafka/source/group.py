"""A consumer group that is told how far the sinks of a run are: for those who watch, and nobody else.

One thread sends the newest positions, and waits for the answer: where the cluster is slow, or away, positions in
between are left out and the run does not wait.

How far some positions are behind what a cluster holds: in messages, and by the age of the oldest of them.

Costs a request for the ends and one for the begins to each broker that leads partitions, and reads the first messages
of those partitions in which something is left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, TopicPartition

from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.source.cluster import Cluster
from holdfast.connectors.kafka.source.consuming import Access, chunks_of
from holdfast.connectors.kafka.topics import PartitionOf, Selection
from holdfast.connectors.reading.bounds import OffsetRange
from holdfast.connectors.reading.rounds_log import own_positions
from holdfast.positions import SourcePositions
from holdfast.values import SegmentLag

log = logging.getLogger("holdfast.connectors.kafka")

LAST_S = 10.0
"""How long the end of a run waits for the last positions to be sent."""


class GroupFollower:
    """Sets the offsets of a group; see :class:`holdfast.ports.Follower`.

    Parameters
    ----------
    brokers : Brokers
        The cluster, with its secrets.
    group, node : str
        The group, and the source for messages.
    """

    def __init__(self, brokers: Brokers, group: str, node: str) -> None:
        self._brokers, self._group, self._node = brokers, group, node
        self._changed = threading.Condition()
        self._newest: SourcePositions = {}
        self._sent: SourcePositions = {}
        self._is_ending = False
        self._thread: threading.Thread | None = None

    def tell(self, held: SourcePositions) -> None:
        """Note positions, to be sent."""
        with self._changed:
            self._newest = held
            if self._thread is None:
                name = f"holdfast-group-{self._group}"
                self._thread = threading.Thread(target=self._send_all, name=name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Send the last ones."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LAST_S)

    def _send_all(self) -> None:
        try:
            consumer = Consumer(self._brokers.client(group_id=self._group, enable_auto_commit=False))
        except KafkaException as error:
            self._warn(error)
            return
        while (held := self._next()) is not None:
            self._send(consumer, held)
        consumer.close()

    def _next(self) -> SourcePositions | None:
        """Wait for positions that were not sent; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest != self._sent or self._is_ending)
            is_new, self._sent = self._newest != self._sent, self._newest
            return self._sent if is_new else None

    def _send(self, consumer: Consumer, held: SourcePositions) -> None:
        at = [(PartitionOf.of(segment), offset) for segment, offset in own_positions(held).items()]
        offsets = [TopicPartition(part.topic, part.number, offset) for part, offset in at]
        try:
            if offsets:
                consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._warn(error)

    def _warn(self, error: KafkaException) -> None:
        said = self._brokers.shown(str(error))
        log.warning("%s: the group %r was not told its offsets: %s", self._node, self._group, said)


FIRST = 64
"""Among so many offsets the first message is looked for: some are marks of transactions."""

TIMEOUT_S = 5.0
"""A person waits for the answer."""


def lags(
    brokers: Brokers, selection: Selection, node: str, positions: SourcePositions, *, committed: bool
) -> Iterator[SegmentLag]:
    """Yield how far each partition is, by topic and number; one without a position counts from its begin."""
    cluster = Cluster(brokers, node, TIMEOUT_S)
    parts = cluster.partitions(selection)
    begins = cluster.begins(parts.values())
    ends = cluster.ends(parts.values(), committed=committed)
    there = [part for part in sorted(parts.values()) if part in begins and part in ends]
    at = {part: int(positions.get(part.segment, begins[part])) for part in there}
    firsts = [
        OffsetRange(part.segment, max(at[part], begins[part]), min(ends[part], max(at[part], begins[part]) + FIRST))
        for part in there
        if max(at[part], begins[part]) < ends[part]
    ]
    oldest = dict(_oldest(Access(brokers, node, committed, looks=True), firsts))
    for part in there:
        age = oldest.get(part.segment)
        yield SegmentLag(part.segment, f"{part.topic}/{part.number}", at[part], ends[part], age)


def _oldest(access: Access, ranges: list[OffsetRange]) -> Iterator[tuple[str, int]]:
    """Yield the time of the first message of each range, microseconds; none where a message has no time."""
    seen = set()
    for chunk in chunks_of(access, ranges, TIMEOUT_S) if ranges else ():
        if chunk.segment not in seen and (time_ms := int(chunk.messages.timestamps()[0])) >= 0:
            yield chunk.segment, time_ms * 1000
        seen.add(chunk.segment)
