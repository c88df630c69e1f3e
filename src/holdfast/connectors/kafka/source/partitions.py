"""Partitions of topics, their names in positions, and ranges of offsets."""

from __future__ import annotations

from typing import NamedTuple

_ID_SHOWN = 8


class PartitionOf(NamedTuple):
    """A partition of a topic."""

    topic: str
    topic_id: str
    number: int

    @property
    def segment(self) -> str:
        """Its name in positions: the topic, the begin of its id, the partition.

        Examples
        --------
        >>> PartitionOf("flights", "28LoSSUPSParu4QfJjItVA", 3).segment
        'flights@28LoSSUP/3'
        """
        return f"{self.topic}@{self.topic_id[:_ID_SHOWN]}/{self.number}"

    @classmethod
    def of(cls, segment: str) -> PartitionOf:
        """Return the partition that a segment is of; of the id only its begin is known.

        Examples
        --------
        >>> PartitionOf.of("flights@28LoSSUP/3")
        PartitionOf(topic='flights', topic_id='28LoSSUP', number=3)
        """
        topic, _, rest = segment.partition("@")
        id_, _, number = rest.rpartition("/")
        return cls(topic, id_, int(number))
