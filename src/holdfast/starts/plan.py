"""What a start would do to a checkpoint, without doing it: ``holdfast plan``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.explained import rehearsed
from holdfast.checkpoint.graph_record import described, state_fingerprint
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.portable import find
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.errors import HoldfastError
from holdfast.graph.graph import Graph
from holdfast.plan.cutting import has_state
from holdfast.plan.derived_part import stages_without_spark
from holdfast.plan.stages import Stages
from holdfast.ports import Held, SinkLedger, Store
from holdfast.positions import Positions, lacking
from holdfast.spark.compile import as_spark_has_it
from holdfast.spark.launch.jvm_options import RowsInJvm
from holdfast.spark.launch.session import run_session, session_of
from holdfast.spark.physical_plan import compiled_stages
from holdfast.spark.read import SourceReader
from holdfast.spark.state.plan import state_schemas_of, upgrades_of
from holdfast.spark.state.shape import Division
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.backfill import Backfill
from holdfast.starts.behind import Ranges
from holdfast.starts.decide import ANEW, new_header, prepare, sought
from holdfast.starts.directory import Directory, directory_of
from holdfast.starts.facts import look
from holdfast.starts.fork import Fork
from holdfast.starts.graph_diff import GraphChange
from holdfast.starts.inputs import beginning_of
from holdfast.starts.rewind_target import check_finished
from holdfast.starts.start_at import StartAt
from holdfast.starts.state_change import compared
from holdfast.starts.table import ResumeCase, StartWay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class PlannedBeginning:
    """Where a pipeline would begin that has not begun.

    Parameters
    ----------
    asked : str
        The options that say so.
    state : mapping of str to mapping of str to int
        Operator -> state table -> rows: of what is given, and of what is made of a named checkpoint's tables.
    checkpoint, epoch, of : str, int, str
        The named checkpoint, the epoch whose end it is, and the pipeline that made it; empty and 0 without one.
    """

    asked: str
    state: Mapping[str, Mapping[str, int]]
    checkpoint: str = ""
    epoch: int = 0
    of: str = ""


@dataclass(frozen=True)
class SinkRecovery:
    """What one sink gets of what is read again.

    Parameters
    ----------
    epoch : int
        Up to which it holds everything; 0 where it holds nothing.
    skips : Ranges
        What of it the sink has.
    segments : mapping of str to Ranges
        The same of its segments (partition values, say), where these have different parts of it; "" is any other.
    """

    epoch: int
    skips: Ranges
    segments: Mapping[str, Ranges] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRecovery:
    """What is read again where Spark's part of the checkpoint is lost, and what each sink then skips.

    Parameters
    ----------
    seek : Positions
        Where reading begins; a source that is not there is read from its beginning.
    restored : tuple of str
        Sources whose past, without which their positions mean nothing, comes from the sinks.
    sinks : mapping of str to SinkRecovery
        By name.
    """

    seek: Positions
    restored: tuple[str, ...]
    sinks: Mapping[str, SinkRecovery]


@dataclass(frozen=True)
class Plan:
    """What a start would do.

    Parameters
    ----------
    directory : Directory
        Where Spark would work.
    change : GraphChange, optional
        What becomes of each node; None where there is nothing to compare with.
    case : ResumeCase, optional
        The row of the table of starts; None where a sink that has to be asked did not answer.
    refusal : HoldfastError, optional
        What a start would be refused for, apart from the change.
    bounds_end : mapping of str to str
        Operator -> why no bound but the end of the stream holds downstream of it, by Spark's plan of it.
    begins : PlannedBeginning, optional
        Where it would begin, other than at the beginning of its sources; None where it has begun.
    recovery : PlannedRecovery, optional
        What would be read again; None where Spark's log says where to go on.
    """

    directory: Directory
    change: GraphChange | None
    case: ResumeCase | None = None
    refusal: HoldfastError | None = None
    bounds_end: Mapping[str, str] = field(default_factory=dict)
    begins: PlannedBeginning | None = None
    recovery: PlannedRecovery | None = None


def plan(
    pipeline: Graph,
    store: Store,
    checkpoint: Path,
    settings: Settings,
    held: Mapping[str, Held] | None = None,
    last_epoch: int = 0,
    drop_state: frozenset[str] = frozenset(),
    begins: StartAt | None = None,
    ledgers: Mapping[str, SinkLedger] | None = None,
    *,
    rebuild_state: bool = False,
) -> Plan:
    """Return what a start would do.  Changes nothing; needs Java only where Spark's plan stands before the state.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    store, checkpoint : Store, Path
        The checkpoint, and where it lies.
    settings : Settings
        As a start would have them.
    held : mapping of str to Held, optional
        What each sink will hold once everything in doubt is resolved; None where one did not answer.
    last_epoch : int
        Highest epoch that any sink or the ledger knows.
    rebuild_state : bool
        As the start would be asked for.
    drop_state : frozenset of str
        Operators whose state is not wanted any more, besides those of the settings.
    begins : StartAt, optional
        Where the pipeline is to begin.
    ledgers : mapping of str to SinkLedger, optional
        What the sinks' own ledgers say, where sources may have lost their past: a start would restore it from them.

    Raises
    ------
    InvalidPipeline
        If the graph cannot be compiled, or a rewind was interrupted; if the pipeline cannot begin there, or has begun
        otherwise.
    Corrupt
        If a record of the checkpoint cannot be read.
    """
    check_finished(store, checkpoint, pipeline.name, "what happens to the graph after it")
    begins = _due(begins, pipeline, store)
    asked = Division(settings.buckets, settings.partitions)
    chosen = directory_of(pipeline, store, checkpoint, asked)
    stages = _stages(pipeline, settings)
    state_schemas = {} if stages is None else state_schemas_of(pipeline, stages)
    upgrades = {} if stages is None else upgrades_of(pipeline, stages)
    fingerprint = state_fingerprint(pipeline)
    transfer = Transfer(store, pipeline.name, fingerprint, state_schemas, upgrades, 0, 0, SystemClock())
    first = None if begins is None else _fork(begins, pipeline, store, checkpoint, transfer)
    change = compared(store, checkpoint, chosen, described(pipeline, state_schemas), upgrades, pipeline)
    if change is not None and change.backfilled:
        Backfill(pipeline, checkpoint, has_state(pipeline)).check(change)
    planned = Plan(chosen, change, bounds_end={} if stages is None else stages.bounds_end)
    if first is not None:
        planned = replace(planned, change=first.foreseen(), begins=_planned_beginning(first))
    if held is None:
        return planned
    with TemporaryDirectory(prefix="holdfast-plan-") as scratch:
        has_begun = newest_directory(store) > 0
        try:
            restored = rehearsed(pipeline.sources, checkpoint, ledgers or {}, Path(scratch), has_begun=has_begun)
        except HoldfastError as error:
            return replace(planned, refusal=error)
        beginning = beginning_of(
            pipeline,
            store,
            checkpoint,
            chosen,
            state_schemas,
            transfer=transfer,
            first=first,
            drop_state=settings.dropped | drop_state,
            rebuild_state=rebuild_state,
            restored=restored,
        )
        findings = look(beginning, held)
        if not findings.is_of_all(pipeline):
            return planned
        planned = replace(planned, case=findings.case)
        try:
            if findings.case.way in ANEW:
                start = sought(beginning, findings, new_header(beginning, findings, last_epoch)).start
                planned = replace(planned, recovery=_recovery(start, held, ledgers or {}, restored))
            prepare(beginning, findings, last_epoch)
            if first is not None and findings.case.way is StartWay.FORK:
                planned = replace(planned, begins=_planned_beginning(first, first.tried()))
        except HoldfastError as error:
            return replace(planned, refusal=error)
        return planned


def _recovery(
    start: Positions, held: Mapping[str, Held], ledgers: Mapping[str, SinkLedger], restored: Collection[str]
) -> PlannedRecovery:
    sinks = {}
    for name, each in held.items():
        segments = ledgers[name].segments if name in ledgers else None
        ends = {} if segments is None else {"": segments.positions, **segments.segments}
        skipped = {segment: lacking(start, at) for segment, at in ends.items()}
        sinks[name] = SinkRecovery(each.epoch, lacking(start, each.positions), skipped)
    return PlannedRecovery(start, tuple(restored), sinks)


def _due(begins: StartAt | None, pipeline: Graph, store: Store) -> StartAt | None:
    """Return where the pipeline still has to begin; refuse what a start refuses before it looks at anything else."""
    if not begins:
        return None
    begins.check_sources(pipeline)
    return begins if begins.is_due(store, pipeline.name, has_begun=newest_directory(store) > 0) else None


def _fork(begins: StartAt, pipeline: Graph, store: Store, checkpoint: Path, transfer: Transfer) -> Fork:
    """Return how it would begin; refuse state that does not fit.  Only its checks are used: nothing begins with it."""
    found = None if begins.where is None else find(store, begins.where)
    given = begins.tables(pipeline.name, transfer.state_schemas, transfer.upgrades, transfer.clock.now_us())
    reader = SourceReader(cast("SparkSession", None), checkpoint, 1, 0, "", "")
    graph = described(pipeline, transfer.state_schemas)
    return Fork(begins, found, store, checkpoint, pipeline, reader, 0, graph, transfer, False, given_state=given)


def _planned_beginning(first: Fork, converted: Mapping[str, Mapping[str, int]] | None = None) -> PlannedBeginning:
    state = {name: {table: rows.num_rows for table, rows in of.items()} for name, of in first.given_state.items()}
    if first.found is None:
        return PlannedBeginning(str(first.begins), state)
    manifest = first.found.manifest
    return PlannedBeginning(
        str(first.begins), converted or {}, first.found.shown, manifest.ended.epoch, manifest.pipeline
    )


def state_schemas(pipeline: Graph, settings: Settings) -> dict[str, StateSchema]:
    """Return what each stateful operator of a graph would keep."""
    stages = _stages(pipeline, settings)
    return {} if stages is None else state_schemas_of(pipeline, stages)


def _stages(pipeline: Graph, settings: Settings) -> Stages | None:
    if not has_state(pipeline):
        return None

    stages = stages_without_spark(pipeline, as_spark_has_it, "plan", is_columnar=settings.columnar)
    if stages is None:
        session = run_session(session_of(settings, rows=RowsInJvm.NONE), 1)
        stages = compiled_stages(pipeline, session, is_columnar=settings.columnar)
    return stages
