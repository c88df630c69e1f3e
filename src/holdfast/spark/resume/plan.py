"""What a start would do to a checkpoint, without doing it: ``holdfast plan``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from holdfast.config import Settings
from holdfast.graph.pipeline import Pipeline
from holdfast.plan.cutting import FirstStage, build_stages, has_state
from holdfast.plan.stages import Stages
from holdfast.ports import Store
from holdfast.resume.backfill import Backfill
from holdfast.resume.graph_diff import GraphChange
from holdfast.resume.graph_record import described, state_fingerprint
from holdfast.spark.compile import as_spark_has_it
from holdfast.spark.launch.session import create_session, run_session
from holdfast.spark.read import SourceReader
from holdfast.spark.resume.directory import Directory, choose_directory
from holdfast.spark.resume.rewind import Rewinding
from holdfast.spark.resume.state_change import compared, outgrown
from holdfast.spark.state.plan import Division, StateShape, compile_stateful, keeps_of, means_of


@dataclass(frozen=True)
class Plan:
    """What a start would do.

    Parameters
    ----------
    directory : Directory
        Where Spark would work.
    change : GraphChange, optional
        What becomes of each node; None where there is nothing to compare with.
    """

    directory: Directory
    change: GraphChange | None


class _NeedsSpark(Exception):
    """Only Spark can say what the first stateful operators are given."""


def plan(pipeline: Pipeline, store: Store, checkpoint: Path, settings: Settings) -> Plan:
    """Return what a start would do.  Changes nothing; needs Java only where Spark's plan stands before the state.

    Raises
    ------
    InvalidPipeline
        If the graph cannot be compiled, or a rewind was interrupted.
    Corrupt
        If a record of the checkpoint cannot be read.
    """
    Rewinding(pipeline, store, checkpoint, settings).check_finished("what becomes of the graph behind it")
    asked = Division(settings.buckets, settings.partitions)
    chosen = choose_directory(store, checkpoint, state_fingerprint(pipeline), partial(outgrown, pipeline, store, asked))
    stages = _stages(pipeline, settings)
    keeps = {} if stages is None else keeps_of(pipeline, stages)
    means = {} if stages is None else means_of(pipeline, stages)
    change = compared(store, checkpoint, chosen, described(pipeline, keeps), means, pipeline)
    if change is not None and change.backfilled:
        Backfill(pipeline, checkpoint, has_state(pipeline)).check(change)
    return Plan(chosen, change)


def _stages(pipeline: Pipeline, settings: Settings) -> Stages | None:
    if not has_state(pipeline):
        return None

    def refuse(part: FirstStage) -> Sequence[pa.Schema]:
        raise _NeedsSpark

    try:
        return build_stages(
            pipeline,
            as_spark_has_it,
            "plan",
            buckets=1,
            partitions=1,
            prefix=refuse,
            is_columnar=settings.columnar,
        )
    except _NeedsSpark:
        session = run_session(create_session(settings.master, f"{settings.driver_memory_mib}m"), 1)
        reader = SourceReader(session, Path(), 1, 0, "", "")
        return compile_stateful(pipeline, reader, "plan", StateShape(1, 1), is_columnar=settings.columnar).stages
