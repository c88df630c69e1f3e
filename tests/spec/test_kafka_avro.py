"""Rows go to a topic in Avro and come back from it (design/0041); another client reads the same, by the registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import holdfast as hf
from holdfast.ports import Held, RunIdentity
from holdfast.testing.servers.kafka import KafkaServer
from tests.contract.sink_contract import PIPELINE, SCHEMA, carried
from tests.kafka_servers import KafkaTopic
from tests.schema_registry import schema_registry

pytestmark = pytest.mark.slow

ROWS: list[Any] = [(1, "eins"), (2, "zwö"), (3, None)]


def test_what_one_pipeline_writes_another_reads_and_so_does_a_client_that_is_not_ours(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    broker, topic = kafka_of_session.bootstrap, f"avro-{new_topic()}"
    outside = KafkaTopic(broker, topic)
    outside.create()
    with schema_registry() as registry:
        node = hf.write.kafka(
            broker, topic, key="id", format="avro", registry=registry.url, progress=f"{topic}-progress", name="target"
        )
        sink = node.spec.connect("target", PIPELINE, SCHEMA)
        sink.open(RunIdentity(PIPELINE, 1))
        sink.publish([carried(1, ROWS)], Held())
        sink.close()

        stream = hf.read.kafka(
            broker, topic, format="avro", schema="word STRING, id BIGINT", registry=registry.url, name="rides"
        )
        source = stream.node.spec.open("rides", str(tmp_path / "rides"))
        start = source.initial()
        end = source.latest(start, bounded=True)
        rows = [row for span in source.spans(start, end, parallelism=1) for batch in source.read(span)
                for row in batch.to_pylist()]  # fmt: skip
        assert [(row["id"], row["word"]) for row in rows] == ROWS

        theirs = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        context = SerializationContext(topic, MessageField.VALUE)
        read = [theirs(value, context) for value in outside.values()]
        assert [(row["id"], row["word"]) for row in read] == ROWS
