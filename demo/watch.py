"""Counts the rows that anyone can see in PostgreSQL and Kafka, without a word from the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg

from holdfast.demo.watch import Counter


def postgres_rows(connection: psycopg.Connection, table: str) -> Counter:
    """Count the rows of a PostgreSQL table through a connection in autocommit mode."""

    def count() -> int:
        with suppress(psycopg.errors.UndefinedTable):
            row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
            assert row is not None
            return int(row[0])
        return 0

    return count


def kafka_rows(bootstrap: str, topic: str, keyed: bool = False) -> Counter:
    """Count the records of a topic of one partition that ``read_committed`` shows; or its keys."""
    records = KafkaRecords(bootstrap, topic)
    keys: set[bytes | None] = set()
    total = 0

    def count() -> int:
        nonlocal total
        for key, _ in records.new():
            keys.add(key)
            total += 1
        return len(keys) if keyed else total

    return count


class KafkaRecords:
    """Reads a topic of one partition from its beginning, as any consumer with ``read_committed`` does."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer(
            {**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 10, "enable.partition.eof": True}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def new(self, timeout_s: float = 0.05) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield key and value of each record since the last call, up to the end; the first is waited for so long."""
        while (message := self._consumer.poll(timeout_s)) is not None and message.error() is None:
            yield message.key(), message.value()
