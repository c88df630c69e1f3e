"""A topic is read while driver, worker and broker are killed, and the checkpoint is lost: each message once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.processes import Case, fork_server_of, jvm_of, kill_tree, parent_of
from tests.kafka_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

PARTITIONS, STEP = 3, 1500


def lines(first: int, last: int) -> dict[int, Sequence[bytes]]:
    """Return messages of numbers, by partitions."""
    made = [json.dumps({"id": i, "value": i / 2, "at": "2026-01-01T00:00:00Z"}).encode() for i in range(first, last)]
    return {at: made[at::PARTITIONS] for at in range(PARTITIONS)}


def test_the_driver_a_worker_and_the_broker_are_killed(mortal_kafka: KafkaServer, tmp_path: Path) -> None:
    topics = Topics(mortal_kafka.bootstrap)
    topics.create("rows", PARTITIONS)
    topics.produce("rows", lines(0, STEP))
    # Every epoch is staged by workers that read for themselves.
    small = {"HOLDFAST_CARRY_MAX": "0 B", "HOLDFAST_PREFETCH_MAX": "0 B", "CRASH_DRAW": "arrow"}
    case = Case(tmp_path, ("sqlite", "files"), environment={"CRASH_KAFKA": mortal_kafka.bootstrap, **small})

    with (tmp_path / "first").open("w") as output:
        first = case.start("--every", "100 ms", program="kafka_pipeline.py", output=output)
        await_rows(case, 1)
        kill_tree(first)
    topics.produce("rows", lines(STEP, 2 * STEP))
    topics.transaction("rows", lines(0, 30), commits=False)

    with (tmp_path / "second").open("w") as output:
        second = case.start("--every", "100 ms", program="kafka_pipeline.py", output=output)
        try:
            await_rows(case, STEP + 1)
            assert killed_workers(second), "no worker was there to be killed"
            topics.produce("rows", lines(2 * STEP, 3 * STEP))
            await_rows(case, 2 * STEP + 1)
            mortal_kafka.stop()
            mortal_kafka.start()
            topics.produce("rows", lines(3 * STEP, 4 * STEP))
            await_rows(case, 4 * STEP)
            second.send_signal(signal.SIGINT)
            second.wait(timeout=120)
        finally:
            kill_tree(second)
    case.check_exact(range(4 * STEP))
    assert case.leftovers() == []

    shutil.rmtree(case.checkpoint)  # what the sinks hold suffices
    topics.produce("rows", lines(4 * STEP, 5 * STEP))
    third = case.start(program="kafka_pipeline.py")
    said, _ = third.communicate(timeout=120)
    assert third.returncode == 0, said
    case.check_exact(range(5 * STEP))


def await_rows(case: Case, count: int) -> None:
    """Wait until a sink has so many rows."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with suppress(Exception):  # its table, or its file, is not there yet
            if len(case._sqlite_rows()) >= count:
                return
        time.sleep(0.05)
    raise TimeoutError("".join(path.read_text()[-3000:] for path in (case.work / "first", case.work / "second")))


def killed_workers(process: subprocess.Popen[str]) -> int:
    """Kill the Python workers of a run; return how many there were."""
    jvm, forks = jvm_of(process), fork_server_of(process)
    below = [*jvm.children(recursive=True), *forks.children(recursive=True)]
    workers = [child for child in below if parent_of(child) not in (None, jvm.pid, forks.pid)]
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
    return len(workers)
