"""What the process tests between two topics share: the topics, the messages, and the look at what came of them."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from holdfast.connectors.kafka.sink.ledger import PROGRESS
from tests.crash.processes import Case, jvm_of, kill_tree
from tests.kafka_servers import KafkaTopic, open_transactions
from tests.kafka_topics import Topics

PROGRAM = "topic_pipeline.py"
PARTITIONS = 3
KEYS = 7
OPEN_MAX_S = 60.0
"""So long after the last restart a transaction may be open."""

EPOCH_ROWS = 200
FEED_ROWS, FEED_S = 50, 0.1
LEAD_ROWS = 3000
"""The source topic grows to so many messages beyond what a reader of the target sees: there always is a backlog."""
ROWS_MAX = 800
"""At most so many rows from one kill to the next."""
PAUSE_MAX_S = 0.3
WAIT_S = 120.0
T = TypeVar("T")

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
    both = {"CRASH_KAFKA": bootstrap, **WAYS[way], **environment}
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


def await_none_open(bootstrap: str, restarted_s: float) -> float:
    """Wait until no transaction of any pipeline is open; return how many seconds after the last restart."""
    while left := open_transactions(bootstrap):
        assert time.monotonic() - restarted_s < OPEN_MAX_S, f"open {OPEN_MAX_S:.0f} s after the last restart: {left}"
        time.sleep(0.2)
    return time.monotonic() - restarted_s


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


class Feed(threading.Thread):
    """Appends messages to the source topic, until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.seen = 0
        """Rows that a reader of the target sees."""
        self._stops = threading.Event()
        # Idempotent: what the broker did not acknowledge before it died comes once all the same.
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def run(self) -> None:
        """Append some messages, again and again."""
        while not self._stops.wait(FEED_S):
            if self.count > self.seen + LEAD_ROWS:
                continue
            for partition, values in payloads(self.count, self.count + FEED_ROWS).items():
                for value in values:
                    self._producer.produce("in", value, partition=partition)
            self.count += FEED_ROWS
            self._producer.poll(0)

    def stop(self) -> int:
        """Return how many messages there are, when the broker has all of them."""
        self._stops.set()
        self.join()
        assert self._producer.flush(60) == 0
        return self.count


class Flow:
    """The pipeline between two topics, started again whenever it has died, and what flows through it.

    Parameters
    ----------
    case : Case
        The pipeline.
    chance : random.Random
        Chooses the moments.
    *arguments : str
        Further arguments of its runs.
    """

    def __init__(self, case: Case, chance: random.Random, *arguments: str) -> None:
        self.case = case
        self.noted = Counter[str]()
        self._chance = chance
        self._arguments = arguments
        self._bootstrap = case.environment["CRASH_KAFKA"]
        self._feed = Feed(self._bootstrap)
        self._watcher = Watcher(self._bootstrap, "rows")
        self._life = 0
        self._run: subprocess.Popen[str] | None = None

    def __enter__(self) -> Flow:
        self._feed.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._feed.stop()
        self._watcher.close()

    @property
    def run(self) -> subprocess.Popen[str]:
        """The life that is there."""
        assert self._run is not None
        return self._run

    def begin(self) -> None:
        """Start a life, if none is there."""
        if self._run is None:
            self._life += 1
            with self._log.open("w") as output:
                arguments = ("--every", "20 ms", *self._arguments)
                small = {"CRASH_EPOCH_ROWS": str(EPOCH_ROWS)}
                self._run = self.case.start(*arguments, program=PROGRAM, output=output, **small)

    def await_a_moment(self) -> None:
        """Wait for some rows, and then a little: as the seed says."""
        self.await_rows(self._chance.randint(1, ROWS_MAX))
        time.sleep(self._chance.uniform(0, PAUSE_MAX_S))

    def await_rows(self, more: int) -> None:
        """Wait until a reader sees so many rows more."""
        goal = self._watcher.count() + more
        self.awaited(lambda: self.look() >= goal, f"row {goal}")

    def awaited(self, ask: Callable[[], T], what: str) -> T:
        """Wait until the answer is true, and return it; the pipeline must live meanwhile."""
        end = time.monotonic() + WAIT_S
        while not (found := ask()):
            self.look()  # else the feed believes that nothing is seen, and stops: no row, and so no worker, ever comes
            said = f"waiting for {what}; so far {dict(self.noted)}:\n{self._log.read_text()[-3000:]}"
            assert self.run.poll() is None, f"the run ended by itself, {said}"
            assert time.monotonic() < end, f"it stands still, {said}"
            time.sleep(0.005)
        return found

    def await_death(self) -> None:
        """Wait until the life has ended, as it must; leave nothing of it."""
        assert self.run.wait(timeout=WAIT_S) != 0
        self._end()

    def kill_jvm(self) -> None:
        """Kill the JVM, until the life has ended: one that dies while it starts is replaced."""
        end = time.monotonic() + WAIT_S
        while self.run.poll() is None:
            assert time.monotonic() < end, f"it lives on without a JVM:\n{self._log.read_text()[-3000:]}"
            with suppress(psutil.NoSuchProcess, TimeoutError):
                jvm_of(self.run, timeout_s=0.5).kill()
            time.sleep(0.2)

    def note(self, what: str) -> None:
        """Count what has been done to it."""
        self.noted[what] += 1

    def finish(self, *, in_order: bool) -> None:
        """Run to the end of the source; look at both topics and at the transactions, and say what was found.

        The last life goes on while that is looked at: what a life before left open late it has to find by itself.
        """
        self._feed.stop()
        self._end()
        restarted_s = time.monotonic()
        self.begin()
        self.awaited(lambda: self.look() >= self._feed.count, f"all {self._feed.count} rows")
        open_s = await_none_open(self._bootstrap, restarted_s)
        self.run.send_signal(signal.SIGINT)
        assert self.run.wait(timeout=WAIT_S) == 0, self._log.read_text()[-3000:]
        found = audit(self._bootstrap, self._feed.count, in_order=in_order)
        done = ", ".join(f"{count} x {what}" for what, count in sorted(self.noted.items()))
        sys.stdout.write(
            f"\n{done}: {self._feed.count} messages, duplicates={found.duplicates} lost={found.lost}; "
            f"none open when asked {open_s:.0f} s after the last start\n"
        )
        assert found.is_exact, found

    def look(self) -> int:
        """Return how many rows a reader sees, and tell the feed."""
        self._feed.seen = self._watcher.count()
        return self._feed.seen

    def _end(self) -> None:
        if self._run is not None:
            kill_tree(self._run)
            self._run = None

    @property
    def _log(self) -> Path:
        return self.case.work / f"life-{self._life}.log"
