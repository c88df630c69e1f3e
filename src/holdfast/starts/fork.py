"""How a pipeline begins that does not begin at the beginning: at a named checkpoint (a *fork*), at a time, with state.

Durable writes: 1. of a fork, what the sources of the checkpoint remember, and its files; of given state, its files;
2. the manifest, as a snapshot of this pipeline; 3. ``beginning.json``: from here on the pipeline begins there,
whatever becomes of Spark's directory before the first epoch is published.  A crash before leaves objects that the next
try writes again; a start that begins at the beginning instead removes such a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.graph_record import Described, GraphRecord, Role
from holdfast.checkpoint.manifest import EpochEnd, StateSchema
from holdfast.checkpoint.portable import NamedCheckpoint
from holdfast.checkpoint.snapshot import commit
from holdfast.checkpoint.spark_log import plain
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.errors import InvalidPipeline, present
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.shards.naming import sources_place
from holdfast.spark.launch import stop_directory
from holdfast.spark.read import SourceReader
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.graph_diff import GraphChange, compare
from holdfast.starts.inputs import StartInputs
from holdfast.starts.refusals import check_change
from holdfast.starts.start_at import StartAt
from holdfast.starts.state_change import lines_of
from holdfast.store.local import LocalStore
from holdfast.store.unwritten import UnwrittenStore

log = logging.getLogger("holdfast.checkpoint")


@dataclass(frozen=True)
class Fork:
    """The beginning of a pipeline.

    Parameters
    ----------
    inputs : StartInputs
        Of the start, which asks where to begin.
    transfer : Transfer
        Brings state of other names, and of another form, over.
    found : NamedCheckpoint, optional
        The named checkpoint; None for the beginning of the sources, or a time.
    reader : SourceReader
        How the pipeline's sources are read.
    graph : GraphRecord
        Its graph.
    is_forced : bool
        Whether operators may begin without state where theirs does not fit.
    given_state : mapping of str to mapping of str to pa.Table
        Operator -> state tables that it begins with.
    """

    inputs: StartInputs
    transfer: Transfer
    found: NamedCheckpoint | None
    reader: SourceReader
    graph: GraphRecord
    is_forced: bool = False
    given_state: Mapping[str, Mapping[str, pa.Table]] = field(default_factory=dict)

    @property
    def begins(self) -> StartAt:
        """Where."""
        return present(self.inputs.begins, "a start that forks is not asked where.", pipeline=self.inputs.pipeline.name)

    def begin(self, header: DirectoryHeader, held: Mapping[str, Held]) -> DirectoryHeader:
        """Copy what is needed, and return where the first directory begins: no sink holds anything.

        Raises
        ------
        InvalidPipeline
            If the state of an operator does not fit.
        Corrupt
            If a file of the checkpoint is damaged: names it.
        """
        del held
        began = replace(header, from_us=self.begins.at_us)
        if self.found is not None:
            return self._fork(began, self.found)
        began = replace(began, seek=(self._access_points(),))
        return self._with_state(began) if self.begins.state else began

    def foresee(self) -> GraphChange | None:
        """Return what happens to the state of a named checkpoint; None where the pipeline begins with none.

        Changes nothing.  What state would be refused for is in the answer (:func:`check_change`).

        Raises
        ------
        InvalidPipeline
            If a source cannot read on from where the checkpoint is.
        Corrupt
            If a file of the checkpoint is damaged: names it.
        """
        if self.found is None:
            return None
        for _ in self.found.files():
            pass  # each checksum is compared
        with stop_directory.temporary() as place:
            store = LocalStore(str(place))
            for key, data in self.found.workspaces():
                store.put(key, data)
            self._check_can_read_on(self.found.manifest.ended.positions, place)
        return self._state_change(self.found)

    def try_state(self) -> dict[str, dict[str, int]]:
        """Convert the state of a named checkpoint as a start would, and keep nothing of it.

        Returns
        -------
        dict of str to dict of str to int
            Operator whose tables are converted -> state table -> rows that it would begin with.

        Raises
        ------
        InvalidPipeline
            If a ``migrate=`` fails, or its result does not fit.
        """
        if self.found is None:
            return {}
        manifest, change = self.found.manifest, self._state_change(self.found)
        trial = replace(self.transfer, store=UnwrittenStore(self.found.store), buckets=manifest.buckets)
        if not change.sources or not trial.is_needed(manifest, change.sources):
            return {}
        made = trial.made(manifest, change.sources)
        converted = (
            name
            for name, was in change.sources.items()
            if not trial.move(name, manifest.operators[was].schema).is_plain
        )
        return {name: made.operators[name].rows for name in converted}

    def _access_points(self) -> Positions:
        """Return where each source begins: at its random access point at or before the time, or at its beginning.

        Where Spark reads a source alone, only Spark has its positions; such a source cannot begin at a time.
        """
        return {
            node.name: dict(self.reader.spec(node).open(node.name, self.reader.workspace(node)).initial())
            for node in self.inputs.sources
            if node.kind != "spark"
        }

    def _with_state(self, header: DirectoryHeader) -> DirectoryHeader:
        """Make a snapshot of what was given: the end of an epoch of its own, before the first one."""
        ended = EpochEnd(header.base, header.base, header.start, self.transfer.clock.now_us())
        made = self.transfer.begun_with(self.given_state, ended)
        log.warning(
            "pipeline %r begins with state: %s, %d rows",
            self.inputs.pipeline.name,
            ", ".join(made.operators),
            made.rows,
        )
        base = header.base + 1
        return replace(header, base=base, graph_since=base, seed=made.key.path, kept=tuple(made.operators))

    def _fork(self, header: DirectoryHeader, found: NamedCheckpoint) -> DirectoryHeader:
        ended = found.manifest.ended
        change = self._state_change(found)
        check_change(change, self.inputs.pipeline.name, is_forced=self.is_forced, drop_state=self.inputs.drop_state)
        for line in lines_of(change):
            log.info("%s", line)
        for key, data in found.files():
            self.inputs.store.put(key, data)
        for key, data in () if self.begins.is_part else found.workspaces():
            self.inputs.store.put(key, data)
        self._check_can_read_on(ended.positions, sources_place(self.inputs.directory, self.inputs.pipeline.name))
        ours = replace(found.plain, pipeline=self.inputs.pipeline.name, generation=self.transfer.generation)
        if change.sources and self.transfer.is_needed(ours, change.sources):
            ours = self.transfer.made(ours, change.sources)
        else:
            commit(self.inputs.store, ours)
        log.warning(
            "pipeline %r begins at checkpoint %s: the end of epoch %d of %r",
            self.inputs.pipeline.name,
            found.shown,
            ended.epoch,
            found.manifest.pipeline,
        )
        return replace(
            header,
            base=max(header.base, ended.epoch + 1),
            graph_since=max(header.base, ended.epoch + 1),
            seek=(ended.positions,),
            seed=ours.key.path if change.restored else "",
            kept=change.restored,
        )

    def _state_change(self, found: NamedCheckpoint) -> GraphChange:
        return stateful_change(found.manifest.state_schemas, self.graph, self.transfer.upgrades)

    def _check_can_read_on(self, positions: Positions, place: Path) -> None:
        for node in self.inputs.sources:
            if node.name not in positions:
                continue  # nothing of it was read
            why = node.source_spec.obstacle(node.name, workspace(place, node.name), plain(positions[node.name])[0])
            if why:
                raise InvalidPipeline(
                    f"source {node.name!r} cannot be read from where checkpoint {self.begins.where!r} is.",
                    why=why,
                    do="give the source another name, so that it begins at its beginning; or choose another "
                    "checkpoint.",
                    pipeline=self.inputs.pipeline.name,
                    participant=node.name,
                )


def stateful_change(
    before: Mapping[str, StateSchema], after: GraphRecord, upgrades: Mapping[str, StateUpgrade]
) -> GraphChange:
    """Compare what a checkpoint keeps with the stateful operators of a graph; of the other nodes it says nothing."""
    new = {name: node for name, node in after.nodes.items() if node.role is Role.STATEFUL}
    now = {of.past.renamed_from: name for name, of in upgrades.items()} | {name: name for name in new}
    inputs = {name: new[now[name]].inputs if name in now else () for name in before}  # of then they are not known
    old = {name: Described(Role.STATEFUL, of.kind, of.arguments, inputs[name]) for name, of in before.items()}
    return compare(GraphRecord("", old, before), GraphRecord("", new, after.state_schemas), upgrades=upgrades)
