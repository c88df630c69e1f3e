"""The state at the target of a rewind: that with which the rows were published that stay (design/0012, 4).

A snapshot of exactly the target has it, or the journal of state.  Else the epochs after an older snapshot are evaluated
again, by the graph that published them and no other: a run does that and nothing else, and leaves a snapshot.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from holdfast.checkpoint import portable
from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader, newest_directory, read_origin
from holdfast.checkpoint.graph_record import read_graph, state_fingerprint, write_graph
from holdfast.checkpoint.manifest import EpochEnd
from holdfast.checkpoint.snapshot import commit
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.config import Settings
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.hooks import NONE, Lifecycle
from holdfast.graph.nodes import SinkNode
from holdfast.graph.trigger import available_now
from holdfast.plan.cutting import epoch_driven
from holdfast.plan.levels.journal import JournalReader
from holdfast.plan.levels.kept import read_state
from holdfast.plan.levels.seed import seed_of
from holdfast.plan.lookup_versions import look_ups_of
from holdfast.ports import Store
from holdfast.reconcile.stand_ins import stand_in
from holdfast.spark.launch.java import require_java
from holdfast.spark.state.shape import noted_shape
from holdfast.starts.inputs import are_versions_known, why_unsure
from holdfast.starts.restore import Restoration
from holdfast.starts.rewind_target import RewindTarget
from holdfast.store.scratch import address_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.rewind")


@dataclass(frozen=True)
class TargetState:
    """Brings the state of a pipeline to the target of a rewind.

    Parameters
    ----------
    pipeline, store, directory, settings, session
        As for :class:`~holdfast.starts.rewind.Rewinding`.
    """

    pipeline: Graph
    store: Store
    directory: Path
    settings: Settings
    session: SparkSession | None

    def batch_in_journal(self, found: RewindTarget, below: str, header: DirectoryHeader) -> int | None:
        """Return the epoch, as Spark numbers it, if its state is in no snapshot and the journal still has all of it."""
        shape = noted_shape(self.store, below)
        if not found.replayed or shape is None or not shape.is_in_journal:
            return None
        reader, batch_id = JournalReader(self.store, below), found.replayed[-1].epoch - header.base
        if batch_id < 0:
            return None
        try:
            buckets = reader.version(batch_id).buckets.values()
        except Corrupt:
            return None  # removed: only what the last epochs need stays
        there = {*self.store.keys(reader.directory)}
        return batch_id if all(piece.key in there for each in buckets for piece in each.pieces.values()) else None

    def check_evaluable(self, to: str, found: RewindTarget, header: DirectoryHeader) -> None:
        """Refuse to evaluate epochs again by another graph than the one that published them, or not as they were."""
        if found.restored is None or not found.replayed:
            return
        nearest = found.restored.manifest.ended.epoch
        if header.graph != state_fingerprint(self.pipeline):
            why = "this graph is not the one that has published them."
            do = "rewind with the graph that ran last, then change it; or"
        elif any(each.epoch < header.graph_since for each in found.replayed):
            why = f"the graph that ran last has published none before epoch {header.graph_since}."
            do = f"choose a later epoch than {header.graph_since - 1}; or"
        elif unsure := self._unsure(found.restored):
            why = f"not all is known that they decided. {why_unsure(unsure)}"
            do = "restore the checkpoint's directories progress/ and lookups/ from a copy; or"
        else:
            require_java()
            return
        raise InvalidPipeline(
            f"pipeline {self.pipeline.name!r} cannot go back to {to}: its state of then cannot be computed.",
            why=f"no snapshot is of that epoch: {len(found.replayed)} epochs after that of epoch {nearest} have to be "
            f"evaluated again, and {why} The state would not be that of the rows which stay.",
            do=f"{do} go back to epoch {nearest}, where nothing is evaluated.",
            pipeline=self.pipeline.name,
        )

    def _unsure(self, restored: Restoration) -> Sequence[str]:
        """Return the operators whose state would be another one: what the epochs decided is not known any more."""
        look_ups = look_ups_of(self.pipeline)
        is_known = restored.is_exact and are_versions_known(self.store, look_ups, restored.replayed)
        return () if is_known else epoch_driven(self.pipeline)

    def keep(self, to: str, found: RewindTarget, coordinator: Coordinator) -> None:
        """Make the snapshot of the target that a named checkpoint or the journal has."""
        if found.restored is None:
            return
        if found.named is not None:
            kept = portable.kept(self.store, to, is_part=True)
            for key, data in kept.files():
                self.store.put(key, data)
            commit(self.store, kept.plain)
        elif found.batch_id is not None:
            below = f"spark/{newest_directory(self.store)}"
            graph, seed = read_graph(self.store, below), seed_of(self.directory, below)
            operators = read_state(self.store, below, found.batch_id, graph.state_schemas, seed=seed)
            coordinator.check_fenced()
            manifest = replace(
                found.restored.manifest,
                generation=coordinator.generation,
                at_us=SystemClock().now_us(),
                graph=read_origin(self.directory / below / FILE_NAME).graph or "",
                ended=found.ended,
                buckets=graph.buckets,
                operators=operators,
            )
            commit(self.store, manifest)

    def evaluate(self, to: str, replayed: Sequence[EpochEnd], left_out: Collection[str]) -> None:
        """Bring the state to the target, by a run that evaluates what sinks hold, and nothing else.

        Dead in the middle, the rest is left to the graph that ran: it goes on with it, and a changed one is refused
        (:mod:`holdfast.starts.state_change`).  In the place of a sink that is left out there is one that holds nothing.
        """
        # Not above: `holdfast resolve` finishes rewinds, and needs no Spark.
        from holdfast.starts.context import StartOptions
        from holdfast.starts.starting import Starting

        log.warning("%d epochs are evaluated again, for their state alone", len(replayed))
        graph = read_graph(self.store, f"spark/{newest_directory(self.store)}")
        with TemporaryDirectory(prefix="holdfast-rewind-") as aside:
            asked = StartOptions(
                # Without hooks: it is no run of the user's.
                pipeline=self.pipeline.with_sinks(
                    [_in_place_of(node, aside) if node.name in left_out else node for node in self.pipeline.sinks]
                ),
                checkpoint=address_of(self.directory),
                trigger=available_now(),
                commit_every_ticks=None,
                commit_thread=False,
                session=self.session,
                settings=self.settings,
                only_replays=True,
            )
            try:
                Starting(asked, Lifecycle(NONE, self.pipeline.name)).run().wait()
            except HoldfastError as error:
                error.do = (
                    f"{error.do} The rows are withdrawn; the state is not that of {to} yet: then holdfast rewind "
                )
                error.do += f"--to {to} once more, with this graph."
                raise
        if left_out:
            below = f"spark/{newest_directory(self.store)}"  # another one where state is to be divided anew
            write_graph(self.store, below, replace(graph, buckets=read_graph(self.store, below).buckets))


def _in_place_of(node: SinkNode, directory: str) -> SinkNode:
    name = f"instead_of_{node.name}"  # of its own: what is noted of it is not of the other
    return replace(stand_in(node, os.path.join(directory, name)), name=name)
