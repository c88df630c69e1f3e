"""Real runs into Kafka, killed at one point after the other; then each row is there once, and nothing is open."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.processes import Case
from tests.kafka_servers import KafkaTopic

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

STAGED = {"HOLDFAST_CARRY_MAX": "0 B"}

CHAINS: dict[str, tuple[tuple[str, ...], dict[str, str], list[str]]] = {
    "alone, staged": (
        ("kafka",),
        STAGED,
        ["after-stage:1", "publish-uncommitted:1", "publish-begun:1", "recovery-resolved", "before-publish:3"],
    ),
    "alone, carried": (("kafka",), {}, ["publish-uncommitted:1", "after-publish:1", "publish-uncommitted:3"]),
    "with a key, staged": (
        ("kafka",),
        {**STAGED, "CRASH_KEY": "id"},
        ["after-stage:1", "publish-uncommitted:2", "after-publish:2"],
    ),
    "beside two others, staged": (
        ("sqlite", "kafka", "files"),
        STAGED,
        ["after-decide:1", "publish-begun:1", "publish-uncommitted:2", "after-publish:2", "before-forget:3"],
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_every_row_is_in_every_sink_once_after_a_chain_of_kills(
    chain: str, tmp_path: Path, mortal_kafka: KafkaServer
) -> None:
    sinks, environment, points = CHAINS[chain]
    KafkaTopic(mortal_kafka.bootstrap, "rows").create()
    case = Case(tmp_path, sinks, "", {**environment, "CRASH_KAFKA": mortal_kafka.bootstrap})
    case.write_input()
    for point in points:
        killed = case.run(HOLDFAST_FAULT=point)
        assert killed.returncode == -signal.SIGKILL, f"{point} was not reached:\n{killed.stdout[-3000:]}"
    survived = case.run()
    assert survived.returncode == 0, survived.stdout[-3000:]
    case.check_exact()
    assert case.leftovers() == []
