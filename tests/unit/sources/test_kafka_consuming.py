"""What is read of ranges when messages, ends and errors come in whatever order; the consumer is scripted.

With real brokers: ``test_kafka.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from confluent_kafka import KafkaError

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.answers import UNREADABLE
from holdfast.connectors.kafka.source import consuming
from holdfast.connectors.kafka.source.consuming import Access, _Reading
from holdfast.connectors.kafka.topics import PartitionOf
from holdfast.connectors.reading.bounds import OffsetRange

PLACES = [("first", 0), ("first", 1), ("second", 0), ("third", 0)]
RANGE_ENDS_AT_MOST = 40


class Said(NamedTuple):
    """A message, or what is said of a partition."""

    place: tuple[str, int]
    offset: int
    error: int = 0
    size: int = 10


class Batch:
    """What ``MessageBatch`` shows of messages."""

    def __init__(self, said: Sequence[Said]) -> None:
        self.said = list(said)

    def __len__(self) -> int:
        return len(self.said)

    def errors(self) -> np.ndarray:
        return np.array([each.error for each in self.said])

    def topics(self) -> np.ndarray:
        return np.array([PLACES.index((each.place[0], 0)) + 100 for each in self.said])

    def partitions(self) -> np.ndarray:
        return np.array([each.place[1] for each in self.said])

    def offsets(self) -> np.ndarray:
        return np.array([each.offset for each in self.said])

    def sizes(self) -> np.ndarray:
        return np.array([each.size for each in self.said])

    def topic_name(self, topic: int) -> str:
        return PLACES[topic - 100][0]

    def error(self, at: int) -> KafkaError:
        return KafkaError(self.said[at].error)

    def split(self, places: np.ndarray) -> list[tuple[int, Batch]]:
        said, self.said = self.said, []
        kinds = sorted(set(places.tolist()))
        return [(kind, Batch([one for one, at in zip(said, places, strict=True) if at == kind])) for kind in kinds]

    def join(self, others: Sequence[Batch]) -> Batch:
        return Batch([one for part in (self, *others) for one in part.said])


class Partition:
    """A log with gaps, and how far a consumer is in it."""

    def __init__(self, place: tuple[str, int], offsets: Sequence[int], end: int, last: int) -> None:
        self.place = place
        self.offsets = offsets
        self.end = end
        self.last = last
        self.at: int | None = None

    def read_on(self, at: int) -> None:
        self.at = at
        self.has_ended = False

    def said(self, random: Random, share: float) -> Iterable[Said]:
        """Yield what a consumer gives next; out of its range an error ends that until it is assigned again."""
        while self.at is not None:
            yield from self._noise(random, share)
            if self.at is None:
                return
            following = next((offset for offset in self.offsets if offset >= self.at), None)
            if following is None:
                if not self.has_ended:
                    self.has_ended = True
                    yield Said(self.place, self.end, codes.PARTITION_EOF)
                return
            self.at = following + 1
            yield Said(self.place, following, size=random.choice([1, 10, 100]))

    def _noise(self, random: Random, share: float) -> Iterable[Said]:
        assert self.at is not None
        if random.random() >= share:
            return
        kind = random.choice(["lagging replica", "earlier reading", "read ahead", "passes"])
        if kind == "lagging replica" and self.at < self.last:
            yield Said(self.place, self.at, codes.PARTITION_EOF)
        elif kind == "earlier reading":
            at, self.at = self.at, None
            yield Said(self.place, at, codes.AUTO_OFFSET_RESET)
        elif kind == "read ahead" and self.at >= self.last:
            at, self.at = self.at, None
            yield Said(self.place, at, next(iter(UNREADABLE)))
        elif kind == "passes":
            yield Said(self.place, self.at, KafkaError.NOT_LEADER_FOR_PARTITION)


class ScriptedConsumer:
    """Gives of the partitions that are assigned, in batches of any cut and any order between partitions."""

    def __init__(self, random: Random, partitions: Iterable[Partition]) -> None:
        self._random = random
        self._partitions = {each.place: each for each in partitions}
        self._noise = random.choice([0.0, 0.1, 0.4])
        self._paused: set[tuple[str, int]] = set()
        self._in_vain = 0

    def assign(self, places: Iterable[tuple[str, int, int]]) -> None:
        self.unassign()
        for topic, number, at in places:
            self._partitions[topic, number].read_on(at)

    def unassign(self) -> None:
        self._paused = set()
        for partition in self._partitions.values():
            partition.at = None

    def pause(self, place: tuple[str, int]) -> None:
        self._paused.add(place)

    def take(self, limit: int, timeout_s: float) -> Batch:
        given = [each for each in self._partitions.values() if each.place not in self._paused]
        said: list[Said] = []
        for partition in self._random.sample(given, self._random.randint(1, len(given)) if given else 0):
            count = self._random.randint(1, 7)
            for one in partition.said(self._random, self._noise):
                said.append(one)
                if len(said) >= limit or (count := count - 1) < 1:
                    break
        self._in_vain = 0 if said else self._in_vain + 1
        assert self._in_vain < 100, "what is waited for has been given, or is not assigned"
        return Batch(said)


def is_there(*_: Any, **__: Any) -> None:
    """What the cluster says of ranges that are asked for: nothing of them is gone."""


@pytest.mark.slow
@pytest.mark.parametrize("held_bytes", [30, 1 << 20], ids=["little is held", "much is held"])
def test_each_message_of_each_range_comes_once_and_in_order(held_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "HELD_BYTES", held_bytes)
    monkeypatch.setattr(consuming, "CHUNK_BYTES", 60)
    monkeypatch.setattr(consuming, "CHUNK_ROWS", 5)
    monkeypatch.setattr(consuming, "Cluster", is_there)
    monkeypatch.setattr(consuming, "gone", is_there)
    for seed in range(400):
        random = Random(seed)
        ranges, partitions, expected = [], [], []
        for place in random.sample(PLACES, random.randint(1, len(PLACES))):
            first = random.randrange(RANGE_ENDS_AT_MOST)
            last = random.randint(first + 1, RANGE_ENDS_AT_MOST)
            end = last + random.choice([0, 0, random.randrange(20)])
            offsets = [at for at in range(end) if random.random() < random.choice([1.0, 0.5])]
            segment = PartitionOf(place[0], "28LoSSUP", place[1]).segment
            ranges.append(OffsetRange(segment, first, last))
            partitions.append(Partition(place, offsets, end, last))
            expected += [(segment, at) for at in offsets if first <= at < last]
        access: Any = Access("nowhere", "source 'messages'", committed=True)  # type: ignore[arg-type]
        consumer: Any = ScriptedConsumer(random, partitions)
        runs = _Reading(access, consumer, ranges, 30.0).chunks()
        found = [(run.segment, int(at)) for run in runs for at in run.messages.offsets()]
        assert found == expected, f"seed {seed}"
