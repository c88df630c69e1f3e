"""The shards of a pipeline whose checkpoint is lost, as its sinks know them (design/0048, 8).

Where no sink knows a number, a higher one is not looked for: the sinks of all shards of a layout are opened before it
is recorded (:mod:`holdfast.controller.layouts.first_layout`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from holdfast.capabilities import offers
from holdfast.checkpoint.directory_header import FILE_NAME, newest_directory, read_origin
from holdfast.connectors.reading.parts import divisible
from holdfast.controller.layouts.graph import ShardGraphs, dealt
from holdfast.controller.layouts.moving import Ledgers
from holdfast.errors import Corrupt
from holdfast.graph.graph import Graph
from holdfast.ports import Held, LedgerSpec, Store
from holdfast.positions import Positions
from holdfast.shards.assignment import Assignment, keep
from holdfast.shards.layout import LAYOUTS, ShardLayout, newest_layout
from holdfast.shards.naming import SHARDS_MAX, shard_name
from holdfast.shards.recovery import recover_shards
from holdfast.store.paths import open_store

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
        known = ask_shard(sinks, shard_name(pipeline, shard))
        if not known:
            break
        found.append(known)
    return found


def ask_shard(sinks: Mapping[str, object], name: str) -> Ledgers:
    """Ask the sinks for one shard, by its name in ledgers; those that know it are in the answer.

    Raises
    ------
    Unavailable
        As :func:`ask_shards`.
    """
    asked = {sink: spec.ledger(sink, name) for sink, spec in sinks.items() if offers(spec, LedgerSpec)}
    return {sink: ledger for sink, ledger in asked.items() if ledger is not None}


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
        If the checkpoint's record is damaged, or gone.
    Unavailable, Diverged
        As :func:`ask_shards` and :func:`recovered_layout`.
    """
    store = open_store(str(checkpoint))
    found = layout_there(store, checkpoint)
    divided = [node.name for node in pipeline.sources if divisible(node.source_spec) is not None]
    if found is not None or not divided or newest_directory(store):
        return found
    said = ask_shards({node.name: node.spec for node in pipeline.sinks}, pipeline.name)
    if not recovered_parts(divided, said) and not has_begun(said[1:]):
        return None
    return recovered_layout(ShardGraphs(pipeline, checkpoint), said)[0]


def layout_there(store: Store, checkpoint: Path) -> ShardLayout | None:
    """Return the layout that a checkpoint has; None where its pipeline has had no shards, or it has not begun.

    Raises
    ------
    Corrupt
        If it is damaged, or gone: shard 0 would read the segments of all others.
    """
    found, begun = newest_layout(store), newest_directory(store)
    under = 0
    with suppress(Corrupt):  # a start leaves such a directory, and goes on where the sinks are
        under = read_origin(checkpoint / f"spark/{begun}" / FILE_NAME).layout if begun else 0
    if under > (0 if found is None else found.number):
        raise Corrupt(
            f"which shard has which segment is gone from the checkpoint {checkpoint}.",
            why=f"shard 0 began under layout {under}, and {LAYOUTS} has "
            + ("none." if found is None else f"{found.number} at most."),
            do="restore the directory shards/ from a copy of the checkpoint; or move the checkpoint away, the whole, "
            "and start without it: the sinks are then asked (docs/shards.md).",
            participant=LAYOUTS,
        )
    return found


def has_begun(said: Iterable[Ledgers]) -> bool:
    """Return whether a sink holds rows of any of some shards."""
    return any(True for _ in _names(said))


def recovered_layout(
    graphs: ShardGraphs, said: Sequence[Ledgers], by: str = "", shard_count: int = 1
) -> tuple[ShardLayout, Mapping[int, Positions]]:
    """Return the layout that ledgers show, and what has to be handed over before a shard runs under it.

    Segments that nobody has begun are dealt: those of a source that was read before it was divided to shard 0, whose
    ledgers say up to where.

    Parameters
    ----------
    graphs : ShardGraphs
        Of the pipeline; what positions mean is restored.
    said : sequence of Ledgers
        As :func:`ask_shards` returns it.
    by : str
        As of :class:`~holdfast.shards.layout.ShardLayout`.
    shard_count : int
        How many shards there are to be: of sources of which no segment by hash was begun it says how many they have.

    Returns
    -------
    (ShardLayout, mapping of int to Positions)
        Not recorded yet; it has as many shards as have begun a segment, at least one.  And what
        :class:`~holdfast.shards.recovery.RecoveredShards` has.

    Raises
    ------
    Diverged
        As :func:`~holdfast.shards.recovery.recover_shards`.
    """
    parts = {**graphs.parts(max(len(said), shard_count)), **recovered_parts(graphs.divisible_sources, said)}
    layout = ShardLayout(Assignment(), parts, by)
    ledgers = [{sink: each.held for sink, each in of.items()} for of in said]
    found = recover_shards(ledgers, graphs.unit_of(layout))
    units, assignment = graphs.all_units(layout), found.assignment
    for source in _sources_of_one_run(graphs, said):
        assignment = keep(assignment, units[source].values(), 0)
    return dealt(replace(layout, assignment=assignment), units), found.hand_overs


def recovered_parts(sources: Collection[str], said: Sequence[Ledgers]) -> dict[str, int]:
    """Return how many segments by hash sources have: as the positions show that ledgers hold."""
    found = {}
    for source, name in _names(said):
        matched = _BY_HASH.fullmatch(name) if source in sources else None
        found.update({} if matched is None else {source: int(matched[1])})
    return found


def _sources_of_one_run(graphs: ShardGraphs, said: Sequence[Ledgers]) -> list[str]:
    """Return the sources that were read before they were divided: their position then is in every ledger of shard 0."""
    names = {*_names(said[:1])}
    return [source for source, name in graphs.whole_segments.items() if name and (source, name) in names]


def _names(said: Iterable[Ledgers]) -> Iterator[tuple[str, str]]:
    """Yield source and name of all that positions name."""
    for ledgers in said:
        for each in ledgers.values():
            for at in _ends(each.held):
                yield from ((source, name) for source, of in at.items() for name in of)


def _ends(held: Held) -> tuple[Positions, ...]:
    return (held.positions, *held.stops)
