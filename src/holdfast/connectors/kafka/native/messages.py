"""Messages that were read, as Arrow columns: ``rd_kafka_message_t``, whose layout is public, many at a time."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from holdfast.connectors.kafka.fields import int64s
from holdfast.connectors.kafka.native.library import (
    CONSUMER,
    WORD,
    Client,
    Hold,
    c_int,
    c_int32,
    c_int64,
    newer,
    pointer,
    quick,
    size_t,
    text,
    waits,
    words,
)
from holdfast.connectors.kafka.native.topics import Topic

MESSAGE = np.dtype(
    {
        "names": ["error", "topic", "partition", "value", "size", "key", "key_size", "offset"],
        "formats": ["i4", "i8", "i4", "i8", "i8", "i8", "i8", "i8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 72,
    }
)
"""``rd_kafka_message_t``."""

_message_destroy = quick("rd_kafka_message_destroy", None, pointer)
_messages_destroy = newer(waits, "rd_kafka_messages_destroy", None, pointer)
_malloc = quick("rd_kafka_mem_malloc", pointer, pointer, size_t)
_timestamp = quick("rd_kafka_message_timestamp", c_int64, pointer, pointer)
_headers = quick("rd_kafka_message_headers", c_int, pointer, pointer)
_header = quick("rd_kafka_header_get_all", c_int, pointer, size_t, pointer, pointer, pointer)
_topic_name = quick("rd_kafka_topic_name", text, pointer)
_said = quick("rd_kafka_message_errstr", text, pointer)

_list_new = quick("rd_kafka_topic_partition_list_new", pointer, c_int)
_list_add = quick("rd_kafka_topic_partition_list_add", pointer, pointer, text, c_int32)
_list_offset = quick("rd_kafka_topic_partition_list_set_offset", c_int, pointer, text, c_int32, c_int64)
_list_destroy = quick("rd_kafka_topic_partition_list_destroy", None, pointer)
_assign = waits("rd_kafka_assign", c_int, pointer, pointer)
_pause = waits("rd_kafka_pause_partitions", c_int, pointer, pointer)
_resume = waits("rd_kafka_resume_partitions", c_int, pointer, pointer)
_poll_set_consumer = quick("rd_kafka_poll_set_consumer", c_int, pointer)
_queue_of = quick("rd_kafka_queue_get_consumer", pointer, pointer)
_queue_destroy = quick("rd_kafka_queue_destroy", None, pointer)
_consume = waits("rd_kafka_consume_batch_queue", ctypes.c_ssize_t, pointer, c_int, pointer, size_t)
_close = waits("rd_kafka_consumer_close", c_int, pointer)

Place = tuple[str, int]
"""Topic and partition."""


class BulkConsumer(Client):
    """A consumer of partitions that it is told.

    Parameters
    ----------
    settings : mapping of str to object
        As confluent-kafka takes them, without functions.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(CONSUMER, settings)
        _poll_set_consumer(self.handle)

    def assign(self, places: Iterable[tuple[str, int, int]]) -> None:
        """Read on from these offsets of these partitions, and of no others."""
        offsets = {(topic, number): offset for topic, number, offset in places}
        # NB a name that is too long would break the library
        for name in {topic for topic, _ in offsets}:
            Topic(self, name)
        self._ask(_assign, offsets, offsets)
        self._ask(_resume, offsets)  # NB a partition stays paused from one assignment to the next

    def unassign(self) -> None:
        """Read nothing on."""
        _assign(self.handle, None)

    def pause(self, place: Place) -> None:
        """Give nothing more of a partition."""
        self._ask(_pause, [place])

    def take(self, limit: int, timeout_s: float) -> MessageBatch:
        """Return at most so many messages; one is waited for, the others are there.  Errors are among them."""
        addresses = np.empty(limit, np.int64)
        queue = _queue_of(self.handle)
        try:
            count = _consume(queue, round(timeout_s * 1000), addresses.ctypes.data, 1)
            if count > 0:
                count += max(0, _consume(queue, 0, addresses[1:].ctypes.data, limit - 1))
        finally:
            _queue_destroy(queue)
        assert self.hold is not None
        self.hold.add(max(0, count))
        return MessageBatch(addresses[: max(0, count)], self.hold)

    def close(self) -> None:
        """Leave the brokers."""
        _close(self.handle)

    def _ask(self, function: Any, places: Iterable[Place], offsets: Mapping[Place, int] | None = None) -> None:
        listed = _list_new(0)
        try:
            for topic, number in places:
                _list_add(listed, topic.encode(), number)
                if offsets is not None:
                    _list_offset(listed, topic.encode(), number, offsets[topic, number])
            if code := function(self.handle, listed):
                raise KafkaException(KafkaError(code))
        finally:
            _list_destroy(listed)


