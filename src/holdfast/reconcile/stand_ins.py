"""The sinks of a shadow: one of ours in a directory for each sink, which says what it holds in the same way."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace

from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Node, SinkNode
from holdfast.graph.pipeline import Pipeline
from holdfast.ports import Guarantee, LedgerSpec, SinkSpec
from holdfast.sinks.files.spec import FilesSinkSpec
from holdfast.sinks.object_files.spec import ObjectFilesSpec
from holdfast.sinks.postgres.spec import PostgresSpec
from holdfast.sinks.segments.spec import SegmentsSinkSpec
from holdfast.sinks.sql import APPEND
from holdfast.sinks.sqlite.spec import SqliteSpec

COMPARABLE = ("postgres", "sqlite", "files", "segments")
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
    mode = node.spec.mode if isinstance(node.spec, PostgresSpec | SqliteSpec) else APPEND
    spec: SinkSpec
    if mode.mode == "upsert":
        spec = SqliteSpec(os.path.join(directory, "content.db"), "content", replace(mode, rewindable=False))
    else:
        spec = FilesSinkSpec(directory, compression="lz4", compact=True)  # a replica's goes on for months
    return replace(node, spec=spec, backfill=False, pace=None)


def followed(pipeline: Pipeline) -> list[SinkNode]:
    """Return the sinks whose ledgers say where a pipeline is: those that a replica's shadow stands in for."""
    exact = [node for node in pipeline.sinks if node.guarantee is Guarantee.EXACTLY_ONCE]
    return [node for node in exact if isinstance(node.spec, LedgerSpec)]


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
            do=f'choose a sink of these kinds: {", ".join(COMPARABLE)}; behind changes one with mode="upsert".',
            pipeline=pipeline,
            participant=node.name,
        )


def check_some_comparable(pipeline: Pipeline, wanted: Collection[str] = ()) -> dict[str, str]:
    """Refuse to compare the sinks of a pipeline where none of them can be, or not one that was asked for by its name.

    Parameters
    ----------
    pipeline : Pipeline
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
    if node.kind not in COMPARABLE or not isinstance(node.spec, LedgerSpec):
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
    changing = [each.name for each in _upstream(node) if each.spec.arguments().get("emit") == "changes"]
    if changing and not (isinstance(node.spec, PostgresSpec | SqliteSpec) and node.spec.mode.mode == "upsert"):
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
