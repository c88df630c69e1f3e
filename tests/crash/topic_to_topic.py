"""What the process tests between two topics share: the topics, the messages, and the look at what came of them."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from holdfast.sinks.kafka.ledger import PROGRESS
from tests.crash.processes import Case
from tests.kafka_servers import KafkaTopic, open_transactions
from tests.kafka_topics import Topics

PROGRAM = "topic_pipeline.py"
PARTITIONS = 3
KEYS = 7
OPEN_MAX_S = 60.0
"""So long after the last restart a transaction may be open."""

WAYS: dict[str, dict[str, str]] = {
    "carried": {"CRASH_KEY": "k"},
    "staged": {"HOLDFAST_CARRY_MAX": "0 B", "HOLDFAST_PREFETCH_MAX": "0 B"},
}
"""Rows with a key travel to the driver however large the epoch: those of tasks have none."""


def message(number: int) -> bytes:
    """Return a message of a key; messages of one key are in one partition."""
    return json.dumps({"id": number, "k": f"k{number % KEYS}", "at": "2026-01-01T00:00:00Z"}).encode()


def payloads(first: int, last: int) -> dict[int, list[bytes]]:
    """Return messages of numbers, by partitions."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for number in range(first, last):
        found[number % KEYS % PARTITIONS].append(message(number))
    return found


def case_between_topics(work: Path, bootstrap: str, way: str, **environment: str) -> Case:
    """Create the topics; return the pipeline between them."""
    topics = Topics(bootstrap)
    topics.create("in", PARTITIONS)
    for name in ("rows", "counts"):
        topics.create(name)
    both = {"CRASH_KAFKA": bootstrap, "HOLDFAST_SWEEP_INTERVAL": "1 s", **WAYS[way], **environment}
    return Case(work, ("kafka",), environment=both)


def shown(bootstrap: str) -> dict[str, list[bytes]]:
    """Return every record that a reader with ``read_committed`` can see: rows, counts, and the ledger."""
    return {name: KafkaTopic(bootstrap, name).values() for name in ("rows", "counts", PROGRESS)}


@dataclass(frozen=True)
class Found:
    """What a reader with ``read_committed`` finds wrong."""

    duplicates: int
    lost: int
    disorder: list[str]

    @property
    def is_exact(self) -> bool:
        """Whether each message had its effect once, in its order."""
        return not (self.duplicates or self.lost or self.disorder)


def audit(bootstrap: str, count: int, *, in_order: bool) -> Found:
    """Compare both topics with the messages, by a consumer that is not this project's code."""
    rows = [json.loads(value) for value in KafkaTopic(bootstrap, "rows").values()]
    times = Counter(row["id"] for row in rows)
    duplicates = sum(times.values()) - len(times)
    lost = sum(number not in times for number in range(count))
    disorder = []
    if in_order:
        of_key: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            of_key[row["k"]].append(row["id"])
        disorder += [f"rows of {key}" for key, ids in of_key.items() if any(a > b for a, b in itertools.pairwise(ids))]
    counts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for said in map(json.loads, KafkaTopic(bootstrap, "counts").values()):
        counts[said["k"]].append((said["n"], said["newest"]))
    for key in range(KEYS):
        ids = range(key, count, KEYS)
        seen = counts[f"k{key}"]
        # Counts and newest numbers only grow: one that comes twice, or goes back, is an epoch twice.
        disorder += [f"counts of k{key}: {a}, then {b}" for a, b in itertools.pairwise(seen) if not a < b]
        if seen and seen[-1] != (len(ids), ids[-1]):
            disorder.append(f"count of k{key}: {seen[-1]} instead of {(len(ids), ids[-1])}")
        lost += 0 if seen else len(ids)
    return Found(duplicates, lost, disorder)


def await_none_open(bootstrap: str) -> float:
    """Wait until no transaction of any pipeline is open; return after how many seconds."""
    begun = time.monotonic()
    while left := open_transactions(bootstrap):
        assert time.monotonic() - begun < OPEN_MAX_S, f"open {OPEN_MAX_S:.0f} s after the last restart: {left}"
        time.sleep(0.2)
    return time.monotonic() - begun


class Watcher:
    """Counts what a ``read_committed`` reader of a topic of one partition sees, through restarts of the broker."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": f"watcher-{os.getpid()}", "log_level": 0}
        self._consumer = Consumer(
            {**settings, "enable.auto.commit": False, "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._count = 0

    def count(self) -> int:
        """Return how many records there are to be seen."""
        while some := self._consumer.consume(10_000, 0.01):
            self._count += sum(message.error() is None for message in some)
        return self._count

    def close(self) -> None:
        """Let it go."""
        self._consumer.close()


def batches(numbers: Iterator[int], size: int) -> dict[int, list[bytes]]:
    """Return the next messages, by partitions."""
    some = list(itertools.islice(numbers, size))
    return payloads(some[0], some[-1] + 1)
