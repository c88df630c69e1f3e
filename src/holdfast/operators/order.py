"""Warnings about operators that take rows for ordered by time where nobody says that they are, or reading breaks it.

What a source reads of partitions, one after the other or side by side, is in no order, however well each partition is.
Where it gives bounds of its partitions, operators go by these (:func:`holdfast.plan.feeds.inputs_by_bounds`), and
nothing is to be said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.capabilities import offers
from holdfast.graph.nodes import Node, is_stateful
from holdfast.operators.arguments import Limit, as_distance, limit_column
from holdfast.ports import PartitionedSpec
from holdfast.types import units

_BY_TIME = ("tumbling", "sliding", "session")
_BY_ARRIVAL = ("accumulate", "distinct", "limit_in_flight", "apply", "stateful")
"""Operators with state whose rows leave in the order in which they came."""

_HOW = 'disorder="5 min" (a number for BIGINT timestamps), or'


def rows_in_no_order(node: Node, by_bounds: Collection[str]) -> list[str]:
    """Return what to mind where rows that came in time can be late in an operator.

    Parameters
    ----------
    node : Node
        An operator with state.
    by_bounds : collection of str
        Its inputs of which bounds alone say what may still come: there no order is needed.
    """
    needed = {name: said for name, said in _disorder_of_inputs(node).items() if name not in by_bounds}
    befores = dict(zip(node.stateful_spec.input_names, node.inputs, strict=True))
    parted = {name: source for name in needed if (source := _partitioned(befores[name])) is not None}
    found = [_of_partitions(node, name, source) for name, source in parted.items()]
    unsaid = [name for name, said in needed.items() if said is None and name not in parted]
    unsaid = [name for name in unsaid if node.kind in _WHOLE or _gives_no_bounds(befores[name])]
    if unsaid:
        found.append(_of_unsaid(node, unsaid))
    for name, said in needed.items():
        joined = _join_before(befores[name])
        if joined is not None and node.kind not in _UNCONCERNED and not _is_wide(said, _extents(joined)):
            found.append(_of_join(node, joined))
            break
    return found


def _disorder_of_inputs(node: Node) -> dict[str, str | int | None]:
    """Return the inputs whose rows must come in the order of time, each with how far they may be from it as it was
    written: None where nothing is said.
    """
    given, names = node.arguments(), node.stateful_spec.input_names
    if node.kind == "aggregate" and given["window"]["kind"] not in _BY_TIME:
        return {}
    if node.kind == "sync" and given["policy"]["kind"] == "barrier":
        return {}
    if node.kind == "limit_in_flight":
        return {names[0]: 0}
    said = given.get("disorder")
    if node.kind == "apply":
        return {} if said is None else {names[0]: said}
    if node.kind not in ("join", "lookup_as_of", "merge", "sync", "aggregate", "distinct", "over"):
        return {}
    if isinstance(said, Mapping):
        found = {name: said.get(name) for name in names}
    elif isinstance(said, Sequence) and not isinstance(said, str):
        found = dict(zip(names, said, strict=True))
    else:
        found = dict.fromkeys(names, said)
    strict = {name for name in names if _is_strict(node, name)}
    return {name: 0 if said is None and name in strict else said for name, said in found.items()}


def _is_strict(node: Node, name: str) -> bool:
    """Return whether the user has written that an input's rows never go back: where that is not the default."""
    stamps = node.arguments().get("timestamps")
    if node.kind not in ("merge", "aggregate", "over") or stamps is None:
        return False
    return bool((stamps.get(name) if isinstance(stamps, Mapping) else stamps) == "strict")


def _of_partitions(node: Node, name: str, source: Node) -> str:
    spec = source.source_spec
    assert offers(spec, PartitionedSpec)
    return (
        f"{node.kind} {node.name!r} ({node.origin}): rows of {name} that come in time can be late, and go nowhere "
        f"else: source {source.name!r} reads its {spec.partitions} one after the other, and rows are held to the order "
        f"in which they were read. Write hf.read.{source.kind}(..., disorder=...), how far a row may be below the "
        "highest before it among its own: no row within that is late then, however they are read."
    )


