"""The clients that read and write many messages: by librdkafka's own functions, or by those of confluent-kafka.

A pipeline is about twice as quick by the first, and a wrong constant in them ends the process: they are taken where
they were tried, in exactly these versions and on this machine
(:mod:`holdfast.connectors.kafka.native.verdict`), and are not even loaded elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError

from holdfast.connectors.kafka.brokers import Brokers, allows_native
from holdfast.connectors.kafka.native import verdict
from holdfast.connectors.kafka.public import PublicConsumer, PublicProducer


class MessagesRead(Protocol):
    """Messages that were read, in their order: columns of them."""

    def __len__(self) -> int:
        """Return how many they are."""

    def split(self, places: np.ndarray) -> Sequence[tuple[int, Self]]:
        """Return place and the messages there, in their order; nothing stays in this object."""

    def join(self, others: Sequence[Self]) -> Self:
        """Return these messages and those of others behind them; nothing stays in any of these objects."""

    def errors(self) -> np.ndarray:
        """Return codes; 0 is none."""

    def error(self, place: int) -> KafkaError:
        """Return what one says that is no message."""

    def topics(self) -> np.ndarray:
        """Return what stands for the topic of each: equal numbers for one topic, see :meth:`topic_name`."""

    def topic_name(self, topic: int) -> str:
        """Return the name of one of :meth:`topics`; an error may have none."""

    def partitions(self) -> np.ndarray:
        """Return partition numbers."""

    def offsets(self) -> np.ndarray:
        """Return offsets."""

    def sizes(self) -> np.ndarray:
        """Return the bytes of key and value of each."""

    def values(self) -> pa.Array:
        """Return values, binary; null where there is none (a tombstone)."""

    def keys(self) -> pa.Array:
        """Return keys, binary; null where there is none."""

    def timestamps(self) -> np.ndarray:
        """Return milliseconds of Unix time; -1 where there is none."""

    def timestamp_kinds(self) -> set[int]:
        """Return which kinds of times there are: ``confluent_kafka.TIMESTAMP_LOG_APPEND_TIME`` and others."""

    def headers(self) -> list[list[tuple[str, bytes | None]] | None]:
        """Return the headers of each; None where there are none."""


class MessageConsumer(Protocol):
    """A consumer of partitions that it is told."""

    def assign(self, places: Iterable[tuple[str, int, int]]) -> None:
        """Read on from these offsets of these partitions, and of no others."""

    def unassign(self) -> None:
        """Read nothing on."""

    def pause(self, place: tuple[str, int]) -> None:
        """Give nothing more of a partition."""

    def take(self, limit: int, timeout_s: float) -> MessagesRead:
        """Return at most so many messages; one is waited for, the others are there.  Errors are among them."""

    def close(self) -> None:
        """Leave the brokers."""


class MessageProducer(Protocol):
    """A producer with transactions.

    Attributes
    ----------
    failed : list of KafkaError
        Why messages were not delivered; grows while :meth:`poll`, :meth:`flush` and the ends of transactions are
        called.
    """

    failed: list[KafkaError]

    def send(
        self,
        topic: str,
        values: pa.Array,
        keys: pa.Array | None = None,
        partition: int = -1,
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
            Where they go; -1: the key of each says where, and where it is null nobody does.
        headers : pyarrow.ListArray, optional
            Structs of a name, text, and a value, large binary.
        times : pyarrow.Array of int64, optional
            Milliseconds of Unix time; left out, or 0: when it is sent.

        Raises
        ------
        KafkaException
            If the name is longer than the library takes.
        """

    def poll(self, timeout_s: float) -> None:
        """Note what was not delivered; return when there was something, or after so long."""

    def flush(self, timeout_s: float) -> int:
        """Wait until the brokers have everything; return how many messages they do not have."""

    def purge(self) -> None:
        """Forget what was not sent."""

    def init_transactions(self, timeout_s: float, topic: str) -> None:
        """End what an earlier producer of the name has left open; ``topic`` is one that is there."""

    def begin_transaction(self) -> None:
        """Begin a transaction."""

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit."""

    def abort_transaction(self, timeout_s: float) -> None:
        """Abort."""


def open_consumer(brokers: Brokers, settings: Mapping[str, object]) -> MessageConsumer:
    """Return a consumer with settings as confluent-kafka takes them.

    Raises
    ------
    KafkaException
        If none can be made with them.
    """
    if not is_native(brokers):
        return PublicConsumer(settings)
    from holdfast.connectors.kafka.native.messages import BulkConsumer

    return BulkConsumer(settings)


def open_producer(brokers: Brokers, settings: Mapping[str, object]) -> MessageProducer:
    """Return a producer; parameters and errors as :func:`open_consumer`."""
    if not is_native(brokers):
        return PublicProducer(settings)
    from holdfast.connectors.kafka.native.producing import BulkProducer

    return BulkProducer(settings)


def is_native(brokers: Brokers) -> bool:
    """Return whether clients of this process are native: nobody has switched that off, here or on the driver."""
    return _may_be_native(brokers) and verdict.is_trusted()


def prepare(brokers: Brokers) -> None:
    """Begin, on the driver, to find out whether clients are native; what is against it is said in its log."""
    if _may_be_native(brokers):
        verdict.prepare()


def _may_be_native(brokers: Brokers) -> bool:
    return brokers.allows_native and allows_native(os.environ)
