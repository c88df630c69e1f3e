"""Starts of a pipeline in shards: one layout, one session, a start for each shard."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from holdfast.checkpoint.directory_header import newest_directory
from holdfast.clock import SystemClock
from holdfast.controller.beginning import ShardsBeginning
from holdfast.controller.checks import (
    check_count,
    check_key,
    check_options,
    check_scratch,
    check_shard,
    shard_key_of,
)
from holdfast.controller.comparing import ShardsComparison
from holdfast.controller.controller import ShardedRun
from holdfast.controller.kept_shard import KeptShard, ShardWays
from holdfast.controller.layouts.dealing import Dealing
from holdfast.controller.layouts.first_layout import FirstLayout
from holdfast.controller.layouts.found_shards import known_layout, layout_there
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.layouts.own_segments import OwnSegments
from holdfast.controller.layouts.rearranging import Rearranging
from holdfast.controller.named_parts import ShardParts
from holdfast.controller.rewinding import ShardsRewinding
from holdfast.controller.rivals import Rivals
from holdfast.controller.steering import listen
from holdfast.controller.telling import begin_followed
from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.graph.graph import Graph
from holdfast.graph.hooks import Lifecycle
from holdfast.retry import RetryPolicy
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.shards.progress import write_progress
from holdfast.spark.failure import translate
from holdfast.spark.launch.early import rows_in_jvm
from holdfast.spark.launch.session import answers, is_fair, session_of
from holdfast.spark.physical_plan import columns_of_sinks
from holdfast.spark.run import Run
from holdfast.starts.context import StartOptions
from holdfast.starts.in_doubt import take_over_alone
from holdfast.starts.rewind import Rewinding
from holdfast.starts.start import begin_run
from holdfast.starts.start import start as start_as_asked
from holdfast.store.paths import checkpoint_directory, open_store
from holdfast.store.scratch import ScratchedStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.run")


def start(pipeline: Graph, **options: Any) -> Run:
    """Start a pipeline, as one run or in shards; takes what :func:`holdfast.starts.start.start` takes."""
    return start_as_asked(pipeline, begin=begin, **options)


def begin(asked: StartOptions) -> Run:
    """Begin a run as one, or in shards, where that is asked for or was so before; it has the methods of a run.

    Parameters
    ----------
    asked : StartOptions
        What the start is asked for.
    """
    return begin_followed(asked.pipeline, asked.settings, lambda: _steered_run(asked))


def _steered_run(asked: StartOptions) -> Run:
    run = _begin(asked)
    if asked.only_shard is None:
        listen(run, _directory_of(asked))
    return run


def _begin(asked: StartOptions) -> Run:
    wanted = asked.settings.shards
    is_divided = asked.pipeline.shard_by is not None  # then also one shard reads segments, to which rows are held
    is_one = not wanted or (wanted == 1 and not is_divided)
    if is_one and asked.only_shard is None and not _has_shards(asked):
        return begin_run(_as_one(asked))
    check_options(asked)
    starts = ShardStarts(asked, _directory_of(asked))
    return starts.alone(asked.only_shard) if asked.only_shard is not None else cast("Run", starts.all())


def _as_one(asked: StartOptions) -> StartOptions:
    """Return what one run is asked for: it looks whether it still is one when it has been taken over."""
    try:
        graphs = ShardGraphs(asked.pipeline, _directory_of(asked))
    except InvalidPipeline:  # it runs in no shards
        return asked
    return replace(asked, on_takeover=OwnSegments(graphs).check)


def _has_shards(asked: StartOptions) -> bool:
    """Return whether the pipeline ran in shards before, as its checkpoint says, or, where it is lost, its sinks."""
    directory, settings = _directory_of(asked), asked.settings
    retry = RetryPolicy(settings.retry_attempts, settings.retry_first_s, settings.retry_cap_s)
    found = retry.call(lambda: known_layout(asked.pipeline, directory), lambda error: isinstance(error, Unavailable))
    return found is not None


def _directory_of(asked: StartOptions) -> Path:
    return checkpoint_directory(asked.checkpoint, scratch_base=asked.spark_checkpoint)


@dataclass(frozen=True)
class ShardStarts:
    """The starts of a pipeline's shards.

    Parameters
    ----------
    asked : StartOptions
        What the start of the whole is asked for.
    directory : Path
        The checkpoint of the pipeline.
    """

    asked: StartOptions
    directory: Path

    def all(self) -> ShardedRun:
        """Start all shards; return when each has been tried."""
        pipeline, settings = self.asked.pipeline, self.asked.settings
        if settings.shards:
            check_count(settings.shards)
        by = shard_key_of(pipeline)
        graphs = ShardGraphs(pipeline, self.directory)
        store = open_store(str(self.directory))
        scratch = store if isinstance(store, ScratchedStore) else None
        if scratch is None:
            store.prepare()
        comparison = ShardsComparison(graphs, self.directory, self.asked)
        if self.asked.compares:
            comparison.check()
        lifecycle = Lifecycle(pipeline.hooks, pipeline.name, shard=None)
        lifecycle.set_up()
        try:
            known = layout_there(store, self.directory)
            if scratch is not None and known is None:
                scratch.refresh()
            check_key(pipeline.name, known, by)
            begins_with = self._beginning(graphs).first_layout(settings.shards, by)
            first = FirstLayout(graphs, self._rearranging.moving, self._columns)
            is_first = known is None and not newest_directory(store)
            layout = first.record(settings.shards or 1, by, begins_with) if is_first else known
            if scratch is not None:
                self._let_serve(scratch, graphs, layout)
            if known is not None:
                self._rewinding(graphs, known).carry_through()
                if to_open := self._rearranging.to_open:
                    first.open(to_open)
            self._rearranging.arrange(settings.shards, by)
            layout = Dealing(graphs, store, self._rearranging.moving).layout()
            parts = ShardParts(pipeline.name, self.directory, layout, settings)
            parts.names.sweep()
            compared = comparison.mend(layout, self._session) if self.asked.compares else ()
            rivals = Rivals(pipeline.name, parts.names.stores[: layout.shard_count])
            shards = [self._shard(graphs, layout, shard, rivals) for shard in range(layout.shard_count)]
            clock = SystemClock()
            run = ShardedRun(
                pipeline,
                shards,
                record=lambda each: write_progress(store, layout.number, each, clock.now_us()),
                record_every_s=settings.controller_freq / 1000,
                put_name=parts.of_running,
                compared=compared,
                tear_down=lifecycle.tear_down,
            )
            run.begin()
        except Exception as error:
            lifecycle.fail(error if isinstance(error, HoldfastError) else translate(error, pipeline.name, "the start"))
            lifecycle.tear_down()
            raise
        return run

    def _let_serve(self, scratch: ScratchedStore, graphs: ShardGraphs, layout: ShardLayout | None) -> None:
        """Let a scratch serve all shards: restore the logs in it from the sinks of all, unless they are theirs.

        Without a layout they are those of one run, which has taken care of them.
        """
        if layout is not None and not scratch.serves():
            moving = partial(self._rearranging.moving, prepares=False)
            FirstLayout(graphs, moving, self._columns).restore(layout, scratch.refresh)
        scratch.serve()

    def alone(self, shard: int) -> Run:
        """Start one shard, which the checkpoint must have; its layout is not changed."""
        pipeline = self.asked.pipeline
        store = open_store(str(self.directory))
        layout = check_shard(pipeline.name, newest_layout(store), shard)
        check_scratch(pipeline.name, store, shard)
        self._rearranging.check_finished()
        graphs = ShardGraphs(pipeline, self.directory)
        self._beginning(graphs).check_noted()
        self._rewinding(graphs, layout).check_finished()
        return begin_run(self._asked_of(graphs, layout, shard))

    @property
    def _rearranging(self) -> Rearranging:
        return Rearranging(self.asked.pipeline, self.directory, self.asked.settings)

    def _beginning(self, graphs: ShardGraphs) -> ShardsBeginning:
        return ShardsBeginning(graphs, self.directory, self.asked.begins)

    def _rewinding(self, graphs: ShardGraphs, layout: ShardLayout) -> ShardsRewinding:
        """Return what carries a rewind of all shards through that was interrupted."""
        shards = {}
        for shard in range(layout.shard_count):
            asked = self._asked_of(graphs, layout, shard)
            store, directory = open_store(asked.checkpoint), Path(asked.checkpoint)
            shards[shard] = Rewinding(asked.pipeline, store, directory, asked.settings, asked.session)
        return ShardsRewinding(graphs.pipeline.name, open_store(str(self.directory)), shards)

    def _shard(self, graphs: ShardGraphs, layout: ShardLayout, shard: int, rivals: Rivals) -> KeptShard:
        settings, session = self.asked.settings, self._session
        asked = self._asked_of(graphs, layout, shard)
        hooks = replace(asked.pipeline.hooks, on_setup=None, on_teardown=None)  # called once, for all of them
        name = asked.pipeline.name
        asked = replace(asked, pipeline=replace(asked.pipeline, hooks=hooks), session=session, pool=name)
        return KeptShard(
            shard,
            name,
            ShardWays(
                start=partial(begin_run, asked),
                take_over=partial(take_over_alone, asked.pipeline, open_store(asked.checkpoint), settings),
                translate=lambda error: translate(error, name, "the start"),
                has_jvm=partial(answers, session),
                check=rivals.check,
            ),
            RetryPolicy(settings.max_restarts + 1, settings.restart_first_s, settings.restart_cap_s),
        )

    def _asked_of(self, graphs: ShardGraphs, layout: ShardLayout, shard: int) -> StartOptions:
        checkpoint = shard_checkpoint(str(self.directory), shard)
        return replace(
            self.asked,
            pipeline=graphs.of(layout, shard),
            checkpoint=checkpoint,
            on_takeover=OwnSegments(graphs, layout, shard).check,
            begins=self._beginning(graphs).of_shard(shard),
            compares=False,  # that is done for all shards at once
        )

    def _columns(self) -> Mapping[str, pa.Schema]:
        return columns_of_sinks(self.asked.pipeline, self._session, is_columnar=self.asked.settings.columnar)

    @cached_property
    def _session(self) -> SparkSession:
        """A session on the context of all shards; it is said if its jobs would wait for each other."""
        asked = self.asked
        session = asked.session or session_of(asked.settings, rows=rows_in_jvm(asked.pipeline, asked.settings))
        if not is_fair(session):
            log.warning(
                "the session that was given schedules jobs first come, first served: a large epoch of one shard holds "
                "the others up; create it with spark.scheduler.mode=FAIR"
            )
        return session


def shard_graphs(pipeline: Graph, layout: ShardLayout, directory: Path) -> Iterator[Graph]:
    """Yield the graph of each shard, for who asks their sinks."""
    graphs = ShardGraphs(pipeline, directory)
    for shard in range(layout.shard_count):
        yield graphs.of(layout, shard)
