"""Which topics of a cluster are meant: named ones, or those whose whole name matches a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
