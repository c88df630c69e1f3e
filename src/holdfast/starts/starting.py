"""The steps of a start, in their order: compiled, compared, taken over, settled where to begin, set running."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from holdfast.checkpoint import explained, named
from holdfast.checkpoint.directory_header import DirectoryHeader, newest_directory
from holdfast.checkpoint.graph_record import note_description, state_fingerprint, write_graph
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.schemas import note_schema
from holdfast.commit.coordinator import Coordinator, Resumption
from holdfast.commit.delivery import remembers
from holdfast.commit.takeover import Expired
from holdfast.display import lines
from holdfast.graph.event_time import common_unit
from holdfast.graph.hooks import Lifecycle
from holdfast.ports import Bindable, Held, Sink, Store
from holdfast.spark.launch.session import exposed
from holdfast.spark.physical_plan import PhysicalPlan
from holdfast.spark.quarantine.isolate import check_addresses
from holdfast.spark.read import timestamp_of
from holdfast.spark.run import Run
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.act import DirectoryIsLeft, perform
from holdfast.starts.backfill import Backfill
from holdfast.starts.context import StartContext, StartOptions, context_of, physical_plan_of
from holdfast.starts.facts import check_given_again, check_replayable, look
from holdfast.starts.fork import Fork
from holdfast.starts.graph_diff import GraphChange
from holdfast.starts.in_doubt import coordinator_of, resolve_with_former_columns
from holdfast.starts.inputs import Beginning, beginning_of
from holdfast.starts.refusals import check_change
from holdfast.starts.rewind_target import check_none_was_resolved
from holdfast.starts.state_change import StateChange, compared, lines_of
from holdfast.starts.table import StartWay
from holdfast.starts.wiring import Wiring
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
    """

    asked: StartOptions
    lifecycle: Lifecycle
    finish_rewind: Callable[[Store, Path], None] | None = None
    compare: Callable[[], Compares] | None = None
    has_begun: bool = False

    def run(self) -> Run:
        """Start; a second time, if sinks are behind Spark's directory and it is left for that."""
        comparison = None if self.compare is None else self.compare()
        try:
            return self._begun(comparison)
        except DirectoryIsLeft:
            return self._begun(comparison)

    def _begun(self, comparison: Compares | None) -> Run:
        pipeline = self.asked.pipeline
        has_pts = common_unit(pipeline.sources) is not None  # TIMESTAMPs and BIGINT ticks have no minimum
        timed = [node.name for node in pipeline.sources if has_pts and timestamp_of(node) is not None]
        if self.asked.isolates:
            check_addresses(pipeline)
        context = context_of(self.asked, self.finish_rewind)
        try:
            self._warn_of_exposure(context)
            lines.say("checking the graph")
            physical = physical_plan_of(self.asked, context)
            change = self._change(context, physical)
            given_state = self._given_state(context, physical)
            if comparison is not None:
                comparison.prepare(context.directory)
            lines.say("asking the sinks")
            sinks = self._connected(context, physical)
            self._resolve_former(context, physical)
            coordinator = coordinator_of(
                pipeline,
                context.store,
                [*sinks.values()],
                self.asked.settings,
                clock=context.clock,
                commit_every_ticks=self.asked.commit_every_ticks,
                commit_thread=self.asked.commit_thread,
            )
            try:
                remembering = [name for name, sink in sinks.items() if remembers(sink)]
                participation = Participation(pipeline.name, context.store, remembering)
                owned = _Owned(
                    self.asked, context, physical, change, sinks, coordinator, participation, remembering, given_state
                )
                has_begun = newest_directory(context.store) > 0
                resumption = coordinator.open(
                    on_behind=owned.check_replayable,
                    understood=None if has_begun else participation.begun_together,
                    on_expired=owned.check_given_again,
                )
                restore = partial(explained.restore, pipeline.sources, context.directory, sinks, resumption.held)
                coordinator.retry(partial(restore, has_begun=has_begun), doing="restore what positions mean")
                lines.say("finding where to continue")
                header = owned.settled(resumption)
                compared: Sequence[ComparedSink] = ()
                if comparison is not None:
                    compared = comparison.mend(context.directory, sinks, resumption.held, coordinator.check_fenced)
                lines.say("starting the query")
                parts = Wiring(
                    self.asked, self.lifecycle, context, physical, sinks, coordinator, header, participation, compared
                )
                run = parts.begun(timed, resumption.held.values())
            except BaseException:
                coordinator.close()
                raise
        except BaseException:
            context.restore_logs()
            shutil.rmtree(context.stop_directory, ignore_errors=True)
            raise
        self.has_begun = True
        return run

    def _warn_of_exposure(self, context: StartContext) -> None:
        session = context.base_session

        def is_on(name: str) -> bool:
            return str(session.conf.get(name, "false")).lower() == "true"

        said = exposed(self.asked.pipeline, session.sparkContext.master, is_on)
        if said:
            log.warning("%s", said)

    def _change(self, context: StartContext, physical: PhysicalPlan) -> GraphChange | None:
        """Return what happens to each node of the previous graph; refuse what would lose state."""
        pipeline = self.asked.pipeline
        change = compared(context.store, context.directory, context.chosen, physical.graph, physical.upgrades, pipeline)
        if change is not None:
            for line in lines_of(change):
                log.info("%s", line)
            settings = self.asked.settings
            check_change(change, pipeline.name, is_forced=settings.force_graph_change, drop_state=settings.dropped)
            if change.backfilled:
                Backfill(pipeline, context.directory, self.asked.is_stateful).check(change)
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

    def _connected(self, context: StartContext, physical: PhysicalPlan) -> dict[str, Sink]:
        pipeline = self.asked.pipeline
        sinks: dict[str, Sink] = {}
        for node, schema in zip(pipeline.sinks, physical.compiled.routes.schemas, strict=True):
            sink = node.spec.connect(node.name, pipeline.name, schema)
            if isinstance(sink, Bindable):  # foreach_batch: the only sink that wants a DataFrame
                sink.bind(_to_dataframe(context.session), str(context.directory / "foreach_batch" / node.name))
            sinks[node.name] = sink
        return sinks


