"""Whether a graph gives the same results in one shard and in several: by the column that holds rows to their segments.

Rows of one value of that column are in one shard (:mod:`holdfast.shards.keys`).  Rows of one key are put together by an
operator that keeps state, and by a sink that replaces rows: so these must have the column in their key, and nothing may
compute the column between the source and them.  This holds for one shard, too: then their number can change later.

A function of the user whose declared columns have one of that name is believed to pass it on: nobody sees what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.connectors.reading.parts import divisible
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node, SinkNode, is_stateful
from holdfast.operators.lookup.as_of import TABLE, AsOfLookup
from holdfast.plan.feeds import columns_passed
from holdfast.shards.keys import KEYS, ShardKey
from holdfast.shards.naming import sources_place
from holdfast.types.row_ids import check_columns

_INSTEAD = "shards that are independent keep a result of their own each"


@dataclass(frozen=True)
class KeyColumn:
    """Under which names a stream has the column as its sources do, and which sources these are.

    Parameters
    ----------
    names : frozenset of str
        None: nowhere.
    sources : tuple of Node
        Where its rows come from.
    lost : str
        Where the column is not there any more, and why; empty where it is.
    """

    names: frozenset[str]
    sources: tuple[Node, ...]
    lost: str = ""


def check_shard_key(pipeline: str, nodes: Sequence[Node], sinks: Sequence[SinkNode], by: Any, built_at: Origin) -> None:
    """Check a graph whose rows are held to their segments by a column.

    Parameters
    ----------
    pipeline : str
        Its name.
    nodes : sequence of Node
        Inputs before their consumers, without a gate.
    sinks : sequence of SinkNode
        Its sinks.
    by : str
        What the user gave as ``shard_by=``.
    built_at : Origin
        The line of the pipeline.

    Raises
    ------
    InvalidPipeline
        If results would depend on the number of shards: names the operator, or the sink, and where the column ends.
    """
    if not isinstance(by, str) or not by:
        raise InvalidPipeline(
            f"shard_by={by!r} of pipeline {pipeline!r}, built at {built_at}, is not a name of a column.",
            why="rows of one value of a column are read by one shard.",
            do='write for instance shard_by="device".',
            pipeline=pipeline,
        )
    found: dict[Node, KeyColumn] = {}
    for node in _in_parts(nodes, sinks):
        before = {name: found[each] for name, each in _inputs(node).items()}
        if node.is_source:
            _check_source(pipeline, node, by)
        elif is_stateful(node):
            for name, carried in before.items():
                _check_keys(pipeline, node, f"input {name!r}", keys_of(node), carried, by)
            _check_one_name(pipeline, node, before, by)
            _check_sources(pipeline, node, [*before.values()])
        found[node] = _downstream(node, [*before.values()], by)
    for sink in sinks:
        if (key := replaced_by(sink)) is not None:
            carried = found[sink.inputs[0]]
            _check_keys(pipeline, sink, "its rows", key, carried, by)
            _check_sources(pipeline, sink, [carried])


def columns_of_state(graph: Graph) -> dict[str, str]:
    """Return operator with state -> the column of its key that has the values by which rows are held to segments.

    Of a graph that was checked, and has such a column; without the gate before its sinks, which has no key.

    Examples
    --------
    >>> import holdfast as hf
    >>> rows = hf.read.files("in", schema="device STRING", name="rows")
    >>> counts = rows | hf.select("device as d") | hf.accumulate(by="d", n=hf.count(), name="counts")
    >>> graph = hf.Pipeline("p", counts | hf.write.memory(name="shown"), shard_by="device")
    >>> columns_of_state(graph)
    {'counts': 'd'}
    """
    found: dict[Node, KeyColumn] = {}
    columns: dict[str, str] = {}
    for node in _in_parts(graph.nodes, graph.sinks):
        before = [found[each] for each in _inputs(node).values()]
        if is_stateful(node) and (names := _common_names(node, before)):
            columns[node.name] = min(names)
        found[node] = _downstream(node, before, graph.shard_by or "")
    return columns


def check_declared(graph: Graph, *, independent: bool) -> None:
    """Check that a graph that is to run in several shards says what these may share.

    Parameters
    ----------
    graph : Graph
        Of a start with more shards than one.
    independent : bool
        Whether each shard is to have a result of its own.

    Raises
    ------
    InvalidPipeline
        If an operator keeps state, or a sink replaces rows, and nothing says in which shard the rows of a key are; or
        if both is said.
    """
    if independent and graph.shard_by is not None:
        raise InvalidPipeline(
            f"pipeline {graph.name!r} has shard_by={graph.shard_by!r}, and is started with independent shards.",
            why="by the first a key has one result, by the second one in each shard.",
            do="give a number of shards, or leave shard_by= out.",
            pipeline=graph.name,
        )
    if independent or graph.shard_by is not None:
        return
    puts_together: list[Node | SinkNode] = [
        *(node for node in graph.nodes if is_stateful(node)),
        *(sink for sink in graph.sinks if replaced_by(sink) is not None),
    ]
    for node in puts_together:
        raise InvalidPipeline(
            f"{node.kind} {node.name!r}, built at {node.origin}, puts rows of one key together, and it is not said in "
            "which shard these are.",
            why="each shard reads some of the segments: a key whose rows are in two of them would have two results.",
            do=f'say which column decides on the segment: hf.Pipeline({graph.name!r}, ..., shard_by="device"); or '
            f"{_INSTEAD}.",
            pipeline=graph.name,
            participant=node.name,
        )


def read_in_parts(sinks: Sequence[SinkNode]) -> frozenset[Node]:
    """Return the nodes whose rows are divided among shards: all but what leads to tables that are looked up in alone,
    which each shard has whole.
    """
    waiting, found = [node for sink in sinks for node in sink.inputs], set[Node]()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += _inputs(node).values()
    return frozenset(found)


def _in_parts(nodes: Sequence[Node], sinks: Sequence[SinkNode]) -> list[Node]:
    divided = read_in_parts(sinks)
    return [node for node in nodes if node in divided]


def _common_names(node: Node, before: Sequence[KeyColumn]) -> frozenset[str]:
    """Return the columns of an operator's key that are the column on each of its inputs."""
    return frozenset(keys_of(node)).intersection(*(carried.names for carried in before))


