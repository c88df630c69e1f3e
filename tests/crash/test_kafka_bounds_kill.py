"""What settles by the bounds of partitions, killed at one step after the other: each row once, and as it was planned.

Keys of one partition say nothing of those of another, one partition of each topic never has a message, and one stops
early: so every row of the end waits until silent partitions are idle, which a clock decides.  A replay does not ask
that clock: the bound is part of the positions of an epoch (design/0038, section 6).
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.reading.partitioned import BOUND
from holdfast.testing.servers.kafka import KafkaServer
from tests.crash.processes import Case, kill_tree
from tests.kafka_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

Row = tuple[str, int, int]
"""Key, time, number."""

POINTS = ("after-stage:2", "after-decide:4", "publish-uncommitted:6", "before-forget:7", "recovery-resolved")
WAYS = {"carried": {}, "staged": {"HOLDFAST_CARRY_MAX": "0 B", "HOLDFAST_PREFETCH_MAX": "0 B"}}
WITHIN = 5
LAST = 10_000


def partition_of(chance: random.Random, number: int, first: int, count: int) -> list[Row]:
    """Return rows in the order of a log: neighbours of two keys may be swapped, at most 3 ticks apart."""
    time, rows = 0, []
    for ident in range(first, first + count):
        time += chance.randint(1, 3)
        rows.append((f"k{number}{chance.randint(0, 3)}", time, ident))
    for at in range(0, count - 1, 2):
        if rows[at][0] != rows[at + 1][0] and chance.random() < 0.5:
            rows[at : at + 2] = rows[at + 1], rows[at]
    return rows


def filled(topics: Topics) -> dict[str, list[Row]]:
    """Create and fill both topics; return their rows."""
    chance, first, found = random.Random(5), 0, defaultdict[str, list[Row]](list)
    for side in ("left", "right"):
        topics.create(side, 3)
        for number in range(2):
            count = 90 if (side, number) == ("left", 1) else 300
            rows = partition_of(chance, number, first, count)
            rows += [("end", LAST, first + count)] if number == 0 else []
            first += count + 1
            found[side] += rows
            values = [json.dumps({"k": k, "t": t, "id": ident}).encode() for k, t, ident in rows]
            topics.produce(side, {number: values})
    return found


def expected(rows: dict[str, list[Row]]) -> dict[str, list[Any]]:
    """Return what the tables must hold."""
    at = {side: {(k, t): ident for k, t, ident in rows[side]} for side in rows}
    left, right = at["left"], at["right"]
    latest = {
        (k, t): max(((u, ident) for (key, u), ident in right.items() if key == k and u <= t), default=(0, None))[1]
        for k, t in left
    }
    pairs = [
        (k, u, mine, ident)
        for (k, t), mine in left.items()
        for (key, u), ident in right.items()
        if key == k and 0 <= u - t <= WITHIN
    ]
    return {
        "sets": ordered((k, t, left.get((k, t)), right.get((k, t))) for k, t in left.keys() | right.keys()),
        "seen": ordered((k, t, ident, latest[k, t]) for (k, t), ident in left.items()),
        "pairs": ordered(pairs),
    }


def ordered(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    return sorted(rows, key=lambda row: [-1 if each is None else each for each in row[1:]])


def held(case: Case) -> dict[str, list[Any]]:
    """Return what the tables hold."""
    with sqlite3.connect(case.work / "out.db") as connection:
        return {
            name: ordered(connection.execute(f"SELECT k, t, l, r FROM {name}")) for name in ("sets", "seen", "pairs")
        }


def planned(case: Case) -> dict[str, str]:
    """Return what Spark has logged of each epoch's end."""
    found = case.checkpoint.glob("spark/*/offsets/*")
    return {path.name: path.read_text() for path in found if path.name.isdecimal()}


@pytest.mark.parametrize("way", WAYS)
def test_what_settles_by_bounds_of_partitions_is_there_once_whenever_the_run_dies(
    way: str, mortal_kafka: KafkaServer, tmp_path: Path
) -> None:
    wanted = expected(filled(Topics(mortal_kafka.bootstrap)))
    case = Case(tmp_path, ("sqlite",), environment={"CRASH_KAFKA": mortal_kafka.bootstrap, **WAYS[way]})
    known: dict[str, str] = {}
    for point in POINTS:
        with (tmp_path / f"{point}.log").open("w") as output:
            killed = case.start("--every", "20 ms", program="bounds_pipeline.py", output=output, HOLDFAST_FAULT=point)
            assert killed.wait(timeout=180) == -signal.SIGKILL, (tmp_path / f"{point}.log").read_text()[-3000:]
        kill_tree(killed)
        now = planned(case)
        assert now.items() >= known.items(), "an epoch was planned anew"
        known = now
    with (tmp_path / "last.log").open("w") as output:
        last = case.start("--every", "20 ms", program="bounds_pipeline.py", output=output)
        try:
            await_rows(case, sum(map(len, wanted.values())))
            last.send_signal(signal.SIGINT)
            assert last.wait(timeout=120) == 0, (tmp_path / "last.log").read_text()[-3000:]
        finally:
            kill_tree(last)
    assert held(case) == wanted
    assert planned(case).items() >= known.items()
    for source in ("left", "right"):
        bounds = [bound for _, bound in sorted(bounds_of(planned(case), source))]
        assert bounds == sorted(bounds), "a bound fell"
        assert bounds[-1] > LAST, "idle partitions held the end back"


def bounds_of(log: dict[str, str], source: str) -> Iterable[tuple[int, int]]:
    """Yield the number of each logged epoch that has a bound of a source, and the bound."""
    for number, text in log.items():
        (said,) = (line for line in text.splitlines() if line.startswith(f"{source}:"))
        positions = json.loads(said.removeprefix(f"{source}:"))["positions"]
        if BOUND in positions:
            yield int(number), positions[BOUND]


def await_rows(case: Case, count: int) -> None:
    """Wait until the tables have so many rows in all."""
    end = time.monotonic() + 180
    while True:
        with suppress(sqlite3.OperationalError):
            if sum(map(len, held(case).values())) >= count:
                return
        assert time.monotonic() < end, (case.work / "last.log").read_text()[-3000:]
        time.sleep(0.1)
