"""From topic to topic on a real Spark cluster: executors are killed, and parted from the broker: each message once.

A standalone master and two workers.  Executors read and write for themselves (no epoch is carried); all reach the
broker through a proxy that parts one of them from it: what it sends waits and arrives later, or its connections break.

``HOLDFAST_KAFKA_KILLS`` says how many executors are killed (2; 30 in ``make nightly``), ``HOLDFAST_SEED`` when.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from demo.cluster import WORKER_COUNT, Cluster, standalone_cluster
from holdfast.demo.processes import kill_one
from holdfast.testing.servers.kafka import KafkaServer, NoKafka, kafka_server
from tests.crash.processes import ROOT
from tests.crash.topic_to_topic import Flow, case_between_topics
from tests.everyday import seed_of_kills
from tests.partition_proxy import PartitionProxy, Way, partition_proxy

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

KILLS = int(os.environ.get("HOLDFAST_KAFKA_KILLS", "2"))
SEED = seed_of_kills(1)
PARTED_S: dict[Way, tuple[float, float]] = {"frozen": (0.5, 6.0), "cut": (0.5, 3.0)}
"""How long an executor is parted, at least and at most."""
LONG_S = 35.0
"""Longer than a request is waited for: the tasks fail, and run again."""


@pytest.fixture
def parted_kafka() -> Iterator[tuple[KafkaServer, PartitionProxy]]:
    """A broker that everyone reaches through a proxy: the address that it tells its clients is that of the proxy."""
    try:
        with partition_proxy() as proxy:
            address = {"advertised.listeners": f"CLIENTS://127.0.0.1:{proxy.port}"}
            with kafka_server(address) as server:
                proxy.server_port = server.port
                yield server, proxy
    except NoKafka as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A master and two workers, whose executors find the modules of the tests."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    for name, value in (("CRASH_WORK", str(tmp_path)), ("CRASH_SINKS", "files")):
        monkeypatch.setenv(name, value)  # the module of their function asks for them
    with standalone_cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.mark.timeout(600 + 120 * KILLS)
def test_executors_are_killed_and_parted_from_the_broker(
    parted_kafka: tuple[KafkaServer, PartitionProxy],
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server, proxy = parted_kafka
    chance = random.Random(SEED)
    case = case_between_topics(tmp_path, f"127.0.0.1:{proxy.port}", "staged", **cluster.environment)
    steps = ["kill"] * KILLS + ["frozen", "cut"] * max(1, KILLS // 3) + ["frozen for long"]
    chance.shuffle(steps)
    with Flow(case, chance, "--master", cluster.url) as flow:
        flow.begin()
        for step in steps:
            flow.await_a_moment()
            executors = flow.awaited(lambda: both_of(cluster), "both executors")
            victim = chance.choice(executors)
            if step == "kill":
                kill_one(victim.pid)
                flow.note("SIGKILL of an executor")
                continue
            way: Way = "cut" if step == "cut" else "frozen"
            proxy.part(partial(tree_of, victim), way)
            flow.awaited(lambda: proxy.hit_count, "its connections")
            time.sleep(LONG_S if "long" in step else chance.uniform(*PARTED_S[way]))
            proxy.join()
            flow.note(f"an executor {step}")
        flow.await_a_moment()
        with capsys.disabled():
            flow.finish(in_order=False)
    assert server.pid is not None


def both_of(cluster: Cluster) -> list[psutil.Process]:
    """Return the executors, if none is missing."""
    found = cluster.executors()
    return found if len(found) == WORKER_COUNT else []


def tree_of(executor: psutil.Process) -> Collection[int]:
    """Return the process ids of an executor and of its Python workers."""
    with suppress(psutil.NoSuchProcess):
        return {executor.pid, *(child.pid for child in executor.children(recursive=True))}
    return ()
