"""Where the rows of an operator's input come from, and which bounds hold behind the way from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.expressions.text import Item
from holdfast.graph.nodes import Node
from holdfast.operators.lowering import BoundsBehind, entry_of, lowering_of
from holdfast.plan.stages import ALL_KEYS_ONLY, CLOSED_ONLY, EVERY, Feed


def feeds_of(node: Node, ordinal: int) -> list[Feed]:
    """Return the feeds of an operator's input; only their ends where it goes by another time than they do."""
    before = node.inputs[ordinal]
    feeds = _feeds(before)
    time = node.stateful_spec.time_columns[ordinal]
    if time is None or before.shape.timestamp is None or time == before.shape.timestamp:
        return feeds
    return [replace(feed, bounds=CLOSED_ONLY) for feed in feeds]


def with_key(feed: Feed, key: Sequence[str]) -> str:
    """Return which bounds of an operator hold, given its key: those of single keys where it comes through by name."""
    if feed.bounds == EVERY and any(feed.column(name) != name for name in key):
        return ALL_KEYS_ONLY
    return feed.bounds


def _feeds(node: Node) -> list[Feed]:
    """Return where a node's rows come from, and which bounds hold behind the way from there."""
    return entry_of(WAYS, lowering_of(node).bounds, "holdfast/plan/feeds.py")(node)


def _of_source(node: Node) -> list[Feed]:
    return [Feed(node.name, False, EVERY)]  # whatever it tells, by bound rows or for a commit at pts: often nothing


def _of_step(node: Node) -> list[Feed]:
    return [Feed(node.name, True, EVERY)]


def _through(passed: Callable[[Feed, Node, Node], Feed]) -> Callable[[Node], list[Feed]]:
    """Return what gives the feeds of an operator without state: those of its inputs, as they are behind it."""

    def feeds(node: Node) -> list[Feed]:
        found: dict[tuple[str, bool], Feed] = {}
        for before in node.inputs:
            for feed in _feeds(before):
                behind = passed(feed, before, node)
                known = found.get((feed.source, feed.is_operator))
                if known is not None and known != behind:  # two ways from one feed that differ: only its end is sure
                    behind = replace(behind, bounds=CLOSED_ONLY)
                found[feed.source, feed.is_operator] = behind
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
    return replace(feed, columns=(), offset=feed.offset + offset)  # what becomes of keys, nobody says


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


WAYS: Mapping[BoundsBehind, Callable[[Node], list[Feed]]] = {
    BoundsBehind.OF_SOURCE: _of_source,
    BoundsBehind.OF_STEP: _of_step,
    BoundsBehind.SAME: _through(_same),
    BoundsBehind.WHERE_TIMED: _through(_where_timed),
    BoundsBehind.SELECTED: _through(_selected),
    BoundsBehind.MOVED: _through(_moved),
    BoundsBehind.END: _through(_end),
}
"""What becomes of bounds -> a node's feeds."""
