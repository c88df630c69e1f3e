"""What brokers say of a topic: ``rd_kafka_metadata``, whose structs are public."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from holdfast.connectors.kafka.native.library import c_int, c_int32, pointer, quick, text, waits

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


class PartitionsFound(NamedTuple):
    """Which partitions of a topic take messages.

    Parameters
    ----------
    numbers : list of int
        Those that have a leader.
    are_all : bool
        Whether all of them do, and the brokers have said so.
    """

    numbers: list[int]
    are_all: bool


def partitions_with_leader(client: int, topic: int, timeout_s: float) -> PartitionsFound:
    """Return which partitions of a topic take messages now; none where the brokers do not answer in time.

    NB asked of no topic, the library asks for all of the cluster.

    Parameters
    ----------
    client, topic : int
        Handles of librdkafka's.
    timeout_s : float
        How long the brokers are waited for: first for a connection to one.
    """
    found = ctypes.POINTER(_Metadata)()
    code = _metadata(client, 0, topic, ctypes.addressof(found), round(timeout_s * 1000))
    if code:
        return PartitionsFound([], False)
    try:
        said = found.contents
        parts = [part for each in said.topics[: said.topic_count] for part in each.partitions[: each.partition_count]]
        numbers = [part.id for part in parts if part.leader >= 0]
        return PartitionsFound(numbers, bool(parts) and len(numbers) == len(parts))
    finally:
        _metadata_destroy(ctypes.cast(found, pointer))
