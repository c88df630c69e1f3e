"""What the driver asks a Kafka cluster: which topics and partitions there are, and where they begin and end.

Each question is asked again while the answer may still come (a leader moves, a broker restarts, a topic was created a
moment ago), for half a minute in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec

from holdfast.connectors.kafka.answers import is_no_topic, unusable
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.questions import NoTopic, answer, offsets
from holdfast.connectors.kafka.source.partitions import PartitionOf
from holdfast.connectors.kafka.source.refusals import translated
from holdfast.connectors.kafka.topics import Selection

TIMEOUT_S = 30.0
"""So long a cluster is asked before a run ends: a broker restarts in less."""

T = TypeVar("T")
OffsetSpec: Any = _OffsetSpec


class Cluster:
    """A connection to the cluster that asks and changes nothing.

    Parameters
    ----------
    address : Brokers
        Where it is, with its secrets.
    node : str
        Who asks, for messages.
    timeout_s : float
        How long one question may take.
    """

    def __init__(self, address: Brokers, node: str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self.node = node
        self.timeout_s = timeout_s
        self._told: list[KafkaError] = []
        try:
            self._admin = AdminClient(address.client(error_cb=self._told.append, reconnect_backoff_max_ms=500))
        except KafkaException as error:
            raise unusable(error, address, node) from error

    def partitions(self, selection: Selection) -> dict[str, PartitionOf]:
        """Return the partitions of the selected topics that are there, by their segments, in order."""
        topics = selection.topics if selection.pattern is None else self._like(selection)
        found = sorted(self._described(topics))
        return {part.segment: part for part in found}

    def begins(self, parts: Iterable[PartitionOf]) -> dict[PartitionOf, int]:
        """Return the offset of the first message that is left of each."""
        return self._offsets({part: OffsetSpec.earliest() for part in parts}, IsolationLevel.READ_UNCOMMITTED)

    def ends(self, parts: Iterable[PartitionOf], *, committed: bool) -> dict[PartitionOf, int]:
        """Return the offset after the last message; with ``committed`` after the last one whose fate is decided."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets({part: OffsetSpec.latest() for part in parts}, level)

    def at_time(self, parts: Iterable[PartitionOf], time_ms: int, *, committed: bool) -> dict[PartitionOf, int]:
        """Return the offset of the first message at or after a time; the end where there is none."""
        asked = list(parts)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        ends = self.ends(asked, committed=committed)
        found = self._offsets({part: OffsetSpec.for_timestamp(time_ms) for part in asked}, level)
        return {part: ends[part] if at < 0 else min(at, ends[part]) for part, at in found.items() if part in ends}

    # --- inside -----------------------------------------------------------------------------------------------------

    def _like(self, selection: Selection) -> list[str]:
        return selection.matching(self._asked(lambda left_s: self._admin.list_topics(timeout=left_s).topics))

    def _described(self, topics: Collection[str]) -> list[PartitionOf]:
        """Return the partitions of topics, by one request; none of those that are not there."""

        def ask(left_s: float, *, leaves_out: bool) -> list[PartitionOf]:
            futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=left_s)
            found = []
            for topic in topics:
                try:
                    description = futures[topic].result()
                except KafkaException as error:
                    if not (leaves_out and is_no_topic(error)):
                        raise
                else:
                    id_ = str(description.topic_id)
                    found += [PartitionOf(topic, id_, part.id) for part in description.partitions]
            return found

        if not topics:
            return []
        try:
            return self._asked(partial(ask, leaves_out=False))
        except NoTopic:
            return self._asked(partial(ask, leaves_out=True))

    def _offsets(self, wanted: Mapping[PartitionOf, Any], level: Any) -> dict[PartitionOf, int]:
        """Return an offset of each partition: one request to each broker that leads some.

        A partition that is gone has none.
        """
        if not wanted:
            return {}
        asked = {TopicPartition(part.topic, part.number): spec for part, spec in wanted.items()}
        keys = {(part.topic, part.number): part for part in wanted}

        def ask(attempt_s: float) -> dict[PartitionOf, int]:
            found = offsets(self._admin, asked, level, attempt_s)
            return {keys[at.topic, at.partition]: offset for at, offset in found.items()}

        begun = time.monotonic()
        while True:
            try:
                return self._asked(ask, self.timeout_s - (time.monotonic() - begun))
            except NoTopic as error:
                there = set(self._described({part.topic for part in wanted}))
                if wanted.keys() - there:
                    return self._offsets({part: spec for part, spec in wanted.items() if part in there}, level)
                if time.monotonic() - begun > self.timeout_s:  # they are there, and nobody leads them
                    raise translated(error.__cause__ or error, self.address, self.node, self._told) from error

    def _asked(self, ask: Callable[[float], T], timeout_s: float | None = None) -> T:
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            return answer(self._admin, ask, timeout_s, self._told)
        except KafkaException as error:
            raise translated(error, self.address, self.node, self._told) from error
