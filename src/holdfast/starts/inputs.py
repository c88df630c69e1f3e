"""The inputs by which a start decides how Spark's directory begins, and those of them that the checkpoint has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint import progress
from holdfast.checkpoint.directory_header import FILE_NAME, noted_beginning, read_origin
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.last_move import LastMove, last_move
from holdfast.checkpoint.manifest import EpochEnd, Manifest, StateSchema
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.checkpoint.spark_log import logged
from holdfast.errors import Corrupt
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.plan.cutting import epoch_driven
from holdfast.plan.lookup_versions import look_ups_of, unknown_to
from holdfast.ports import Held, Store
from holdfast.positions import Positions, ascending, ascending_by_epoch
from holdfast.shards.naming import sources_place
from holdfast.starts.backfill import Backfill
from holdfast.starts.directory import Directory
from holdfast.starts.restore import Restoration, from_the_start, restoration, steps_of
from holdfast.starts.start_at import StartAt
from holdfast.starts.table import StateSource

if TYPE_CHECKING:
    from holdfast.spark.state.transfer import Transfer


@dataclass(frozen=True)
class StartPoint:
    """Where a directory begins that goes on with none, and what it begins with.

    Parameters
    ----------
    stops : tuple of Positions
        The positions of the sinks, earliest first.
    reached : Positions, optional
        Up to where the directory that is left had published.
    state : StateSource
        Where state comes from.
    snapshot : Restoration, optional
        The snapshot that it comes from.
    every_epoch : (Positions, list of EpochEnd), optional
        The start, and the epochs by which it is computed again.
    passed_over : tuple of str
        Snapshots that cannot be used, with the reasons.
    unsure : tuple of str
        Operators whose state would be another one: what epochs decided that it depends on is not known any more.
    """

    stops: tuple[Positions, ...] = ()
    reached: Positions | None = None
    state: StateSource = StateSource.NONE
    snapshot: Restoration | None = None
    every_epoch: tuple[Positions, list[EpochEnd]] | None = None
    passed_over: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()

    def why_unsure(self) -> str:
        """Say why state cannot be recomputed as it was."""
        return why_unsure(self.unsure)


@dataclass(frozen=True)
class StartInputs:
    """What a start is decided by, apart from what the sinks hold: a plan, a resolution and a rewind have the same.

    Parameters
    ----------
    store, directory : Store, Path
        The checkpoint, and where it lies.
    chosen : Directory
        Spark's directory in it.
    pipeline : Graph
        The graph; of a rewind without its nodes, as the graph that is started next may have others.
    state_schemas : mapping of str to StateSchema
        The state tables of the operators whose state is in the directory.
    graph : str
        Fingerprint of the graph's state.
    begins : StartAt, optional
        Where the pipeline begins; None where it has begun, or reads its sources from the beginning.
    transfer : Transfer, optional
        Converts state of another form; None: there is none.
    drop_state : frozenset of str
        Operators whose state is to be dropped.
    rebuild_state : bool
        Whether state that is lost is to be computed again, as far as it can be.
    restored : mapping of str to str
        Sources whose past is not looked up in the checkpoint but in this directory: where nothing is started, and a
        start would restore it.
    """

    store: Store
    directory: Path
    chosen: Directory
    pipeline: Graph
    state_schemas: Mapping[str, StateSchema] = field(default_factory=dict)
    graph: str = ""
    begins: StartAt | None = None
    transfer: Transfer | None = None
    drop_state: frozenset[str] = frozenset()
    rebuild_state: bool = False
    restored: Mapping[str, str] = field(default_factory=dict)

    @property
    def spark(self) -> Path:
        """Where Spark's directory lies."""
        return self.directory / self.chosen.below

    @property
    def previous(self) -> Path:
        """Where the directory lies that was used before."""
        return self.directory / self.chosen.previous

    @property
    def sources(self) -> tuple[Node, ...]:
        """The pipeline's sources."""
        return self.pipeline.sources

    @cached_property
    def last_move(self) -> LastMove:
        """What the last layout of shards did to this one."""
        return last_move((self.spark, self.previous), self.directory, self.pipeline.name)

    @property
    def backfill(self) -> Backfill:
        """Cuts what is computed again into epochs."""
        return Backfill(self.pipeline, self.directory, bool(self.state_schemas))

    @cached_property
    def epoch_driven(self) -> tuple[str, ...]:
        """Operators whose state depends on what epochs decided."""
        return tuple(epoch_driven(self.pipeline))

    @cached_property
    def look_ups(self) -> tuple[str, ...]:
        """Look-ups in tables whose versions are logged."""
        return tuple(look_ups_of(self.pipeline))

    @property
    def has_spark_sources(self) -> bool:
        """Whether Spark reads a source itself: then its own log says where reading begins."""
        return any(node.kind == "spark" for node in self.sources)

    def workspace(self, source: str) -> str:
        """Return the directory of a source."""
        return self.restored.get(source) or workspace(sources_place(self.directory, self.pipeline.name), source)

    @property
    def has_begun(self) -> bool:
        """Whether there is anything of Spark's in the directory: a header, or an epoch that was planned."""
        return (self.spark / FILE_NAME).exists() or bool(logged(self.spark, "offsets"))

    @property
    def graph_since(self) -> int:
        """The first epoch that this graph has evaluated in the directory before; 0 where that was another graph."""
        try:
            before = read_origin(self.previous / FILE_NAME)
        except Corrupt:
            return 0
        return before.graph_since if self.chosen.previous and before.graph == self.graph else 0

    @property
    def began_with(self) -> str:
        """The option by which the pipeline began with state, as it was written; empty where it began without."""
        noted = noted_beginning(self.store)
        return noted[0] if noted is not None and noted[1].seed else ""

    def known_steps(self, held: Iterable[Held]) -> list[EpochSpan]:
        """Return all epochs whose ends are known: of the directory before, of progress records, and of sinks."""
        return [*steps_of(self.directory, self.chosen.previous), *progress.read(self.store), *progress.told_by(held)]

    def start_point(self, held: Sequence[Held], reached: Positions | None) -> StartPoint | None:
        """Return where it would begin without a directory to go on with; None: the sinks are in no order.

        Parameters
        ----------
        held : sequence of Held
            What the sinks hold that hold anything.
        reached : Positions, optional
            Up to where the previous directory had published, where it is left.
        """
        stops = ascending([positions for each in held for positions in (each.positions, *each.stops)])
        if stops is None and not any(each.stops for each in held):  # what Spark spells only the epochs put in order
            stops = ascending_by_epoch([(each.epoch, each.positions) for each in held])
        if stops is None:
            return None
        if not self.state_schemas:
            return StartPoint(tuple(stops), reached)
        passed_over: list[str] = []
        snapshot, every_epoch = self.restorable(held, passed_over.append, reached), None
        unsure: tuple[str, ...] = ()
        if snapshot is not None:
            state, unsure = StateSource.SNAPSHOT, self._unsure(snapshot.replayed, is_exact=snapshot.is_exact)
        elif (every_epoch := self.recomputable(held, reached)) is not None:
            state, unsure = StateSource.EVERY_EPOCH, self._unsure(every_epoch[1], is_exact=True)
        else:
            is_rebuilt = self.rebuild_state and not self.began_with
            state, unsure = (
                (StateSource.SOURCES, tuple(epoch_driven(self.pipeline))) if is_rebuilt else (StateSource.GONE, ())
            )
        if unsure and not self.rebuild_state:
            state = StateSource.UNSURE
        return StartPoint(tuple(stops), reached, state, snapshot, every_epoch, tuple(passed_over), unsure)

    def _unsure(self, replayed: Sequence[EpochEnd], *, is_exact: bool) -> tuple[str, ...]:
        """Return the operators whose state would be another one once epochs are evaluated again."""
        is_known = is_exact and are_versions_known(self.store, self.look_ups, replayed)
        return () if is_known else self.epoch_driven

    def restorable(
        self,
        held: Sequence[Held],
        passed_over: Callable[[str], None] = lambda why: None,
        reached: Positions | None = None,
    ) -> Restoration | None:
        """Return the snapshot that a directory would begin with, and what is replayed after it; None: no snapshot."""
        return restoration(
            self.store,
            self.pipeline.name,
            held,
            self.known_steps(held),
            graph=self.graph,
            reached=reached,
            passed_over=passed_over,
        )

    def recomputable(self, held: Sequence[Held], reached: Positions | None) -> tuple[Positions, list[EpochEnd]] | None:
        """Return where the previous directory began, and every epoch since; None where state cannot be recomputed."""
        if reached is None:
            return None
        return from_the_start(self.previous, self.graph, held, self.known_steps(held), reached)

    def other_graph(self, found: Restoration) -> str:
        """Return why a snapshot of another graph, with epochs after it, cannot be used; empty where it can."""
        manifest: Manifest = found.manifest
        if manifest.graph == self.graph or not (found.replayed or found.stops):
            return ""
        since = self.graph_since
        if since and not found.stops and all(each.epoch >= since for each in found.replayed):
            return ""  # it is of the change point
        return (
            f"the newest good snapshot is of epoch {manifest.ended.epoch}, and sinks hold later ones: the new "
            "graph would evaluate again what the old one has published."
        )


def are_versions_known(store: Store, look_ups: Iterable[str], replayed: Sequence[EpochEnd]) -> bool:
    """Tell whether epochs that are evaluated again see in each table what they saw."""
    return not replayed or not unknown_to(store, look_ups, replayed[0].step_epoch)


def why_unsure(operators: Iterable[str]) -> str:
    """Say why the state of some operators cannot be computed again as it was."""
    return (
        f"The state of {', '.join(operators)} depends on the time at which epochs were planned, or on what a table "
        "held then, and neither progress records nor sinks tell that of all epochs that have to be evaluated again."
    )


def above_all(store: Store, last_epoch: int) -> int:
    """Return the highest epoch that is recorded anywhere, including replayed ones that no sink has."""
    return max(
        [last_epoch, *(key.epoch for key in snapshot_keys(store)), *(s.ended.epoch for s in progress.read(store))]
    )
