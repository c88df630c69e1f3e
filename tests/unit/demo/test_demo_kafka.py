"""The demo's look into topics: what is aborted does not count, and of a key the last record does."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from demo.verify import held_in_kafka
from demo.watch import kafka_rows
from holdfast.demo import verify
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_servers import KafkaTopic

pytestmark = pytest.mark.slow


def test_a_topic_is_counted_and_read_as_read_committed_shows_it(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    monkeypatch.setitem(verify.COLUMNS, topic, ("id", "word"))
    KafkaTopic(kafka_of_session.bootstrap, topic).create()
    counts = [kafka_rows(kafka_of_session.bootstrap, topic, keyed=keyed) for keyed in (False, True)]
    producer = Producer({"bootstrap.servers": kafka_of_session.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for number, is_kept in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        for key in ("a", "b"):
            producer.produce(topic, json.dumps({"id": number, "word": key}), key)
        producer.commit_transaction() if is_kept else producer.abort_transaction()
    while (found := [count() for count in counts]) != [4, 2]:
        assert found <= [4, 2]
    rows = [held_in_kafka(kafka_of_session.bootstrap, topic, keyed=keyed) for keyed in (False, True)]
    assert rows == [[(1, "a"), (1, "b"), (3, "a"), (3, "b")], [(3, "a"), (3, "b")]]