def _of_unsaid(node: Node, unsaid: Sequence[str]) -> str:
    if node.kind == "lookup_as_of":
        ways = dict(zip(node.stateful_spec.input_names, ("hf.lookup", "hf.table"), strict=True))
        return (
            f"lookup {node.name!r} ({node.origin}): a row that is below the newest one of its whole stream is late, "
            "and does not go on, for nothing is said of the order. Write "
            f"{' and '.join(f'{ways[name]}(..., disorder=...)' for name in unsaid)}: how far rows may be "
            'below, "5 min" (a number for BIGINT timestamps), or 0 where they ascend by time.'
        )
    where, goes = ("its whole stream", "in no pair") if node.kind == "join" else ("its key", "goes nowhere else")
    return (
        f"{node.kind} {node.name!r} ({node.origin}): a row of {' or '.join(unsaid)} that is below the newest one of "
        f"{where} is late, and {goes}, for nothing is said of their order. Write how far rows may be below: "
        f"{_HOW} disorder=0 where they ascend by time."
    )


def _of_join(node: Node, joined: Node) -> str:
    low, high = joined.arguments()["within"]
    says = (
        f"{node.kind} {node.name!r} ({node.origin}): join {joined.name!r} gives rows without a partner later than "
        f"pairs of their time, up to the extent of within=({low!r}, {high!r}); here they would be late. "
    )
    extents = _extents(joined)
    if None in extents:
        return f"{says}No disorder= is enough where a limit is open: give the join limits that are distances."
    if any(limit_column(each) is not None for each in extents):
        return f"{says}Write disorder= of at least the longest range of a row, and forget_after= of that in the join."
    return f"{says}Write disorder= of at least that."


_WHOLE = ("join", "lookup_as_of")
"""Operators that go by the newest row of a whole stream: no key of one before them helps."""

_UNCONCERNED = ("apply", "lookup_as_of", "limit_in_flight")
"""Operators of which nothing is said behind a join."""


def _partitioned(node: Node) -> Node | None:
    """Return a source of rows that reads partitions, and gives no bounds of them."""
    for source in _sources(node):
        if offers(source.spec, PartitionedSpec) and source.spec.partitions and not source.arguments().get("bounds"):
            return source
    return None


def _gives_no_bounds(node: Node) -> bool:
    return any(not source.arguments().get("bounds") for source in _sources(node))


def _sources(node: Node) -> list[Node]:
    """Return the sources whose rows come here in the order in which they were read."""
    found, waiting = [], [node]
    while waiting:
        each = waiting.pop()
        if each.is_source:
            found.append(each)
        elif not is_stateful(each) or each.kind in _BY_ARRIVAL:
            waiting += each.inputs
    return found


def _join_before(node: Node) -> Node | None:
    """Return the join whose rows reach here unsorted, where they do not ascend by time."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each.kind == "join" and each.arguments()["how"] in ("left", "right", "full", "semi"):
            return each
        if not is_stateful(each):
            waiting += each.inputs
    return None


def _extents(joined: Node) -> list[Limit]:
    """Return how far a row without a partner may be below pairs that leave with it: distances, a column, or None."""
    given = joined.arguments()
    if (apart := given.get("forget_after")) is not None:
        return [apart]
    low, high = (as_distance(limit, given["times"]["left"]) for limit in given["within"])
    low, how = None if limit_column(low) is not None else low, given["how"]
    found = [low] if _is_distance(low) or how in ("right", "full") else []
    return [*found, high] if _is_distance(high) or how in ("left", "semi", "full") else found


def _is_distance(limit: Limit) -> bool:
    return limit is not None and limit_column(limit) is None


def _is_wide(disorder: str | int | None, within: Sequence[Limit]) -> bool:
    if not all(map(_is_distance, within)):
        return False
    extents = [
        units.duration_us(each.strip().lstrip("+-"), argument="within") if isinstance(each, str) else abs(each or 0)
        for each in within
    ]
    if disorder is None:
        return not any(extents)
    wide = units.duration_us(disorder, argument="disorder") if isinstance(disorder, str) else disorder
    return wide >= max(extents, default=0)
