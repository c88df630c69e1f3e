"""Messages between two offsets of partitions, in their order: where they end, and what is said when they are gone.

A range ends with a message at or beyond its end, or where the partition says that nothing follows: what a transaction
has aborted, the marks of transactions and what compaction has removed leave gaps, and nobody waits for those.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.answers import REFUSED, UNREADABLE, is_passing, unusable
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.native.clients import MessageConsumer, MessagesRead, open_consumer
from holdfast.connectors.kafka.source.cluster import (
    TIMEOUT_S,
    Cluster,
    diverged,
    gone,
    translated,
    unreadable,
)
from holdfast.connectors.kafka.topics import PartitionOf
from holdfast.connectors.reading.bounds import OffsetRange
from holdfast.errors import HoldfastError

TOGETHER = 20_000
"""Neighbouring ranges of so many messages in all are read at the same time, and held: a range alone costs a request."""

CHUNK_ROWS = 16_384
"""So many messages are made rows at a time."""

CHUNK_BYTES = 1 << 25

HELD_BYTES = 1 << 27
"""So much is held of ranges whose turn has not come; beyond that only the one whose turn it is is read."""

_LOOK_BYTES = 1 << 16
_POLL_S = 0.2
_NOWHERE = -1
_ASKED_AGAIN_S = 3.0
"""After so long without a message the cluster is asked whether the partition is still there."""

_PATIENCE = 10
"""So many times longer is waited where it answers that all is there: of what was aborted nothing comes."""


class Access(NamedTuple):
    """What a reader needs besides the ranges; travels to executors.

    Parameters
    ----------
    address : Brokers
        The cluster, with its secrets.
    node : str
        The source, for messages.
    committed : bool
        Whether messages of open and aborted transactions are left out.
    looks : bool
        Whether it looks at a few messages only: then no more are fetched ahead than a broker gives at once.
    """

    address: Brokers
    node: str
    committed: bool
    looks: bool = False


class MessageRun(NamedTuple):
    """Some messages of one segment that follow each other."""

    segment: str
    messages: MessagesRead


def chunks_of(access: Access, ranges: Sequence[OffsetRange], timeout_s: float = TIMEOUT_S) -> Iterator[MessageRun]:
    """Yield the messages of ranges, range by range, in the order of their offsets.

    Raises
    ------
    Diverged
        If messages are not there any more, with the exact range.
    Corrupt
        If what comes cannot be read: of a codec that the library does not know, or damaged.
    Unavailable
        If nothing comes for half a minute.
    """
    consumer = _taken(access)
    try:
        for some in _neighbours(ranges):
            yield from _Reading(access, consumer, some, timeout_s).chunks()
    except BaseException:
        consumer.close()
        raise
    _kept(access, consumer)


class _Reading:
    """Ranges that are read at the same time: the first is handed on as it comes, the others wait for their turn."""

    def __init__(
        self, access: Access, consumer: MessageConsumer, ranges: Sequence[OffsetRange], timeout_s: float
    ) -> None:
        self.access = access
        self.consumer = consumer
        self.ranges = ranges
        self.timeout_s = timeout_s
        self.parts = [PartitionOf.of(each.segment) for each in ranges]
        self.at = {(part.topic, part.number): place for place, part in enumerate(self.parts)}
        self.held: list[list[MessagesRead]] = [[] for _ in ranges]
        self.count = [0] * len(ranges)
        self.size = [0] * len(ranges)
        self.next = [each.first for each in ranges]
        self.has_ended = [False] * len(ranges)
        self.turn = 0
        self.alone: int | None = None

    def chunks(self) -> Iterator[MessageRun]:
        """Yield the messages."""
        self._begin()
        heard = asked = time.monotonic()
        patience_s = self.timeout_s
        while self.turn < len(self.ranges):
            some = self.consumer.take(CHUNK_ROWS, _POLL_S)
            if some and self._take(some):
                yield from self._due()
                heard = asked = time.monotonic()  # NB what is done with the messages takes its time, too
                patience_s = self.timeout_s
                continue
            if time.monotonic() - asked > _ASKED_AGAIN_S:
                self._check_there()
                asked = time.monotonic()
                patience_s = self.timeout_s * (1 if self.access.looks else _PATIENCE)
            if time.monotonic() - heard > patience_s:
                raise self._silent()
        self.consumer.unassign()

    def _begin(self) -> None:
        """Read on what has not ended; alone what the turn has come for, where too much is held."""
        self.alone = self.turn if self._is_much_held() else None
        wanted = range(self.turn, len(self.ranges)) if self.alone is None else [self.turn]
        places = [(self.parts[place], self.next[place]) for place in wanted if not self.has_ended[place]]
        self.consumer.assign((part.topic, part.number, at) for part, at in places)

    def _due(self) -> Iterator[MessageRun]:
        """Yield what its turn has come for, in pieces that are worth their name."""
        while self.turn < len(self.ranges):
            place, has_ended = self.turn, self.has_ended[self.turn]
            while self.held[place] and (has_ended or self._is_piece(self.count[place], self.size[place])):
                yield MessageRun(self.ranges[place].segment, self._piece(place))
            if not has_ended:
                break
            self.turn += 1
        is_held_back = self.alone is not None or self._is_much_held()
        if is_held_back and self.alone != self.turn < len(self.ranges):
            self._begin()

    def _is_much_held(self) -> bool:
        return sum(self.size[self.turn + 1 :]) > HELD_BYTES

    def _piece(self, place: int) -> MessagesRead:
        """Take as much of what is held of a range as one piece has: at least one batch."""
        some: list[MessagesRead] = []
        count = size = 0
        while self.held[place] and not self._is_piece(count, size):
            some.append(self.held[place].pop(0))
            count += len(some[-1])
            size += int(some[-1].sizes().sum())
        self.count[place] -= count
        self.size[place] -= size
        return some[0].join(some[1:])

    @staticmethod
    def _is_piece(count: int, size: int) -> bool:
        return count >= CHUNK_ROWS or size >= CHUNK_BYTES

    def _take(self, messages: MessagesRead) -> bool:
        """Sort messages into their ranges; return whether there was something of them, or of their ends."""
        errors = messages.errors()
        if len(self.ranges) == 1 and not errors.any():
            self._add(0, messages)
            return True
        places, offsets = self._places(messages), messages.offsets()
        ended, reset = [], False
        for at in np.flatnonzero(errors).tolist():
            error, place = messages.error(at), int(places[at])
            if place < 0:
                self._check_is_let_in(error)
            elif error.code() == codes.PARTITION_EOF:
                # A replica that lags behind its leader says so too early.
                if offsets[at] >= self.ranges[place].last:
                    ended.append(place)
            elif self.has_ended[place] or offsets[at] >= self.ranges[place].last:
                continue  # of what was read ahead
            elif error.code() == codes.AUTO_OFFSET_RESET:
                reset = True
            else:
                self._told(error, place, int(offsets[at]))
        is_some = bool(ended)
        for place, some in messages.split(np.where(errors == 0, places, _NOWHERE)):
            if place != _NOWHERE:
                self._add(place, some)
                is_some = True
        for place in ended:
            self._end(place)
        if reset and not all(self.has_ended):  # NB behind the messages that came with it: they are not read again
            self._check_there()
            self._begin()  # it was of an earlier reading, or all is there again
        return is_some

    def _check_is_let_in(self, error: KafkaError) -> None:
        """Raise for what concerns no partition that is read, if nothing can be read so.

        The library asks for the group that it wants to be named, and nothing is done with that.
        """
        is_of_group = error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        if error.fatal() or (error.code() in REFUSED and not is_of_group):
            raise translated(error, self.access.address, self.access.node)

    def _told(self, error: KafkaError, place: int, offset: int) -> None:
        """Raise for what ends the reading of a partition."""
        part = self.parts[place]
        if error.code() in UNREADABLE:
            where = f"in {part.topic}/{part.number} from offset {offset} on"
            raise unreadable(error, self.access.address, self.access.node, where)
        if error.fatal() or not (error.retriable() or is_passing(error)):
            raise translated(error, self.access.address, self.access.node)

    def _places(self, messages: MessagesRead) -> np.ndarray:
        """Return which range each message belongs to; they come in runs of one partition."""
        topics, partitions = messages.topics(), messages.partitions()
        begins = np.flatnonzero(np.r_[True, (np.diff(topics) != 0) | (np.diff(partitions) != 0)])
        names = {topic: messages.topic_name(topic) for topic in set(topics[begins].tolist())}
        runs = zip(topics[begins].tolist(), partitions[begins].tolist(), strict=True)
        places = [self.at.get((names[topic], number), _NOWHERE) for topic, number in runs]
        return np.repeat(places, np.diff(np.r_[begins, len(messages)]))

    def _add(self, place: int, messages: MessagesRead) -> None:
        """Add messages to a range; those behind it say that it has ended."""
        if self.has_ended[place]:
            return
        last = self.ranges[place].last
        offsets = messages.offsets()
        self.next[place] = int(offsets[-1]) + 1
        if offsets[-1] >= last - 1:
            within = dict(messages.split(offsets >= last))
            self._end(place)
            if False not in within:
                return
            messages = within[False]
        self.held[place].append(messages)
        self.count[place] += len(messages)
        self.size[place] += int(messages.sizes().sum())

    def _end(self, place: int) -> None:
        self.has_ended[place] = True
        if not all(self.has_ended):
            part = self.parts[place]
            self.consumer.pause((part.topic, part.number))

    def _cluster(self) -> Cluster:
        return Cluster(self.access.address, self.access.node, self.timeout_s)

    def _check_there(self) -> None:
        """See that what is still to come is there: what has come may be gone by now."""
        left = zip(self.ranges, self.next, self.has_ended, strict=True)
        rest = {each.segment: (at, each.last) for each, at, has_ended in left if not has_ended and at < each.last}
        if why := gone(self._cluster(), rest, committed=False):
            raise diverged(self.access.node, why)

    def _silent(self) -> HoldfastError:
        place = self.turn
        part, each = self.parts[place], self.ranges[place]
        error = KafkaException(KafkaError(codes.TIMED_OUT, f"nothing came of {part.topic}/{part.number}"))
        return translated(error, self.access.address, f"{self.access.node}, offsets {each.first} to {each.last - 1}")


def _neighbours(ranges: Sequence[OffsetRange]) -> Iterator[list[OffsetRange]]:
    """Yield ranges that are read at the same time: few messages in all, and each segment once."""
    some: list[OffsetRange] = []
    size = 0
    for each in ranges:
        count = each.last - each.first
        if some and (size + count > TOGETHER or any(each.segment == other.segment for other in some)):
            yield some
            some, size = [], 0
        some.append(each)
        size += count
    if some:
        yield some


_lock = threading.Lock()
_idle: dict[tuple[int, Access], MessageConsumer] = {}
"""Process, and what it reads with -> a consumer that is not in use: a new one would connect to the brokers first."""


def _taken(access: Access) -> MessageConsumer:
    with _lock:
        consumer = _idle.pop((os.getpid(), access), None)
    if consumer is not None:
        return consumer
    try:
        return open_consumer(access.address, access.address.client(**_settings(access)))
    except KafkaException as error:
        raise unusable(error, access.address, access.node) from error


def _kept(access: Access, consumer: MessageConsumer) -> None:
    with _lock:
        other = _idle.pop((os.getpid(), access), None)
        _idle[os.getpid(), access] = consumer
    if other is not None:
        other.close()


def _settings(access: Access) -> dict[str, Any]:
    return {
        "group_id": "holdfast",  # the library wants one; nobody joins it
        "enable_auto_commit": False,
        "enable_auto_offset_store": False,
        "auto_offset_reset": "error",  # never anywhere else than where the position says
        "enable_partition_eof": True,
        "check_crcs": True,
        "isolation_level": "read_committed" if access.committed else "read_uncommitted",
        "allow_auto_create_topics": False,
        "fetch_message_max_bytes": _LOOK_BYTES if access.looks else 8 << 20,
        # To hold more costs memory that is touched for the first time.  As installed, a partition that has enough is
        # asked again after a second: a quarter of the rows a second.
        "queued_min_messages": 1 if access.looks else 50_000,
        "fetch_queue_backoff_ms": 2,
        "queued_max_messages_kbytes": 32 << 10,
        # What was still asked when the last range had ended delays the first answer of the next one by this.
        "fetch_wait_max_ms": 5,
        "reconnect_backoff_max_ms": 500,
    }
