"""``holdfast rewind``: go back on purpose, and make the sinks right (design/0012).

A rewind takes the pipeline over, resolves what is in doubt, and commits an epoch that withdraws rows; then it begins a
Spark directory that starts at the target.  If it is interrupted, the next start, or the next rewind, first carries it
through.

The state at the target is that with which the rows were published that stay: a snapshot of it is made from the journal,
or the epochs after an older snapshot are evaluated again by the graph that published them.  Only that needs Java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint import progress
from holdfast.checkpoint.directory_header import (
    FILE_NAME,
    DirectoryHeader,
    newest_directory,
    read_origin,
    remove_older,
)
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.graph_record import GRAPH, read_graph, write_graph
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.participation import forget_part, have_taken_part
from holdfast.checkpoint.source_history import forget_after, last_positions
from holdfast.checkpoint.spark_log import newest_positions, plain
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.records import Decided, Done
from holdfast.commit.takeover import Expired
from holdfast.config import Settings
from holdfast.connectors import foreach_batch
from holdfast.errors import Diverged, InvalidPipeline, present
from holdfast.graph.graph import Graph
from holdfast.ports import EpochRecord, Held, Sink, Store, Withdrawal
from holdfast.positions import Positions
from holdfast.shards.naming import sources_place
from holdfast.spark.state.shape import StateShape, note_shape, noted_shape
from holdfast.starts.act import act
from holdfast.starts.decide import decide
from holdfast.starts.directory import Directory
from holdfast.starts.facts import look
from holdfast.starts.in_doubt import connected_sinks, coordinator_alone, ran_last
from holdfast.starts.inputs import StartInputs, above_all
from holdfast.starts.restore import Restoration, all_steps, planned_in
from holdfast.starts.rewind_target import (
    RewindTarget,
    Rewound,
    check_finished,
    known_steps,
    note_rewind,
    pts_of,
    take_back,
    target,
    unfinished,
)
from holdfast.starts.table import Spark
from holdfast.starts.target_state import TargetState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.starts.shadows.withdrawing import Withdrawing

log = logging.getLogger("holdfast.rewind")


@dataclass(frozen=True)
class Rewinding:
    """A pipeline, its checkpoint, and what both are opened with.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    store, directory : Store, Path
        The checkpoint, and where it lies.
    settings : Settings
        For retries, and the length of the ledger.
    session : SparkSession, optional
        Where rows that were replaced are computed again; None: one is made where it is needed.
    """

    pipeline: Graph
    store: Store
    directory: Path
    settings: Settings
    session: SparkSession | None = None

    def plan(self, to: str, left_out: Collection[str] = ()) -> Rewound:
        """Return what a rewind would do; takes nothing over, changes nothing.

        Parameters
        ----------
        to : str
            As for :func:`~holdfast.starts.rewind_target.target`.
        left_out : collection of str
            Sinks that keep what they hold: the next graph has them as new ones.

        Raises
        ------
        InvalidPipeline
            If it cannot be done: names the sinks or the source, or says how far back it can go.
        """
        withdrawing = self._withdrawing(left_out)
        try:
            return self._plan(to, withdrawing)
        finally:
            withdrawing.forget()

    def do(self, to: str, left_out: Collection[str] = ()) -> Rewound:
        """Go back.

        Parameters
        ----------
        to, left_out
            As for :meth:`plan`.

        Raises
        ------
        InvalidPipeline
            As :meth:`plan`.
        HoldfastError
            Whatever a takeover raises.  After the decision the next start completes the rewind.

        Notes
        -----
        Durable writes: those of a takeover; 1. a snapshot of the target, from a name or the journal; 2. the decision:
        from here on the rewind happens; 3. one transaction for each sink; 4. "done"; a repair of each table of rows
        that replace others; 5. a record of the rewind; what no longer holds is removed from the checkpoint; 6. the
        next directory, whose ``origin.json`` comes last; 7. where state is evaluated again, what a run writes that
        ends with a snapshot.
        """
        withdrawing = self._withdrawing(left_out)
        self._plan(to, withdrawing)  # no run is fenced for something that cannot be done
        with self._opened() as (coordinator, sinks, last_epoch):
            found, planned = self._planned(to, sinks, withdrawing)
            self._state.keep(to, found, coordinator)
            steps = known_steps(self.store, all_steps(self.directory))
            progress.add(self.store, steps, coordinator.generation)  # what sinks alone tell, this record replaces there
            target_step = [step for step in steps if step.ended.epoch == found.ended.epoch]
            record = EpochRecord(
                self.pipeline.name,
                self._next_epoch(last_epoch),
                coordinator.generation,
                found.ended.positions,
                pts_of(self.store, found.ended),
                found.ended.epoch,
                recent_ends=progress.to_text(target_step[-1:]) if target_step else "",
            )
            number = newest_directory(self.store)
            coordinator.rewind(record, left_out)
            withdrawing.repair(sinks, record.positions)
            self._begin(record, {*planned.sinks}, number, coordinator.check_fenced)
        if found.replayed:
            self._state.evaluate(to, found.replayed, left_out)
        return replace(planned, epoch=record.epoch)

    def carry_through(self) -> EpochRecord | None:
        """Finish a rewind that was decided and then interrupted; return it, or None when there is none."""
        rewind = self._unfinished()
        if rewind is None:
            return None
        withdrawing = self._withdrawing(
            [node.name for node in self.pipeline.sinks if node.name not in rewind.row_counts]
        )
        self._check_ran(withdrawing.recomputed)
        with self._opened() as (coordinator, sinks, last_epoch):  # which publishes the decision, or finds it void
            number, rewind = newest_directory(self.store), self._unfinished()
            if rewind is None or last_epoch > rewind.record.epoch:
                return None  # epochs were published after it: its directory existed, and is lost
            record = rewind.record
            log.warning("the rewind to epoch %d, decided as epoch %d, continues", record.rewound_to, record.epoch)
            withdrawing.repair(sinks, record.positions)
            self._begin(record, {*rewind.row_counts}, number, coordinator.check_fenced)
            return record

    @property
    def is_unfinished(self) -> bool:
        """Whether a rewind was decided and then interrupted: the next start finishes it before anything else."""
        return self._unfinished() is not None

    # --- inside -----------------------------------------------------------------------------------------------------

    def _plan(self, to: str, withdrawing: Withdrawing) -> Rewound:
        withdrawing.check_graph()
        check_finished(self.store, self.directory, self.pipeline.name, "what a sink would withdraw")
        with connected_sinks(self.pipeline, self.store) as sinks:
            return self._planned(to, sinks, withdrawing)[1]

    def _unfinished(self) -> Decided | Done | None:
        return unfinished(self.store, self.directory)

    def _planned(self, to: str, sinks: Mapping[str, Sink], withdrawing: Withdrawing) -> tuple[RewindTarget, Rewound]:
        number = newest_directory(self.store)
        if number == 0:
            raise InvalidPipeline(
                f"pipeline {self.pipeline.name!r} has not run on this checkpoint.",
                why="there is nothing to go back from.",
                do="name the checkpoint that it runs with.",
                pipeline=self.pipeline.name,
            )
        below = f"spark/{number}"
        steps = known_steps(self.store, all_steps(self.directory))
        state_schemas = read_graph(self.store, below).state_schemas
        header = read_origin(self.directory / below / FILE_NAME)
        found = target(
            self.store, self.pipeline.name, to, steps, has_state=bool(state_schemas), graph=header.graph or ""
        )
        found = replace(found, batch_id=self._state.batch_in_journal(found, below, header))
        self._check_move(to, found, header)
        self._check_state(to, found, state_schemas, header.graph)
        self._state.check_evaluable(to, found, header)
        self._check_sources(to, found.read_from, newest_positions(self.directory / below))
        self._check_ran(withdrawing.recomputed)
        withdrawn = withdrawing.asked(sinks, found.ended)
        return found, self._rewound(found, withdrawn, withdrawing.left_out)

    def _check_move(self, to: str, found: RewindTarget, header: DirectoryHeader) -> None:
        if found.ended.epoch < header.moved:
            raise InvalidPipeline(
                f"pipeline {self.pipeline.name!r} cannot go back to {to}: segments have moved between shards since.",
                why=f"they moved as epoch {header.moved}: before it other shards read them, into ledgers of their own.",
                do="choose a later epoch.",
                pipeline=self.pipeline.name,
            )

    def _check_state(
        self, to: str, found: RewindTarget, state_schemas: Mapping[str, StateSchema], graph: str | None
    ) -> None:
        """Refuse a snapshot of another graph, unless its state fits: the next graph replays what comes after it."""
        restored = found.restored
        if found.batch_id is not None or (restored is None and not state_schemas):
            return
        fits = restored is not None and (restored.manifest.graph == graph or _fits(restored, state_schemas))
        if not fits:
            raise InvalidPipeline(
                f"pipeline {self.pipeline.name!r} cannot go back to {to}: its graph has changed since.",
                why="the state of then is another graph's: it does not fit, or it is of an operator that the graph has "
                "no more, or under another name.",
                do="choose a later epoch; or start the graph of then once (renamed_from= takes the state back to an "
                "old name), and rewind to a named checkpoint of that time after it.",
                pipeline=self.pipeline.name,
            )

    @property
    def _state(self) -> TargetState:
        return TargetState(self.pipeline, self.store, self.directory, self.settings, self.session)

    def _check_ran(self, recomputed: Sequence[str]) -> None:
        """Refuse to compute what tables held by another graph than the one that filled them."""
        if recomputed and newest_directory(self.store) and not ran_last(self.pipeline, self.store):
            raise InvalidPipeline(
                f"pipeline {self.pipeline.name!r} cannot be rewound with this graph.",
                why=f"what {', '.join(recomputed)} held is computed from the sources, and this graph is not the one "
                "that ran last: the rows would not be those that were published.",
                do="rewind with the graph that ran last, then change it; or rewind without: "
                f"{' '.join(f'--except {name}' for name in recomputed)}.",
                pipeline=self.pipeline.name,
            )

    def _withdrawing(self, left_out: Collection[str]) -> Withdrawing:
        # Not at the top: what computes expected rows is a start of a pipeline, which finishes rewinds first.
        from holdfast.starts.shadows.withdrawing import Withdrawing

        return Withdrawing(self.pipeline, self.directory, self.settings, self.session, frozenset(left_out))

    def _check_sources(self, to: str, positions: Positions, now: Positions) -> None:
        for node in self.pipeline.sources:
            if node.name not in positions and node.name not in now:
                continue  # nothing of it was read
            place = workspace(sources_place(self.directory, self.pipeline.name), node.name)
            why = node.source_spec.obstacle(node.name, place, plain(positions.get(node.name, {}))[0])
            if why:
                raise InvalidPipeline(
                    f"pipeline {self.pipeline.name!r} cannot go back to {to}: source {node.name!r} cannot be read "
                    "from there.",
                    why=why,
                    do="choose a later epoch.",
                    pipeline=self.pipeline.name,
                    participant=node.name,
                )

    def _next_epoch(self, last_epoch: int) -> int:
        """Return a number above all that were ever used, planned epochs included."""
        spark = self.directory / f"spark/{newest_directory(self.store)}"
        return max(above_all(self.store, last_epoch), planned_in(spark)) + 1

    def _begin(
        self, record: EpochRecord, rewound: Collection[str], number: int, check_fenced: Callable[[], None]
    ) -> None:
        """Begin the directory after a rewind that every sink of it has performed.

        ``number`` is that of the previous directory, as this generation found it: a run that takes over meanwhile
        finishes the rewind, and continues in the next directory.
        """
        previous, below = f"spark/{number}", f"spark/{number + 1}"
        target = present(record.rewound_to, "the record of a rewind has no target.", epoch=record.epoch)
        check_fenced()
        forget_after(self.store, target)
        to = {**last_positions(self.store), **record.positions}
        note_rewind(self.store, record.epoch, to)
        take_back(self.store, to, record.generation, all_steps(self.directory))
        if not number:
            return  # Spark's directory is lost besides: the next start begins one where the sinks are
        before = read_origin(self.directory / previous / FILE_NAME)
        graph = read_graph(self.store, previous)
        # As the graph that ran last left it: the one that is started next may be another, with other sources.
        inputs = StartInputs(
            self.store,
            self.directory,
            Directory(below, Spark.REWOUND, previous),
            self.pipeline.with_sinks(()),
            graph.state_schemas,
            before.graph or "",
        )
        held = {"all sinks": Held(record.epoch, record.generation, record.positions, record.pts)}
        shape = noted_shape(self.store, previous)
        check_fenced()  # reading and removing snapshots takes its time
        if shape is not None:  # that of the snapshot: keys are found by the hash over its number of buckets
            found = inputs.restorable([*held.values()])
            buckets = shape.buckets if found is None else found.manifest.buckets
            note_shape(self.store, below, StateShape(buckets, min(shape.partitions, buckets)))
            graph = replace(graph, buckets=buckets)
        graph = graph.rewound(rewound)
        for name in graph.left_out:
            forget_part(self.store, name)
            foreach_batch.forget(str(self.directory / "foreach_batch" / name))
        if self.store.get(f"{previous}/{GRAPH}") is not None:  # else an older version made it: its sinks are unknown
            write_graph(self.store, below, graph)
        act(decide(look(inputs, held, record.epoch)), check_fenced)
        check_fenced()
        remove_older(self.directory, below)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Coordinator, dict[str, Sink], int]]:
        """Take the pipeline over and resolve what is in doubt."""
        with coordinator_alone(self.pipeline, self.store, self.settings) as (coordinator, sinks):
            resumption = coordinator.open(on_expired=self._refuse_expired)
            yield coordinator, sinks, resumption.last_epoch

    def _refuse_expired(self, expired: Sequence[Expired], held: Mapping[str, Held]) -> None:
        raise Diverged(
            f"{expired[0]}: the pipeline cannot be rewound before sink {expired[0].sink!r} has them.",
            why="somebody removed what was staged; whether it can be read again a start finds out.",
            do="start the pipeline once, then rewind.",
            pipeline=self.pipeline.name,
            participant=expired[0].sink,
            epoch=expired[0].epochs[0],
        )

    def _rewound(self, found: RewindTarget, withdrawn: Mapping[str, Withdrawal], left_out: Collection[str]) -> Rewound:
        restored, is_from_journal = found.restored, found.batch_id is not None
        snapshot = found.ended.epoch if is_from_journal or restored is None else restored.manifest.ended.epoch
        return Rewound(
            0,
            found.ended.epoch,
            found.ended.positions,
            None if restored is None else snapshot,
            len(found.replayed),
            withdrawn,
            tuple(sorted({*have_taken_part(self.store)} - {node.name for node in self.pipeline.sinks})),
            tuple(sorted(left_out)),
            is_from_journal,
        )


def _fits(restored: Restoration, state_schemas: Mapping[str, StateSchema]) -> bool:
    """Tell whether all state in the snapshot of another graph can be kept."""
    before = restored.manifest.state_schemas
    return all(name in state_schemas and before[name].fits(state_schemas[name]) for name in before)
