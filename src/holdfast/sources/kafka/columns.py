"""Messages as Arrow: their columns in ``format="bytes"``, and what of a message stands beside the columns of a payload.

What the library gives is a Python object for each message, so a column is one pass over these; all else is columnar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from holdfast.sources.kafka.fields import FIELDS, HEADERS


def column(name: str, topic: str, number: int, messages: Sequence[Any]) -> pa.Array:
    """Return one of :data:`~holdfast.sources.kafka.fields.FIELDS` of messages of a partition."""
    if name == "topic":
        return pa.repeat(pa.scalar(topic, pa.string()), len(messages))
    if name == "partition":
        return pa.repeat(pa.scalar(number, pa.int32()), len(messages))
    return _READERS[name](messages)


def offsets(messages: Sequence[Any]) -> list[int]:
    """Return the offsets of messages."""
    return [message.offset() for message in messages]


def _keys(messages: Sequence[Any]) -> pa.Array:
    return pa.array([message.key() for message in messages], pa.binary())


def _values(messages: Sequence[Any]) -> pa.Array:
    return pa.array([message.value() for message in messages], pa.binary())


def _offsets(messages: Sequence[Any]) -> pa.Array:
    return pa.array(offsets(messages), pa.int64())


def _timestamps(messages: Sequence[Any]) -> pa.Array:
    stamps = [message.timestamp() for message in messages]
    if any(kind == TIMESTAMP_NOT_AVAILABLE for kind, _ in stamps):
        millis = pa.array([None if kind == TIMESTAMP_NOT_AVAILABLE else at for kind, at in stamps], pa.int64())
    else:
        millis = pa.array([at for _, at in stamps], pa.int64())
    return millis.cast(pa.timestamp("ms", tz="UTC")).cast(FIELDS["timestamp"].type)


def _headers(messages: Sequence[Any]) -> pa.Array:
    given = [message.headers() for message in messages]
    rows = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in given]
    return pa.array(rows, HEADERS)


_READERS: Mapping[str, Callable[[Sequence[Any]], pa.Array]] = {
    "key": _keys,
    "value": _values,
    "offset": _offsets,
    "timestamp": _timestamps,
    "headers": _headers,
}
