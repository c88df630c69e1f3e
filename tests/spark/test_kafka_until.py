"""Runs over a topic that end at a time by themselves: what is below it is there, the rest comes later (design/0038)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_topics import Topics
from tests.spark.running import sqlite_rows

pytestmark = pytest.mark.spark

BASE_MS = 1_767_225_600_000
"""2026-01-01T00:00Z."""


@pytest.fixture
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


class Day:
    """A topic, and a pipeline that reads it by the time of its messages."""

    def __init__(self, topics: Topics, topic: str, work: Path, session: SparkSession | None) -> None:
        self.topics, self.topic, self.work, self.session = topics, topic, work, session
        self.count = 0
        topics.create(topic, 2)

    def send(self, partition: int, *seconds: int) -> None:
        for each in seconds:
            value = json.dumps({"id": each}).encode()
            self.topics.produce(self.topic, {partition: [value]}, timestamp=BASE_MS + 1000 * each)

    def run(self, trigger: hf.Trigger | None = None, until: int | None = None, **options: Any) -> list[int]:
        rows = hf.read.kafka(
            self.topics.bootstrap, self.topic, schema="id BIGINT", timestamp="message", name="messages"
        )
        pipeline = hf.Pipeline(
            "day", rows | hf.select("id", name="ids") | hf.write.sqlite(self.work / "t.db", table="rows", name="table")
        )
        pipeline.run(
            checkpoint=self.work / "ckpt",
            trigger=trigger or hf.every("20 ms"),
            session=self.session,
            until=None if until is None else f"2026-01-01T00:00:{until:02}Z",
            **options,
        )
        return sorted(sqlite_rows(self.work / "t.db", "SELECT id FROM rows"))


def test_a_topic_is_read_from_a_time_on_day_by_day(
    spark: SparkSession, topics: Topics, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    day = Day(topics, f"day-{new_topic()}", tmp_path, spark)
    day.send(0, 1, 5, 22, 7, 12)
    day.send(1, 3, 14, 6)
    assert day.run(until=10, at="2026-01-01T00:00:04Z") == [5, 6, 7]
    assert day.run(until=10) == [5, 6, 7], "again: nothing is left to do"
    day.send(1, 8, 30)
    assert day.run(until=20) == [5, 6, 7, 8, 12, 14]
    shutil.rmtree(tmp_path / "ckpt" / "sources")
    shutil.rmtree(tmp_path / "ckpt" / "spark")
    assert day.run(hf.available_now()) == [5, 6, 7, 8, 12, 14, 22, 30]
    day.send(0, 40)
    assert day.run(hf.available_now()) == [5, 6, 7, 8, 12, 14, 22, 30, 40]


@pytest.mark.nightly
def test_shards_of_a_topic_end_at_a_time_each_for_its_partitions(
    topics: Topics, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    day = Day(topics, f"day-{new_topic()}", tmp_path, None)
    day.send(0, 1, 22, 7)
    day.send(1, 3, 14, 6)
    assert day.run(until=10, shards=2) == [1, 3, 6, 7]
    assert day.run(until=20) == [1, 3, 6, 7, 14]
    assert day.run(hf.available_now(), shards=1) == [1, 3, 6, 7, 14, 22]
