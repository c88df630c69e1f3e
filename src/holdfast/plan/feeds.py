"""Where the rows of an operator's input come from, and which bounds of the origin still hold at the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.expressions.text import Item
from holdfast.graph.nodes import Node
from holdfast.operators.lowering import BoundsDownstream, entry_of, lowering_of
from holdfast.plan.stages import ALL_KEYS_ONLY, CLOSED_ONLY, EVERY, Feed


def feeds_of(node: Node, ordinal: int) -> list[Feed]:
    """Return the feeds of an operator's input; only their ends where its time column is another than theirs."""
    before = node.inputs[ordinal]
    feeds = _feeds(before)
    time = node.stateful_spec.time_columns[ordinal]
    if time is None or before.shape.timestamp is None or time == before.shape.timestamp:
        return feeds
    return [replace(feed, bounds=CLOSED_ONLY) for feed in feeds]


def with_key(feed: Feed, key: Sequence[str]) -> str:
    """Return which bounds of a feed hold for a key: those of single keys where its columns keep their names."""
    if feed.bounds == EVERY and any(feed.column(name) != name for name in key):
        return ALL_KEYS_ONLY
    return feed.bounds


def _feeds(node: Node) -> list[Feed]:
    """Return where a node's rows come from, and which bounds of the origin still hold downstream of the node."""
    return entry_of(WAYS, lowering_of(node).bounds, "holdfast/plan/feeds.py")(node)


def _of_source(node: Node) -> list[Feed]:
    return [Feed(node.name, False, EVERY)]  # whatever it gives, by bound rows or for a commit at pts: often nothing


def _of_step(node: Node) -> list[Feed]:
    return [Feed(node.name, True, EVERY)]


def _through(passed: Callable[[Feed, Node, Node], Feed]) -> Callable[[Node], list[Feed]]:
    """Return what gives the feeds of a stateless operator: those of its inputs, as they hold downstream of it."""

    def feeds(node: Node) -> list[Feed]:
        found: dict[tuple[str, bool], Feed] = {}
        for before in node.inputs:
            for feed in _feeds(before):
                after = passed(feed, before, node)
                known = found.get((feed.source, feed.is_operator))
                if known is not None and known != after:  # two paths from one feed that differ: only its end is sure
                    after = replace(after, bounds=CLOSED_ONLY)
                found[feed.source, feed.is_operator] = after
        return list(found.values())

    return feeds


def _same(feed: Feed, before: Node, node: Node) -> Feed:
    return feed


def _where_timed(feed: Feed, before: Node, node: Node) -> Feed:
    return feed if node.shape.timestamp is not None else _end(feed, before, node)


def _selected(feed: Feed, before: Node, node: Node) -> Feed:
    spec: Any = node.spec
    items = spec.items_read()
    if node.shape.timestamp is None or before.shape.columns is None or items is None:
        return _end(feed, before, node)
    chosen = _unchanged(items, before.shape.columns)
    return replace(
        feed, columns=tuple((name, origin) for name, of in chosen if (origin := feed.column(of)) is not None)
    )


def _moved(feed: Feed, before: Node, node: Node) -> Feed:
    spec: Any = node.spec
    offset = spec.offset(node.shape.timestamp)
    if offset is None or before.shape.timestamp is None:
        return _end(feed, before, node)
    return replace(feed, columns=(), offset=feed.offset + offset)  # nothing is declared about the keys


def _end(feed: Feed, before: Node, node: Node) -> Feed:
    return replace(feed, bounds=CLOSED_ONLY)


def _unchanged(items: Sequence[Item], columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the columns that select items pass on as they are: (new name, old name)."""
    by_name = {column.lower(): column for column in columns}
    found = []
    for item in items:
        if item.is_star:
            found += [(column, column) for column in columns if column.lower() not in item.excluded]
        elif item.source is not None and item.names and (old := by_name.get(item.source.lower())) is not None:
            found.append((item.names[0], old))
    return found


WAYS: Mapping[BoundsDownstream, Callable[[Node], list[Feed]]] = {
    BoundsDownstream.OF_SOURCE: _of_source,
    BoundsDownstream.OF_STEP: _of_step,
    BoundsDownstream.SAME: _through(_same),
    BoundsDownstream.WHERE_TIMED: _through(_where_timed),
    BoundsDownstream.SELECTED: _through(_selected),
    BoundsDownstream.MOVED: _through(_moved),
    BoundsDownstream.END: _through(_end),
}
"""Which bounds hold downstream -> a node's feeds."""