@dataclass(frozen=True)
class _Owned:
    """A pipeline that is taken over: no other run writes it."""

    asked: StartOptions
    context: StartContext
    physical: PhysicalPlan
    change: GraphChange | None
    sinks: Mapping[str, Sink]
    coordinator: Coordinator
    participation: Participation
    remembering: Sequence[str]
    given_state: Mapping[str, Mapping[str, pa.Table]]

    def check_replayable(self, behind: Collection[str], held: Mapping[str, Held]) -> None:
        """Refuse sinks that have lost some or all of what was published in them, if it cannot be replayed."""
        check_replayable(self._beginning(), behind, held, self.remembering)

    def check_given_again(self, expired: Sequence[Expired], held: Mapping[str, Held]) -> None:
        """Refuse to revoke what the sources cannot give again."""
        check_given_again(self._beginning(), expired, held, self.remembering)

    def settled(self, resumption: Resumption) -> DirectoryHeader:
        """Check the sinks, note the graph; return where Spark's directory begins, settled now if it is new.

        What was in doubt is resolved.
        """
        store, held = self.context.store, resumption.held
        resolved = {each.epoch for each in resumption.resolved}
        check_none_was_resolved(store, self.context.directory, self.asked.pipeline.name, resolved)
        beginning = self._beginning()
        findings = look(beginning, held, self.remembering)
        way = findings.case.way
        if way is not StartWay.REFUSE:
            self.participation.note_holding(held)
            named.settle_floor(store)
            self._note_graph()
            self.coordinator.check_fenced()  # who has taken over meanwhile may have begun the same directory
        if way not in (StartWay.REFUSE, StartWay.LEAVE):
            write_graph(store, self.context.chosen.below, self.physical.graph)
        return perform(beginning, findings, resumption.last_epoch)

    # --- what is recorded in the checkpoint ---------------------------------------------------------------------

    def _note_graph(self) -> None:
        store, pipeline = self.context.store, self.asked.pipeline
        for sink, schema in zip(pipeline.sinks, self.physical.compiled.routes.schemas, strict=True):
            note_schema(store, sink.name, schema)
        note_description(store, pipeline)

    # --- where it begins ----------------------------------------------------------------------------------------

    def _beginning(self) -> Beginning:
        context, physical, pipeline = self.context, self.physical, self.asked.pipeline
        transfer = Transfer(
            context.store,
            pipeline.name,
            state_fingerprint(pipeline),
            physical.state_schemas,
            physical.upgrades,
            physical.graph.buckets,
            self.coordinator.generation,
            context.clock,
        )
        return beginning_of(
            pipeline,
            context.store,
            context.directory,
            context.chosen,
            physical.state_schemas,
            change=self._state_change(transfer),
            transfer=transfer,
            first=self._first(transfer),
            drop_state=self.asked.settings.dropped,
            check_fenced=self.coordinator.check_fenced,
            rebuild_state=self.asked.rebuild_state,
        )

    def _state_change(self, transfer: Transfer) -> StateChange | None:
        context = self.context
        if context.before is None or self.change is None:
            return None
        return StateChange(
            context.store,
            context.directory,
            context.chosen.previous,
            self.asked.pipeline.name,
            context.new_session(),
            self.change,
            context.before,
            self.coordinator.generation,
            context.clock,
            transfer,
            Backfill(self.asked.pipeline, context.directory, self.asked.is_stateful),
        )

    def _first(self, transfer: Transfer) -> Fork | None:
        context = self.context
        if context.begins is None:
            return None
        return Fork(
            context.begins,
            context.fork,
            context.store,
            context.directory,
            self.asked.pipeline,
            self.physical.reader,
            self.coordinator.generation,
            self.physical.graph,
            transfer,
            self.asked.settings.force_graph_change,
            self.asked.settings.dropped,
            self.given_state,
        )


def _to_dataframe(session: SparkSession) -> Any:
    def to_dataframe(rows: Any, schema: Any) -> DataFrame:
        if isinstance(rows, list):
            if rows:
                return session.read.parquet(*rows)
            rows = schema.empty_table()
        return session.createDataFrame(rows)

    return to_dataframe
