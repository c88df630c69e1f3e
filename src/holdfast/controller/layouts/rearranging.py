"""Another number of shards, at a start: what of a pipeline moves, and that it does (design/0048, section 6).

Nothing runs.  All shards are taken over, in one process; each sink is connected with the columns that the last run
noted, so neither Spark nor Java is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.graph_record import GRAPH, state_fingerprint
from holdfast.checkpoint.schemas import OUT_OF_REACH, note_schema
from holdfast.config import Settings
from holdfast.connectors.byte_stream.moving import check_moves
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.controller.layouts.directory import SparkDirectory, connect_shard
from holdfast.controller.layouts.found_shards import known_layout
from holdfast.controller.layouts.graph import ShardGraphs, dealt
from holdfast.controller.layouts.moving import Moving, StandingShard
from holdfast.controller.layouts.state_seeds import StateSeeds, check_bounds, check_state, givers_of
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.ports import Store
from holdfast.shards.assignment import Assignment, assign, moves, regroup
from holdfast.shards.keys import KEYS, ShardKey
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.moves import Stand, note_beginnings, plans_of_others
from holdfast.shards.naming import shard_checkpoint, shard_name
from holdfast.spark.state.shard_state import KeyMoves
from holdfast.starts.in_doubt import ran_last
from holdfast.starts.rewind_target import check_finished
from holdfast.starts.state_change import left_to_replay
from holdfast.store.local import LocalStore
from holdfast.store.paths import open_store
from holdfast.store.scratch import ScratchedStore


@dataclass(frozen=True)
class PlannedMoves:
    """What another number of shards would do.

    Parameters
    ----------
    before, after : int
        How many shards there are, and are to be.
    unit_count : int
        How many units of segments there are.
    moves : mapping of str to (int, int)
        Unit -> the shard that has it, and the one that would get it; without those that stay.
    keys : mapping of (int, int) to int, optional
        Shard that gives keys, and the one that gets them -> how many, where that is noted (``shard_by=``).
    is_unfinished : bool
        Whether the last change was interrupted: a start carries it through first, and what moves then may differ.
    refusal : HoldfastError, optional
        Why a start with so many shards is refused now.
    """

    before: int
    after: int
    unit_count: int
    moves: Mapping[str, tuple[int, int]]
    keys: Mapping[tuple[int, int], int] | None = None
    is_unfinished: bool = False
    refusal: HoldfastError | None = None

    def lines(self) -> Iterator[str]:
        """Yield it as text, a line for each pair of shards."""
        yield f"shards: {self.before} become {self.after}; {len(self.moves)} of {self.unit_count} units move"
        if self.is_unfinished:
            yield "the last change was interrupted: a start carries it through first"
        pairs: dict[tuple[int, int], list[str]] = {}
        for unit, pair in sorted(self.moves.items()):
            pairs.setdefault(pair, []).append(unit)
        for (giver, receiver), units in sorted(pairs.items()):
            count = "" if self.keys is None else f"; {self.keys.get((giver, receiver), 0)} keys"
            yield f"  shard {giver} gives shard {receiver}: {', '.join(units)}{count}"

    def as_json(self) -> dict[str, object]:
        """Return it as a JSON value."""
        return {
            "shards": [self.before, self.after],
            "units": self.unit_count,
            "moves": {unit: [*pair] for unit, pair in sorted(self.moves.items())},
            **({} if self.keys is None else {"keys": [[*pair, count] for pair, count in sorted(self.keys.items())]}),
            "unfinished": self.is_unfinished,
        }


@dataclass(frozen=True)
class Rearranging:
    """A pipeline whose segments may move between its shards.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.
    directory : Path
        Its checkpoint.
    settings : Settings
        For retries, and the length of the ledger.
    """

    pipeline: Graph
    directory: Path
    settings: Settings

    @property
    def is_unfinished(self) -> bool:
        """Whether segments were about to move when a start ended: the next one goes on before anything else."""
        layout = newest_layout(self._store)
        return layout is not None and any(self._directory(number).layout < layout.number for number in layout.moves)

    @property
    def to_open(self) -> list[int]:
        """Shards that sinks may not know: they have not begun, and an older version opened no sinks before that."""
        layout = newest_layout(self._store)
        if layout is None or layout.is_opened:
            return []
        return [number for number in self._numbers() if not newest_directory(self._place(number)[0])]

    def arrange(self, shard_count: int, by: str = "") -> None:
        """Do what a start has to do before it deals new segments: carry a layout through, and change the number.

        Parameters
        ----------
        shard_count : int
            How many shards are asked for; 0: as many as there are.
        by : str
            What shards keep state apart by.

        Raises
        ------
        HoldfastError
            As :meth:`change` and :meth:`settle`.

        Notes
        -----
        Takes nothing over where there is nothing to do.  Also to change is a number that stays, where a shard has
        planned what is another's (:func:`plans_of_others`).
        """
        layout = newest_layout(self._store)
        count = 0 if layout is None else layout.shard_count
        has_begun = layout is not None or newest_directory(self._store) > 0
        if has_begun and (shard_count not in (0, count) or self._is_to_begin_anew(layout)):
            self.change(shard_count or count, by)
        elif self.is_unfinished:
            self.settle()

    def check_finished(self) -> None:
        """Refuse to run one shard alone while segments are moving, or sinks may not know every shard.

        Raises
        ------
        InvalidPipeline
            If the last change of the number of shards was interrupted, or an older version has begun some shards only.
        """
        if self.to_open:
            raise InvalidPipeline(
                f"shard {self.to_open[0]} of pipeline {self.pipeline.name!r} has not begun.",
                why="until the sinks know all shards, none is run alone: with the checkpoint lost they would be asked.",
                do="start all shards once, without --only-shard.",
                pipeline=self.pipeline.name,
            )
        self.check_moved()

    def check_moved(self) -> None:
        """Refuse what shards may not do before all have moved.

        Raises
        ------
        InvalidPipeline
            If the last change of the number of shards was interrupted.
        """
        if self.is_unfinished:
            raise InvalidPipeline(
                f"segments of pipeline {self.pipeline.name!r} were moving between its shards when a start ended.",
                why="some shards have moved and some have not, and none may run, or go back, before all have.",
                do="start all shards once, without --only-shard: that comes first then.",
                pipeline=self.pipeline.name,
            )

    def plan(self, shard_count: int) -> PlannedMoves:
        """Return what another number of shards would do; takes nothing over, changes nothing.

        Parameters
        ----------
        shard_count : int
            How many shards there are to be.

        Raises
        ------
        Diverged
            If a shard has read segments of another one.
        Unavailable
            If a source does not answer.
        """
        layout = known_layout(self.pipeline, self.directory) or self._of_one(shard_count, self.pipeline.shard_by or "")
        graphs = ShardGraphs(self.pipeline, self.directory)
        stands = {number: self._stand(number) for number in self._numbers()}
        noted = note_beginnings(layout.assignment, stands, graphs.unit_of(layout))
        before = self._dealt(replace(layout, assignment=noted)).assignment
        refusal, after = None, regroup(before, shard_count)
        try:
            self.check()
            self._check_streams(before, after)
            if state_fingerprint(self.pipeline):
                check_bounds(self.pipeline, {n: of.positions for n, of in stands.items()}, givers_of(before, after))
        except InvalidPipeline as error:
            refusal = error
        found, keys = moves(before, after), self._keys_moving(graphs, before, after)
        count = len(before.shards)
        return PlannedMoves(before.shard_count, shard_count, count, found, keys, self.is_unfinished, refusal)

    def settle(self) -> ShardLayout | None:
        """Carry the layout through that holds, and return it; None where there are no shards.

        Raises
        ------
        HoldfastError
            Whatever taking a shard over raises.
        """
        with self.moving() as moving:
            return moving.settle()

    def change(self, shard_count: int, by: str = "") -> ShardLayout:
        """Carry the layout through that holds, then move to another number of shards; return the layout that holds.

        Parameters
        ----------
        shard_count : int
            How many shards there are to be.
        by : str
            What shards keep state apart by, where there are none yet.

        Raises
        ------
        InvalidPipeline
            If that cannot be: says what to do first.  Nothing was changed.
        Diverged
            If the sinks of a shard do not hold the same.  Nothing was changed.
        HoldfastError
            Whatever taking a shard over raises.
        """
        if not self.is_unfinished:
            self.check()  # no run is fenced for what cannot be done
        with self.moving() as moving:
            layout = moving.settle()
            if layout is not None and layout.shard_count == shard_count and not moving.is_to_begin_anew(layout):
                return layout
            self.check()
            return moving.change(layout or self._of_one(shard_count, by), shard_count, self._dealt)

    @contextmanager
    def moving(self, columns: Mapping[str, pa.Schema] | None = None, *, prepares: bool = True) -> Iterator[Moving]:
        """Yield the shards, each to be connected when it is taken over.

        Parameters
        ----------
        columns : mapping of str to pyarrow.Schema, optional
            Sink -> its columns, for shards that have not begun; else those that the last run noted.
        prepares : bool
            Whether checkpoints are prepared; False where a scratch may be old, and is looked at afterwards.
        """
        with ExitStack() as closing:
            graphs = ShardGraphs(self.pipeline, self.directory)
            moving = Moving(
                self.pipeline.name,
                self._store,
                lambda number: self._connect(number, closing, columns or {}, prepares=prepares),
                graphs.unit_of,
                self._check_streams,
            )
            if self._key is not None and state_fingerprint(self.pipeline):
                divisible, shard = graphs.divisible_sources.keys(), moving.shards.__getitem__
                moving.seeds = StateSeeds(self.pipeline, self._key, divisible, shard, self._directory)
            yield moving

    def check(self) -> None:
        """Refuse a pipeline of which segments cannot move now; changes nothing.

        Raises
        ------
        InvalidPipeline
            Saying what to do first.
        """
        self._check_sinks()
        layout, graphs = newest_layout(self._store), ShardGraphs(self.pipeline, self.directory)
        for number in self._numbers():
            graph, store, directory = self._graph(number), *self._place(number)
            begun = newest_directory(store)
            if not begun:
                continue
            check_finished(store, directory, graph.name, "where its segments stand")
            has_run = store.get(f"spark/{begun}/{GRAPH}") is not None
            divided = graph if layout is None else graphs.of(layout, number)
            if has_run and not (ran_last(graph, store) or ran_last(divided, store)):
                raise InvalidPipeline(
                    f"pipeline {self.pipeline.name!r} has changed, and is to have another number of shards.",
                    why="its sinks take their segments over as the graph wrote them that ran last.",
                    do="start the changed pipeline with as many shards as before, then with the new number.",
                    pipeline=self.pipeline.name,
                )
            if left_to_replay(directory, f"spark/{begun}", state_fingerprint(graph)) is not None:
                raise InvalidPipeline(
                    f"shard {graph.name!r} evaluates epochs again that some of its sinks hold.",
                    why="until that is done they stand at different positions.",
                    do="start with as many shards as before, and change the number when they have caught up.",
                    pipeline=graph.name,
                )

    # --- inside -----------------------------------------------------------------------------------------------------

    def _check_sinks(self) -> None:
        for node in self.pipeline.sinks:
            if node.kind in OUT_OF_REACH:
                raise InvalidPipeline(
                    f"sink {node.name!r} ({node.kind}) cannot take segments over.",
                    why=f"{OUT_OF_REACH[node.kind]}, and nothing runs while segments move.",
                    do="start with as many shards as before; or begin anew, with another checkpoint.",
                    pipeline=self.pipeline.name,
                    participant=node.name,
                )
        if state_fingerprint(self.pipeline):
            check_state(self.pipeline)

    def _check_streams(self, before: Assignment, after: Assignment) -> None:
        for node in self.pipeline.sinks:
            if isinstance(node.spec, ByteStreamSinkSpec):
                check_moves(node.name, node.spec, self.pipeline.name, moves(before, after))

    def _is_to_begin_anew(self, layout: ShardLayout | None) -> bool:
        if layout is None or self.is_unfinished:
            return False
        stands = {}
        for number in self._numbers():
            with suppress(Corrupt):  # its start says what becomes of a directory that is damaged
                stands[number] = Stand(planned=self._directory(number).planned_end())
        unit_of = ShardGraphs(self.pipeline, self.directory).unit_of(layout)
        return plans_of_others(layout.assignment, stands, unit_of)

    def _stand(self, number: int) -> Stand:
        """Return where a shard stands, as far as Spark's directories tell."""
        found = self._directory(number)
        return Stand(0, found.finished_end(), found.planned_end())

    @property
    def _key(self) -> ShardKey | None:
        by = self.pipeline.shard_by
        return None if by is None else ShardKey(by, str(self.directory / KEYS))

    def _keys_moving(
        self, graphs: ShardGraphs, before: Assignment, after: Assignment
    ) -> dict[tuple[int, int], int] | None:
        """Return how many keys move, by giver and receiver; None where they are not noted."""
        if self._key is None or not self._store.keys(f"{KEYS}/"):
            return None
        alone = [node.name for node in self.pipeline.sources if node.name not in graphs.divisible_sources]
        claims = self._key.open()
        claims.refresh()
        return KeyMoves(claims, before, after, alone).counts()

    def _connect(
        self, number: int, closing: ExitStack, columns: Mapping[str, pa.Schema], *, prepares: bool
    ) -> StandingShard:
        store = self._place(number)[0]
        if prepares:
            store.prepare()
        for sink, schema in () if newest_directory(store) else columns.items():
            note_schema(store, sink, schema)
        stores = [self._place(each)[0] for each in self._numbers()]
        return connect_shard(self._directory(number), stores, self.settings, closing)

    def _directory(self, number: int) -> SparkDirectory:
        return SparkDirectory(self._graph(number), *self._place(number), self.directory)

    def _graph(self, number: int) -> Graph:
        return self.pipeline.with_sources(shard_name(self.pipeline.name, number), {})

    def _place(self, number: int) -> tuple[LocalStore | ScratchedStore, Path]:
        directory = Path(shard_checkpoint(str(self.directory), number))
        return open_store(str(directory)), directory

    @property
    def _store(self) -> Store:
        return open_store(str(self.directory))

    def _numbers(self) -> range:
        layout = newest_layout(self._store)
        return range(1 if layout is None else layout.shard_count)

    def _of_one(self, shard_count: int, by: str) -> ShardLayout:
        """Return the layout of a pipeline that has run as one, with the segments that so many shards need."""
        first = ShardGraphs(self.pipeline, self.directory).first(shard_count, by)
        return replace(first, assignment=assign(Assignment(1), first.assignment.shards))

    def _dealt(self, layout: ShardLayout) -> ShardLayout:
        return dealt(layout, ShardGraphs(self.pipeline, self.directory).all_units(layout))
