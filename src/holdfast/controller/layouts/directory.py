"""Spark's directories of one shard, as a move of segments asks and begins them (design/0048, section 6).

Invariant: of the directories of a shard the newest that has its record counts; one that begins under a layout begins
behind the shard's hand-over, with an epoch above all that were ever planned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

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
from holdfast.checkpoint.manifest import PREFIX as SNAPSHOTS
from holdfast.checkpoint.manifest import EpochEnd, Manifest, decode
from holdfast.checkpoint.replay_floor import lower_floor
from holdfast.checkpoint.schemas import note_schema, noted_schema
from holdfast.checkpoint.snapshot import commit, snapshot_keys
from holdfast.checkpoint.source_history import last_positions, note_positions
from holdfast.checkpoint.spark_log import last_logged, read_offsets
from holdfast.config import Settings
from holdfast.controller.layouts.moving import StandingShard
from holdfast.errors import Corrupt, Diverged, Unavailable, invariant
from holdfast.graph.graph import Graph
from holdfast.plan.levels.kept import read_state
from holdfast.plan.levels.seed import seed_of
from holdfast.ports import Explanation, Held, Store
from holdfast.positions import Positions, covers_all
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.naming import shard_of
from holdfast.spark.state.shape import note_shape, noted_shape
from holdfast.starts.behind import published
from holdfast.starts.in_doubt import coordinator_alone
from holdfast.starts.inputs import above_all
from holdfast.starts.restore import planned_in
from holdfast.starts.state_change import last_finished
from holdfast.store.paths import open_store

T = TypeVar("T")

log = logging.getLogger("holdfast.checkpoint")


class DirectoryEnds(NamedTuple):
    """What a directory has planned and finished.

    Parameters
    ----------
    number : int
        Of the directory.
    planned : Positions
        Where its last epoch ends; where it begins, if it has none.
    epoch, finished : int, Positions
        The last epoch that it has finished, 0 if none, and where that ends, or the directory begins.
    """

    number: int
    planned: Positions
    epoch: int
    finished: Positions


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
    """

    graph: Graph
    store: Store
    checkpoint: Path
    pipeline_checkpoint: Path

    @property
    def layout(self) -> int:
        """Number of the layout under which the newest directory began; 0: before there was one, or there is none."""
        return self._header().layout if self._newest else 0

    @property
    def has_begun(self) -> bool:
        """Whether there is any."""
        return self._newest > 0

    def last_epoch(self) -> int:
        """Return the highest epoch that was ever planned, in any directory; 0: none."""
        return max(above_all(self.store, 0), planned_in(self._spark) if self._newest else 0)

    def planned_end(self) -> Positions:
        """Return where the last epoch ends that the newest directory has planned; where it begins, if it has none."""
        ends = self.ends()
        return {} if ends is None else ends.planned

    def finished_end(self) -> Positions:
        """Return where the last epoch ends that the newest directory has finished; where it begins, if it has none."""
        ends = self.ends()
        return {} if ends is None else ends.finished

    def ends(self) -> DirectoryEnds | None:
        """Return what the newest directory has planned and finished; None where there is none."""
        number = self._newest
        if not number:
            return None
        spark = self._spark_of(number)
        planned, seek = last_logged(spark, "offsets"), read_origin(spark / FILE_NAME).seek
        end = read_offsets(spark, planned).positions if planned >= 0 else seek[-1] if seek else {}
        return DirectoryEnds(number, end, *published(spark))

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

        A shard that has lost its checkpoint, and with it the state that the layout names, does not begin here: its
        start refuses that, or rebuilds the state, as that of a single run does.
        """
        if self.layout >= layout:
            return
        found = self._layout(layout)
        number, last = self._newest, LastMove.under(found, self._shard)
        key_of_seed = found.moves[self._shard].seed if self._shard in found.moves else ""
        if key_of_seed and not number and self._seed_data(key_of_seed) is None:
            log.warning("shard %s has lost its state: its start decides what follows", self.graph.name)
            return
        seed = self._take_seed(key_of_seed) if key_of_seed else None
        previous, below = f"spark/{number}", f"spark/{number + 1}"
        graph, since = state_fingerprint(self.graph), epoch + 1
        if number:
            before = self._header()
            last = last if last.moved else replace(last, moved=before.moved)
            since = before.graph_since if before.graph == graph and before.graph_since else since
            shape = noted_shape(self.store, previous)
            if shape is not None:
                note_shape(self.store, below, shape if seed is None else shape.of_buckets(seed.buckets))
            if self.store.get(f"{previous}/{GRAPH}") is not None:  # else an older version made it
                record = read_graph(self.store, previous)
                write_graph(self.store, below, record if seed is None else replace(record, buckets=seed.buckets))
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
            "" if seed is None else seed.key.path,
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
        if key_of_seed:
            self.store.delete(key_of_seed)
        remove_older(self.checkpoint, below)

    def state_at(self, positions: Positions, held: Mapping[str, Held]) -> Manifest | None:
        """Return the state with which what its sinks hold was published; None where it keeps none yet.

        Writes files of it, and no manifest.

        Parameters
        ----------
        positions : Positions
            Where the shard stands.
        held : mapping of str to Held
            What its sinks hold, with everything resolved.

        Raises
        ------
        Diverged
            If it cannot be read, or is that of other positions.
        """
        if not self._newest and positions:
            raise self._state_unknown("Spark's directory is lost, and with it what was kept last.")
        if not self._newest:
            return None
        below, header = f"spark/{self._newest}", self._header()
        shape = noted_shape(self.store, below)
        if shape is not None and not shape.is_in_journal:
            raise self._state_unknown("an older version of Holdfast keeps it in Spark's store.")
        batch_id = last_finished(self._spark, held, header)
        seed = self._read(lambda: seed_of(self.checkpoint, below))
        graph = read_graph(self.store, below)
        if batch_id < 0:
            found, ended, operators = header.start, None, {} if seed is None else seed.operators
        else:
            offsets = read_offsets(self._spark, batch_id)
            found, times = offsets.positions, header.step_time(batch_id, offsets.batch_us)
            ended = EpochEnd(header.base + batch_id, times[0], found, times[1])
            schemas = graph.state_schemas
            operators = self._read(lambda: read_state(self.store, below, batch_id, schemas, seed=seed))
        if not (covers_all(found, positions) and covers_all(positions, found)):
            raise self._state_unknown("its sinks stand elsewhere than the last epoch that Spark's directory has.")
        if ended is None:
            return seed
        return Manifest(self.graph.name, 0, 0, header.graph or "", ended, graph.buckets, operators)

    def note_state(self, of: SparkDirectory, buckets: int) -> None:
        """Note for the first directory of a shard how state is divided, and what its operators keep, as in another's.

        It counts for nothing before the directory has its header.
        """
        below, theirs = "spark/1", f"spark/{of._newest}"
        shape, record = noted_shape(of.store, theirs), read_graph(of.store, theirs)
        if shape is not None:
            note_shape(self.store, below, shape.of_buckets(buckets))
        write_graph(self.store, below, replace(record, fingerprint=self.graph.fingerprint(), buckets=buckets))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _take_seed(self, key: str) -> Manifest:
        """Make the state that a layout names a snapshot, the only one: those of before know other keys."""
        seed = decode(self._seed_data(key) or b"", key)
        commit(self.store, seed)
        for each in snapshot_keys(self.store):
            if each != seed.key:
                self.store.delete(each.path)
        return seed

    def _seed_data(self, key: str) -> bytes | None:
        name = key.rpartition("/")[2]  # it is a snapshot already where the directory was lost that began with it
        return self.store.get(key) or self.store.get(f"{SNAPSHOTS}{name}")

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except Corrupt as error:
            raise self._state_unknown(f"it cannot be read: {error.what}") from error

    def _state_unknown(self, why: str) -> Diverged:
        return Diverged(
            f"the state of shard {self.graph.name!r} is not that of what its sinks hold.",
            why=f"{why} State moves with the keys of segments, as it was when they were read last.",
            do="start with as many shards as before: it then takes its state from a snapshot; change the number after "
            "that.",
            pipeline=self.graph.name,
        )

    @property
    def _shard(self) -> int:
        return shard_of(self.graph.name)[1]

    def _layout(self, number: int) -> ShardLayout:
        layout, name = newest_layout(open_store(str(self.pipeline_checkpoint))), self.graph.name
        invariant(
            layout is not None and layout.number == number, f"{name!r} begins under layout {number}, which is not."
        )
        assert layout is not None
        return layout

    @property
    def _newest(self) -> int:
        return newest_directory(self.store)

    @property
    def _spark(self) -> Path:
        return self._spark_of(self._newest)

    def _spark_of(self, number: int) -> Path:
        return self.checkpoint / "spark" / str(number)

    def _header(self) -> DirectoryHeader:
        return read_origin(self._spark / FILE_NAME)


def connect_shard(
    directory: SparkDirectory, shards: Sequence[Store], settings: Settings, closing: ExitStack
) -> StandingShard:
    """Return a shard that does not run: connected, and not taken over.

    Parameters
    ----------
    directory : SparkDirectory
        Its graph and its checkpoint.
    shards : sequence of Store
        The checkpoints of all shards: one that has never run, or has lost its own, has the columns of others' sinks.
    settings : Settings
        For retries, and the length of the ledger.
    closing : ExitStack
        Closes the connections.
    """
    for node in directory.graph.sinks:
        if noted_schema(directory.store, node.name) is None:
            noted = (noted_schema(store, node.name) for store in shards)
            schema = next((each for each in noted if each is not None), None)
            if schema is not None:
                note_schema(directory.store, node.name, schema)
    alone = coordinator_alone(directory.graph, directory.store, settings)
    coordinator, sinks = closing.enter_context(alone)
    return StandingShard(directory.graph.name, coordinator, [*sinks.values()], directory)
