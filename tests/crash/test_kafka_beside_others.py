"""Kafka as one of two and of three unlike sinks: killed before and after every durable write, and again in recovery.

With one epoch every pair of crashes is tried, with several as many as the time allows (``HOLDFAST_PAIRS_MINUTES``), as
``HOLDFAST_SEED`` says: there are thousands.
The sinks are a topic, a database file, PostgreSQL with prepared transactions, and a directory of Parquet files, in the
order in which they publish; epochs are carried and staged in turn.  After each world a reader with ``read_committed``
sees each row once (in order, where the driver writes them all), and no transaction of the pipeline is open: neither one
of a task nor one of a driver.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.testing import SinkUnderTest, World, crash_loop
from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.mortal import Database, as_killed
from tests.crash.sampled_pairs import sampled_pairs
from tests.crash.test_kafka_crash_loop import SHORT, NewPath, NewTopicName, made
from tests.everyday import FIRST_SEED, PAIRS, seed_of_kills
from tests.sim.test_unlike_sinks import files, sqlite

pytestmark = pytest.mark.postgres

UNLIKE: dict[str, tuple[list[str], list[str]]] = {
    # name: (what publishes before the topic, what publishes after it)
    "sqlite + kafka": (["sqlite"], []),
    "kafka + prepared": ([], ["prepared"]),
    "kafka + files": ([], ["files"]),
    "sqlite + kafka + files": (["sqlite"], ["files"]),
    "prepared + kafka + files": (["prepared"], ["files"]),
}
WAYS = {
    "driver": ("commit",),
    "transactions": ("commit", "end", "abort"),
}
"""How large epochs reach the topic, and the requests to it before and after which some driver has died.

``driver``: in the handles of the tasks; ``transactions``: as transactions that tasks leave open.
"""

ONE_EPOCH = {"row_count": 1, "epoch_rows_min": 1, "epoch_rows_max": 1, "task_failure_rate": 0.0}
EPOCHS = {
    "carried": ("driver", 1.0),
    "in handles": ("driver", 0.0),
    "in open transactions": ("transactions", 0.0),
}
"""How one epoch reaches the topic: the way of large ones, and the share that is small."""

MINUTES = int(os.environ.get("HOLDFAST_PAIRS_MINUTES", "3"))
"""How long pairs of crashes are tried in each case."""

PAIRS_SEED = seed_of_kills(1)

Make = Callable[..., World]


@pytest.fixture
def make(
    kafka_of_session: KafkaServer,
    new_topic: NewTopicName,
    new_path: NewPath,
    postgres_prepared: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Make]:
    database = Database(postgres_prepared)
    monkeypatch.setattr(psycopg, "connect", database.connect)
    kinds: Mapping[str, Callable[[], SinkUnderTest]] = {
        "sqlite": lambda: as_killed(sqlite, "embedded", new_path()),
        "files": lambda: as_killed(files, "directory", new_path()),
        "prepared": lambda: database.sink("table", stage="prepared"),
    }

    admin = AdminClient({"bootstrap.servers": kafka_of_session.bootstrap, "log_level": 0})
    topics: list[str] = []

    def world(names: str, way: str, load: Mapping[str, Any] = SHORT) -> World:
        database.reset()
        if topics:  # a broker of tests has no room for those of a thousand worlds
            for deleted in admin.delete_topics([topics[-1], f"{topics[-1]}-progress"]).values():
                with suppress(KafkaException):  # one that died early has no progress topic
                    deleted.result(30)
        topics.append(new_topic())
        before, after = ([kinds[kind]() for kind in some] for some in UNLIKE[names])
        return made(kafka_of_session, topics[-1], way, new_path, before=before, after=after, load=load)

    yield world
    database.close()


def test_three_unlike_sinks_survive_a_crash_at_some_writes(make: Make) -> None:
    """A slice of what follows: carried and staged epochs, tasks that fail."""
    report = crash_loop(lambda: make("prepared + kafka + files", "transactions"), pairs=False, stride=23)
    assert report.place_count > 30


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("names", UNLIKE)
def test_unlike_sinks_survive_a_crash_at_every_write(make: Make, names: str, way: str) -> None:
    traces: list[list[str]] = []

    def world() -> World:
        new = make(names, way)
        traces.append(new.trace)
        return new

    crash_loop(world, pairs=False)
    deaths = {line for trace in traces for line in trace if line.startswith("crash ")}
    for request in WAYS[way]:
        assert {f"crash before sink rows {request}", f"crash after sink rows {request}"} <= deaths


@pytest.mark.nightly
@pytest.mark.timeout(300 + 120 * MINUTES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("names", UNLIKE)
def test_unlike_sinks_survive_pairs_of_crashes(
    make: Make, names: str, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = sampled_pairs(lambda: make(names, way), random.Random(f"{PAIRS_SEED} {names} {way}"), 60 * MINUTES)
    with capsys.disabled():
        sys.stdout.write(f"\n{names}, {way}: {sampled}\n")
    assert sampled.hit > 0


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("names", UNLIKE)
def test_one_epoch_survives_pairs_of_crashes(
    make: Make, names: str, epoch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    way, share = EPOCHS[epoch]
    report = crash_loop(
        lambda: make(names, way, {**ONE_EPOCH, "carried_share": share}), second_stride=PAIRS, second_offset=FIRST_SEED
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{names}, {epoch}: {report.place_count} writes, {report.run_count} worlds\n")
    seconds = report.run_count - 2 * report.place_count
    assert seconds * PAIRS > 2 * report.place_count
