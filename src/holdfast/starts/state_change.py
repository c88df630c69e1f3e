"""A changed graph: the state of the old Spark directory at the change point becomes the seed of a new one.

The change point is the end of the last epoch that the old graph finished: Spark's commit log has it, or a sink holds it
(a run may die between publishing an epoch and returning to Spark).  A snapshot of exactly that point is used, if a
clean stop left one; else one is made now, from the old directory.

A directory that begins at a snapshot, or at the beginning of its sources, first replays epochs that sinks hold already.
A graph that changes before that is through finds some of them left:

- of a *backfill* they belong to the graph that is started next: a sink that gets everything gets what the current
  graph computes;
- after a snapshot that was restored they belong to the old graph: it has published them, and its state is what their
  rows were computed with.  Spark's directory was damaged or lost; or a rewind was interrupted before it had brought the
  state to its target.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.capabilities import offers
from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader, read_origin
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.graph_record import GRAPH, GraphRecord, read_graph, state_fingerprint
from holdfast.checkpoint.manifest import EpochEnd, Manifest
from holdfast.checkpoint.snapshot import commit
from holdfast.checkpoint.spark_log import ended, logged, newest_positions, plain, read_offsets
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.connectors.reading.wrapped import innermost
from holdfast.errors import Corrupt, Diverged
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.plan.levels.seed import seed_of
from holdfast.ports import Bounded, Exhaustible, Held, Store
from holdfast.positions import Positions, covers_all
from holdfast.shards.naming import sources_place
from holdfast.spark.failure import translate
from holdfast.spark.state.reader import stored_state
from holdfast.spark.state.shape import noted_shape
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.directory import Directory
from holdfast.starts.graph_diff import GraphChange, NodeVerdict, Replay, compare
from holdfast.starts.inputs import StartInputs
from holdfast.starts.restore import restoration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.checkpoint")


def compare_graphs(
    store: Store,
    checkpoint: Path,
    chosen: Directory,
    graph: GraphRecord,
    upgrades: Mapping[str, StateUpgrade],
    pipeline: Graph,
) -> GraphChange | None:
    """Return what becomes of each node; None where nothing has run, or the directory before is only damaged."""
    below = chosen.previous if chosen.is_changed else chosen.below
    if chosen.previous and not chosen.is_changed:
        return None
    if not (checkpoint / below / FILE_NAME).exists():
        return None
    if not chosen.is_changed and store.get(f"{below}/{GRAPH}") is None:
        return None
    before = read_graph(store, below)
    change = compare(before, graph, upgrades, chosen.filling)
    if chosen.is_changed:
        left = left_to_replay(checkpoint, below, state_fingerprint(pipeline))
        change = replace(change, replay=left)
    return change if change.is_empty else change.over(_finished(checkpoint, below, pipeline))


def lines_of(change: GraphChange) -> Iterator[str]:
    """Yield one line for each node that has changed: what happens to it."""
    if change.replay is not None:
        yield change.replay.text(change.backfilled)
    for node in change.nodes:
        if node.verdict is not NodeVerdict.KEPT:
            details = f" ({'; '.join(node.details)})" if node.details else ""
            effect = node.effect or "nothing is lost"
            yield f"{node.role.value} {node.name!r} is {node.verdict.value}: {effect}{details}"


@dataclass(frozen=True)
class StateChange:
    """How the state of another graph becomes the beginning of a directory.

    Parameters
    ----------
    inputs : StartInputs
        Of the start.
    transfer : Transfer
        Brings state of another form over.
    change : GraphChange
        What becomes of each node.
    before : GraphRecord
        The old graph.
    session : SparkSession
        For reading the state.
    """

    inputs: StartInputs
    transfer: Transfer
    change: GraphChange
    before: GraphRecord
    session: SparkSession

    def begin(self, header: DirectoryHeader, held: Mapping[str, Held]) -> DirectoryHeader:
        """Move the state; return the header of the new directory.

        Raises
        ------
        Diverged
            If the state of the old graph cannot be read, and no snapshot serves.

        Notes
        -----
        What the directory before had still to replay, the new one replays by the new graph, with the ends and batch
        times that it would have had; whether it may was asked before.
        """
        spark = self.inputs.previous
        began = read_origin(spark / FILE_NAME)
        batch_id = last_finished(spark, held, began)
        left = began.seek[batch_id + 2 :]  # where the epochs end that are still to be replayed
        if self.change.backfilled and (batch_id >= 0 or began.seek):
            is_through = batch_id >= 0 and not left
            point = read_offsets(spark, batch_id).positions if is_through else began.seek[-1]
            seek = self.inputs.backfill.seek(point, held)
            log.warning("%s: everything is read again, in %d epochs", ", ".join(self.change.backfilled), len(seek) - 1)
            return replace(header, seek=seek, kept=(), backfilled=self.change.backfilled)
        if left:
            replayed, filled = began.replayed[batch_id + 1 :], began.backfilled if is_backfill(began) else ()
            header = replace(header, replayed=replayed, backfilled=filled)
        if batch_id < 0:  # nothing was finished: it is where it began
            manifest = seed_of(self.inputs.directory, self.inputs.chosen.previous)
            there = {} if manifest is None else manifest.operators
            sources = {name: was for name, was in self.change.sources.items() if was in there}
            seed = self._moved(manifest, sources) if manifest is not None and sources else ""
            return replace(header, seek=began.seek, seed=seed, kept=tuple(sources))
        found = read_offsets(spark, batch_id)
        step_epoch, batch_us = began.step_time(batch_id, found.batch_us)
        last = EpochEnd(began.base + batch_id, step_epoch, found.positions, batch_us)
        seed = self._seed(batch_id, last, held, began) if self.change.restored else ""
        log.warning(
            "the graph has changed: the old one holds up to the end of epoch %d, the new one from there on", last.epoch
        )
        return replace(header, seek=(last.positions, *left), seed=seed, kept=self.change.restored)

    def _seed(self, batch_id: int, last: EpochEnd, held: Mapping[str, Held], began: DirectoryHeader) -> str:
        """Return the key of a snapshot of the change point, for the new graph; made now if there is none."""
        inputs, below, pipeline = self.inputs, self.inputs.chosen.previous, self.inputs.pipeline.name
        here = [each for each in held.values() if covers_all(each.positions, last.positions)]
        graph = began.graph or ""
        there = restoration(inputs.store, pipeline, here, (), last.positions, graph=graph)
        # A backfill computes state anew: what was there before it is of other rows.
        is_ours = there is not None and (there.manifest.ended.epoch >= began.base or not is_backfill(began))
        if there is not None and is_ours and set(self.change.sources.values()) <= set(there.manifest.operators):
            return self._moved(there.manifest, self.change.sources)
        seed = seed_of(inputs.directory, below)
        try:
            operators = stored_state(
                lambda: self.session, inputs.store, inputs.directory, below, batch_id, self.before, seed
            )
        except Exception as error:
            shape = noted_shape(inputs.store, below)
            by = "" if shape is None or shape.is_in_journal else " by the version of Holdfast that wrote it"
            raise Diverged(
                f"the graph has changed, and the state of the old one in {below} cannot be read.",
                why=f"{translate(error, pipeline, 'reading the state').what} No snapshot is of the end of epoch "
                f"{last.epoch}, which is the last that was published.",
                do=f"start the old graph once{by}: it takes its state from an older snapshot, and leaves a new one "
                "when it is stopped; then start the changed one.",
                pipeline=pipeline,
                epoch=last.epoch,
            ) from error
        generation, now_us = self.transfer.generation, self.transfer.clock.now_us()
        read = Manifest(pipeline, generation, now_us, graph, last, self.before.buckets, operators)
        if not self.transfer.is_needed(read, self.change.sources):
            commit(inputs.store, read)
        return self._moved(read, self.change.sources)

    def _moved(self, manifest: Manifest, sources: Mapping[str, str]) -> str:
        """Return the key of a snapshot that the new graph can begin with."""
        if self.transfer.is_needed(manifest, sources):
            manifest = self.transfer.made(manifest, sources)
        return manifest.key.path


def _finished(checkpoint: Path, below: str, pipeline: Graph) -> tuple[str, ...]:
    """Return the sources that have ended: those whose end is logged, and bounded ones that are read completely."""
    spark = checkpoint / below
    positions = newest_positions(spark) or read_origin(spark / FILE_NAME).start  # after a rewind nothing is planned
    logged = ended(positions)
    others = [node for node in pipeline.sources if node.name not in logged]
    return (*logged, *(node.name for node in others if _is_read(checkpoint, pipeline.name, node, positions)))


def _is_read(checkpoint: Path, pipeline: str, node: Node, positions: Positions) -> bool:
    """Return whether a bounded source is read to its end, which is not logged without state."""
    place = Path(workspace(sources_place(checkpoint, pipeline), node.name))
    spec = node.source_spec
    if not (offers(spec, Bounded) and spec.bounded) or node.name not in positions or not place.is_dir():
        return False
    source = innermost(spec.open(node.name, str(place)))
    return offers(source, Exhaustible) and source.has_ended(plain(positions[node.name])[0])


def left_to_replay(checkpoint: Path, below: str, graph: str) -> Replay | None:
    """Return what a directory has still to replay; None when nothing.  Asks no sink.

    Parameters
    ----------
    checkpoint : Path
        Where the checkpoint lies.
    below : str
        Spark's directory below it.
    graph : str
        Fingerprint of the state of the graph that is to go on.
    """
    header = read_origin(checkpoint / below / FILE_NAME)
    left = header.replay_count - 1 - last_finished(checkpoint / below, {}, header)
    if left <= 0:
        return None
    return Replay(left, is_of_old_graph=header.graph != graph and not is_backfill(header))


def is_backfill(header: DirectoryHeader) -> bool:
    """Tell whether a directory fills a sink from the beginning, also one that an older version has begun."""
    return bool(header.backfilled) or (header.kept == () and not header.seed and header.replay_count > 0)


def last_finished(spark: Path, held: Mapping[str, Held], header: DirectoryHeader) -> int:
    """Return the last batch that Spark's commit log has, or that a sink was given; -1 when there is none.

    Parameters
    ----------
    spark : Path
        Spark's directory.
    held : mapping of str to Held
        What each sink holds.
    header : DirectoryHeader
        The record of the directory.

    Notes
    -----
    Of a batch that is replayed, sinks cover the end before it runs.  A sink that is being filled, and has received it,
    has an epoch of this directory; for the others only Spark's log shows it.
    """
    for batch_id in reversed(logged(spark, "offsets")):
        is_committed = (spark / "commits" / str(batch_id)).exists()
        try:
            positions = read_offsets(spark, batch_id).positions
        except Corrupt:
            if is_committed:
                raise
            continue  # torn when the run died: nothing of it was evaluated
        holders = [each for each in held.values() if covers_all(each.positions, positions)]
        is_new = batch_id >= header.replay_count
        if is_committed or any(is_new or each.epoch >= header.base + batch_id for each in holders):
            return batch_id
    return -1
