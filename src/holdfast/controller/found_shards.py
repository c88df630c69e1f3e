"""The shards of a pipeline whose checkpoint is lost, as its sinks know them (design/0048, 8).

Where no sink knows a number, a higher one is not looked for: shards open their sinks in the order of their numbers,
some at a time.  That none plans an epoch before all have is not built, so a shard whose sinks were away at the first
start may hide higher ones; who would begin anew asks for a few more (:func:`shards_with_rows`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.capabilities import offers
from holdfast.connectors.reading.parts import divisible
from holdfast.controller.graph import ShardGraphs, dealt
from holdfast.errors import Diverged, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.ports import LedgerSpec, SinkLedger
from holdfast.positions import Position, SourcePositions
from holdfast.shards.assignment import Assignment, keep
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.naming import SHARDS_MAX, shard_name
from holdfast.store.paths import open_store

Ledgers = Mapping[str, SinkLedger]
"""Sink -> what it knows of a shard."""

SHARDS_ASKED = 4
"""So many shards besides shard 0 are looked for: as many as are started at a time."""

_BY_HASH = re.compile(r"[0-9]+/([1-9][0-9]*)")


def ask_shards(sinks: Mapping[str, object], pipeline: str) -> list[Ledgers]:
    """Ask the sinks for each shard, up to the first that none of them knows.  Changes nothing, fences no run.

    Parameters
    ----------
    sinks : mapping of str to SinkSpec
        Name -> declaration.  One that has no ledger, or whose ledger ends with its process, is not asked.
    pipeline : str
        The user's name.

    Returns
    -------
    list
        What is known of each shard; empty where nothing is known of the pipeline.

    Raises
    ------
    Unavailable
        If a sink does not answer: that it knows nothing may not be concluded.
    """
    found: list[Ledgers] = []
    for shard in range(SHARDS_MAX):
        name = shard_name(pipeline, shard)
        asked = {sink: spec.ledger(sink, name) for sink, spec in sinks.items() if offers(spec, LedgerSpec)}
        known = {sink: ledger for sink, ledger in asked.items() if ledger is not None}
        if not known:
            break
        found.append(known)
    return found


def shards_with_rows(pipeline: Graph) -> list[int]:
    """Return of which of the first shards sinks hold rows, of those that can be asked without their columns.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.

    Raises
    ------
    Unavailable
        If a sink does not answer.
    """
    specs = {node.name: node.spec for node in pipeline.sinks}
    found = []
    for shard in range(1 + SHARDS_ASKED):
        name = shard_name(pipeline.name, shard)
        asked = (spec.ledger(sink, name) for sink, spec in specs.items() if offers(spec, LedgerSpec))
        if any(ledger is not None and not ledger.held.is_empty for ledger in asked):
            found.append(shard)
    return found


def check_not_lost(pipeline: Graph, checkpoint: str) -> None:
    """Refuse to begin as one run where the checkpoint has never run, and sinks hold rows of shards.

    Such a run would go on from what shard 0 has read, and read the segments of the others again.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.
    checkpoint : str
        Its directory, or its place in an object store.

    Raises
    ------
    InvalidPipeline
        If there are any.
    Unavailable
        If a sink does not answer.
    """
    can_have_shards = any(divisible(node.source_spec) is not None for node in pipeline.sources)
    if not can_have_shards or open_store(checkpoint).get("identity.json") is not None:
        return
    shards = [shard for shard in shards_with_rows(pipeline) if shard]
    if shards:
        raise InvalidPipeline(
            f"sinks of pipeline {pipeline.name!r} hold rows of shard {shards[0]}, and the checkpoint knows no shards.",
            why="it is not the one that they ran with, or it was lost: one run would read again what they have read.",
            do="restore the checkpoint; or begin anew, with another name and new sinks.",
            pipeline=pipeline.name,
        )


def known_layout(pipeline: Graph, checkpoint: Path) -> ShardLayout | None:
    """Return the layout of a pipeline: as its checkpoint says, or, where that is lost, its sinks.  Changes nothing.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.
    checkpoint : Path
        Of the pipeline; need not exist.

    Returns
    -------
    ShardLayout or None
        None where it has no shards.

    Raises
    ------
    Corrupt
        If the checkpoint's record is damaged.
    Unavailable, Diverged
        As :func:`ask_shards` and :func:`recovered_layout`.
    """
    store = open_store(str(checkpoint))
    found = newest_layout(store)
    if found is not None or store.get("identity.json") is not None:
        return found
    said = ask_shards({node.name: node.spec for node in pipeline.sinks}, pipeline.name)
    return recovered_layout(ShardGraphs(pipeline, checkpoint), said) if len(said) > 1 else None


def recovered_layout(graphs: ShardGraphs, said: Sequence[Ledgers], by: str = "") -> ShardLayout:
    """Return the layout that ledgers show: each segment in the shard that has a position in it.

    Of a segment that two shards have, which is so while a change of their number is carried through, the lower one goes
    on with it.  Segments that nobody has begun are dealt.

    Parameters
    ----------
    graphs : ShardGraphs
        Of the pipeline.
    said : sequence of Ledgers
        As :func:`ask_shards` returns it.
    by : str
        As of :class:`~holdfast.shards.layout.ShardLayout`.

    Returns
    -------
    ShardLayout
        Not recorded yet.  Its shards are as many as have positions, at least one.

    Raises
    ------
    Diverged
        If a shard has a segment up to beyond the lower one that has it too.
    """
    held = [_positions(ledgers) for ledgers in said]
    count = max((shard + 1 for shard, positions in enumerate(held) if any(positions.values())), default=1)
    parts = {**graphs.first(count, by).parts, **recovered_parts(graphs, said)}
    layout = ShardLayout(Assignment(count), parts, by)
    for source in graphs.divisible_sources:
        units = graphs.units(layout, source)
        of: dict[str, int] = {}
        for shard, positions in enumerate(held):
            ours = positions.get(source, {})
            begun = [segment for segment in units if segment in ours]
            for segment in begun:
                lower = of.setdefault(segment, shard)
                if _is_beyond(ours[segment], held[lower][source][segment]):
                    raise _contradiction(graphs.pipeline.name, source, segment, lower, shard)
            assignment = keep(layout.assignment, [units[segment] for segment in begun], shard)
            layout = replace(layout, assignment=assignment)
    return dealt(layout, graphs.all_units(layout))


def recovered_parts(graphs: ShardGraphs, said: Sequence[Ledgers]) -> dict[str, int]:
    """Return how many segments by hash sources have: as the positions show that ledgers hold."""
    found = {}
    for positions in map(_positions, said):
        for source in graphs.divisible_sources.keys() & positions.keys():
            for matched in map(_BY_HASH.fullmatch, positions[source]):
                found.update({} if matched is None else {source: int(matched[1])})
    return found


def _positions(ledgers: Ledgers) -> dict[str, dict[str, Position]]:
    """Return up to where any sink of a shard holds rows."""
    found: dict[str, dict[str, Position]] = {}
    for ledger in ledgers.values():
        for source, positions in ledger.held.positions.items():
            _raise_to(found.setdefault(source, {}), positions)
    return found


def _raise_to(found: dict[str, Position], positions: SourcePositions) -> None:
    for segment, at in positions.items():
        if segment not in found or _is_beyond(at, found[segment]):
            found[segment] = at


def _is_beyond(one: Position, other: Position) -> bool:
    return isinstance(one, int) and isinstance(other, int) and one > other


def _contradiction(pipeline: str, source: str, segment: str, lower: int, higher: int) -> Diverged:
    return Diverged(
        f"sinks of pipeline {pipeline!r} hold segment {segment!r} of source {source!r} in shards {lower} and {higher}, "
        f"and of {higher} more than of {lower}.",
        why="a segment is in two ledgers at one position at most, while the number of shards changes: a sink was "
        "restored from a backup, or two checkpoints write under one name.",
        do="restore the checkpoint, or all sinks from one moment; or holdfast reset, and begin again.",
        pipeline=pipeline,
        participant=source,
    )
