"""What brokers say of a topic: ``rd_kafka_metadata``, whose structs are public."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.kafka.native.library import c_int, c_int32, pointer, quick, text, waits

_metadata = waits("rd_kafka_metadata", c_int, pointer, c_int, pointer, pointer, c_int)
_metadata_destroy = quick("rd_kafka_metadata_destroy", None, pointer)


class _Partition(ctypes.Structure):
    _fields_ = (
        *(("id", c_int32), ("error", c_int), ("leader", c_int32)),
        *(("replica_count", c_int), ("replicas", pointer), ("isr_count", c_int), ("isrs", pointer)),
    )


class _Topic(ctypes.Structure):
    _fields_ = (
        ("name", text),
        ("partition_count", c_int),
        ("partitions", ctypes.POINTER(_Partition)),
        ("error", c_int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        *(("broker_count", c_int), ("brokers", pointer)),
        *(("topic_count", c_int), ("topics", ctypes.POINTER(_Topic))),
        *(("broker", c_int32), ("broker_name", text)),
    )


def connect(client: int, timeout_s: float) -> None:
    """Wait until a client is connected to a broker, or for so long."""
    with _said(client, None, timeout_s):
        pass


def partitions_with_leader(client: int, topic: int, timeout_s: float) -> list[int]:
    """Return the partitions of a topic that take messages now; none where the brokers do not say.

    Parameters
    ----------
    client, topic : int
        Handles of librdkafka's.
    timeout_s : float
        How long the brokers are waited for.
    """
    with _said(client, topic, timeout_s) as topics:
        return [each.id for of in topics for each in of.partitions[: of.partition_count] if each.leader >= 0]


@contextmanager
def _said(client: int, topic: int | None, timeout_s: float) -> Iterator[list[_Topic]]:
    """Yield what the brokers say of a topic; only so long is it there."""
    found = ctypes.POINTER(_Metadata)()
    code = _metadata(client, 0, topic, ctypes.addressof(found), round(timeout_s * 1000))
    if code:
        yield []
        return
    try:
        yield found.contents.topics[: found.contents.topic_count]
    finally:
        _metadata_destroy(ctypes.cast(found, pointer))
