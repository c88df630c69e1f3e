"""Spark's directories of one shard, as a move of segments asks and begins them (design/0048, section 6).

Invariant: of the directories of a shard the newest that has its record counts; one that begins under a layout begins
behind the shard's hand-over, with an epoch above all that were ever planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.checkpoint.directory_header import (
    FILE_NAME,
    DirectoryHeader,
    newest_directory,
    read_origin,
    remove_older,
)
from holdfast.checkpoint.explained import Explanations
from holdfast.checkpoint.graph_record import GRAPH, read_graph, state_fingerprint, write_graph
from holdfast.checkpoint.last_move import LastMove
from holdfast.checkpoint.replay_floor import lower_floor
from holdfast.checkpoint.schemas import note_schema, noted_schema
from holdfast.checkpoint.source_history import last_positions, note_positions
from holdfast.checkpoint.spark_log import last_logged, read_offsets
from holdfast.config import Settings
from holdfast.controller.moving import StandingShard
from holdfast.errors import Unavailable, invariant
from holdfast.graph.graph import Graph
from holdfast.ports import Explanation, Store
from holdfast.positions import Positions
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_of
from holdfast.spark.state.shape import note_shape, noted_shape
from holdfast.starts.behind import published
from holdfast.starts.in_doubt import coordinator_alone
from holdfast.starts.inputs import above_all
from holdfast.starts.restore import planned_in
from holdfast.store.paths import open_store


@dataclass(frozen=True)
class SparkDirectory:
    """What Spark has written for one shard.

    Parameters
    ----------
    graph : Graph
        The shard's, with sources that know the whole of what positions mean.
    store, checkpoint : Store, Path
        The shard's checkpoint, and where it lies.
    pipeline_checkpoint : Path
        Where that of the pipeline lies: it has what sources keep, for all shards, and the layouts.
    seed_of : callable
        Given the number of a layout, returns the key of the snapshot with which the shard begins under it; empty
        without state.
    """

    graph: Graph
    store: Store
    checkpoint: Path
    pipeline_checkpoint: Path
    seed_of: Callable[[int], str] = lambda layout: ""

    @property
    def layout(self) -> int:
        """Number of the layout under which the newest directory began; 0: before there was one, or there is none."""
        return self._header().layout if self._newest else 0

    def last_epoch(self) -> int:
        """Return the highest epoch that was ever planned, in any directory; 0: none."""
        return max(above_all(self.store, 0), planned_in(self._spark) if self._newest else 0)

    def planned_end(self) -> Positions:
        """Return where the last epoch ends that the newest directory has planned; where it begins, if it has none."""
        if not self._newest:
            return {}
        number = last_logged(self._spark, "offsets")
        seek = self._header().seek
        return read_offsets(self._spark, number).positions if number >= 0 else seek[-1] if seek else {}

    def finished_end(self) -> Positions:
        """Return where the last epoch ends that the newest directory has finished; where it begins, if it has none."""
        return published(self._spark)[1] if self._newest else {}

    def explanations(self, kept: Mapping[str, Mapping[str, int]]) -> tuple[Explanation, ...]:
        """Return what is durable of the meaning of positions and not among what sinks keep, by sink and source."""
        return Explanations.of(self.graph.sources, self.pipeline_checkpoint, kept).take(kept)

    def begin(self, layout: int, epoch: int, positions: Positions) -> None:
        """Begin a directory under a layout, behind an epoch that ends there, unless it has begun.

        What the one before has planned beyond is not run.

        Raises
        ------
        Unavailable
            If another run has begun the same directory just now.

        Notes
        -----
        Durable writes: what the header names, then the header, which makes the directory valid.  A crash before it
        leaves what the next start writes again.
        """
        if self.layout >= layout:
            return
        number, last = self._newest, self._last_move(layout)
        previous, below = f"spark/{number}", f"spark/{number + 1}"
        graph, since = state_fingerprint(self.graph), epoch + 1
        if number:
            before = self._header()
            last = last if last.moved else replace(last, moved=before.moved)
            since = before.graph_since if before.graph == graph and before.graph_since else since
            shape = noted_shape(self.store, previous)
            if shape is not None:
                note_shape(self.store, below, shape)
            if self.store.get(f"{previous}/{GRAPH}") is not None:  # else an older version made it
                write_graph(self.store, below, read_graph(self.store, previous))
        names = [node.name for node in self.graph.sources]
        known = last_positions(self.store)
        retired = {name: of for name, of in known.items() if name not in names}
        # A source whose segments are all given away is not continued where it was, if it gets some again.
        now = {name: positions.get(name, {}) for name in names if name in known or name in positions}
        note_positions(self.store, epoch + 1, now, else_known=retired)
        lower_floor(self.store, positions)
        header = DirectoryHeader(
            epoch + 1,
            (positions,) if positions else (),
            self.seed_of(layout),
            retired=retired,
            graph=graph,
            graph_since=since,
            layout=layout,
            moved=last.moved,
            stood=last.stood,
        )
        key, data = f"{below}/{FILE_NAME}", header.to_json()
        if not self.store.put_if_absent(key, data) and self.store.get(key) != data:
            raise Unavailable(
                f"{below} of shard {self.graph.name!r} was begun by another run just now.",
                why="that run was starting when this one took over.",
                do="start again: what that run left is taken into account.",
                pipeline=self.graph.name,
                participant=key,
            )
        remove_older(self.checkpoint, below)

    def _last_move(self, number: int) -> LastMove:
        layout, name = newest_layout(open_store(str(self.pipeline_checkpoint))), self.graph.name
        invariant(
            layout is not None and layout.number == number, f"{name!r} begins under layout {number}, which is not."
        )
        assert layout is not None
        return LastMove.under(layout, shard_of(name)[1])

    @property
    def _newest(self) -> int:
        return newest_directory(self.store)

    @property
    def _spark(self) -> Path:
        return self.checkpoint / "spark" / str(self._newest)

    def _header(self) -> DirectoryHeader:
        return read_origin(self._spark / FILE_NAME)


def connect_shard(directory: SparkDirectory, first: Store, settings: Settings, closing: ExitStack) -> StandingShard:
    """Return a shard that does not run: connected, and not taken over.

    Parameters
    ----------
    directory : SparkDirectory
        Its graph and its checkpoint.
    first : Store
        The checkpoint of shard 0: a shard that has never run has the columns of that one's sinks.
    settings : Settings
        For retries, and the length of the ledger.
    closing : ExitStack
        Closes the connections.
    """
    for node in directory.graph.sinks:
        if noted_schema(directory.store, node.name) is None and (schema := noted_schema(first, node.name)) is not None:
            note_schema(directory.store, node.name, schema)
    alone = coordinator_alone(directory.graph, directory.store, settings)
    coordinator, sinks = closing.enter_context(alone)
    return StandingShard(directory.graph.name, coordinator, [*sinks.values()], directory)
