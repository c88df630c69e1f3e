"""Messages as Arrow: their columns in ``format="bytes"``, and what of a message stands beside those of a payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller

import pyarrow as pa

from holdfast.connectors.kafka.fields import FIELDS, HEADERS, int64s
from holdfast.connectors.kafka.native.clients import MessagesRead
from holdfast.types.conversion import END_SECOND


def column(name: str, topic: str, number: int, messages: MessagesRead) -> pa.Array:
    """Return one of :data:`~holdfast.connectors.kafka.fields.FIELDS` of messages of a partition."""
    if name == "topic":
        return pa.repeat(pa.scalar(topic, pa.string()), len(messages))
    if name == "partition":
        return pa.repeat(pa.scalar(number, pa.int32()), len(messages))
    return _READERS[name](messages)


def _offsets(messages: MessagesRead) -> pa.Array:
    return int64s(messages.offsets())


def _timestamps(messages: MessagesRead) -> pa.Array:
    times = messages.timestamps()
    is_none = (times < 0) | (times >= END_SECOND * 1000)  # a producer writes any number
    return int64s(times, is_none).cast(pa.timestamp("ms", tz="UTC")).cast(FIELDS["timestamp"].type)


def _headers(messages: MessagesRead) -> pa.Array:
    given = messages.headers()
    rows = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in given]
    return pa.array(rows, HEADERS)


_READERS: Mapping[str, Callable[[MessagesRead], pa.Array]] = {
    "key": methodcaller("keys"),
    "value": methodcaller("values"),
    "offset": _offsets,
    "timestamp": _timestamps,
    "headers": _headers,
}
