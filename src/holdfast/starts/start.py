"""Starts: what a user asks for, in the units of the engine, and the hooks around it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import Settings, mistaken_variables
from holdfast.connectors.reading.until import ends_at
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.graph.event_time import commit_every_ticks
from holdfast.graph.graph import Graph
from holdfast.graph.hooks import Lifecycle
from holdfast.graph.trigger import Trigger
from holdfast.plan.warnings import start_warnings
from holdfast.ports import Store
from holdfast.shards.naming import shard_of
from holdfast.spark.failure import translate
from holdfast.spark.run import Run
from holdfast.starts.context import StartOptions
from holdfast.starts.rewind import Rewinding
from holdfast.starts.start_at import StartAt
from holdfast.starts.starting import Compares, Starting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.run")

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/")


def start(
    pipeline: Graph,
    *,
    checkpoint: str | os.PathLike[str],
    trigger: Trigger,
    commit_every: str | int | None = None,
    commit_thread: bool = True,
    master: str | None = None,
    session: SparkSession | None = None,
    settings: Settings | None = None,
    checkpoint_freq: int | None = None,
    keep: int | None = None,
    force: bool | None = None,
    drop_state: Sequence[str] | None = None,
    rebuild_state: bool = False,
    compare_on_start: bool | Sequence[str] = False,
    digests_only: bool = False,
    from_checkpoint: str | os.PathLike[str] | None = None,
    at: str | datetime | int | None = None,
    until: str | datetime | int | None = None,
    state: Mapping[str, Any] | None = None,
    on_poison: str | None = None,
    on_audit: str | None = None,
    spark_checkpoint: str | os.PathLike[str] | None = None,
    shards: int | None = None,
    only_shard: int | None = None,
    metrics: str | None = None,
    begin: Callable[[StartOptions], Run] | None = None,
) -> Run:
    """Start a pipeline: take it over, resolve what is in doubt, then run epochs.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    checkpoint : str or path
        Directory that belongs to this pipeline alone; created when absent.  Or its place in an object store,
        ``s3://bucket/path``, ``gs://...`` or ``az://...``.
    trigger : Trigger
        ``hf.every(interval)`` or ``hf.available_now()``.
    commit_every : str or int, optional
        Publish only when the minimum timestamp over the inputs has moved by this much: fewer, larger transactions.
        Text with a unit (``"1 s"``) where the sources' timestamps are TIMESTAMPs, a number of ticks where they are
        BIGINTs.  Epochs are decided as they come, so nothing is lost; every source needs ``timestamp=``.
    commit_thread : bool, default True
        Publish decided epochs in the background, in order, while the next one is evaluated.  Applies to epochs that
        executors staged for several sinks.
    master : str, optional
        Spark master for a session that Holdfast creates; default is the setting ``HOLDFAST_MASTER``.
    session : SparkSession, optional
        Use this session's context.  Settings of the run are made on a new session of it.
    settings : Settings, optional
        Default: read from ``HOLDFAST_*`` variables.
    checkpoint_freq : int, optional
        Milliseconds between two snapshots of state; 0 makes none by itself.  Default is the setting
        ``HOLDFAST_CHECKPOINT_FREQ``.
    keep : int, optional
        Snapshots that are kept.  Default is the setting ``HOLDFAST_CHECKPOINT_KEEP``.
    force : bool, optional
        Start a changed graph also where the state of an operator does not fit, which then begins without, or a source
        is finished.  Default is the setting ``HOLDFAST_FORCE_GRAPH_CHANGE``.
    drop_state : sequence of str, optional
        Operators that the graph has no more and whose state is not wanted any more.  Only asked for where a new
        operator of the same kind begins without state: it may be the old one, and want ``renamed_from=``.  Default is
        the setting ``HOLDFAST_DROP_STATE``.
    rebuild_state : bool
        Compute state that is lost, with all its snapshots, again from the sources: they must still give every row from
        their beginning.  What the sinks hold is muted.  Also where state can be restored, but not exactly as it was.
        No effect where it can.
    compare_on_start : bool or sequence of str
        Compare the sinks with what they should hold, computed from the sources, and write and remove the rows in which
        they differ, before the run goes on: ``docs/reconcile.md``.  True compares all that can be, and says which
        cannot; with names of sinks the start is refused where one of them cannot.
    digests_only : bool
        With ``compare_on_start``: keep digests of what the sinks should hold instead of the rows, for sinks that are
        larger than the disk.  Where something differs the sources are read once more.
    from_checkpoint : str or path, optional
        Begin with the state and the positions of a named checkpoint: its name, ``<checkpoint directory>/<name>`` of
        another pipeline's, or the directory of an export.  For the first start, with new sinks; a later start goes on
        where the pipeline is.
    at : str, datetime or int, optional
        Begin at a time (ISO 8601, UTC without a zone; or microseconds of Unix time, or ticks where timestamps are
        BIGINTs): each source at its random access point at or before it, and no row whose timestamp lies before it is
        delivered.  For the first start, with new
        sinks; every source needs ``timestamp=``.
    until : str, datetime or int, optional
        End the run at a time, exclusive, written as ``at``: it ends by itself when every row below it, of every source,
        has taken effect; no row at or above it does.  Those stay for a later run, in which each takes effect once.  For
        any start; every source needs ``timestamp=``.
    state : mapping of str to table, path, or mapping of str to these, optional
        Operator -> the state that it begins with, by the schema that ``holdfast inspect`` prints: a Parquet file, a
        directory of them, a pyarrow.Table, or a frame that speaks Arrow (of Spark, Polars, pandas); for an operator of
        several state tables a mapping of their names to these.  For the first start, with new sinks.
    on_poison : str, optional
        ``"isolate"`` makes dead letters of rows that kill the run again and again; ``"stop"`` does not.  Default is the
        setting ``HOLDFAST_ON_POISON``.
    on_audit : str, optional
        What happens where the rows of an epoch do not add up: ``"stop"`` ends the run before the epoch is published,
        ``"warn"`` logs which operator it is, ``"off"`` does not look.  Default is the setting ``HOLDFAST_ON_AUDIT``.
    spark_checkpoint : str or path, optional
        With a checkpoint in an object store: the directory below which Spark's own part of it lies.  Default is the
        variable ``HOLDFAST_SPARK_CHECKPOINT``, else the user's cache directory.
    shards : int, optional
        In how many shards the pipeline runs, 1 to 1000: ``docs/shards.md``.  Default is the setting
        ``HOLDFAST_SHARDS``, else as many as before, and one at first.
    only_shard : int, optional
        Run this shard alone, of those that the checkpoint has.
    metrics : str, optional
        Where the run serves its metrics for Prometheus, ``host:port``.  Default is the setting ``HOLDFAST_METRICS``.
    begin : callable, optional
        Begins the run; default is :func:`begin_run`.

    Returns
    -------
    Run

    Raises
    ------
    InvalidPipeline
        If the graph, a schema, the checkpoint's owner or a setting is wrong.  Nothing has run.
    Fenced
        If a newer generation took over in the meantime.
    Unavailable
        If a sink does not answer.
    """
    if settings is None:  # a caller with settings of his own has read the variables
        settings = Settings()
        for warning in mistaken_variables():
            log.warning("%s", warning)
    given = {
        "checkpoint_freq": checkpoint_freq,
        "checkpoint_keep": keep,
        "force_graph_change": force,
        "drop_state": drop_state if drop_state is None or isinstance(drop_state, str) else ",".join(drop_state),
        "on_poison": on_poison,
        "on_audit": on_audit,
        "master": master,
        "shards": shards,
        "metrics": metrics,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen:
        settings = Settings(**{**settings.model_dump(), **chosen})
    for warning in start_warnings(pipeline):
        log.warning("%s", warning)
    begins = StartAt.of(pipeline, from_checkpoint=_export(from_checkpoint), at=at, state=state)
    asked = StartOptions(
        pipeline=pipeline,
        checkpoint=_location(checkpoint),
        trigger=trigger,
        commit_every_ticks=commit_every_ticks(commit_every, pipeline.sources),
        commit_thread=commit_thread,
        session=session,
        settings=settings,
        begins=begins,
        until=ends_at(pipeline, until, at=begins.at_us),
        spark_checkpoint=None if spark_checkpoint is None else _location(spark_checkpoint),
        rebuild_state=rebuild_state,
        compares=bool(compare_on_start),
        compared_sinks=_names(compare_on_start),
        digests_only=digests_only,
        only_shard=only_shard,
    )
    return (begin or begin_run)(asked)


def begin_run(asked: StartOptions) -> Run:
    """Begin a run, with the hooks around its start.

    Parameters
    ----------
    asked : StartOptions
        What the start is asked for.
    """
    pipeline = asked.pipeline
    lifecycle = Lifecycle(pipeline.hooks, pipeline.name, shard_of(pipeline.name)[1])
    comparison = partial(_comparison, asked) if asked.compares else None
    starting = Starting(asked, lifecycle, partial(_finish_rewind, asked), comparison)
    lifecycle.set_up()
    try:
        return starting.run()
    except Exception as error:
        lifecycle.fail(error if isinstance(error, HoldfastError) else translate(error, pipeline.name, "the start"))
        raise
    finally:
        if not starting.has_begun:
            lifecycle.tear_down()


def _location(given: str | os.PathLike[str]) -> str:
    found = os.fspath(given)
    if not isinstance(given, str) and _ADDRESS.match(found):
        raise InvalidPipeline(
            f"the checkpoint {found!r} is a path object and begins like an address.",
            why="a path object keeps one slash of two: it would be a directory here.",
            do="give the address as a text.",
        )
    return found


def _export(given: str | os.PathLike[str] | None) -> str | None:
    """Return where to start from: a name or a place as a text, and always a place as a path object."""
    return given if given is None or isinstance(given, str) else os.path.abspath(_location(given))


def _finish_rewind(asked: StartOptions, store: Store, directory: Path) -> None:
    """Carry through a rewind that was interrupted."""
    Rewinding(asked.pipeline, store, directory, asked.settings, asked.session).carry_through()


def _comparison(asked: StartOptions) -> Compares:
    """Return what the start compares; refuse, before anything is done, what cannot be."""
    from holdfast.starts.shadows.comparing import StartComparison  # a start that compares nothing needs none of it

    found = StartComparison(asked.pipeline, asked.compared_sinks, asked.settings, asked.session, asked.digests_only)
    for name, why in found.obstacles.items():
        log.warning("sink %r will not be compared: %s", name, why)
    return found


def _names(compare_on_start: bool | Sequence[str]) -> tuple[str, ...]:
    if isinstance(compare_on_start, bool):
        return ()
    return (compare_on_start,) if isinstance(compare_on_start, str) else tuple(compare_on_start)
