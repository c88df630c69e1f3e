"""Messages that are sent: described by structs that are made of Arrow columns, many at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import cycle, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from holdfast.connectors.kafka.native import metadata
from holdfast.connectors.kafka.native.library import (
    LOW,
    PRODUCER,
    WORD,
    Client,
    c_int,
    c_int32,
    check,
    error_of,
    pointer,
    quick,
    size_t,
    waits,
    words,
)
from holdfast.connectors.kafka.native.messages import MESSAGE
from holdfast.connectors.kafka.native.topics import Topic

_produce_batch = waits("rd_kafka_produce_batch", c_int, pointer, c_int32, c_int, pointer, c_int)
_produce = quick("rd_kafka_produceva", pointer, pointer, pointer, size_t)
_poll = waits("rd_kafka_poll", c_int, pointer, c_int)
_flush = waits("rd_kafka_flush", c_int, pointer, c_int)
_left = quick("rd_kafka_outq_len", c_int, pointer)
_purge = waits("rd_kafka_purge", c_int, pointer, c_int)
_init = waits("rd_kafka_init_transactions", pointer, pointer, c_int)
_begin = waits("rd_kafka_begin_transaction", pointer, pointer)
_commit = waits("rd_kafka_commit_transaction", pointer, pointer, c_int)
_abort = waits("rd_kafka_abort_transaction", pointer, pointer, c_int)

ANY_PARTITION = -1
_LOOKED_OFTEN_S, _LOOK_S = 0.05, 0.0005
"""How long it is looked often whether everything is there, and how often."""

_PATIENCE_S = 1.0
"""How long metadata is waited for: without it things take longer, and are done."""

_PARTITIONS_KNOWN_S, _ASKED_AGAIN_S = 30.0, 5.0
"""After so long it is asked again which partitions of a topic take messages; the second where not all of them did."""

_COPIED = 0x2
_QUEUED, _IN_FLIGHT = 0x1, 0x2

_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIME, _HEADER = 2, 3, 4, 5, 7, 8, 9
_PART = np.dtype(
    {"names": ["of", "a", "b", "c"], "formats": ["i4", "i8", "i8", "i8"], "offsets": [0, 8, 16, 24], "itemsize": 72}
)
"""``rd_kafka_vu_t``: one thing that is said of a message."""


class _Turns(NamedTuple):
    """The partitions of a topic that get messages without a key, one after the other, for so long."""

    partitions: Iterator[int]
    until: float


class BulkProducer(Client):
    """A producer with transactions.

    Parameters
    ----------
    settings : mapping of str to object
        As confluent-kafka takes them; of functions ``error_cb`` alone.

    Attributes
    ----------
    failed : list of KafkaError
        Why messages were not delivered; grows while :meth:`poll`, :meth:`flush` and the ends of transactions are
        called.
    """

    failed: list[KafkaError]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.failed = []
        self._turns: dict[str, _Turns] = {}
        # Of the list alone: a function of this object would keep it, and what it keeps at the brokers, until the
        # collector comes.
        super().__init__(PRODUCER, {**settings, "delivery.report.only.error": True}, partial(_note, self.failed))

    def send(
        self,
        topic: str,
        values: pa.Array,
        keys: pa.Array | None = None,
        partition: int = ANY_PARTITION,
        headers: pa.Array | None = None,
        times: pa.Array | None = None,
    ) -> tuple[int, KafkaError | None]:
        """Hand messages over, in their order; return how many were taken, and why not the next one.

        Parameters
        ----------
        topic : str
            Where they go.
        values, keys : pyarrow.Array
            Large binary; null where there is none.
        partition : int
            Where they go; -1: the key of each says where, and the library where a key is null.  Without ``keys`` all go
            to one partition, and those of the next call to the next one.
        headers : pyarrow.ListArray, optional
            Structs of a name, text, and a value, large binary.
        times : pyarrow.Array of int64, optional
            Milliseconds of Unix time; left out, or 0: when it is sent.

        Raises
        ------
        KafkaException
            If the name is longer than the library takes.
        """
        there = Topic(self, topic)
        if partition == ANY_PARTITION and keys is None:
            partition = self._turn(topic, there)
        if headers is None and times is None:
            return _sent_together(there, values, keys, partition)
        return self._sent_singly(there, values, keys, partition, headers, times)

    def _turn(self, topic: str, there: Topic) -> int:
        """Return the partition that is next to get what has no key.

        The library would stay with one for some milliseconds too, but looks at the clock for each message: a tenth of
        what a message costs.
        """
        turns = self._turns.get(topic)
        if turns is None or time.monotonic() > turns.until:
            found, are_all = metadata.partitions_with_leader(self.handle, there.handle, _PATIENCE_S)
            first = random.randrange(len(found)) if found else 0
            until = time.monotonic() + (_PARTITIONS_KNOWN_S if are_all else _ASKED_AGAIN_S)
            turns = self._turns[topic] = _Turns(cycle(found[first:] + found[:first]), until)
        return next(turns.partitions, ANY_PARTITION)

    def _sent_singly(self, topic: Topic, *columns: Any) -> tuple[int, KafkaError | None]:
        """Send what has headers or a time: a call for each message, made from C."""
        parts, begins, kept = _describe(topic.handle, *columns)
        at = parts.ctypes.data + begins[:-1] * _PART.itemsize
        answers = map(_produce, repeat(self.handle), at.tolist(), np.diff(begins).tolist())
        for number, error in enumerate(answers):
            if error is not None:
                return number, error_of(error)
        del kept
        return len(at), None

    def poll(self, timeout_s: float) -> None:
        """Note what was not delivered; return when there was something, or after so long."""
        _poll(self.handle, round(timeout_s * 1000))

    def flush(self, timeout_s: float) -> int:
        """Wait until the brokers have everything; return how many messages they do not have."""
        # The library's own function looks every 10 ms, and a few messages are there in three.
        soon = time.monotonic() + min(_LOOKED_OFTEN_S, timeout_s)
        while _left(self.handle) and time.monotonic() < soon:
            _poll(self.handle, 0)
            time.sleep(_LOOK_S)
        if _left(self.handle):
            _flush(self.handle, round(timeout_s * 1000))
        return int(_left(self.handle))

    def purge(self) -> None:
        """Forget what was not sent."""
        _purge(self.handle, _QUEUED | _IN_FLIGHT)

    def init_transactions(self, timeout_s: float, topic: str) -> None:
        """End what an earlier producer of the name has left open.

        Parameters
        ----------
        timeout_s : float
            How long that may take.
        topic : str
            One that is there: brokers are asked about it, to be connected to one.

        Raises
        ------
        KafkaException
            What the library says; or if the topic's name is longer than it takes.
        """
        # The library asks any broker for the coordinator of transactions.  When it has just replaced its first
        # connection by one with the broker's number there is none to ask, and it looks again half a second later.  A
        # first answer may still come by the first connection, which is replaced by then: so a second one does not.
        end = time.monotonic() + timeout_s
        there = Topic(self, topic)
        for _ in range(2):
            metadata.partitions_with_leader(self.handle, there.handle, min(timeout_s, _PATIENCE_S) / 2)
        check(_init(self.handle, round(max(0.0, end - time.monotonic()) * 1000)))

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        check(_begin(self.handle))

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit."""
        check(_commit(self.handle, round(timeout_s * 1000)))

    def abort_transaction(self, timeout_s: float) -> None:
        """Abort."""
        check(_abort(self.handle, round(timeout_s * 1000)))


