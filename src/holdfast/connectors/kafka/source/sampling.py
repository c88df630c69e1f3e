"""The newest messages of each partition, and what they have otherwise than ``schema=`` says, for a look before a start.

Reads only: nobody joins a group or commits an offset, no topic is created, and no native client is tried, whose verdict
would be kept in a file.  Bounded in messages, and in time: a person waits for the answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaException

from holdfast.connectors.kafka.avro_registry import ONCE, Schemas
from holdfast.connectors.kafka.brokers import libraries_for
from holdfast.connectors.kafka.source.cluster import Cluster, translated
from holdfast.connectors.kafka.source.consuming import Access, chunks_of
from holdfast.connectors.kafka.source.payloads import as_lines
from holdfast.connectors.kafka.source.reading import KafkaReading
from holdfast.connectors.kafka.topics import PartitionOf
from holdfast.connectors.reading.bounds import OffsetRange
from holdfast.connectors.reading.drift import declared_columns, drift_of, problem_of
from holdfast.connectors.reading.row_batches import added, counted, limited
from holdfast.errors import HoldfastError
from holdfast.ports import SourceDrift
from holdfast.types.inferred import declaration_by

ROWS_OF_TOPIC = 100
"""Messages of one topic that are looked at, of all of its partitions together."""

ROWS_IN_ALL = 1000
"""Messages of all topics together."""

LIMIT_S = 5.0

_BYTES_MAX = 1 << 24
"""Of large messages fewer are looked at."""

_FARTHER = 64
"""Where the newest offsets of a partition hold no message (marks of transactions, what was aborted or compacted), it is
looked so many times as far back."""

_NAMED = 3
_ANSWER_S = 0.5
"""So long a question may take at least, however little time is left."""


class MessageSample(NamedTuple):
    """Values of the newest messages, and why some are not among them; empty where all are."""

    values: list[bytes | None]
    problem: str = ""


def drift_of_topics(spec: KafkaReading, name: str) -> SourceDrift | None:
    """Return what the newest messages have otherwise than the schema; None where the rows are the messages themselves.

    Raises
    ------
    HoldfastError
        If the cluster, or the schema registry, refuses or does not answer in time.
    """
    if spec.format == "bytes":
        return None
    look = _Look(spec, name)
    parts = look.partitions()
    topics = sorted({part.topic for part in parts})
    lacking = [topic for topic in spec.selection.topics if topic not in topics]
    place = _place(topics)
    absent = [f"topic {topic} is not there, or this user may not describe it" for topic in lacking]
    if not parts:
        return SourceDrift(name, problem="; ".join(absent) or f"no topic is like {spec.selection.pattern!r}")
    sample = look.newest(parts)
    problems = [*absent, *([sample.problem] if sample.problem else [])]
    if not sample.values and not sample.problem:
        problems.append(f"{place} {'has' if len(topics) == 1 else 'have'} no message that a run would read now")
    found = SourceDrift(name, place, on_new=spec.on_new, rejects=spec.rejects, problem="; ".join(problems))
    return _drift_in(found, spec, look.node, sample.values) if sample.values else found


class _Look:
    """One look at a cluster, with a time at which it ends."""

    def __init__(self, spec: KafkaReading, name: str) -> None:
        self.spec = spec
        self.name = name
        self.node = f"source {name!r}"
        self.until_s = time.monotonic() + LIMIT_S
        self.address = replace(spec.address.expanded(), allows_native=False)
        self.is_committed = spec.isolation == "read_committed"
        self._asked = Cluster(self.address, self.node)

    def partitions(self) -> list[PartitionOf]:
        """Return the partitions that are read."""
        found = self._cluster().partitions(self.spec.selection)
        return [part for segment, part in found.items() if segment in self.spec.reads]

    def newest(self, parts: Sequence[PartitionOf]) -> MessageSample:
        """Return the newest messages of partitions, the same share of each."""
        begins = self._cluster().begins(parts)
        ends = self._cluster().ends(parts, committed=self.is_committed)
        wanted = shares(part for part in parts if begins.get(part, 0) < ends.get(part, 0))
        near = {part: ends[part] - share for part, share in wanted.items()}
        found: dict[str, list[bytes | None]] = {}
        problem = self._read([_range(part, max(begins[part], at), ends[part]) for part, at in near.items()], found)
        if not problem:
            far = {part: at for part, at in near.items() if part.segment not in found and at > begins[part]}
            firsts = {part: max(begins[part], ends[part] - _FARTHER * wanted[part]) for part in far}
            problem = self._read([_range(part, first, far[part]) for part, first in firsts.items()], found)
        values = [value for part, share in wanted.items() for value in found.get(part.segment, [])[-share:]]
        return MessageSample(values, problem)

    def _read(self, ranges: Sequence[OffsetRange], found: dict[str, list[bytes | None]]) -> str:
        """Add the messages of ranges; return why it ended before their end."""
        access = Access(self.address, self.node, self.is_committed, looks=True)
        size = 0
        try:
            for run in chunks_of(access, ranges, self._left_s()) if ranges else ():
                found.setdefault(run.segment, []).extend(run.messages.values().to_pylist())
                size += int(run.messages.sizes().sum())
                if size > _BYTES_MAX:
                    return f"messages are large, and it ends after {size:,} bytes"
                if time.monotonic() > self.until_s:
                    return f"it ends after {LIMIT_S:g} seconds"
        except HoldfastError as error:
            if not found:
                raise
            return problem_of(error, self.name)
        except KafkaException as error:
            raise translated(error, self.address, self.node) from error
        return ""

    def _cluster(self) -> Cluster:
        self._asked.timeout_s = self._left_s()
        return self._asked

    def _left_s(self) -> float:
        return max(_ANSWER_S, self.until_s - time.monotonic())


def _range(part: PartitionOf, first: int, last: int) -> OffsetRange:
    return OffsetRange(part.segment, first, last)


def shares(parts: Iterable[PartitionOf]) -> dict[PartitionOf, int]:
    """Return how many messages of which partitions are looked at: of each topic as many, of more partitions fewer each.

    Examples
    --------
    >>> shares(PartitionOf("rides", "id", number) for number in range(3))[PartitionOf("rides", "id", 2)]
    34
    """
    by_topic: dict[str, list[PartitionOf]] = {}
    for part in parts:
        by_topic.setdefault(part.topic, []).append(part)
    most = min(ROWS_OF_TOPIC, max(1, ROWS_IN_ALL // max(1, len(by_topic))))
    found = {part: -(-most // min(len(some), most)) for some in by_topic.values() for part in some[:most]}
    return dict(list(found.items())[:ROWS_IN_ALL])


def _place(topics: Sequence[str]) -> str:
    if len(topics) > _NAMED:
        return f"{len(topics)} topics"
    return f"topic{'s' if len(topics) > 1 else ''} {', '.join(topics)}"


def _drift_in(sample: SourceDrift, spec: KafkaReading, node: str, values: Sequence[bytes | None]) -> SourceDrift:
    if spec.format == "avro":
        return _of_avro(sample, spec, node, values)
    lines, problems = as_lines(values)
    return drift_of(sample, lines, declared_columns(spec.payload, spec.on_new), problems)


def _of_avro(sample: SourceDrift, spec: KafkaReading, node: str, values: Sequence[bytes | None]) -> SourceDrift:
    """Compare the fields of the writers' schemas with the columns."""
    assert spec.registry is not None
    with libraries_for(node, "avro"):
        from holdfast.connectors.kafka.source.avro_payloads import MISFIT, AvroReader
    reader = AvroReader(Schemas(spec.registry.expanded(node), node, ONCE), spec.payload)
    reasons = reader.reasons(values)
    good = [reader.fields(value) for at, value in enumerate(values) if at not in reasons]
    names = spec.payload.names
    types = _addable({name: kind for fields in good for name, kind in fields.items() if name not in names}, names)
    return replace(
        sample,
        rows=len(values),
        members=dict(Counter(name for fields in good for name in fields if name in types)),
        types=types,
        absent=tuple(name for name in names if not any(name in fields for fields in good)) if good else (),
        bad=_counts(reasons.values(), MISFIT),
    )


def _counts(reasons: Collection[str], whole: str) -> dict[str, int]:
    """Return how many rows there are for each reason, values left out; those with ``whole`` in them have none."""
    rest = [reason for reason in reasons if whole not in reason]
    found = limited(Counter(reason for reason in reasons if whole in reason).items())
    return added(found, counted(pa.array(rest, pa.string()))) if rest else found


def _addable(fields: Mapping[str, pa.DataType | None], columns: Sequence[str]) -> dict[str, str]:
    """Return the fields for which there could be a column, as it would be declared."""
    taken = {name.lower() for name in columns}
    found = {
        name: declaration_by(name, kind)
        for name, kind in fields.items()
        if kind is not None and name.lower() not in taken
    }
    return {name: text for name, text in found.items() if text}
