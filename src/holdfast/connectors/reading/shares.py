"""How the limit of an epoch is shared among the partitions of a source."""

from __future__ import annotations

from collections.abc import Mapping


def share(counts: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Return how many messages of each stream an epoch takes: all, or of a limit each stream the same share.

    What a stream does not need of its share the others get; where there are more streams than messages to take, those
    with the most messages have precedence.

    Examples
    --------
    >>> share({"a": 9, "b": 1, "c": 9}, 8), share({"a": 5, "b": 9}, 1), share({"a": 5}, None)
    ({'b': 1, 'a': 3, 'c': 4}, {'a': 0, 'b': 1}, {'a': 5})
    """
    if limit is None:
        return dict(counts)
    found, left = {}, limit
    in_order = sorted(counts, key=lambda name: (counts[name], name))
    for place, name in enumerate(in_order):
        found[name] = min(counts[name], left // (len(in_order) - place))
        left -= found[name]
    return found
