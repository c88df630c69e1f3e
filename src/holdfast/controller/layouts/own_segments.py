"""What a shard, or one run, is asked for once it is taken over: whether its segments are still its own.

A start takes the word of the sinks for where it is, also with a checkpoint that was restored from a copy.  Which
segments it reads it takes from the checkpoint: where segments have moved since that was written, it would read what
other shards have read.  So what its sinks hold has to be of its own segments, and all of them; and no sink may know of
more shards than the checkpoint does.  Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from holdfast.commit.owner import GENERATIONS
from holdfast.controller.layouts.directory import DirectoryEnds, SparkDirectory
from holdfast.controller.layouts.found_shards import ask_shard, has_begun
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.layouts.moving import check_layout
from holdfast.errors import Diverged
from holdfast.ports import Held, Store
from holdfast.positions import Positions, covers_all
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout
from holdfast.shards.naming import shard_checkpoint, shard_name
from holdfast.store.paths import numbered, open_store
from holdfast.store.scratch import ScratchedStore

_ONE_RUN = ShardLayout(Assignment())


@dataclass(frozen=True)
class OwnSegments:
    """The segments of a shard, or of one run.

    Parameters
    ----------
    graphs : ShardGraphs
        Of the pipeline.
    layout : ShardLayout, optional
        The layout that is run; None: one run without shards.
    shard : int
        The number of the shard.
    """

    graphs: ShardGraphs
    layout: ShardLayout | None = None
    shard: int = 0

    def check(self, held: Mapping[str, Held]) -> None:
        """Raise where it may not go on.

        Parameters
        ----------
        held : mapping of str to Held
            What each of its sinks holds, with everything resolved.

        Raises
        ------
        Fenced
            If another controller has changed the layout, or the shards read over another scratch.
        Diverged
            If segments have moved since the checkpoint was written.
        """
        number, store = 0 if self.layout is None else self.layout.number, open_store(str(self.graphs.checkpoint))
        check_layout(store, number, self.graphs.pipeline.name)
        if number and isinstance(store, ScratchedStore):
            store.check_serves()
        ends = self._directory.ends()
        for sink, of in held.items():
            self._check_has_no_other(sink, of)
            if ends is not None:
                self._check_has_all(sink, of, ends)
        if ends is not None:
            self._check_plans_no_other(ends)
        if _were_refused(self._store):
            self._check_knows_no_more()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _check_has_no_other(self, sink: str, held: Held) -> None:
        for source, segment in self._segments(held.positions):
            if not self._is_own(source, segment):
                what = f"sink {sink!r} holds rows of segment {segment!r} of source {source!r}, and by the checkpoint"
                raise self._older(f"{what} it is not one of {self._name!r}.", sink)

    def _check_has_all(self, sink: str, held: Held, ends: DirectoryEnds) -> None:
        """Refuse a sink that went on after what the checkpoint calls finished, and lacks a segment of that."""
        if held.is_empty or held.epoch <= ends.epoch:
            return
        if covers_all(ends.planned, held.positions) and covers_all(held.positions, ends.planned):
            return
        for source, segment in self._segments(ends.finished):
            if segment not in held.positions.get(source, {}):
                what = f"sink {sink!r} holds no position of segment {segment!r} of source {source!r} any more"
                raise self._older(f"{what}, and the checkpoint of {self._name!r} has read it.", sink)

    def _check_plans_no_other(self, ends: DirectoryEnds) -> None:
        """Refuse an epoch that a run of before has planned after it was fenced, with a segment that was dealt since."""
        for source, segment in self._segments(ends.planned):
            if not self._is_own(source, segment):
                spark = self._checkpoint / f"spark/{ends.number}"
                raise Diverged(
                    f"{self._name!r} is to read segment {segment!r} of source {source!r}, which is another shard's.",
                    why="a run that was fenced has planned that, after new segments were dealt.",
                    do="start all shards again: each then continues behind what its sinks hold. Where that is refused, "
                    f"move {spark} out of the checkpoint first.",
                    pipeline=self._name,
                    participant=source,
                )

    def _check_knows_no_more(self) -> None:
        pipeline, number = self.graphs.pipeline, (self.layout or _ONE_RUN).highest_count
        sinks = {node.name: node.spec for node in pipeline.sinks}
        found = ask_shard(sinks, shard_name(pipeline.name, number))
        if has_begun([found]):
            sink = min(found)
            raise self._older(f"sink {sink!r} holds rows of shard {number}, which the checkpoint does not know.", sink)

    def _segments(self, positions: Positions) -> Iterator[tuple[str, str]]:
        unit_of = self.graphs.unit_of(self.layout or _ONE_RUN)
        return ((source, name) for source, of in positions.items() for name in of if unit_of(source, name))

    def _is_own(self, source: str, segment: str) -> bool:
        if self.layout is None:
            return not self.graphs.whole_segments[source]  # else it has one position, until it is divided
        return segment in self.graphs.segments_of(self.layout, self.shard, source)

    @property
    def _name(self) -> str:
        return shard_name(self.graphs.pipeline.name, self.shard)

    @property
    def _directory(self) -> SparkDirectory:
        return SparkDirectory(self.graphs.pipeline, self._store, self._checkpoint, self.graphs.checkpoint)

    @property
    def _checkpoint(self) -> Path:
        return Path(shard_checkpoint(str(self.graphs.checkpoint), self.shard))

    @property
    def _store(self) -> Store:
        return open_store(str(self._checkpoint))

    def _older(self, what: str, sink: str) -> Diverged:
        return Diverged(
            what,
            why="segments have moved between shards since this checkpoint was written: it, or a part of it, was "
            "restored from a copy. Its shards would read again what others have read.",
            do="start with the newer checkpoint, which the sinks were written with; or move this one away, the whole, "
            "and start without it: the sinks are then asked which shard has which segment (docs/shards.md).",
            pipeline=self._name,
            participant=sink,
        )


def _were_refused(store: Store) -> bool:
    """Return whether sinks have refused generations of a checkpoint: they knew higher ones, of a newer checkpoint."""
    return any(later - earlier > 1 for earlier, later in pairwise(sorted(numbered(store, GENERATIONS))))
