"""What a run consists of, once it is settled where it begins: rows that are left out, snapshots, reports, the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.manifest import EpochEnd, decode
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.user_data import UserData, recovered
from holdfast.commit.coordinator import Coordinator
from holdfast.graph.hooks import Lifecycle
from holdfast.graph.nodes import is_stateful as is_stateful_node
from holdfast.plan.holds import hold_file
from holdfast.plan.levels.due import due_file
from holdfast.plan.levels.seed import seed_of
from holdfast.plan.pressure import BackPressure, limited_operators
from holdfast.plan.report import OperatorReports
from holdfast.ports import Sink
from holdfast.positions import Positions
from holdfast.quarantine.dead_letters import DeadLetters
from holdfast.quarantine.mask import Mask, mask_file, write_masks
from holdfast.resume.directory_header import DirectoryHeader
from holdfast.spark.epoch_loop import EpochLimits, EpochLoop
from holdfast.spark.physical_plan import PhysicalPlan
from holdfast.spark.quarantine.isolate import Isolating, Suspicion, told_of
from holdfast.spark.quarantine.trials import COPY, Trials, clear_copy, reads_on
from holdfast.spark.resume.context import StartContext, StartOptions
from holdfast.spark.resume.directory import give_up
from holdfast.spark.run import Run


@dataclass(frozen=True)
class Wiring:
    """A pipeline that is owned, and whose beginning is settled.

    Parameters
    ----------
    asked : StartOptions
        What the user asked for.
    lifecycle : Lifecycle
        The user's hooks.
    ground : StartContext
        Checkpoint and session.
    assembly : PhysicalPlan
        The graph, ready to run.
    sinks : mapping of str to Sink
        Open ones, by name.
    coordinator : Coordinator
        Has taken over.
    origin : DirectoryHeader
        Where Spark's directory begins.
    participation : Participation
        Takes note of the sinks that take part.
    """

    asked: StartOptions
    lifecycle: Lifecycle
    ground: StartContext
    assembly: PhysicalPlan
    sinks: Mapping[str, Sink]
    coordinator: Coordinator
    origin: DirectoryHeader
    participation: Participation

    def begun(self, timed: Sequence[str], pts: int | None) -> Run:
        """Isolate what killed earlier runs, if that is asked for and due; put a run together, and begin it.

        Parameters
        ----------
        timed : sequence of str
            Sources with a timestamp.
        pts : int, optional
            The minimum timestamp over the inputs that every sink holds.
        """
        user_data = self._user_data()
        masks = self._masks()
        barriers = Barriers()
        checkpointer = self._checkpointer(user_data, barriers)
        reports = self._reports()
        run = self._run(reports, checkpointer, user_data)
        loop = EpochLoop(
            pipeline=self.asked.pipeline.name,
            origin=self.origin,
            spark_checkpoint=self.ground.spark,
            evaluation=self.assembly.evaluation(run.observed, barriers, masks, retired=self.origin.retired),
            sinks=self.sinks,
            coordinator=self.coordinator,
            clock=self.ground.clock,
            limits=EpochLimits(
                self.asked.settings.carry_max_bytes, self.asked.settings.sweep_interval_s, self.asked.poison_limit_s
            ),
            timed_sources=timed,
            pts=pts,
            reports=reports,
            due_file=due_file(self.ground.stop_file),
            pressure=self._pressure(),
            note_parts=self.participation.note,
            note_end=_noting(user_data, checkpointer),
        )
        given = recovered(self.ground.store, self._lineage, self._user_data_of_seed())
        self.lifecycle.begin(given.value, has_value=given.found)
        run.begin(loop, self.assembly.compiled.frame, self.asked.trigger, str(self.ground.spark))
        return run

    @property
    def _lineage(self) -> str:
        """What the values of ``on_checkpoint`` belong to: a directory that was lost is begun anew under its number."""
        return f"{self.ground.chosen.below} from epoch {self.origin.base}"

    # --- rows that killed earlier runs --------------------------------------------------------------------------

    def _masks(self) -> Mapping[str, Mask]:
        """Isolate rows if that is asked for and due; return which rows of each source are left out or sent again."""
        clear_copy(self.ground.directory)  # here, where earlier runs are fenced; also if isolation is not asked for now
        letters = DeadLetters(self.ground.store, self.coordinator.generation, isolates=self.asked.isolates)
        letters.fit(self.asked.pipeline.sources, reads_on(self.ground.spark, self.origin))
        masks_file = mask_file(self.ground.stop_file)
        if self.asked.isolates:
            isolating = self._isolating(letters, masks_file)
            for error, rows in told_of(isolating.settle(self.asked.settings.poison_attempts)):
                self.lifecycle.fail(error, rows)
        masks = letters.masks()
        if masks:
            write_masks(masks_file, masks)
        return masks

    def _isolating(self, letters: DeadLetters, masks_file: str) -> Isolating:
        ground, assembly = self.ground, self.assembly
        trials = Trials(
            pipeline=self.asked.pipeline.name,
            frame=None if assembly.program is not None else assembly.compiled.frame,
            evaluation=partial(
                assembly.evaluation, dict, Barriers(), retired=self.origin.retired
            ),  # its own: a trial is no epoch of the run
            sinks=self.sinks,
            coordinator=self.coordinator,
            spark=ground.spark,
            copy=ground.directory / COPY,
            masks_file=masks_file,
            origin=self.origin,
            limit_s=self.asked.poison_limit_s,
        )
        reader = assembly.reader
        return Isolating(
            pipeline=self.asked.pipeline,
            store=ground.store,
            opened=lambda node: reader.spec(node).open(node.name, reader.workspace(node)),
            spark=ground.spark,
            origin=self.origin,
            coordinator=self.coordinator,
            letters=letters,
            trials=trials,
            probe=assembly.probe(self.asked.poison_limit_s),
            has_state=self.asked.is_stateful,
            now_us=ground.clock.now_us,
            rows_max=self.asked.settings.poison_rows,
        )

    # --- what a run consists of ---------------------------------------------------------------------------------

    def _run(self, reports: OperatorReports, checkpointer: Checkpointer | None, user_data: UserData | None) -> Run:
        ground = self.ground
        seed = seed_of(ground.directory, ground.chosen.below) if self.asked.is_stateful else None
        suspicion = Suspicion(ground.spark, self.origin, self.asked.settings.poison_attempts)
        return Run(
            pipeline=self.asked.pipeline,
            sinks=self.sinks,
            coordinator=self.coordinator,
            stop_directory=ground.stop_directory,
            reports=reports,
            checkpointer=checkpointer,
            give_up=partial(give_up, ground.store, ground.chosen.below, seed),
            lifecycle=self.lifecycle,
            user_data=user_data,
            counted_filters=self.assembly.counted_filters,
            suspicion=suspicion if self.asked.isolates else None,
        )

    def _checkpointer(self, user_data: UserData | None, barriers: Barriers) -> Checkpointer | None:
        assembly = self.assembly
        if assembly.stateful is None or assembly.snapshotting is None:
            return None
        return assembly.snapshotting.checkpointer(
            self.asked.pipeline,
            assembly.stateful,
            self.origin,
            self.coordinator.generation,
            self.ground.clock,
            self.coordinator.check_fenced,
            lambda: None if user_data is None else user_data.latest,
            barriers,
        )

    def _reports(self) -> OperatorReports:
        kinds = {node.name: node.kind for node in self.asked.pipeline.nodes if is_stateful_node(node)}
        return OperatorReports(kinds, self.ground.store, self.ground.clock, self.coordinator.generation)

    def _pressure(self) -> BackPressure | None:
        if self.assembly.stateful is None:
            return None
        operators = limited_operators(self.assembly.stateful.stages)
        is_bounded = self.asked.trigger.interval_us is None
        return BackPressure(operators, hold_file(self.ground.stop_file), is_bounded=is_bounded) if operators else None

    # --- the value of ``on_checkpoint`` -------------------------------------------------------------------------

    def _user_data(self) -> UserData | None:
        if self.asked.pipeline.hooks.on_checkpoint is None:
            return None
        return UserData(
            pipeline=self.asked.pipeline.name,
            lineage=self._lineage,
            generation=self.coordinator.generation,
            store=self.ground.store,
            clock=self.ground.clock,
            ask=self.lifecycle.ask,
            every_us=self.asked.settings.checkpoint_freq * 1000,
            check_fenced=self.coordinator.check_fenced,
        )

    def _user_data_of_seed(self) -> Mapping[str, Any] | None:
        """Return what the snapshot says from which the directory took its state; None where there is none any more."""
        seed = self.origin.seed
        path = self.ground.directory / seed
        if not seed or not path.exists():
            return None
        return decode(path.read_bytes(), seed).user_data


def _noting(user_data: UserData | None, checkpointer: Checkpointer | None) -> Callable[[Positions, EpochEnd], None]:
    """Return what is told of each epoch's end: the value of a checkpoint is asked for before its snapshot is made."""

    def note(start: Positions, ended: EpochEnd) -> None:
        if user_data is not None:
            user_data.note(ended.epoch)
        if checkpointer is not None:
            checkpointer.note(start, ended)

    return note
