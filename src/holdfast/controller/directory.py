"""What Spark has written of a shard, and how a directory begins behind a hand-over (design/0048, section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.directory_header import (
    FILE_NAME,
    DirectoryHeader,
    newest_directory,
    read_origin,
    remove_older,
)
from holdfast.checkpoint.explained import Explanations
from holdfast.checkpoint.graph_record import GRAPH, read_graph, write_graph
from holdfast.checkpoint.replay_floor import lower_floor
from holdfast.checkpoint.schemas import note_schema, noted_schema
from holdfast.checkpoint.source_history import note_positions
from holdfast.checkpoint.spark_log import last_logged, read_offsets
from holdfast.config import Settings
from holdfast.controller.moving import StandingShard
from holdfast.errors import Unavailable
from holdfast.graph.graph import Graph
from holdfast.ports import Explanation, Store
from holdfast.positions import Positions
from holdfast.starts.in_doubt import coordinator_alone
from holdfast.starts.inputs import above_all
from holdfast.starts.restore import planned_in


@dataclass(frozen=True)
class SparkDirectory:
    """The directories of Spark in the checkpoint of a shard without state.

    Parameters
    ----------
    graph : Graph
        The shard's.
    store, checkpoint : Store, Path
        The shard's checkpoint, and where it lies.
    pipeline_checkpoint : Path
        Where that of the pipeline lies: it has what sources keep, for all shards.
    """

    graph: Graph
    store: Store
    checkpoint: Path
    pipeline_checkpoint: Path

    @property
    def layout(self) -> int:
        """Number of the layout under which the newest directory began; 0: none."""
        number = newest_directory(self.store)
        return self._header(number).layout if number else 0

    def last_epoch(self) -> int:
        """Return the highest epoch that was ever planned or recorded; 0: none."""
        number = newest_directory(self.store)
        return above_all(self.store, planned_in(self._path(number)) if number else 0)

    def planned_end(self) -> Positions:
        """Return where the last epoch ends that is planned."""
        return self._end("offsets")

    def finished_end(self) -> Positions:
        """Return where the last epoch ends that Spark has finished."""
        return self._end("commits")

    def explanations(self, kept: Mapping[str, Mapping[str, int]]) -> tuple[Explanation, ...]:
        """Return what is durable of the meaning of positions, and some sink lacks."""
        return Explanations.of(self.graph.sources, self.pipeline_checkpoint, kept).take(kept)

    def begin(self, layout: int, epoch: int, positions: Positions) -> None:
        """Begin a directory behind an epoch.

        Notes
        -----
        Durable writes, as in ``starts/act.py``: the graph, positions of sources, the floor; the header comes last, and
        is never put over another's.  A crash before it leaves what the next start writes again.

        Raises
        ------
        Unavailable
            If another run has begun the directory just now.
        """
        number = newest_directory(self.store)
        before = self._header(number) if number else DirectoryHeader(1)
        previous, below = f"spark/{number}", f"spark/{number + 1}"
        if self.store.get(f"{previous}/{GRAPH}") is not None:
            write_graph(self.store, below, read_graph(self.store, previous))
        note_positions(self.store, epoch + 1, positions, else_known=before.retired)
        lower_floor(self.store, positions)
        header = DirectoryHeader(epoch + 1, (positions,), retired=before.retired, graph=before.graph, layout=layout)
        key, data = f"{below}/{FILE_NAME}", header.to_json()
        if not self.store.put_if_absent(key, data) and self.store.get(key) != data:
            raise Unavailable(
                f"{below} of pipeline {self.graph.name!r} was begun by another run just now.",
                why="that run was starting when this one took over.",
                do="start again: what that run left is taken into account.",
                pipeline=self.graph.name,
                participant=key,
            )
        remove_older(self.checkpoint, below)

    def _end(self, log: str) -> Positions:
        number = newest_directory(self.store)
        if not number:
            return {}
        last = last_logged(self._path(number), log)
        return self._header(number).start if last < 0 else read_offsets(self._path(number), last).positions

    def _header(self, number: int) -> DirectoryHeader:
        return read_origin(self._path(number) / FILE_NAME)

    def _path(self, number: int) -> Path:
        return self.checkpoint / "spark" / str(number)


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
