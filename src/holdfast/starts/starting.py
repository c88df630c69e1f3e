"""The steps of a start, in their order: compiled, compared, taken over, settled where to begin, set running."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.checkpoint import explained, named
from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.graph_record import note_description, state_fingerprint, write_graph
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.schemas import note_schema
from holdfast.checkpoint.start_history import StartLine, note_start
from holdfast.commit.coordinator import Resumption
from holdfast.commit.delivery import remembers
from holdfast.display import lines
from holdfast.graph.hooks import Lifecycle
from holdfast.ports import Bindable, Held, Sink, Store
from holdfast.shards.naming import sources_place
from holdfast.spark.launch.session import exposed
from holdfast.spark.physical_plan import PhysicalPlan
from holdfast.spark.quarantine.isolate import check_addresses
from holdfast.spark.run import Run
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.act import Beginning, DirectoryIsLeft, act
from holdfast.starts.backfill import Backfill
from holdfast.starts.context import StartContext, StartOptions, context_of, physical_plan_of
from holdfast.starts.decide import StartDecision, decide
from holdfast.starts.directory import SourcesMisplaced
from holdfast.starts.facts import check_given_again, check_replayable, look
from holdfast.starts.fork import Fork
from holdfast.starts.graph_diff import GraphChange
from holdfast.starts.in_doubt import coordinator_of, resolve_with_former_columns
from holdfast.starts.inputs import StartInputs
from holdfast.starts.refusals import check_change
from holdfast.starts.rewind_target import check_none_was_resolved
from holdfast.starts.state_change import StateChange, compare_graphs, lines_of
from holdfast.starts.table import ResumeCase, StartWay
from holdfast.starts.wiring import OwnedPipeline, Wiring
from holdfast.status import ComparedSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("holdfast.run")


class Compares(Protocol):
    """What a start compares before the run goes on: :class:`holdfast.starts.shadows.comparing.StartComparison`."""

    def prepare(self, checkpoint: Path) -> None:
        """Compute what the sinks should hold, before the pipeline is taken over."""

    def mend(
        self, checkpoint: Path, sinks: Mapping[str, Sink], held: Mapping[str, Held], check_fenced: Callable[[], object]
    ) -> Sequence[ComparedSink]:
        """Compare and repair, in a pipeline that is taken over."""


def _line_of(case: ResumeCase, generation: int, at_us: int) -> StartLine:
    """Return what is noted of a start."""
    return StartLine(generation, at_us, case.letter, case.way.value, case.keeps, case.reads, case.gives, case.why)


@dataclass
class Starting:
    """A start, up to a run that is alive.

    Parameters
    ----------
    asked : StartOptions
        What the user asked for.
    lifecycle : Lifecycle
        The user's hooks.
    finish_rewind : callable, optional
        As for :func:`~holdfast.starts.context.context_of`.
    compare : callable, optional
        Returns what the start compares; refuses, before anything is done, what cannot be.
    has_begun : bool
        Whether the run is alive: from then on it calls the hooks itself.
    misplaced : str
        Spark's directory in which an attempt found the sources at other places.
    """

    asked: StartOptions
    lifecycle: Lifecycle
    finish_rewind: Callable[[Store, Path], None] | None = None
    compare: Callable[[], Compares] | None = None
    has_begun: bool = False
    misplaced: str = ""

    def run(self) -> Run:
        """Start; a second time, where Spark's directory is left for sinks behind it, or for places in its log."""
        comparison = None if self.compare is None else self.compare()
        try:
            return self._start(comparison)
        except DirectoryIsLeft:
            return self._start(comparison)
        except SourcesMisplaced as found:
            self.misplaced = found.below
            return self.run()

    def _start(self, comparison: Compares | None) -> Run:
        if self.asked.isolates:
            check_addresses(self.asked.pipeline)
        context = context_of(self.asked, self.finish_rewind, self.misplaced)
        try:
            run = self._start_in(context, comparison)
        except BaseException:
            context.restore_logs()
            shutil.rmtree(context.stop_directory, ignore_errors=True)
            raise
        self.has_begun = True
        return run

    def _start_in(self, context: StartContext, comparison: Compares | None) -> Run:
        self._warn_of_exposure(context)
        lines.say("checking the graph")
        physical = physical_plan_of(self.asked, context)
        change = self._change(context, physical)
        given_state = self._given_state(context, physical)
        if comparison is not None:
            comparison.prepare(context.directory)
        lines.say("asking the sinks")
        own = self._own(context, physical)
        try:
            inputs, resumption = self._take_over(own)
            lines.say("finding where to continue")
            decision = decide(look(inputs, resumption.held, resumption.last_epoch, own.remembering))
            if decision.case.way is not StartWay.REFUSE:
                self._note(own, decision)
            beginning = self._beginning(own, inputs, change, given_state)
            header = act(decision, own.coordinator.check_fenced, beginning)
            compared: Sequence[ComparedSink] = ()
            if comparison is not None:
                held, check_fenced = resumption.held, own.coordinator.check_fenced
                compared = comparison.mend(context.directory, own.sinks, held, check_fenced)
            lines.say("starting the query")
            run = Wiring(own, self.lifecycle, header, compared).begin(resumption.held.values())
            note_start(context.store, _line_of(decision.case, own.coordinator.generation, context.clock.now_us()))
            return run
        except BaseException:
            own.coordinator.close()
            raise

    # --- before it is taken over ------------------------------------------------------------------------------------

    def _warn_of_exposure(self, context: StartContext) -> None:
        session = context.base_session

        def is_on(name: str) -> bool:
            return str(session.conf.get(name, "false")).lower() == "true"

        said = exposed(self.asked.pipeline, session.sparkContext.master, is_on)
        if said:
            log.warning("%s", said)

    def _change(self, context: StartContext, physical: PhysicalPlan) -> GraphChange | None:
        """Return what happens to each node of the previous graph; refuse what would lose state."""
        pipeline, store, directory = self.asked.pipeline, context.store, context.directory
        change = compare_graphs(store, directory, context.chosen, physical.graph, physical.upgrades, pipeline)
        if change is not None:
            for line in lines_of(change):
                log.info("%s", line)
            settings = self.asked.settings
            check_change(change, pipeline.name, is_forced=settings.force_graph_change, drop_state=settings.dropped)
            if change.backfilled:
                Backfill(pipeline, directory, self.asked.is_stateful).check(change)
        return change

    def _given_state(self, context: StartContext, physical: PhysicalPlan) -> dict[str, dict[str, pa.Table]]:
        """Return the state that the pipeline begins with; refuse what does not fit, before any run is fenced."""
        if context.begins is None:
            return {}
        now_us = context.clock.now_us()
        return context.begins.tables(self.asked.pipeline.name, physical.state_schemas, physical.upgrades, now_us)

    def _resolve_former(self, context: StartContext, physical: PhysicalPlan) -> None:
        pipeline, schemas = self.asked.pipeline, physical.compiled.routes.schemas
        named = {node.name: schema for node, schema in zip(pipeline.sinks, schemas, strict=True)}
        resolve_with_former_columns(pipeline, context.store, self.asked.settings, named)

    def _connect(self, context: StartContext, physical: PhysicalPlan) -> dict[str, Sink]:
        pipeline = self.asked.pipeline
        sinks: dict[str, Sink] = {}
        for node, schema in zip(pipeline.sinks, physical.compiled.routes.schemas, strict=True):
            sink = node.spec.connect(node.name, pipeline.name, schema)
            if offers(sink, Bindable):  # foreach_batch: the only sink that wants a DataFrame
                sink.bind(_to_dataframe(context.session), str(context.directory / "foreach_batch" / node.name))
            sinks[node.name] = sink
        return sinks

    def _own(self, context: StartContext, physical: PhysicalPlan) -> OwnedPipeline:
        """Connect the sinks; return the pipeline, to be taken over."""
        asked, store = self.asked, context.store
        sinks = self._connect(context, physical)
        self._resolve_former(context, physical)
        coordinator = coordinator_of(
            asked.pipeline,
            store,
            [*sinks.values()],
            asked.settings,
            clock=context.clock,
            commit_every_ticks=asked.commit_every_ticks,
            commit_thread=asked.commit_thread,
        )
        remembering = [name for name, sink in sinks.items() if remembers(sink)]
        participation = Participation(asked.pipeline.name, store, remembering)
        return OwnedPipeline(asked, context, physical, sinks, coordinator, participation, remembering)

    # --- from here on no other run writes it ------------------------------------------------------------------------

    def _take_over(self, own: OwnedPipeline) -> tuple[StartInputs, Resumption]:
        """Take the pipeline over, and resolve what is in doubt; return what the start is decided by."""
        context, pipeline, settings = own.context, self.asked.pipeline, self.asked.settings
        store, directory, schemas = context.store, context.directory, own.physical.state_schemas
        graph, remembering = state_fingerprint(pipeline), own.remembering
        inputs = StartInputs(
            store,
            directory,
            context.chosen,
            pipeline,
            schemas,
            graph,
            context.begins,
            drop_state=settings.dropped,
            rebuild_state=self.asked.rebuild_state,
        )
        has_begun = newest_directory(store) > 0
        resumption = own.coordinator.open(
            on_behind=partial(check_replayable, inputs, remembering=remembering),
            understood=own.participation.begun_together,
            on_expired=partial(check_given_again, inputs, remembering=remembering),
        )
        check_none_was_resolved(store, directory, pipeline.name, {each.epoch for each in resumption.resolved})
        if self.asked.on_takeover is not None:
            self.asked.on_takeover(resumption.held)
        place = sources_place(directory, pipeline.name)
        restore = partial(explained.restore, pipeline.sources, place, own.sinks, resumption.held)
        own.coordinator.retry(partial(restore, has_begun=has_begun), doing="restore what positions mean")
        upgrades, buckets, generation = own.physical.upgrades, own.physical.graph.buckets, own.coordinator.generation
        transfer = Transfer(store, pipeline.name, graph, schemas, upgrades, buckets, generation, context.clock)
        return replace(inputs, transfer=transfer), resumption

    def _note(self, own: OwnedPipeline, decision: StartDecision) -> None:
        """Note who takes part, the columns of the sinks, and the graph."""
        store, pipeline = own.context.store, self.asked.pipeline
        own.participation.note_holding(decision.facts.held)
        named.settle_floor(store)
        for sink, schema in zip(pipeline.sinks, own.physical.compiled.routes.schemas, strict=True):
            note_schema(store, sink.name, schema)
        note_description(store, pipeline)
        own.coordinator.check_fenced()  # who has taken over meanwhile may have begun the same directory
        if decision.case.way is not StartWay.LEAVE:
            write_graph(store, own.context.chosen.below, own.physical.graph)

    def _beginning(
        self,
        own: OwnedPipeline,
        inputs: StartInputs,
        change: GraphChange | None,
        given_state: Mapping[str, Mapping[str, pa.Table]],
    ) -> Beginning | None:
        """Return how Spark's directory begins, where the pipeline begins elsewhere or its graph has changed."""
        context, transfer = own.context, inputs.transfer
        assert transfer is not None
        if context.begins is not None:
            reader, graph = own.physical.reader, own.physical.graph
            is_forced = self.asked.settings.force_graph_change
            return Fork(inputs, transfer, context.fork, reader, graph, is_forced, given_state)
        if context.before is not None and change is not None:
            return StateChange(inputs, transfer, change, context.before, context.new_session())
        return None


def _to_dataframe(session: SparkSession) -> Any:
    def to_dataframe(rows: Any, schema: Any) -> DataFrame:
        if isinstance(rows, list):
            if rows:
                return session.read.parquet(*rows)
            rows = schema.empty_table()
        return session.createDataFrame(rows)

    return to_dataframe
