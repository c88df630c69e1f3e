"""The pipeline: a checked graph with a name, which can be started, explained, drawn and fingerprinted.

Building one runs nothing and opens nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import InvalidPipeline
from holdfast.graph import building, checks, naming
from holdfast.graph import checks as forgotten
from holdfast.graph.commit_at import CommitAtPts, commit_at_of
from holdfast.graph.graph import Graph, nodes_of
from holdfast.graph.hooks import NONE, Hooks
from holdfast.graph.nodes import SinkNode, Stream
from holdfast.graph.trigger import Trigger, every

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession

    from holdfast.config import Settings
    from holdfast.spark.run import Run


class Pipeline(Graph):
    """A checked graph with a name: the unit that runs, commits and recovers as a whole.

    Parameters
    ----------
    name : str
        The pipeline's identity in its checkpoint and in every sink's ledger.
    *sinks : SinkNode
        The sinks, each attached to its stream.
    unused : iterable of Stream
        Streams that intentionally have no sink.
    hooks : Hooks
        What is called at the beginning and the end of each run, and at checkpoints.  No part of the graph.
    commit_at : str or CommitAtPts, optional
        ``"pts"`` (or :func:`~holdfast.graph.commit_at.pts`, which says more): commit only what lies strictly before
        pts, the minimum over all inputs of the next timestamp that may still come, and only when pts has changed.
        By default each epoch commits what it gives.
    shard_by : str, optional
        The column by which rows of one key are in one segment of their source: then results are the same in however
        many shards the pipeline runs.  Checked here for the graph, and of each row when it is read: one of a value that
        another segment has had is rejected (``docs/shards.md``).
    shards : str, optional
        ``"independent"``: where the pipeline runs in shards, each keeps state of its own, and gives a result of the
        segments that it reads.  By default a pipeline that keeps state runs as one.

    Raises
    ------
    InvalidPipeline
        If the graph is wrong; names the node and the line that built it.

    Examples
    --------
    ::

        flights = hf.read.files("data/flights", schema="origin STRING, dep_delay INT", name="flights")
        pipeline = hf.Pipeline("trips", flights | hf.write.sqlite("trips.db", table="flights", name="flights_table"))
        pipeline.run(checkpoint="ckpt/trips", trigger=hf.available_now())
    """

    def __init__(
        self,
        name: str,
        *sinks: SinkNode,
        unused: Iterable[Stream] = (),
        hooks: Hooks = NONE,
        commit_at: Literal["pts"] | CommitAtPts | None = None,
        shard_by: str | None = None,
        shards: Literal["independent"] | None = None,
    ) -> None:
        built_at = naming.origin()
        listed = tuple(unused)
        checks.check_arguments(name, sinks, built_at)
        checks.check_hooks(name, hooks, built_at)
        checks.check_shards(name, shards, built_at)
        if any(sink.inputs and sink.inputs[0].shape.changes for sink in sinks):
            from holdfast.plan.gating import in_order

            sinks = tuple(map(in_order, sinks))
        nodes = nodes_of(sinks)
        checks.check_graph(name, nodes, sinks)
        if shard_by is not None:
            from holdfast.plan.shard_key import check_shard_key

            check_shard_key(name, nodes, sinks, shard_by, built_at)
        boundary = commit_at_of(commit_at, name)
        building.adopt(sinks)
        if boundary is not None:
            checks.check_boundary(sinks, name)
            from holdfast.plan.gating import gated

            sinks = gated(name, nodes, sinks, boundary, built_at)
            nodes = nodes_of(sinks)
            checks.check_graph(name, nodes, sinks)
        super().__init__(name, tuple(sinks), nodes, listed, built_at, hooks, boundary, shard_by, shards)
        building.adopt((*nodes, *sinks))

    def start(self, *, checkpoint: str | os.PathLike[str], trigger: Trigger | None = None, **options: Any) -> Run:
        """Start the pipeline and return its run; of several shards one that has the same methods.

        Parameters
        ----------
        checkpoint : str or path
            Directory or URL that belongs to this pipeline alone.
        trigger : Trigger, optional
            ``hf.every("100 ms")`` (the default) or ``hf.available_now()``.
        **options
            Options of the engine, see :func:`holdfast.starts.start.start`.

        Raises
        ------
        InvalidPipeline
            If a stream of this pipeline leads to no sink, the checkpoint belongs to another pipeline, or this Spark
            cannot run it (an older version, a session of Spark Connect).
        """
        forgotten.check(self)
        # Imported here, the JVM's start before the rest: a graph is built, checked and drawn without Java and PySpark.
        from holdfast.spark.launch import early
        from holdfast.spark.spark_versions import require_spark

        require_spark(options.get("session"), self.sources)
        early.begin(self, options)
        from holdfast.controller.start import start

        return start(self, checkpoint=checkpoint, trigger=trigger or every("100 ms"), **options)

    def run(self, *, checkpoint: str | os.PathLike[str], trigger: Trigger | None = None, **options: Any) -> Run:
        """Start the pipeline, wait for its end, and return its run.  Takes what :meth:`start` takes."""
        run = self.start(checkpoint=checkpoint, trigger=trigger, **options)
        run.wait()
        return run

    def backfill(
        self,
        *,
        checkpoint: str | os.PathLike[str],
        at: str | datetime | int,
        until: str | datetime | int,
        sources: Sequence[str] = (),
        leave_out: Sequence[str] = (),
        rate: float | None = None,
        again: bool = False,
        empty_state: bool = False,
        spark_checkpoint: str | os.PathLike[str] | None = None,
        session: SparkSession | None = None,
        settings: Settings | None = None,
    ) -> Run:
        """Read a range of the past through this graph, beside the run of the pipeline, and return its run.

        The same call again goes on where it was; where every sink holds the range, its run ends at once.

        Parameters
        ----------
        checkpoint : str or path
            That of the pipeline, which has run there and may run now; the backfill has its own below it.
        at, until : str, datetime or int
            The range, as of :meth:`start`; ``until`` is exclusive.  On the command line ``--from`` and ``--to``.
        sources : sequence of str
            The sources that are read; by default all.  A sink that needs another one is to be left out.
        leave_out : sequence of str
            Sinks that get nothing; on the command line ``--except``.
        rate : float, optional
            Rows a second that each source delivers at most.
        again : bool
            Write rows that sinks may hold already: twice where they append, over newer ones where a key has no time.
        empty_state : bool
            Let operators that keep state begin without any; it is asked for where the graph has some.
        spark_checkpoint : str or path, optional
            As of :meth:`start`: where the pipeline has its scratch, if not below the checkpoint.
        session : SparkSession, optional
            Use this session's context.
        settings : Settings, optional
            Default: read from ``HOLDFAST_*`` variables.

        Returns
        -------
        Run
            Its run; where it is done, one that ends at once.

        Raises
        ------
        InvalidPipeline
            If a source cannot be limited to a range, a sink cannot be backfilled, or one may hold the rows already.

        Examples
        --------
        ::

            run = pipeline.backfill(checkpoint="ckpt/trips", at="2026-01-01", until="2026-02-01", rate=5000)
            run.wait()
        """
        forgotten.check(self)
        from holdfast.spark.launch import early
        from holdfast.spark.spark_versions import require_spark

        require_spark(session, self.sources)
        from holdfast.controller.backfill import backfilling

        made = backfilling(
            self,
            checkpoint=os.fspath(checkpoint),
            at=at,
            until=until,
            sources=sources,
            leave_out=leave_out,
            again=again,
            empty_state=empty_state,
            spark_checkpoint=None if spark_checkpoint is None else os.fspath(spark_checkpoint),
        )
        early.begin(made.graph, {"session": session, "settings": settings})
        return made.start(rate=rate, session=session, settings=settings)

    def explain(self, *, session: SparkSession | None = None) -> str:
        """Return the pipeline in words: every node, its guarantee, what is shared, what to mind.

        Parameters
        ----------
        session : SparkSession, optional
            Asked about what Spark's plan evaluates (``map``, ``sql``); without one the text says what is left to it.

        Raises
        ------
        InvalidPipeline
            What a start would raise about the graph, as far as it can be known: by the same functions.
        """
        from holdfast.explain import explain
        from holdfast.plan.cutting import left_to_spark

        unchecked = left_to_spark(self)
        if unchecked and session is not None:
            from holdfast.spark.spark_versions import require_spark

            require_spark(session, self.sources)
            from holdfast.spark.physical_plan import check_compiled

            check_compiled(self, session)
            unchecked = ()
        return explain(self, unchecked)


def start_all(pipelines: Sequence[Pipeline], *, checkpoint: str | os.PathLike[str], **options: Any) -> list[Run]:
    """Start several independent pipelines in one process: each with its own coordinator, epochs and pts.

    Parameters
    ----------
    pipelines : sequence of Pipeline
        Their names must differ.
    checkpoint : str or path
        Directory; each pipeline gets ``<checkpoint>/<pipeline>``.
    **options
        As for :meth:`Pipeline.start`.

    Returns
    -------
    list of Run
        In the order of ``pipelines``.  When one cannot be started, those already started are stopped.
    """
    names = [pipeline.name for pipeline in pipelines]
    if len(set(names)) != len(names):
        raise InvalidPipeline(
            f"start_all was given several pipelines of one name: {', '.join(names)}.",
            why="the name is the identity of a pipeline in its checkpoint and in every sink.",
            do="give each pipeline a name of its own.",
        )
    from holdfast.config import Settings
    from holdfast.spark.launch.early import rows_in_jvm

    settings = options.get("settings") or Settings()
    if settings.jvm == "auto" and len({rows_in_jvm(each, settings) for each in pipelines}) > 1:
        # They share a JVM, which the first one starts: other rows of another one enter it.
        options["settings"] = Settings(**{**settings.model_dump(), "jvm": "full"})
    runs: list[Run] = []
    try:
        for pipeline in pipelines:
            runs.append(pipeline.start(checkpoint=f"{os.fspath(checkpoint).rstrip('/')}/{pipeline.name}", **options))
    except BaseException:
        for run in runs:
            run.stop()
        raise
    return runs
