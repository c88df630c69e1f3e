"""Where the rows of an operator's input come from, and which bounds hold behind the way from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.expressions.text import Item, item_of
from holdfast.graph.nodes import Node, SideOutput, is_stateful
from holdfast.operators.clip import Clip
from holdfast.operators.filter import Filter
from holdfast.operators.select import Select
from holdfast.operators.split import SplitBranch
from holdfast.operators.union import Union
from holdfast.plan.stages import ALL_KEYS_ONLY, CLOSED_ONLY, EVERY, Feed
from holdfast.sources.bounds import MarkedSpec


def heard(node: Node, ordinal: int) -> list[Feed]:
    """Return the feeds of an operator's input; only their ends where it goes by another time than they do."""
    before = node.inputs[ordinal]
    feeds = _feeds(before)
    time = _time_column(node, ordinal)
    if time is None or before.shape.timestamp is None or time == before.shape.timestamp:
        return feeds
    return [replace(feed, bounds=CLOSED_ONLY) for feed in feeds]


def _time_column(node: Node, ordinal: int) -> str | None:
    """Return the timestamp column that an operator was told to use for an input, where it says so."""
    times: Any = getattr(node.spec, "times", None)
    if isinstance(times, Mapping):
        times = tuple(times.values())
    if isinstance(times, tuple) and ordinal < len(times):
        return str(times[ordinal])
    one = getattr(node.spec, "timestamp", None)
    return one if isinstance(one, str) else None


def with_key(feed: Feed, key: Sequence[str]) -> str:
    """Return which bounds of an operator hold, given its key: those of single keys where it comes through by name."""
    if feed.bounds == EVERY and any(feed.column(name) != name for name in key):
        return ALL_KEYS_ONLY
    return feed.bounds


def _feeds(node: Node) -> list[Feed]:
    """Return where a node's rows come from, and which bounds hold behind the way from there."""
    if node.is_source:
        return [Feed(node.name, False, EVERY if isinstance(node.spec, MarkedSpec) else CLOSED_ONLY)]
    if is_stateful(node):
        return [Feed(node.name, True, EVERY)]
    if isinstance(node.spec, SideOutput):
        return [Feed(node.inputs[0].name, True, CLOSED_ONLY)]
    found: dict[tuple[str, bool], Feed] = {}
    for before in node.inputs:
        for feed in _feeds(before):
            passed = _passed(feed, before, node)
            known = found.get((feed.source, feed.is_operator))
            if known is not None and known != passed:  # two ways from one feed that differ: only its end is sure
                passed = replace(passed, bounds=CLOSED_ONLY)
            found[feed.source, feed.is_operator] = passed
    return list(found.values())


def _passed(feed: Feed, before: Node, node: Node) -> Feed:
    """Return a feed as it is behind one more stateless operator."""
    match node.spec:
        case Filter() | SplitBranch() | Clip():
            return feed
        case Union() if node.shape.timestamp is not None:
            return feed
        case Select(items=items) if node.shape.timestamp is not None and before.shape.columns is not None:
            chosen = _unchanged([item_of(text) for text in items], before.shape.columns)
            columns = tuple((name, origin) for name, of in chosen if (origin := feed.column(of)) is not None)
            return replace(feed, columns=columns)
        case _:
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