def _note(failed: list[KafkaError], message: int) -> None:
    """Note why a message was not delivered."""
    if code := int(words(np.array([message])).astype(np.int32)[0]):
        failed.append(KafkaError(code))


def _sent_together(
    topic: Topic, values: pa.Array, keys: pa.Array | None, partition: int
) -> tuple[int, KafkaError | None]:
    """Send all with one call; where the queue is full, what comes behind was not taken either."""
    described = np.zeros(len(values), MESSAGE)
    described["value"], described["size"] = _places(values)
    if keys is not None:
        described["key"], described["key_size"] = _places(keys)
    # NB with a partition in each, and a topic that is not known yet, librdkafka breaks the transaction
    _produce_batch(topic.handle, partition, _COPIED, described.ctypes.data, len(described))
    refused = np.flatnonzero(described["error"])
    if not len(refused):
        return len(described), None
    return int(refused[0]), KafkaError(int(described["error"][refused[0]]))


def _describe(
    handle: int,
    values: pa.Array,
    keys: pa.Array | None,
    partition: int,
    headers: pa.Array | None,
    times: pa.Array | None,
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return what is said of all messages, where each one's begins and the last one's ends, and what must stay."""
    count = len(values)
    fixed = 6
    numbers = np.zeros(count, np.int64)
    if headers is not None:
        filled = pc.fill_null(pc.list_value_length(headers), 0)
        numbers = np.asarray(filled.cast(pa.int64()))
    begins = np.zeros(count + 1, np.int64)
    np.cumsum(numbers + fixed, out=begins[1:])
    parts = np.zeros(int(begins[-1]), _PART)
    firsts = begins[:-1]
    said: list[tuple[int, Any, Any]] = [
        (_TOPIC, handle, 0),
        (_PARTITION, partition, 0),
        (_FLAGS, _COPIED, 0),
        (_VALUE, *_places(values)),
        (_KEY, *((0, 0) if keys is None else _places(keys))),
        (_TIME, 0 if times is None else np.asarray(times), 0),
    ]
    for place, (of, a, b) in enumerate(said):
        at = firsts + place
        parts["of"][at], parts["a"][at], parts["b"][at] = of, a, b
    kept = None
    if headers is not None:
        each = headers.flatten()
        zero, nothing = (pa.scalar(text, pa.large_binary()) for text in (b"\0", b""))
        names = pc.binary_join_element_wise(pc.struct_field(each, 0).cast(pa.large_binary()), zero, nothing)
        kept = (names, contents := pc.struct_field(each, 1))  # NB a name in C ends with a zero
        is_header = np.ones(len(parts), bool)
        for place in range(fixed):
            is_header[firsts + place] = False
        parts["of"][is_header] = _HEADER
        parts["a"][is_header] = _places(names)[0]
        parts["b"][is_header], parts["c"][is_header] = _places(contents)
    return parts, begins, kept


def _places(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return addresses, 0 for null, and sizes of large binary values."""
    if not len(column):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    _, edges, data = column.buffers()
    at = np.frombuffer(edges, np.int64, len(column) + 1, column.offset * WORD)
    addresses = at[:-1] + (LOW if data is None else data.address)  # an empty value has an address, too
    if not column.null_count:
        return addresses, np.diff(at)
    is_null = np.asarray(column.is_null())
    return np.where(is_null, 0, addresses), np.where(is_null, 0, np.diff(at))