def _inputs(node: Node) -> dict[str, Node]:
    """Return the inputs of a node by name, without a table that it looks up in."""
    names = node.stateful_spec.input_names if is_stateful(node) else [str(at) for at in range(len(node.inputs))]
    is_lookup = isinstance(node.spec, AsOfLookup)
    return {name: each for name, each in zip(names, node.inputs, strict=True) if not (is_lookup and name == TABLE)}


def begin_keys(pipeline: Graph, checkpoint: Path) -> dict[str, ShardKey]:
    """Return how rows of each source are held to their segments, where they are, with the record of that begun.

    Parameters
    ----------
    pipeline : Graph
        Of a run: a pipeline, or a shard.
    checkpoint : Path
        Its own: of all shards the claims are in that of the first.

    Raises
    ------
    InvalidPipeline
        If that record is of another column.
    """
    if pipeline.shard_by is None:
        return {}
    key = ShardKey(pipeline.shard_by, str(sources_place(checkpoint, pipeline.name) / KEYS))
    key.begin()
    # Which row is in which segment of a source of Spark's nobody knows: one shard reads it alone.
    return {node.name: key for node in read_in_parts(pipeline.sinks) if node.is_source and node.kind != "spark"}


def keys_of(node: Node) -> tuple[str, ...]:
    """Return the columns by which an operator with state keeps it; empty where it keeps one for all rows."""
    arguments = node.arguments()
    return tuple(arguments.get("by", arguments.get("on", ())))


def replaced_by(sink: SinkNode) -> tuple[str, ...] | None:
    """Return the columns of which a sink keeps the last row; None where it keeps all rows."""
    arguments = sink.arguments()
    return tuple(arguments["key"]) if arguments.get("mode") == "upsert" else None


def _check_source(pipeline: str, node: Node, by: str) -> None:
    schema = node.source_spec.schema
    if schema is None or by not in schema.names:
        raise InvalidPipeline(
            f"shard_by={by!r}: {node.kind} {node.name!r}, built at {node.origin}, has no such column.",
            why="its columns are not known before it is read."
            if schema is None
            else f"its columns are {', '.join(map(repr, schema.names))}.",
            do=f"declare it in schema=, also where it is renamed later; or leave shard_by= out: {_INSTEAD}.",
            pipeline=pipeline,
            participant=node.name,
        )
    check_columns(schema, [by], None)