class MessageBatch:
    """Messages as librdkafka holds them, in their order; let go with this object.

    Parameters
    ----------
    addresses : numpy.ndarray of int64
        Of the messages.
    hold : Hold
        On what has read them: they are counted there.
    """

    def __init__(self, addresses: np.ndarray, hold: Hold) -> None:
        self._addresses = addresses
        self._hold = hold

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self._addresses)

    def __del__(self) -> None:
        """Let them go, unless all of the process's memory goes."""
        if sys.is_finalizing():
            return
        _let_go(self._addresses)
        self._hold.remove(len(self._addresses))

    def split(self, places: np.ndarray) -> list[tuple[int, MessageBatch]]:
        """Return place and the messages there, in their order; nothing stays in this object."""
        addresses, self._addresses = self._addresses, self._addresses[:0]
        if not len(addresses):
            return []
        if (places == places[0]).all():
            return [(int(places[0]), MessageBatch(addresses, self._hold))]
        order = np.argsort(places, kind="stable")
        cuts = np.flatnonzero(np.diff(places[order])) + 1
        return [(int(places[some[0]]), MessageBatch(addresses[some], self._hold)) for some in np.split(order, cuts)]

    def join(self, others: Sequence[MessageBatch]) -> MessageBatch:
        """Return these messages and those of others behind them; nothing stays in any of these objects."""
        if not others:
            return self
        parts = [self, *others]
        together = MessageBatch(np.concatenate([part._addresses for part in parts]), self._hold)
        for part in parts:
            part._addresses = part._addresses[:0]
        return together

    # --- what stands in each ------------------------------------------------------------------------------------------

    def errors(self) -> np.ndarray:
        """Return codes; 0 is none."""
        return self._word("error")

    def topics(self) -> np.ndarray:
        """Return what stands for the topic of each: equal numbers for one topic, see :meth:`topic_name`."""
        return self._word("topic")

    def partitions(self) -> np.ndarray:
        """Return partition numbers."""
        return self._word("partition")

    def offsets(self) -> np.ndarray:
        """Return offsets."""
        return self._word("offset")

    def sizes(self) -> np.ndarray:
        """Return the bytes of key and value of each."""
        both: np.ndarray = self._word("size") + self._word("key_size")
        return both

    def values(self) -> pa.Array:
        """Return values, binary; null where there is none (a tombstone)."""
        return _copied(self._word("value"), self._word("size"))

    def keys(self) -> pa.Array:
        """Return keys, binary; null where there is none."""
        return _copied(self._word("key"), self._word("key_size"))

    def timestamps(self) -> np.ndarray:
        """Return milliseconds of Unix time; -1 where there is none."""
        return np.fromiter(map(_timestamp, self._addresses.tolist(), repeat(None)), np.int64, len(self))

    def timestamp_kinds(self) -> set[int]:
        """Return which kinds of times there are: ``confluent_kafka.TIMESTAMP_LOG_APPEND_TIME`` and others."""
        kind = ctypes.c_int()
        asked = zip(self._addresses.tolist(), repeat(ctypes.addressof(kind)), strict=False)
        return {(_timestamp(*one), kind.value)[1] for one in asked}

    def headers(self) -> list[list[tuple[str, bytes | None]] | None]:
        """Return the headers of each; None where there are none."""
        found = ctypes.c_void_p()
        asked = zip(self._addresses.tolist(), repeat(ctypes.addressof(found)), strict=False)
        return [None if _headers(*one) else _headers_in(found) for one in asked]

    def topic_name(self, topic: int) -> str:
        """Return the name of one of :meth:`topics`; an error may have none."""
        return str(_topic_name(topic).decode()) if topic else ""

    def error(self, place: int) -> KafkaError:
        """Return what one says that is no message."""
        said = _said(int(self._addresses[place])) or b""
        return KafkaError(int(self.errors()[place]), said.decode(errors="replace"))

    def _word(self, name: str) -> np.ndarray:
        kind, at = MESSAGE.fields[name][:2]  # type: ignore[index]
        found = words(self._addresses + at)
        return found if kind.itemsize == WORD else found.astype(np.int32).astype(np.int64)


