"""A consumer group that is told how far the sinks of a run are: for those who watch, and nobody else.

One thread sends the newest positions, and waits for the answer: where the cluster is slow, or away, positions in
between are left out and the run does not wait.
"""

from __future__ import annotations

import logging
import threading

from confluent_kafka import Consumer, KafkaException, TopicPartition

from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.source.partitions import PartitionOf
from holdfast.connectors.reading.partitioned import of_partitions
from holdfast.positions import SourcePositions

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
        at = [(PartitionOf.of(segment), offset) for segment, offset in of_partitions(held).items()]
        offsets = [TopicPartition(part.topic, part.number, offset) for part, offset in at]
        try:
            if offsets:
                consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._warn(error)

    def _warn(self, error: KafkaException) -> None:
        said = self._brokers.shown(str(error))
        log.warning("%s: the group %r was not told its offsets: %s", self._node, self._group, said)
