"""From topic to topic while driver, JVM, worker and broker are killed, again and again: each message once.

The source topic grows all the time.  The kills come after a number of rows that a seed chooses, and a moment later,
wherever the pipeline then is; the epochs are small, so all its steps are hit.  One reader with ``read_committed``
counts; what it finds is compared at the end, by key and in order.

``HOLDFAST_KAFKA_KILLS`` says how many of each (30 in ``make nightly``; else a few in one life), ``HOLDFAST_SEED`` when.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.processes import fork_server_of, jvm_of, parent_of
from tests.crash.topic_to_topic import WAYS, Flow, case_between_topics
from tests.everyday import everyday, seed_of_kills

pytestmark = [pytest.mark.spark, pytest.mark.crash]

KILLS = int(os.environ.get("HOLDFAST_KAFKA_KILLS", "0"))
SEED = seed_of_kills(1)
VICTIMS = ("driver", "jvm", "worker", "broker")
EVERYDAY = ("staged",)
ROWS_WITHOUT_WORKER = 2_000
"""Rows that a life without a worker brings: then it has none."""

ONE_LIFE = ("worker", "broker", "driver")
"""Who is killed with every ``make test``: only the last of them ends the run."""


@pytest.mark.timeout(300 + 240 * KILLS)
@pytest.mark.parametrize("way", WAYS if KILLS else everyday(WAYS, EVERYDAY))
def test_each_message_has_its_effect_once_whoever_dies(
    way: str, tmp_path: Path, mortal_kafka: KafkaServer, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random(f"{SEED} {way}")
    victims = [victim for victim in VICTIMS for _ in range(KILLS)]
    chosen.shuffle(victims)
    victims = victims or list(ONE_LIFE)
    case = case_between_topics(tmp_path, mortal_kafka.bootstrap, way)
    with Flow(case, chosen) as flow:
        for victim in victims:
            flow.begin()
            flow.await_a_moment()
            flow.note(kill(flow, victim, mortal_kafka))
        assert flow.noted["worker"], "none was killed"
        with capsys.disabled():
            flow.finish(in_order=way == "carried")


def kill(flow: Flow, victim: str, broker: KafkaServer) -> str:
    """Kill one of the four, and return what was done; a run that cannot live without it ends."""
    if victim == "broker":
        broker.stop()
        broker.start()
    elif victim == "worker":
        # Small epochs without a worker's work are evaluated in the driver: a life that has begun needs none.
        goal = flow.look() + ROWS_WITHOUT_WORKER
        flow.awaited(lambda: workers_of(flow) or flow.look() >= goal, "a worker, or rows without one")
        if not (workers := workers_of(flow)):
            return "no worker"
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
    elif victim == "jvm":
        flow.kill_jvm()
        flow.await_death()
    else:
        flow.run.kill()
        flow.await_death()
    return victim


def workers_of(flow: Flow) -> list[psutil.Process]:
    """Return the Python workers of the life that is there."""
    jvm, forks = jvm_of(flow.run), fork_server_of(flow.run)
    below = [*jvm.children(recursive=True), *forks.children(recursive=True)]
    return [child for child in below if parent_of(child) not in (None, jvm.pid, forks.pid)]