_KNOWS_LISTS = _messages_destroy is not None
"""Whether the library has lists of messages: how many, and behind it their addresses.

That is not public, and one of what the trial in a process of its own is about.
"""


def _let_go(addresses: np.ndarray) -> None:
    """Let messages go: all by one call, as a list of the library's, or by a call for each."""
    if not _KNOWS_LISTS:
        deque(map(_message_destroy, addresses.tolist()), maxlen=0)
    elif len(addresses):
        content = np.concatenate(([len(addresses)], addresses))
        listed = _malloc(None, content.nbytes)
        ctypes.memmove(listed, content.ctypes.data, content.nbytes)
        _messages_destroy(listed)  # and the list itself


_WIDE = 1 << 26
_GAP = 1 << 16
"""Bytes: messages that extend over more are copied in parts, cut where so much between two belongs to others."""


def _copied(at: np.ndarray, sizes: np.ndarray) -> pa.Array:
    """Return the bytes at addresses, null where an address is 0."""
    is_null = at == 0
    if is_null.all():
        return pa.nulls(len(at), pa.binary())
    sizes = np.where(is_null, 0, sizes)
    is_filled = sizes > 0
    lowest = at[is_filled if is_filled.any() else ~is_null].min()
    starts = np.where(is_filled, at, lowest)  # NB the library has one empty value, far away from all others
    order = np.argsort(2 * starts + is_filled, kind="stable")
    starts, ends = starts[order], (starts + sizes)[order]
    cuts = [0]
    if ends.max() - lowest > _WIDE + 2 * int(sizes.sum()):  # Arrow reserves half of what they extend over
        cuts += (np.flatnonzero(np.diff(starts) > _GAP) + 1).tolist()
    parts = [_between(starts[one:two], ends[one:two]) for one, two in pairwise([*cuts, len(at)])]
    places = np.empty(len(at), np.int64)
    places[order] = np.arange(len(at))
    if len(parts) == 1:
        memory, first = parts[0], 2
    else:
        memory = pa.concat_arrays([part.take(int64s(np.arange(0, len(part), 2))) for part in parts])
        first = 1
    return memory.take(int64s(places * first, is_null)).cast(pa.binary())


def _between(starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Return the bytes at ascending places, and between each two what belongs to others; nothing is copied."""
    edges = np.empty(2 * len(starts), np.int64)
    edges[0::2], edges[1::2] = starts, ends
    edges -= starts[0]
    memory = pa.foreign_buffer(int(starts[0]), int(edges.max()))
    return pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, [None, pa.py_buffer(edges), memory])


def _headers_in(found: ctypes.c_void_p) -> list[tuple[str, bytes | None]]:
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    places = [ctypes.addressof(each) for each in (name, value, size)]
    headers: list[tuple[str, bytes | None]] = []
    while _header(found, len(headers), *places) == 0:
        content = None if value.value is None else ctypes.string_at(value.value, size.value)
        headers.append(((name.value or b"").decode(errors="replace"), content))
    return headers
