"""What releases the rows that an operator by time holds back: bounds, the clock, or nothing but the end."""

from __future__ import annotations

import logging

from holdfast.graph.nodes import Node, Stream


def released_by_clock(node: Node) -> str | None:
    """Return a warning where ``idle_after`` is the only thing that can release the row of a key that comes once."""
    if not _idles(node) or not (inputs := _without_bounds(node)):
        return None
    return (
        f"{node.kind} {node.name!r} ({node.origin}): of a key that comes once, idle_after= alone releases a row, for "
        f"{', '.join(map(repr, inputs))} promises nothing for all keys. What leaves then depends on arrival, and "
        f"nothing leaves while there is a backlog. {_INSTEAD[node.kind]}"
    )


def held_to_the_end(node: Node) -> str | None:
    """Return what to know where nothing but the end of the inputs releases the row of a key that comes once."""
    if node.kind not in _INSTEAD or not node.arguments().get("by") or _idles(node) or not _goes_by_time(node):
        return None
    if not (inputs := [source.name for source in _unbounded(node) if not source.arguments().get("bounded")]):
        return None
    return (
        f"{node.kind} {node.name!r} ({node.origin}): a row waits for a later row of its own key, for "
        f"{', '.join(map(repr, inputs))} promises nothing for all keys; the row of a key that comes once waits for "
        f"the end. {_INSTEAD[node.kind]}"
    )


def say_what_releases(stream: Stream) -> Stream:
    """Log, while an operator is built, what its arguments cannot release; return its stream."""
    if (said := released_by_clock(stream.node)) is not None:
        _log.warning("%s", said)
    elif (said := held_to_the_end(stream.node)) is not None:
        _log.debug("%s", said)
    return stream


_log = logging.getLogger("holdfast.graph")
_BOUNDED = 'Let the source give bounds: by itself (disorder= of the source, where it has that), or bounds="is_bound".'
_INSTEAD = {
    "merge": "Where rows match by an id, write hf.join(left, right, on=..., within=...). " + _BOUNDED,
    "sync": "Where rows match by an id, write hf.join(left, right, on=..., within=...). " + _BOUNDED,
    "aggregate": _BOUNDED,
    "over": _BOUNDED,
}
"""What to use where keys come once, by the kind of the operator that holds their rows."""


def _idles(node: Node) -> bool:
    given = node.arguments() if node.kind in _INSTEAD else {}
    return bool(given.get("by") and (given.get("idle_after") or given.get("idle_us")))


def _goes_by_time(node: Node) -> bool:
    """Return whether rows wait for bounds at all: not where each row changes the output at once, or the clock does."""
    given = node.arguments()
    if node.kind == "aggregate":
        return given["emit"] == "settled" and given["window"]["kind"] in _BY_TIME
    if node.kind == "over":
        return bool(given["disorder"] or given["order"])
    return node.kind == "merge" or given["policy"]["kind"] in ("settled", "sync_sets", "early_close", "within")


_BY_TIME = ("tumbling", "sliding", "session")


def _without_bounds(node: Node) -> list[str]:
    """Return the names of the sources upstream that say nothing for all keys."""
    return [source.name for source in _unbounded(node)]


def _unbounded(node: Node) -> list[Node]:
    """Return the sources upstream that say nothing for all keys; of rows alone only their own keys follow."""
    sources: dict[str, Node] = {}
    waiting = list(node.inputs)
    while waiting:
        each = waiting.pop(0)
        waiting += each.inputs
        if not each.inputs and not each.arguments().get("bounds"):
            sources.setdefault(each.name, each)
    return list(sources.values())
