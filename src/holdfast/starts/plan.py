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
from holdfast.shards.naming import sources_place
from holdfast.spark.compile import as_spark_has_it
from holdfast.spark.launch.jvm_options import RowsInJvm
from holdfast.spark.launch.session import run_session, session_of
from holdfast.spark.physical_plan import compiled_stages
from holdfast.spark.read import SourceReader
from holdfast.spark.state.plan import state_schemas_of, upgrades_of
from holdfast.spark.state.shape import Division
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.behind import Ranges
from holdfast.starts.decide import AT_SINKS, decide
from holdfast.starts.directory import Directory, directory_of
from holdfast.starts.facts import look
from holdfast.starts.fork import Fork
from holdfast.starts.graph_diff import GraphChange
from holdfast.starts.inputs import StartInputs
from holdfast.starts.rewind_target import check_finished
from holdfast.starts.start_at import StartAt, still_to_begin
from holdfast.starts.state_change import compare_graphs
from holdfast.starts.table import ResumeCase, StartWay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class PlannedBeginning:
    """Where a pipeline would begin that has not begun.

    Parameters
    ----------
    asked : str
        The options that ask for it.
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
    begins = still_to_begin(begins, pipeline, store)
    chosen = directory_of(pipeline, store, checkpoint, Division(settings.buckets, settings.partitions))
    stages = _stages(pipeline, settings)
    state_schemas = {} if stages is None else state_schemas_of(pipeline, stages)
    upgrades = {} if stages is None else upgrades_of(pipeline, stages)
    graph = state_fingerprint(pipeline)
    transfer = Transfer(store, pipeline.name, graph, state_schemas, upgrades, 0, 0, SystemClock())
    dropped = settings.dropped | drop_state
    inputs = StartInputs(
        store, checkpoint, chosen, pipeline, state_schemas, graph, begins, transfer, dropped, rebuild_state
    )
    change = compare_graphs(store, checkpoint, chosen, described(pipeline, state_schemas), upgrades, pipeline)
    if change is not None and change.backfilled:
        inputs.backfill.check(change)
    planned = Plan(chosen, change, bounds_end={} if stages is None else stages.bounds_end)
    fork = None if begins is None else _fork(begins, inputs, transfer)
    if fork is not None:
        planned = replace(planned, change=fork.foresee(), begins=_planned_beginning(fork))
    if held is None:
        return planned
    with TemporaryDirectory(prefix="holdfast-plan-") as scratch:
        has_begun, place = newest_directory(store) > 0, sources_place(checkpoint, pipeline.name)
        try:
            restored = rehearsed(pipeline.sources, place, ledgers or {}, Path(scratch), has_begun=has_begun)
        except HoldfastError as error:
            return replace(planned, refusal=error)
        facts = look(replace(inputs, restored=restored), held, last_epoch)
        if not facts.is_of_all(pipeline):
            return planned
        decision = decide(facts)
        planned = replace(planned, case=facts.case, refusal=decision.refusal)
        if facts.case.way in AT_SINKS and decision.header is not None:
            recovery = _recovery(decision.header.start, held, ledgers or {}, restored)
            planned = replace(planned, recovery=recovery)
        if fork is not None and facts.case.way is StartWay.FORK:
            try:
                planned = replace(planned, begins=_planned_beginning(fork, fork.try_state()))
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


def _fork(begins: StartAt, inputs: StartInputs, transfer: Transfer) -> Fork:
    """Return how it would begin; refuse state that does not fit.  Only its checks are used: nothing begins with it."""
    pipeline = inputs.pipeline
    found = None if begins.where is None else find(inputs.store, begins.where)
    given = begins.tables(pipeline.name, transfer.state_schemas, transfer.upgrades, transfer.clock.now_us())
    reader = SourceReader(cast("SparkSession", None), inputs.directory, 1, 0, "", "")
    return Fork(inputs, transfer, found, reader, described(pipeline, transfer.state_schemas), given_state=given)


def _planned_beginning(fork: Fork, converted: Mapping[str, Mapping[str, int]] | None = None) -> PlannedBeginning:
    state = {name: {table: rows.num_rows for table, rows in of.items()} for name, of in fork.given_state.items()}
    if fork.found is None:
        return PlannedBeginning(str(fork.begins), state)
    manifest = fork.found.manifest
    return PlannedBeginning(
        str(fork.begins), converted or {}, fork.found.shown, manifest.ended.epoch, manifest.pipeline
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
