"""The brokers of the tests: what is said where there is none, and what a kill leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing.servers import kafka as kafka_server
from holdfast.testing.servers.kafka import KafkaServer, NoKafka


@pytest.fixture(autouse=True)
def nothing_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_server, "_missing", [])


def test_without_jars_and_maven_the_text_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KAFKA", str(tmp_path / "jars"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoKafka, match=r"Kafka's jars are not here.*no Maven \(mvn\).*HOLDFAST_KAFKA"):
        kafka_server.jars()


@pytest.mark.parametrize("content", [b"another one", b"the jar"])
def test_only_jars_with_the_checksums_of_the_list_stay(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "jars.txt"
    listed.write_text(f"g:kafka_2.13:1.0 {hashlib.sha256(b'the jar').hexdigest()}\n")
    maven = f"""
        for last do :; done  # -DoutputDirectory=...
        mkdir "${{last#*=}}"
        printf "{content.decode()}" >"${{last#*=}}/kafka_2.13-1.0.jar"
    """
    for name, lines in {"java": "", "mvn": maven}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("HOLDFAST_KAFKA", str(tmp_path / "jars"))
    monkeypatch.setattr(kafka_server, "JARS", listed)
    if content == b"the jar":
        assert [jar.name for jar in kafka_server.jars().iterdir()] == ["kafka_2.13-1.0.jar"]
    else:
        with pytest.raises(NoKafka, match=r"kafka_2.13-1.0.jar is not the file that jars.txt names"):
            kafka_server.jars()
        assert not (tmp_path / "jars").exists()


@pytest.mark.slow
def test_what_was_written_is_there_after_a_kill(mortal_kafka: KafkaServer, new_topic: Callable[[], str]) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    topic, place = new_topic(), {"bootstrap.servers": mortal_kafka.bootstrap}
    admin = AdminClient(place)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer(place)
    producer.produce(topic, b"kept")
    assert producer.flush(30) == 0
    mortal_kafka.stop()
    mortal_kafka.start()
    consumer = Consumer({**place, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    (message,) = consumer.consume(1, 30)
    consumer.close()
    assert message.value() == b"kept"
