"""The sinks of a shadow: one of ours in a directory for each sink, which says what it holds in the same way."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from holdfast.capabilities import offers
from holdfast.connectors.files.objects.spec import ObjectFilesSpec
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.kit.sql import APPEND, TableMode
from holdfast.connectors.kit.sql_spec import SqlSpec
from holdfast.connectors.postgres.spec import PostgresSpec
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode
from holdfast.ports import Guarantee, LedgerSpec, SinkSpec
from holdfast.reconcile.digest_sink import DigestSpec
from holdfast.reconcile.digests import Wanted

COMPARABLE = ("postgres", "sqlite", "mysql", "files", "segments")
"""Kinds of sinks that can be asked what they hold."""


def stand_in(node: SinkNode, directory: str) -> SinkNode:
    """Return the sink in the place of one: Parquet files where rows are added, SQLite where the last of a key wins.

    Parameters
    ----------
    node : SinkNode
        The sink of the graph.
    directory : str
        Belongs to the stand-in alone.
    """
    mode = _mode(node)
    spec: SinkSpec
    if mode.mode == "upsert":
        spec = SqliteSpec(os.path.join(directory, "content.db"), "content", mode)
    else:
        spec = FilesSinkSpec(directory, compression="lz4", compact=True)  # a replica's goes on for months
    return replace(node, spec=spec, backfill=False, pace=None)


def stand_in_of_digests(node: SinkNode, directory: str, wanted: Wanted | None = None) -> SinkNode:
    """Return a sink in the place of one that keeps no rows: digests alone, or the rows of some buckets.

    Parameters
    ----------
    node, directory
        As for :func:`stand_in`.
    wanted : Wanted, optional
        Buckets whose rows are kept.
    """
    mode = _mode(node)
    of = None if obstacle(node) else node.spec
    spec = DigestSpec(os.path.join(directory, "digests.db"), of, mode, known_by(node, mode.key), wanted)
    return replace(node, spec=spec, backfill=False, pace=None)


def in_place(*, digests_only: bool) -> Callable[[SinkNode, str], SinkNode]:
    """Return what makes the stand-ins of a shadow: with all rows, or with digests."""
    return stand_in_of_digests if digests_only else stand_in


def known_by(node: SinkNode, key: Sequence[str]) -> tuple[str, ...]:
    """Return the columns by which a row of a sink is the same row with other values: its key, or its id."""
    ids = None if node.stream is None else node.stream.shape.ids
    return tuple(key) or (() if ids is None else (ids.column,))


def followed(pipeline: Graph) -> list[SinkNode]:
    """Return the sinks whose ledgers say where a pipeline is: those that a replica's shadow stands in for."""
    exact = [node for node in pipeline.sinks if node.guarantee is Guarantee.EXACTLY_ONCE]
    return [node for node in exact if offers(node.spec, LedgerSpec)]


def shares_table(node: SinkNode) -> bool:
    """Return whether shards of a pipeline write one table, in which a row does not say whose it is."""
    return isinstance(node.spec, PostgresSpec | SqlSpec)


def _mode(node: SinkNode) -> TableMode:
    mode = node.spec.mode if isinstance(node.spec, PostgresSpec | SqlSpec) else APPEND
    return replace(mode, rewindable=False)


def check_comparable(node: SinkNode, pipeline: str) -> None:
    """Refuse a sink that cannot be compared with what it should hold.

    Raises
    ------
    InvalidPipeline
        Naming the sink and the reason.
    """
    why = obstacle(node)
    if why:
        raise InvalidPipeline(
            f"sink {node.name!r} ({node.kind}) of pipeline {pipeline!r} cannot be compared with what it should hold.",
            why=why,
            do=f'choose a sink of these kinds: {", ".join(COMPARABLE)}; behind changes one with mode="upsert"; none '
            "behind an operator that goes by the clock.",
            pipeline=pipeline,
            participant=node.name,
        )


def check_some_comparable(pipeline: Graph, wanted: Collection[str] = ()) -> dict[str, str]:
    """Refuse to compare the sinks of a pipeline where none of them can be, or not one that was asked for by its name.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    wanted : collection of str
        Names; none of them: whichever can be compared.

    Returns
    -------
    dict of str to str
        Sink -> why it is not compared.

    Raises
    ------
    InvalidPipeline
        Naming a sink, or all with their reasons.
    """
    names = [node.name for node in pipeline.sinks]
    unknown = sorted({*wanted} - {*names})
    if unknown:
        raise InvalidPipeline(
            f"pipeline {pipeline.name!r} has no sink {', '.join(map(repr, unknown))} that could be compared.",
            why=f"its sinks: {', '.join(names)}.",
            do="name some of these, or none for all that can be compared.",
            pipeline=pipeline.name,
        )
    for node in pipeline.sinks:
        if node.name in wanted:
            check_comparable(node, pipeline.name)
    found = {node.name: obstacle(node) for node in pipeline.sinks}
    if all(found.values()):
        raise InvalidPipeline(
            f"no sink of pipeline {pipeline.name!r} can be compared with what it should hold.",
            why=" ".join(f"{name}: {why}" for name, why in found.items()),
            do=f"go on without a comparison; sinks of these kinds can be compared: {', '.join(COMPARABLE)}.",
            pipeline=pipeline.name,
        )
    asked = wanted or names
    return {name: why or "it was not asked for." for name, why in found.items() if why or name not in asked}


def can_be_rebuilt(node: SinkNode, pipeline: str) -> bool:
    """Return whether ``holdfast reconcile --rebuild`` fills a sink that holds nothing."""
    try:
        check_comparable(node, pipeline)
    except InvalidPipeline:
        return False
    return True


def obstacle(node: SinkNode) -> str:
    """Return why a sink cannot be compared with what it should hold; empty where it can."""
    if node.kind not in COMPARABLE or not offers(node.spec, LedgerSpec):
        return "it does not say which rows it holds."
    if node.guarantee is not Guarantee.EXACTLY_ONCE:
        return "it is at-least-once: its ledger does not say which rows it should hold."
    if isinstance(node.spec, PostgresSpec | SqliteSpec | SegmentsSinkSpec) and node.spec.control is not None:
        return "commands among its rows change the table itself."
    if isinstance(node.spec, ObjectFilesSpec):
        return "its files are in an object store, and those on disks alone are compared."
    if isinstance(node.spec, FilesSinkSpec) and node.spec.format != "parquet":
        return "lines of JSON do not tell a null from a NaN, or a text from a time."
    if isinstance(node.spec, SegmentsSinkSpec) and node.spec.retain is not None:
        return "it drops rows by itself (retain=): they would all be missing."
    before = _upstream(node)
    if clocked := [each.name for each in before if each.watches_clock]:
        return f"{', '.join(clocked)} decides by the time at which epochs were planned, which sources do not tell."
    changing = [each.name for each in before if each.spec.arguments().get("emit") == "changes"]
    if changing and not (isinstance(node.spec, PostgresSpec | SqlSpec) and node.spec.mode.mode == "upsert"):
        return f"{', '.join(changing)} gives a row for each epoch with a change, which sources do not tell."
    return ""


def _upstream(node: SinkNode) -> list[Node]:
    found: dict[Node, None] = {}
    waiting = list(node.inputs)
    while waiting:
        before = waiting.pop()
        if before not in found:
            found[before] = None
            waiting.extend(before.inputs)
    return [*found]
