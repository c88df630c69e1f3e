"""Real Kafka brokers for tests: one for the session, one of a test's own that can be killed, and a cluster of three."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tools.kafka_server import KafkaCluster, KafkaServer, NoKafka, kafka_cluster, kafka_server


@pytest.fixture(scope="session")
def kafka_of_session() -> Iterator[KafkaServer]:
    """A broker for the whole session; tests draw topics of their own (``new_topic``)."""
    try:
        with kafka_server() as server:
            yield server
    except NoKafka as error:
        pytest.skip(str(error))


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
