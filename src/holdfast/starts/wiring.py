"""What a run consists of, once its beginning is decided: rows that are left out, snapshots, reports, the loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint import progress
from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.explained import Explanations
from holdfast.checkpoint.manifest import EpochEnd, decode
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.progress import EpochSpan, History
from holdfast.checkpoint.snapshot import read_manifest, snapshot_keys
from holdfast.checkpoint.spark_log import last_logged, logged, remove_unfinished
from holdfast.checkpoint.user_data import UserData, recovered
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.paced import RequestReader
from holdfast.connectors.reading.until import have_passed
from holdfast.errors import Corrupt
from holdfast.graph.hooks import Lifecycle
from holdfast.graph.nodes import is_stateful as is_stateful_node
from holdfast.plan.expectations import EpochChecks, Expectations, auditor_of
from holdfast.plan.levels.journal import StateJournal
from holdfast.plan.levels.seed import seed_of
from holdfast.plan.lookup_versions import LookupVersions, look_ups_of
from holdfast.plan.operation import due_file, hold_file, limit_file
from holdfast.plan.pressure import BackPressure, Ramp, limited_operators
from holdfast.plan.report import OperatorReports, late_rows_read
from holdfast.ports import Held, Sink
from holdfast.positions import Positions
from holdfast.quarantine.dead_letters import DeadLetters
from holdfast.quarantine.mask import Mask, Passing, mask_file, write_masks
from holdfast.shards.naming import sources_place
from holdfast.spark.epoch_loop import EpochLimits, EpochLoop
from holdfast.spark.evaluation import Evaluation
from holdfast.spark.physical_plan import PhysicalPlan
from holdfast.spark.quarantine.isolate import Isolating, Suspicion, errors_of
from holdfast.spark.quarantine.trials import COPY, Trials, clear_copy, reads_on
from holdfast.spark.run import Run
from holdfast.starts.context import StartContext, StartOptions
from holdfast.starts.directory import give_up
from holdfast.status import ComparedSink
from holdfast.steer.entries import controls_for
from holdfast.types.units import duration_us

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True)
class OwnedPipeline:
    """A pipeline that a start takes over, and what it does that with.

    Parameters
    ----------
    asked : StartOptions
        What the user asked for.
    context : StartContext
        Checkpoint and session.
    physical : PhysicalPlan
        The graph, ready to run.
    sinks : mapping of str to Sink
        By name; open once it is taken over.
    coordinator : Coordinator
        Takes over.
    participation : Participation
        Records the sinks that take part.
    remembering : sequence of str
        The sinks that know what another process published.
    """

    asked: StartOptions
    context: StartContext
    physical: PhysicalPlan
    sinks: Mapping[str, Sink]
    coordinator: Coordinator
    participation: Participation
    remembering: Sequence[str]


@dataclass(frozen=True)
class Wiring:
    """A pipeline that is owned, and whose beginning is decided.

    Parameters
    ----------
    own : OwnedPipeline
        The pipeline.
    lifecycle : Lifecycle
        The user's hooks.
    header : DirectoryHeader
        Where Spark's directory begins.
    compared : sequence of ComparedSink
        What the start has compared.
    """

    own: OwnedPipeline
    lifecycle: Lifecycle
    header: DirectoryHeader
    compared: Sequence[ComparedSink] = ()

    def begin(self, held: Collection[Held]) -> Run:
        """Isolate what killed earlier runs, if that is asked for and due; create a run, and begin it.

        Parameters
        ----------
        held : collection of Held
            What the sinks hold.
        """
        user_data = self._user_data()
        lookups = self._lookups()
        letters = self._letters()
        barriers, journal = Barriers(), self._journal()
        checkpointer = self._checkpointer(user_data, barriers, journal)
        history = self._history(checkpointer)
        checks = self._checks()
        reports = self._reports(checks)
        run = self._run(reports, checkpointer, user_data)
        run.steering.show_letters(letters.counts)
        loop = EpochLoop(
            pipeline=self.own.asked.pipeline.name,
            header=self.header,
            spark_checkpoint=self.own.context.spark,
            evaluation=self.own.physical.evaluation(
                run.observed,
                barriers,
                letters.masks(),
                retired=self.header.retired,
                journal=journal,
                passing=letters.passing,
            ),
            sinks=self.own.sinks,
            coordinator=self.own.coordinator,
            limits=EpochLimits(self.own.asked.settings.carry_max_bytes, self.own.asked.poison_limit_s),
            timed_sources=self.own.asked.timed_sources,
            pts=min((each.pts for each in held if each.pts is not None), default=None),
            is_at_pts=self.own.asked.pipeline.commit_at is not None,
            reports=reports,
            due_file=due_file(self.own.context.stop_file),
            explanations=Explanations.of(
                self.own.asked.pipeline.sources,
                sources_place(self.own.context.directory, self.own.asked.pipeline.name),
                self.own.coordinator.explained,
            ),
            unrecorded=self._unrecorded(checkpointer, history, held),
            pressure=self._pressure(),
            ramp=self._ramp(),
            checks=checks,
            lookups=lookups,
            note_parts=self.own.participation.note,
            note_end=_noting(user_data, checkpointer, history),
        )
        if self.own.asked.settings.tracing and not (self.own.asked.follows or self.own.asked.only_replays):
            run.steering.trace(loop.times)
        given = recovered(self.own.context.store, self._lineage, self._user_data_of_seed())
        self.lifecycle.begin(given.value, has_value=given.found)
        if self.own.asked.only_replays:
            Path(self.own.context.stop_file).touch()  # no stop comes between two epochs that are replayed
        remove_unfinished(self.own.context.spark)
        if not (self.own.asked.follows or self.own.asked.only_replays):  # those are no runs that anybody steers
            controls = controls_for(self.own.context.directory, self.own.asked.pipeline.name)
            if not controls.is_empty:
                run.steering.hold(controls)
        run.begin(loop, self.own.physical.compiled.frame, self.own.asked.trigger, str(self.own.context.spark))
        return run

    @property
    def _lineage(self) -> str:
        """Identifies the directory of ``on_checkpoint`` values: one that was lost is begun anew under its number."""
        return f"{self.own.context.chosen.below} from epoch {self.header.base}"

    # --- rows that killed earlier runs --------------------------------------------------------------------------

    def _letters(self) -> DeadLetters:
        """Isolate rows if that is asked for and due; return which rows are left out or sent again."""
        clear_copy(self.own.context.directory)  # here, where earlier runs are fenced; also if nothing is isolated now
        letters = DeadLetters(self.own.context.store, self.own.coordinator.generation, isolates=self.own.asked.isolates)
        letters.fit(self.own.asked.pipeline.sources, reads_on(self.own.context.spark, self.header))
        masks_file = mask_file(self.own.context.stop_file)
        if self.own.asked.isolates:
            isolating = self._isolating(letters, masks_file)
            for error, rows in errors_of(isolating.settle(self.own.asked.settings.poison_attempts)):
                self.lifecycle.fail(error, rows)
        if masks := letters.masks():
            write_masks(masks_file, masks)
        return letters

    def _isolating(self, letters: DeadLetters, masks_file: str) -> Isolating:
        context, physical = self.own.context, self.own.physical
        journal = self._journal(is_trial=True)

        def evaluation(masks: Mapping[str, Mask], passing: Passing) -> Evaluation:
            retired, barriers = self.header.retired, Barriers()  # its own: a trial is no epoch of the run
            return physical.evaluation(
                dict, barriers, masks, retired=retired, journal=journal, passing=lambda epoch: passing
            )

        trials = Trials(
            pipeline=self.own.asked.pipeline.name,
            frame=None if physical.program is not None else physical.compiled.frame,
            evaluation=evaluation,
            sinks=self.own.sinks,
            coordinator=self.own.coordinator,
            spark=context.spark,
            copy=context.directory / COPY,
            masks_file=masks_file,
            header=self.header,
            limit_s=self.own.asked.poison_limit_s,
            carry_bytes=self.own.asked.settings.carry_max_bytes,
        )
        reader = physical.reader
        return Isolating(
            pipeline=self.own.asked.pipeline,
            store=context.store,
            opened=lambda node: reader.spec(node).open(node.name, reader.workspace(node)),
            spark=context.spark,
            header=self.header,
            coordinator=self.own.coordinator,
            letters=letters,
            trials=trials,
            probe=physical.probe(self.own.asked.poison_limit_s),
            levels={} if physical.stateful is None else physical.stateful.stages.operators,
            now_us=context.clock.now_us,
            rows_max=self.own.asked.settings.poison_rows,
        )

    # --- what a run consists of ---------------------------------------------------------------------------------

    def _run(self, reports: OperatorReports, checkpointer: Checkpointer | None, user_data: UserData | None) -> Run:
        context = self.own.context
        seed = seed_of(context.directory, context.chosen.below) if self.own.asked.is_stateful else None
        suspicion = Suspicion(context.store, context.spark, self.header, self.own.asked.settings.poison_attempts)
        paced = [sink.name for sink in self.own.asked.pipeline.sinks if sink.pace is not None]
        return Run(
            pipeline=self.own.asked.pipeline,
            sinks=self.own.sinks,
            coordinator=self.own.coordinator,
            stop_directory=context.stop_directory,
            reports=reports,
            checkpointer=checkpointer,
            give_up=partial(give_up, context.store, context.chosen.below, seed),
            lifecycle=self.lifecycle,
            restore_logs=self.own.context.restore_logs,
            user_data=user_data,
            counted_filters=self.own.physical.counted_filters,
            in_spark=self.own.physical.in_spark,
            suspicion=suspicion if self.own.asked.isolates else None,
            requests=RequestReader(context.store, paced) if paced else None,
            is_through=self._is_through if self._ends_at_a_time or self.own.physical.reader.freezes else None,
            sweep_interval_s=self.own.asked.settings.sweep_interval_s,
            compared=self.compared,
            pool=self.own.asked.pool,
            newest=partial(self.own.physical.reader.ends_now, self.own.asked.pipeline.sources),
        )

    @property
    def _ends_at_a_time(self) -> bool:
        """Whether the run stops itself at a time; a backfill does when its sources have reported their ends."""
        return self.own.asked.until is not None and not self.own.asked.is_backfill

    def _is_through(self, query: StreamingQuery) -> bool:
        """Return whether every source has passed the time at which this run ends, or, asked at once, had no more."""
        names = [node.name for node in self.own.asked.pipeline.sources]
        has_passed = self._ends_at_a_time and have_passed(self.own.context.stop_file, names)
        return has_passed or self.own.physical.reader.has_given_all(query)

    def _journal(self, *, is_trial: bool = False) -> StateJournal | None:
        """Return the journal of state; None without state."""
        if self.own.physical.stateful is None:
            return None
        store, below = self.own.context.store, self.own.context.chosen.below
        return StateJournal(store, below, self.own.coordinator.generation, is_trial=is_trial)

    def _checkpointer(
        self, user_data: UserData | None, barriers: Barriers, journal: StateJournal | None
    ) -> Checkpointer | None:
        physical = self.own.physical
        if physical.stateful is None or physical.snapshotting is None or journal is None:
            return None
        return physical.snapshotting.checkpointer(
            self.own.asked.pipeline,
            physical.stateful,
            self.header,
            self.own.coordinator.generation,
            self.own.context.clock,
            self.own.coordinator.check_fenced,
            lambda: None if user_data is None else user_data.latest,
            barriers,
            journal,
            self.own.coordinator.publish_held,
        )

    def _checks(self) -> EpochChecks:
        own = self.own
        expectations = Expectations.of(own.asked.pipeline, own.coordinator.last_decided)
        on_audit, audit = own.asked.settings.on_audit, own.physical.audit
        return EpochChecks(expectations, auditor_of(own.asked.pipeline.name, audit, own.context.store, on_audit))

    def _reports(self, checks: EpochChecks) -> OperatorReports:
        kinds = {node.name: node.kind for node in self.own.asked.pipeline.nodes if is_stateful_node(node)}
        drops = kinds.keys() - late_rows_read(self.own.asked.pipeline.nodes)
        return OperatorReports(
            kinds,
            self.own.context.store,
            self.own.context.clock,
            self.own.coordinator.generation,
            checks.auditor,
            drops,
        )

    def _ramp(self) -> Ramp:
        """Return what keeps the first epochs small."""
        interval_us = self.own.asked.trigger.interval_us or 0
        place, first_bytes = limit_file(self.own.context.stop_file), self.own.asked.settings.first_epoch_max_bytes
        return Ramp(place, first_bytes, interval_s=interval_us / 1_000_000)

    def _pressure(self) -> BackPressure | None:
        if self.own.physical.stateful is None:
            return None
        operators = limited_operators(self.own.physical.stateful.stages)
        is_bounded = self.own.asked.trigger.interval_us is None
        return (
            BackPressure(operators, hold_file(self.own.context.stop_file), is_bounded=is_bounded) if operators else None
        )

    def _lookups(self) -> LookupVersions | None:
        look_ups = look_ups_of(self.own.asked.pipeline)
        if not look_ups:
            return None
        context, spark = self.own.context, self.own.context.spark
        planned = max(last_logged(spark, "offsets"), len(self.header.replayed) - 1)
        versions = LookupVersions(
            look_ups,
            context.store,
            token=context.token,
            generation=self.own.coordinator.generation,
            planned=planned,
            replayed_to=self.header.step_time(planned, 0)[0] if planned >= 0 else 0,
            oldest=self._oldest_replayed,
        )
        versions.pin_newest()
        return versions

    def _oldest_replayed(self) -> int:
        """Return the oldest epoch that may be replayed: that Spark's log still has, or that follows a snapshot."""
        store = self.own.context.store
        first = min(logged(self.own.context.spark, "offsets"), default=0)
        try:
            snapshots = [read_manifest(store, key).ended.step_epoch for key in snapshot_keys(store)]
        except Corrupt:
            return 0  # then nothing is known to be needed no more
        return min([self.header.step_time(first, 0)[0], *snapshots])

    def _unrecorded(
        self, checkpointer: Checkpointer | None, history: History | None, held: Collection[Held]
    ) -> Callable[[], Sequence[EpochSpan]] | None:
        """Return what epochs take along to the sinks; None where no replay depends on how epochs ended.

        What the sinks tell now is recorded first: the next epoch replaces it there.
        """
        if checkpointer is None and not look_ups_of(self.own.asked.pipeline):
            return None
        noting = checkpointer or history
        if noting is None:
            return lambda: ()
        if history is not None or self.own.asked.settings.checkpoint_freq:
            progress.add(self.own.context.store, progress.told_by(held), self.own.coordinator.generation)
        return noting.unrecorded

    # --- the value of ``on_checkpoint`` -------------------------------------------------------------------------

    def _history(self, checkpointer: Checkpointer | None) -> History | None:
        """Return what keeps ends of epochs where no snapshot limits how far a rewind can go."""
        keep_us = duration_us(self.own.asked.settings.rewind_keep)
        if checkpointer is not None or not keep_us:
            return None
        coordinator = self.own.coordinator
        return History(
            self.own.context.store, coordinator.generation, self.own.context.clock, keep_us, coordinator.check_fenced
        )

    def _user_data(self) -> UserData | None:
        if self.own.asked.pipeline.hooks.on_checkpoint is None:
            return None
        return UserData(
            pipeline=self.own.asked.pipeline.name,
            lineage=self._lineage,
            generation=self.own.coordinator.generation,
            store=self.own.context.store,
            clock=self.own.context.clock,
            ask=self.lifecycle.ask,
            every_us=self.own.asked.settings.checkpoint_freq * 1000,
            check_fenced=self.own.coordinator.check_fenced,
        )

    def _user_data_of_seed(self) -> Mapping[str, Any] | None:
        """Return what the snapshot says from which the directory took its state; None where there is none any more."""
        seed = self.header.seed
        data = self.own.context.store.get(seed) if seed else None
        return None if data is None else decode(data, seed).user_data


def _noting(
    user_data: UserData | None, checkpointer: Checkpointer | None, history: History | None
) -> Callable[[Positions, EpochEnd], None]:
    """Return the function called at each epoch's end: ``on_checkpoint`` is asked before the snapshot is made."""

    def note(start: Positions, ended: EpochEnd) -> None:
        if user_data is not None:
            user_data.note(ended.epoch)
        if checkpointer is not None:
            checkpointer.note(start, ended)
        if history is not None:
            history.note(start, ended)

    return note
