"""What the driver asks a Kafka cluster: which topics and partitions there are, and where they begin and end.

Each question is asked again while the answer may still come (a leader moves, a broker restarts, a topic was created a
moment ago), for half a minute in all.

Where partitions begin that appeared after the start: recorded at the first look, before anything of them is read.

So a replay reads the same messages, or says which are gone; and never takes for the beginning what retention has left.

Partitions of topics, their names in positions, and ranges of offsets.

What of the messages between two positions is not there any more, to the offset, and why.

Pure arithmetic of planning: which task reads which offsets of which partitions.

What an error of the Kafka library means to a source: wrong arguments or permissions, or a cluster that is away.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.answers import is_no_topic, is_passing, refused, unusable
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.questions import NoTopic, answer, offsets
from holdfast.connectors.kafka.topics import PartitionOf, Selection
from holdfast.connectors.reading.bounds import OffsetRange
from holdfast.connectors.reading.identified import Recorded
from holdfast.errors import Corrupt, Diverged, HoldfastError, InvalidPipeline, Unavailable

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


def begin(workspace: str, name: str, segment: str) -> int | None:
    """Return the offset where a partition begins; None where nothing is recorded.

    Parameters
    ----------
    workspace, name : str
        Of the source.
    segment : str
        The partition.
    """
    return _recorded(workspace, name, segment).start.get(segment)


def record(workspace: str, name: str, segment: str, offset: int) -> None:
    """Record it, unless another process has."""
    _recorded(workspace, name, segment).put_start({segment: offset})


def _recorded(workspace: str, name: str, segment: str) -> Recorded:
    short = hashlib.sha256(segment.encode()).hexdigest()[:24]
    return Recorded(os.path.join(workspace, "found", short), name)


def gone(cluster: Cluster, wanted: Mapping[str, tuple[int, int]], *, committed: bool) -> str:
    """Return what is not there of some messages, segment by segment; empty where all of them are.

    Parameters
    ----------
    cluster : Cluster
        Is asked.
    wanted : mapping of str to (int, int)
        Segment -> the first offset that is needed, and the one after the last that was seen or is needed.
    committed : bool
        Whether what is behind the last decided transaction is not there yet.
    """
    parts = {segment: PartitionOf.of(segment) for segment in wanted}
    topics = tuple(sorted({part.topic for part in parts.values()}))
    there = cluster.partitions(Selection(topics))
    begins = cluster.begins(there[segment] for segment in wanted if segment in there)
    ends = cluster.ends((there[segment] for segment in wanted if segment in there), committed=committed)
    texts = []
    for segment, (first, last) in wanted.items():
        part = there.get(segment)
        if part is None or part not in begins or part not in ends:
            texts.append(_absent(parts[segment], there))
            continue
        shown, begin, end = f"partition {part.number} of topic {part.topic!r}", begins[part], ends[part]
        if first < begin:
            until = max(first + 1, min(begin, last))
            texts.append(f"of {shown} messages {first} to {until - 1} are gone: it begins at {begin}.")
        elif max(first, last) > end:
            texts.append(f"{shown} ends at {end}, and was read, or planned, up to {max(first, last)}.")
    return " ".join(texts)


def _absent(part: PartitionOf, there: Mapping[str, PartitionOf]) -> str:
    others = {each.topic_id for each in there.values() if each.topic == part.topic}
    if not others:
        return f"topic {part.topic!r} is not there."
    if any(id_.startswith(part.topic_id) for id_ in others):
        return f"topic {part.topic!r} has no partition {part.number} any more."
    return (
        f"topic {part.topic!r} was deleted and created again (its id is {min(others)}, and began with {part.topic_id}):"
        " what is in it now is not what was read."
    )


def diverged(node: str, why: str) -> Diverged:
    """Return the error of a source whose messages are not there."""
    return Diverged(
        f"{node}: messages that are still to be read are not there any more.",
        why=why,
        do="nothing is skipped without your word: bring them back (a mirror of the topic, under its name), or begin "
        "anew: give the source another name=, and start= says from where; rows that are gone stay out.",
        participant=node,
    )


SPANS_PER_CORE = 2
SPAN_ROWS_MIN = 20_000
SPAN_ROWS_ENOUGH = 4_000_000
"""As long as one span a core has no more, it has one: a task begins with connections, and with waiting for them."""


def dealt(ranges: Sequence[OffsetRange], parallelism: int) -> list[tuple[OffsetRange, ...]]:
    """Deal messages to tasks: neighbouring ones, of about as many offsets; large partitions are cut.

    Examples
    --------
    >>> dealt([OffsetRange("a/0", 5, 25_005), OffsetRange("a/1", 0, 15_000)], 4)
    [(OffsetRange(segment='a/0', first=5, last=20005),), (OffsetRange(segment='a/0', first=20005, last=25005), \
OffsetRange(segment='a/1', first=0, last=15000))]
    """
    total = sum(last - first for _, first, last in ranges)
    cores = max(1, parallelism)
    wanted = max(1, min(cores if total <= cores * SPAN_ROWS_ENOUGH else SPANS_PER_CORE * cores, total // SPAN_ROWS_MIN))
    goal = -(-total // wanted)
    tasks: list[tuple[OffsetRange, ...]] = []
    held: list[OffsetRange] = []
    left = goal
    for segment, first, last in ranges:
        while first < last:
            until = min(last, first + left)
            held.append(OffsetRange(segment, first, until))
            left -= until - first
            first = until
            if left == 0:
                tasks.append(tuple(held))
                held, left = [], goal
    return [*tasks, *([tuple(held)] if held else [])]


def translated(
    error: BaseException | KafkaError, brokers: Brokers, node: str, told: Sequence[KafkaError] = ()
) -> HoldfastError:
    """Return what an error means, without secrets.

    Parameters
    ----------
    error : exception or KafkaError
        Of the library.
    brokers : Brokers
        The cluster.
    node : str
        Who asked it, for the message.
    told : sequence of KafkaError
        What the library said besides: why a request got no answer.
    """
    said = error if isinstance(error, KafkaError) else (error.args[0] if error.args else None)
    said = said if isinstance(said, KafkaError) else None
    refusal = refused([each for each in (said, *told) if each is not None])
    named = [each for each in told if each.code() != codes.ALL_BROKERS_DOWN]
    chosen = refusal or (named[-1] if named and (said is None or is_passing(said)) else said)
    text = chosen.str() if chosen is not None else str(error)
    text = brokers.shown(text)
    if refusal is not None:
        return InvalidPipeline(
            f"{node}: the Kafka cluster {brokers} refuses this user, or the connection to it is not made.",
            why=f"it said: {text}.",
            do="correct security= (protocol, mechanism, user, password, certificates), or let the user have Describe "
            "and Read on the topics.",
            participant=node,
        )
    return Unavailable(
        f"{node}: the Kafka cluster {brokers} does not answer.",
        why=f"it was tried for some time; what was said last: {text}.",
        do="start the brokers, or correct the address, or the protocol in security=; then start again: nothing was "
        "changed.",
        participant=node,
    )


def unreadable(error: KafkaError, brokers: Brokers, node: str, place: str) -> Corrupt:
    """Return what it means that messages have come and are no messages.

    Parameters
    ----------
    error : KafkaError
        Of the library.
    brokers : Brokers
        The cluster.
    node : str
        Who reads.
    place : str
        Where, in words: topic, partition and offset.
    """
    return Corrupt(
        f"{node}: what the Kafka cluster {brokers} has {place} cannot be read.",
        why=f"the client library said: {brokers.shown(error.str())}.",
        do="if it does not know the codec: install a newer confluent-kafka, where executors run too, or let the "
        "producer write another compression.type.  If the bytes are damaged: bring the messages back (a mirror of the "
        "topic, under its name).  Nothing was skipped.",
        participant=node,
    )
