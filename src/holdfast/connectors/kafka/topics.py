"""Which topics of a cluster are meant: named ones, or those whose whole name matches a pattern; and their partitions.

Needs no client library: graphs are built where none is installed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.errors import InvalidPipeline

_INTERNAL = "__"


def is_internal(topic: str) -> bool:
    """Return whether a topic is the cluster's own, by its name.

    Examples
    --------
    >>> is_internal("__transaction_state"), is_internal("orders")
    (True, False)
    """
    return topic.startswith(_INTERNAL)


@dataclass(frozen=True)
class Selection:
    """Some topics of a cluster.

    Parameters
    ----------
    topics : tuple of str
        Their names.
    pattern : str, optional
        A regular expression that the whole name matches; never a topic of the cluster's own.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def __str__(self) -> str:
        """Return it for messages."""
        return ", ".join(self.topics) if self.pattern is None else f"the topics like {self.pattern!r}"

    @classmethod
    def of(cls, node: str, topics: str | Sequence[str] | None, pattern: str | None) -> Selection:
        """Return the topics that arguments name.

        Parameters
        ----------
        node : str
            Whose arguments, for messages.
        topics : str or sequence of str, optional
            One, or several.
        pattern : str, optional
            A regular expression.

        Raises
        ------
        InvalidPipeline
            If a name cannot be that of a topic or comes twice, or the pattern is no regular expression.
        """
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidPipeline(
                    f"{node}: pattern={pattern!r} is no regular expression.",
                    why=f"{error}.",
                    do='write for instance pattern="flights-.*": the whole name of a topic must match.',
                ) from error
        names = (topics,) if isinstance(topics, str) else tuple(topics or ())
        odd = [each for each in names if not isinstance(each, str) or not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", each)]
        if odd or len(set(names)) != len(names):
            raise InvalidPipeline(
                f"{node}: {(odd or names)[0]!r} cannot be a topic, or is named twice.",
                why="a topic's name has at most 249 of the characters a-z A-Z 0-9 . _ -.",
                do="correct the name, or write pattern= for a regular expression.",
            )
        return cls(tuple(sorted(names)), pattern)

    def matching(self, topics: Iterable[str]) -> list[str]:
        """Return those of some topics that match the pattern, sorted."""
        if self.pattern is None:
            return []
        whole = re.compile(self.pattern)
        return sorted(topic for topic in topics if whole.fullmatch(topic) and not is_internal(topic))


NO_TOPICS = Selection()


def check_counts(pipeline: str, segments: Mapping[str, Collection[str]]) -> None:
    """See that topics whose rows are held to partitions by a shard key have as many partitions, all of them.

    Parameters
    ----------
    pipeline : str
        Its name.
    segments : mapping of str to collection of str
        Source -> all of its segments.

    Raises
    ------
    InvalidPipeline
        If two have unlike numbers: a key then has one partition in the one, and another in the other.

    Examples
    --------
    >>> check_counts("trips", {"orders": ["orders@1/0", "orders@1/1"], "paid": ["paid@2/1", "paid@2/0"]})
    """
    counts = Counter((source, each.rpartition("/")[0]) for source, several in segments.items() for each in several)
    topics = sorted((count, topic.partition("@")[0], source) for (source, topic), count in counts.items())
    if topics and topics[0][0] != topics[-1][0]:
        (fewer, small, source), (more, large, other) = topics[0], topics[-1]
        raise InvalidPipeline(
            f"topic {small!r} (source {source!r}) has {fewer} partitions, and {large!r} (source {other!r}) has {more}.",
            why=f"pipeline {pipeline!r} has shard_by=: producers choose the partition by key and number of partitions, "
            "so a key would be in two partitions, and rows of it would be rejected.",
            do=f"copy the messages of {small!r} to a topic with {more} partitions, by their keys, and read that.",
            pipeline=pipeline,
            participant=source,
        )


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
