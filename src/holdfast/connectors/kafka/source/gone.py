"""What of the messages between two positions is not there any more, to the offset, and why."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.connectors.kafka.source.cluster import Cluster
from holdfast.connectors.kafka.source.partitions import PartitionOf
from holdfast.connectors.kafka.topics import Selection
from holdfast.errors import Diverged


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
