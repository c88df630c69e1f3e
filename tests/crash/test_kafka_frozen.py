"""A driver that stood still with an open transaction wakes after the takeover: nothing of it becomes visible.

Real processes, stopped (SIGSTOP to the whole tree) at a crash point of their second epoch.  The same in one process,
with every ``make test``: tests/crash/test_kafka_crash_loop.py.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.drivers import Driver
from tests.crash.test_two_drivers import FENCED
from tests.crash.topic_to_topic import PROGRAM, audit, await_none_open, case_between_topics, payloads, shown
from tests.kafka_servers import open_transactions
from tests.kafka_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

COUNT = 2000
FROZEN = {
    # where: (how epochs are written, what is open meanwhile)
    "carried, its transaction written and not committed": ("carried", "publish-uncommitted:2", "/driver"),
    "staged, the transactions of tasks open and nothing decided": ("staged", "after-stage:2", "/staged/"),
    "staged, its own transaction not committed": ("staged", "publish-uncommitted:2", "/driver"),
    "staged, decided and those of tasks not ended": ("staged", "publish-begun:2", "/staged/"),
}


@pytest.mark.parametrize("where", FROZEN)
def test_a_driver_that_wakes_after_the_takeover_makes_nothing_visible(
    where: str, tmp_path: Path, mortal_kafka: KafkaServer
) -> None:
    way, point, of = FROZEN[where]
    broker = mortal_kafka.bootstrap
    case = case_between_topics(tmp_path, broker, way)
    Topics(broker).produce("in", payloads(0, COUNT))
    newer: Driver | None = None
    older = Driver(case, "older", program=PROGRAM, CRASH_FREEZE=point)
    try:
        older.sleep_at("frozen", 1)
        opened = open_transactions(broker, "holdfast/topics/")
        assert any(of in name for name in opened), f"not open: {of} among {opened}"
        newer = Driver(case, "newer", "--every", "50 ms", program=PROGRAM)
        newer.await_that(lambda: audit(broker, COUNT, in_order=way == "carried").is_exact, "every message")
        before = shown(broker)
        woken_s = time.monotonic()
        older.wake()
        assert older.exit_code() == FENCED, older.log()[-3000:]
        assert older.log().count("Fenced: ") == 1, older.log()[-3000:]
        assert shown(broker) == before, "the older driver made something visible"
        await_none_open(broker, woken_s)  # what it opened late the newer one ends
        assert newer.interrupted() == 0, newer.log()[-3000:]
        assert shown(broker) == before
    finally:
        older.end()
        if newer is not None:
            newer.end()
