"""``read.kafka`` keeps the promises of a source, against a real broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast import read
from holdfast.ports import Source
from holdfast.testing.servers.kafka import KafkaServer
from tests.contract.source_contract import SourceContract
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow

TestSourceContract = SourceContract
PARTITIONS = 1  # the contract compares orders; several are in tests/unit/sources/test_kafka.py


@dataclass
class KafkaOrigin:
    topics: Topics
    topic: str
    spec: Any
    workspace: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def open(self) -> Source:
        source: Source = self.spec.open("messages", self.workspace)
        return source

    def grow(self) -> None:
        self.topics.produce(
            self.topic,
            {
                at: [json.dumps({"id": next(self.numbers), "word": "wörd"}).encode() for _ in range(20)]
                for at in range(PARTITIONS)
            },
        )


@pytest.fixture(scope="module")
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


@pytest.fixture(params=["json", pytest.param("bytes, few rows an epoch", marks=pytest.mark.nightly)])
def origin(request: Any, functions: str, topics: Topics, new_topic: Callable[[], str], tmp_path: Any) -> KafkaOrigin:
    topic = f"source-contract-{new_topic()}"
    topics.create(topic, PARTITIONS)
    if request.param == "json":
        stream = read.kafka(
            topics.bootstrap, topic, schema="id BIGINT, word STRING", metadata=["offset"], timestamp="message", name="a"
        )
    else:
        stream = read.kafka(topics.bootstrap, topic, format="bytes", max_rows_per_epoch=13, name="a")
    made = KafkaOrigin(topics, topic, stream.node.spec, str(tmp_path / "workspace"))
    made.grow()
    return made
