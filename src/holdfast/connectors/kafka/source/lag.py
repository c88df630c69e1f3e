"""How far some positions are behind what a cluster holds: in messages, and by the age of the oldest of them.

Costs a request for the ends and one for the begins to each broker that leads partitions, and reads the first messages
of those partitions in which something is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.source.cluster import Cluster
from holdfast.connectors.kafka.source.consuming import Access, chunks_of
from holdfast.connectors.kafka.topics import Selection
from holdfast.connectors.reading.partition_times import OffsetRange
from holdfast.positions import SourcePositions
from holdfast.values import SegmentLag

FIRST = 64
"""Among so many offsets the first message is looked for: some are marks of transactions."""

TIMEOUT_S = 5.0
"""A person waits for the answer."""


def lags(
    brokers: Brokers, selection: Selection, node: str, positions: SourcePositions, *, committed: bool
) -> Iterator[SegmentLag]:
    """Yield how far each partition is, by topic and number; one without a position counts from its begin."""
    cluster = Cluster(brokers, node, TIMEOUT_S)
    parts = cluster.partitions(selection)
    begins = cluster.begins(parts.values())
    ends = cluster.ends(parts.values(), committed=committed)
    there = [part for part in sorted(parts.values()) if part in begins and part in ends]
    at = {part: int(positions.get(part.segment, begins[part])) for part in there}
    firsts = [
        OffsetRange(part.segment, max(at[part], begins[part]), min(ends[part], max(at[part], begins[part]) + FIRST))
        for part in there
        if max(at[part], begins[part]) < ends[part]
    ]
    oldest = dict(_oldest(Access(brokers, node, committed, looks=True), firsts))
    for part in there:
        age = oldest.get(part.segment)
        yield SegmentLag(part.segment, f"{part.topic}/{part.number}", at[part], ends[part], age)


def _oldest(access: Access, ranges: list[OffsetRange]) -> Iterator[tuple[str, int]]:
    """Yield the time of the first message of each range, microseconds; none where a message has no time."""
    seen = set()
    for chunk in chunks_of(access, ranges, TIMEOUT_S) if ranges else ():
        if chunk.segment not in seen and (time_ms := int(chunk.messages.timestamps()[0])) >= 0:
            yield chunk.segment, time_ms * 1000
        seen.add(chunk.segment)
