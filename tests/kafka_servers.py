"""Real Kafka brokers for tests: one for the session, one of a test's own that can be killed, and a cluster of three."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from holdfast.testing.servers.kafka import KafkaCluster, KafkaServer, NoKafka, kafka_cluster, kafka_server


@pytest.fixture(scope="session")
def kafka_of_session() -> Iterator[KafkaServer]:
    """A broker for the whole session; tests draw topics of their own (``new_topic``)."""
    try:
        with kafka_server() as server:
            yield server
    except NoKafka as error:
        pytest.skip(str(error))


@pytest.fixture(params=["native", "public"])
def functions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What clients of many messages go by: the functions of librdkafka itself, or those of confluent-kafka."""
    from holdfast.connectors.kafka.brokers import NATIVE, Brokers
    from holdfast.connectors.kafka.native import clients

    monkeypatch.setenv(NATIVE, "auto" if request.param == "native" else "off")
    assert clients.is_native(Brokers("nowhere:9092")) == (request.param == "native")
    return str(request.param)


_numbers = itertools.count()


@pytest.fixture
def new_topic() -> Callable[[], str]:
    """Return what gives the name of a topic that there is not yet, another one with each call."""
    return lambda: f"topic-{next(_numbers)}"


@pytest.fixture
def mortal_kafka() -> Iterator[KafkaServer]:
    """A broker of its own for one test."""
    try:
        with kafka_server() as server:
            yield server
    except NoKafka as error:
        pytest.skip(str(error))


@pytest.fixture
def three_kafkas() -> Iterator[KafkaCluster]:
    """A cluster of three brokers for one test."""
    try:
        with kafka_cluster(3) as cluster:
            yield cluster
    except NoKafka as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of one partition, as seen by a reader that is not this project's code.

    Parameters
    ----------
    bootstrap, name : str
        Where it is, and its name.
    """

    bootstrap: str
    name: str

    def create(self) -> None:
        """Create it; returns when it is there."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(self.name, 1, 1)])[self.name].result(30)

    def values(self) -> list[bytes]:
        """Return the values that ``read_committed`` shows, in order, up to the first transaction that is open.

        A commit is answered when it is decided, and what it ends is marked a moment later: that is waited for.
        """
        found, is_whole = self._read()
        if is_whole:
            return found
        end = time.monotonic() + 30
        while transactions_in(self.bootstrap, ["PrepareCommit", "PrepareAbort"]):
            assert time.monotonic() < end, "a transaction does not end"
            time.sleep(0.005)
        return self._read()[0]

    def _read(self) -> tuple[list[bytes], bool]:
        """Return what is shown, and whether that is all there is."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 5,
                "isolation.level": "read_committed",
            }
        )
        place = TopicPartition(self.name, 0, 0)
        consumer.assign([place])
        found = []
        while True:
            message = consumer.poll(30)
            assert message is not None, "the broker did not answer"
            error = message.error()
            if error is None:
                found.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                _, high = consumer.get_watermark_offsets(place, cached=True)
                consumer.close()
                return found, message.offset() >= high
            else:
                assert error.retriable(), error

    def open_transactions(self) -> list[str]:
        """Return the names of those of tasks that are open, of whichever pipeline."""
        return [name for name in open_transactions(self.bootstrap) if "staged" in name]


def open_transactions(bootstrap: str, beginning: str = "holdfast/") -> list[str]:
    """Return the names of transactions that are open, of drivers and of tasks, by a client of its own."""
    return [name for name in transactions_in(bootstrap, ["Ongoing"]) if name.startswith(beginning)]


def transactions_in(bootstrap: str, states: list[str]) -> list[str]:
    """Return the names of transactions in some states."""
    from kafka.admin import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        found = client.list_transactions(state_filters=states)
    finally:
        client.close()
    return sorted(each.transactional_id for listed in found.values() for each in listed)