def _check_keys(
    pipeline: str, node: Node | SinkNode, of: str, keys: Sequence[str], carried: KeyColumn, by: str
) -> None:
    if carried.names & frozenset(keys):
        return
    shown = f"key ({', '.join(keys)})" if keys else "no key"
    raise InvalidPipeline(
        f"shard_by={by!r}: {node.kind} {node.name!r}, built at {node.origin}, has {shown}, which does not tell in "
        f"which shard a row of {of} is.",
        why=carried.lost
        or f"rows of one key may have several values of {', '.join(map(repr, sorted(carried.names)))}, and be in as "
        "many shards: each would have a result of its own.",
        do="take the column into the key, and pass it on as it is up to there; choose another column for shard_by=; or "
        f"leave shard_by= out: {_INSTEAD}.",
        pipeline=pipeline,
        participant=node.name,
    )


def _check_one_name(pipeline: str, node: Node, before: Mapping[str, KeyColumn], by: str) -> None:
    """Refuse inputs that have the column under unlike names: rows of one key would be in several shards."""
    if not _common_names(node, [*before.values()]):
        shown = ", ".join(f"{name!r} as {', '.join(sorted(of.names))}" for name, of in before.items())
        raise InvalidPipeline(
            f"shard_by={by!r}: {node.kind} {node.name!r}, built at {node.origin}, has the column under another name on "
            "each of its inputs.",
            why=f"it has {shown}: rows of one key would be in the shards of several values.",
            do="rename it before, so that all inputs have it under one name: hf.select(...); or leave shard_by= out: "
            f"{_INSTEAD}.",
            pipeline=pipeline,
            participant=node.name,
        )


def _check_sources(pipeline: str, node: Node | SinkNode, before: Sequence[KeyColumn]) -> None:
    """Refuse rows of a source that one shard reads alone, together with those of one that several read."""
    sources = list(dict.fromkeys(source for carried in before for source in carried.sources))
    whole = next((source for source in sources if divisible(source.source_spec) is None), None)
    if whole is not None and len(sources) > 1:
        raise InvalidPipeline(
            f"{node.kind} {node.name!r}, built at {node.origin}, puts rows of {whole.kind} {whole.name!r} together "
            "with those of other sources.",
            why=f"{whole.kind} has no segments that could be read apart: the first shard reads it alone, and rows of "
            "the same keys are in others.",
            do=f"write the rows of {whole.name!r} to a topic first, and read that; or leave shard_by= out: {_INSTEAD}.",
            pipeline=pipeline,
            participant=node.name,
        )


def _downstream(node: Node, before: Sequence[KeyColumn], by: str) -> KeyColumn:
    if node.is_source:
        return KeyColumn(frozenset({by}), (node,))
    sources = tuple(dict.fromkeys(source for carried in before for source in carried.sources))
    names, why = _PASSES.get(node.kind, _passed_by_name)(node, before)
    lost = next((carried.lost for carried in before if carried.lost), "")
    if not names and not lost:
        lost = f"{why}, at {node.kind} {node.name!r}, built at {node.origin}."
    return KeyColumn(names, sources, lost)


Passed = tuple[frozenset[str], str]
"""Names under which an operator passes the column on, and why it does not."""


def _passed_by_name(node: Node, before: Sequence[KeyColumn]) -> Passed:
    """Return the names that all inputs have, and the output still has."""
    names = frozenset.intersection(*(carried.names for carried in before))
    kept = names if node.columns is None else names & frozenset(node.columns)
    why = "the inputs have the column under different names" if not names else "the column is left out"
    return kept, why


def _of_items(node: Node, before: Sequence[KeyColumn]) -> Passed:
    """Return the names under which items of a select list pass it on."""
    spec: Any = node.spec
    columns, items = node.inputs[0].columns, spec.items_read()
    if columns is None or items is None:
        return frozenset(), "only Spark knows what becomes of the column"
    names = frozenset(new for new, old in columns_passed(items, columns) if old in before[0].names)
    return names, "the column is left out or computed"


def _unknown(node: Node, before: Sequence[KeyColumn]) -> Passed:
    return frozenset(), "a function of a frame may do anything to the column"


def _of_rejects(node: Node, before: Sequence[KeyColumn]) -> Passed:
    return frozenset(), "rows that could not be read have no columns"


_PASSES: Mapping[str, Callable[[Node, Sequence[KeyColumn]], Passed]] = {
    "select": _of_items,
    "sql": _of_items,
    "map": _unknown,
    "rejects": _of_rejects,
}
"""Kinds of operators that do more to a column than to keep its name, or to leave it out."""
