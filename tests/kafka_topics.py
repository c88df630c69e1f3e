"""Topics of tests: created, filled and known to every broker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

Payloads = Mapping[int, Sequence[bytes | None]]


class Topics:
    """The topics of one cluster, as a test changes them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.producer = self._producer()

    def create(self, name: str, partitions: int = 1, copies: int = 1, **config: str) -> None:
        """Create a topic; return when its partitions have leaders."""
        given = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, copies, config=given)])[name].result()
        self._await(name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result()
        self._await(name, partitions)
        self.producer = self._producer()  # the last one remembers how many there were

    def delete(self, name: str) -> None:
        """Delete a topic; return when it is gone."""
        self.admin.delete_topics([name])[name].result()
        end = time.monotonic() + 30
        while True:
            try:
                self.admin.describe_topics(TopicCollection([name]))[name].result()
            except KafkaException:
                return
            assert time.monotonic() < end
            time.sleep(0.02)

    def produce(self, name: str, payloads: Payloads, **more: Any) -> None:
        """Append messages to partitions; return when the brokers have them."""
        for partition, values in payloads.items():
            for value in values:
                self.producer.produce(name, value, partition=partition, **more)
        assert self.producer.flush(30) == 0

    def transaction(self, name: str, payloads: Payloads, *, commits: bool | None = True) -> Producer:
        """Append messages in a transaction; None leaves it open."""
        ident = f"{name}-{time.monotonic_ns()}"
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "transactional.id": ident})
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition, values in payloads.items():
            for value in values:
                producer.produce(name, value, partition=partition)
        assert producer.flush(30) == 0
        if commits is not None:
            (producer.commit_transaction if commits else producer.abort_transaction)(30)
        return producer

    def drop_before(self, name: str, partition: int, offset: int) -> None:
        """Delete the messages below an offset, as retention does."""
        at = TopicPartition(name, partition, offset)
        next(iter(self.admin.delete_records([at]).values())).result()

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 0})

    def _await(self, name: str, partitions: int) -> None:
        end = time.monotonic() + 30
        asked = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        while True:
            try:
                for future in self.admin.list_offsets(asked).values():
                    future.result()
                return
            except KafkaException:
                assert time.monotonic() < end
                self.admin.list_topics(timeout=10)  # what the library remembers of topics may be older
                time.sleep(0.02)
