"""The status of a run at one moment: what the coordinator, the epoch loop and Spark's query know of it.

For how long a source has been behind: since when there was something that is not read yet.

Those outside who are told how far the sinks of a run are: of each source the one that it has, if it has one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from holdfast.capabilities import offers
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.spark_log import MARKS, NOWHERE, Offsets
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.delivery import Published
from holdfast.commit.paced import SinkBacklog
from holdfast.connectors.reading.partitioned import BOUND, beneath
from holdfast.display.health import with_health
from holdfast.display.tables import ShownStatus
from holdfast.errors import HoldfastError
from holdfast.graph.event_time import TimeUnit, unit_of
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode, in_order
from holdfast.metrics.outbox import drops
from holdfast.operators.call import ServiceCall
from holdfast.operators.lowering import lowering_of
from holdfast.plan.epoch_times import Graphed, Role, time_use
from holdfast.plan.report import OperatorReports
from holdfast.ports import FollowedSpec, Follower, Held, Sink
from holdfast.positions import SourcePositions, held_by_every, lag_between
from holdfast.replica.spare_note import spare_beside
from holdfast.spark import private
from holdfast.spark.epoch_loop import EpochLoop
from holdfast.spark.spark_times import SparkTimes
from holdfast.status import ComparedSink, FilterStatus, SinkStatus, SourceStatus, State, Status
from holdfast.steer.controls import Controls
from holdfast.time_use import EpochStatus, TimeUse

RATE_S = 10
"""Over how long the rate of rows is taken."""


@dataclass
class Sight:
    """Makes the status of one run; any thread may ask.

    Parameters
    ----------
    pipeline : Graph
        What runs.
    sinks : mapping of str to Sink
        The connected sinks.
    coordinator : Coordinator
        Knows what is published.
    reports : OperatorReports
        Of the stateful operators.
    counted_filters : collection of str
        The operators whose dropped rows are counted.
    started_at_us : int
        When the run began.
    checkpointer : Checkpointer, optional
        Makes snapshots of state, if any is kept.
    compared : tuple of ComparedSink
        What the start has compared.
    in_spark : collection of str
        The nodes that Spark's plan evaluates.
    interval_us : int, optional
        Of the trigger, microseconds; None: the run ends when it has everything.
    controls : Controls
        What the run was told.
    letters : callable
        Returns how many dead letters there are, by whose they are.
    """

    pipeline: Graph
    sinks: Mapping[str, Sink]
    coordinator: Coordinator
    reports: OperatorReports
    counted_filters: Collection[str]
    started_at_us: int
    checkpointer: Checkpointer | None = None
    compared: tuple[ComparedSink, ...] = ()
    in_spark: Collection[str] = ()
    interval_us: int | None = 0
    controls: Controls = field(default_factory=Controls)
    letters: Callable[[], Mapping[str, int]] = dict
    loop: EpochLoop = field(init=False)
    _rates: list[tuple[float, int]] = field(default_factory=list)
    _behind: dict[tuple[str, str], BehindSince] = field(default_factory=dict)
    _spark: SparkTimes = field(default_factory=SparkTimes)

    def status(self, state: State, error: HoldfastError | None, query: StreamingQuery) -> Status:
        """Return the status of a run in a state, with the error that ended it."""
        counted = self.coordinator.statistics()
        progress = _progress(query)
        last = _with_spark_times(self.loop.last_epoch, progress)
        published = counted.published
        rows = sum(sink.row_count for sink in published.values())
        is_idle = state == "running" and private.waits_for_rows(query.status)
        shown = ShownStatus(
            pipeline=self.pipeline.name,
            generation=self.coordinator.generation,
            state=state,
            epoch=min((sink.epoch for sink in published.values()), default=0),
            rows_total=rows,
            rows_per_s=self._rate(rows),
            sources=tuple(self._source(node, is_idle=is_idle) for node in self.pipeline.sources),
            operators=self.reports.statuses(),
            filters=tuple(self._filter(node) for node in self.pipeline.nodes if lowering_of(node).counts_dropped),
            sinks=tuple(
                self._sink(node, published[node.name], counted.waiting.get(node.name), last)
                for node in self.pipeline.sinks
            ),
            retries=counted.retries,
            queue=counted.queue_length,
            in_doubt=counted.decided_unpublished,
            audit_difference=self.loop.checks.difference,
            expectations=self.loop.checks.expectations.statuses(),
            calls=tuple(node.spec.status() for node in self.pipeline.nodes if isinstance(node.spec, ServiceCall)),
            started_at_us=self.started_at_us,
            last_epoch=last,
            error=None if error is None else error.message,
            checkpoints=None if self.checkpointer is None else self.checkpointer.status,
            waits_for=counted.waits_for,
            doing="" if state in ("stopped", "failed") else self._doing(state, is_idle=is_idle),
            compared=self.compared,
            time=self._time_use(progress, waits_for=counted.waits_for, is_final=state in ("stopped", "failed")),
            totals=self.loop.times.totals,
            dead_letters=self.letters(),
            spare=spare_beside(),
            drops=drops(),
        )
        return with_health(shown)

    def time_reached(self) -> int | None:
        """Return the time of the newest rows that every sink holds, its pts; None where one of them knows none."""
        times = [held.pts for held in self.coordinator.holdings.values()]
        known = [pts for pts in times if pts is not None]
        return min(known) if known and len(known) == len(times) else None

    def time_use(self, query: StreamingQuery) -> TimeUse | None:
        """Return where the time of the last epochs went; None before there was one."""
        try:
            return self._time_use(_progress(query), waits_for="", is_final=True)
        except Exception:  # the JVM may be gone: it is for people to read
            log.debug("no times", exc_info=True)
            return None

    def _time_use(self, progress: Mapping[str, Any], *, waits_for: str, is_final: bool) -> TimeUse | None:
        periods, idle_s, since_us = self.loop.times.recent()
        self._spark.note(progress, periods)
        roles: dict[str, Role] = {node.name: "source" if node.is_source else "operator" for node in self.pipeline.nodes}
        roles |= {sink.name: "sink" for sink in self.pipeline.sinks}
        of = Graphed(roles, self.in_spark, self.interval_us, self.loop.held_sources)
        if (at_work := self.loop.times.at_work(self.coordinator.busy)) is not None:
            periods = (*periods, at_work)
        idle = (0.0, 0) if is_final else (idle_s, since_us)
        return time_use(of, periods, idle, self._spark.seconds(), waits_for)

    def _doing(self, state: State, *, is_idle: bool) -> str:
        """Return what the run does now: its epoch, or what it waits for."""
        if epoch := self.loop.doing:
            return epoch
        if state == "stopping":
            return "publishing what is decided"
        if not is_idle:
            return "looking for new rows"
        if all(self.controls.is_paused(node.name) for node in self.pipeline.sources):
            return "paused"
        are_files = all(node.kind == "files" for node in self.pipeline.sources)
        return "waiting for files" if are_files else "waiting for new rows"

    def _sink(
        self, node: SinkNode, published: Published, backlog: SinkBacklog | None, last: EpochStatus | None
    ) -> SinkStatus:
        backlog = backlog or SinkBacklog()
        return SinkStatus(
            name=node.name,
            kind=node.kind,
            guarantee=node.guarantee.value,
            staging=self.sinks[node.name].staging,
            epoch=published.epoch,
            rows=published.row_count,
            last_choice="" if last is None else "carried" if last.carried else "staged",
            pace="" if node.pace is None else str(node.pace),
            waiting_epochs=backlog.epochs,
            waiting_rows=backlog.rows,
            waiting_since_us=backlog.since_us,
            stale_s=self._stale_s(node),
            freshness_s=None if node.freshness_us is None else node.freshness_us / 1e6,
        )

    def _filter(self, node: Node) -> FilterStatus:
        if node.name not in self.counted_filters:
            return FilterStatus(node.name)
        return FilterStatus(
            node.name, self.loop.source_rows.get(node.name, 0), self.loop.source_rejects.get(node.name, 0)
        )

    def _source(self, node: Node, *, is_idle: bool) -> SourceStatus:
        reached = self.loop.last_positions.positions.get(node.name, {})
        positions = _of_rows(reached)
        seen = self.loop.at_work or self.loop.last_positions  # an epoch that hangs has seen what is not published
        is_first = self.loop.last_positions is NOWHERE  # then a segment may begin anywhere: how many rows is not known
        newest = None if is_first else seen.newest.get(node.name)
        lag = lag_between(positions, newest)
        if lag is None and is_idle:
            lag = 0  # it was asked and had nothing: also before the first epoch reports its position
        return SourceStatus(
            name=node.name,
            positions=positions,
            newest=newest,
            lag=lag,
            rows=self.loop.source_rows.get(node.name, 0),
            rejects=self.loop.source_rejects.get(node.name, 0),
            reasons=self._reasons(node.name),
            rescued=self.loop.source_rescued.get(node.name, 0),
            lag_s=self._lag_s(node.name, positions, seen),
            bound_us=_bound_us(node, positions),
            is_paused=self.controls.is_paused(node.name),
            limit_rows_per_s=self.controls.limits.get(node.name),
        )

    def _reasons(self, source: str) -> dict[str, dict[str, int]]:
        of = {"rejects": self.loop.source_reasons.get(source), "rescued": self.loop.source_members.get(source)}
        return {what: counts for what, counts in of.items() if counts}

    def _stale_s(self, sink: SinkNode) -> float | None:
        """Return the age of the oldest row that was there and that a sink lacks."""
        held = self.coordinator.holdings.get(sink.name, Held()).positions
        seen = self.loop.at_work or self.loop.last_positions
        ages = [
            self._lag_s(node.name, _of_rows(held.get(node.name, {})), seen, sink.name)
            for node in in_order(sink.inputs)
            if node.is_source
        ]
        known = [age for age in ages if age is not None]
        return max(known) if len(known) == len(ages) and known else None

    def _lag_s(self, name: str, positions: SourcePositions, seen: Offsets, sink: str = "") -> float | None:
        newest = seen.newest.get(name)
        if newest is None or lag_between(positions, newest) is None:
            return None
        behind = self._behind.setdefault((name, sink), BehindSince())
        return behind.lag_s(positions, newest, seen.batch_us, time.time_ns() // 1000)

    def _rate(self, rows: int) -> float:
        now = time.monotonic()
        self._rates = [(at, count) for at, count in self._rates if now - at <= RATE_S] or [(now, rows)]
        at, count = self._rates[0]
        self._rates.append((now, rows))
        return (rows - count) / (now - at) if now > at else 0.0


def _of_rows(positions: SourcePositions) -> SourcePositions:
    return {segment: at for segment, at in positions.items() if segment not in MARKS.values()}


def _bound_us(node: Node, positions: SourcePositions) -> int | None:
    """Return the bound in a source's positions, if its ticks are microseconds."""
    bound = positions.get(BOUND)
    return bound if isinstance(bound, int) and unit_of(node) is TimeUnit.MICROSECONDS else None


def _progress(query: StreamingQuery) -> dict[str, Any]:
    """Return what Spark reported of its last trigger; empty before the first."""
    progress = query.lastProgress
    return {} if progress is None else json.loads(progress.json)


def _with_spark_times(epoch: EpochStatus | None, progress: dict[str, Any]) -> EpochStatus | None:
    """Return the epoch with the milliseconds that Spark spent around it: planning, and its two log writes."""
    spent: dict[str, float] = progress.get("durationMs") or {}
    if epoch is None or not spent.get("addBatch"):
        return epoch
    plan = sum(spent.get(stage, 0) for stage in ("latestOffset", "getBatch", "queryPlanning"))
    logs = sum(spent.get(stage, 0) for stage in ("walCommit", "commitOffsets"))
    mine = epoch.duration_ms
    return replace(epoch, duration_ms={**mine, "plan": mine.get("plan", 0) + plan, "log": logs})


KEPT = 1000
"""So many moments are remembered; the oldest is never let go before it is reached."""


class BehindSince:
    """What was the newest of one source, and when that was seen first; any thread may ask, one at a time.

    Examples
    --------
    >>> of = BehindSince()
    >>> of.lag_s({"log": 3}, {"log": 5}, seen_us=1_000_000, now_us=1_000_000)
    0.0
    >>> of.lag_s({"log": 4}, {"log": 9}, seen_us=3_000_000, now_us=4_000_000)
    3.0
    >>> of.lag_s({"log": 6}, {"log": 9}, seen_us=3_000_000, now_us=5_000_000)
    2.0
    >>> of.lag_s({"log": 9}, {"log": 9}, seen_us=3_000_000, now_us=6_000_000)
    0.0
    """

    def __init__(self) -> None:
        self._seen: list[tuple[int, SourcePositions]] = []

    def lag_s(self, positions: SourcePositions, newest: SourcePositions, seen_us: int, now_us: int) -> float:
        """Return for how many seconds there has been something behind positions.

        Parameters
        ----------
        positions, newest : mapping of str to int or str
            What was published, and what was there when that was planned.
        seen_us, now_us : int
            When that was, and now; microseconds of Unix time.
        """
        seen = [each for each in self._seen if lag_between(positions, each[1])]
        if lag_between(positions, newest) and (not seen or seen[-1][1] != newest):
            seen.append((seen_us, dict(newest)))
        self._seen = [*seen[:1], *seen[1:][-KEPT:]]
        return max(0.0, (now_us - seen[0][0]) / 1e6) if seen else 0.0


log = logging.getLogger("holdfast.run")


class Followers:
    """The followers of one run.

    Parameters
    ----------
    pipeline : Graph
        Its sources are asked.
    """

    def __init__(self, pipeline: Graph) -> None:
        self._by_source: dict[str, Follower] = {}
        for node in pipeline.sources:
            spec = beneath(node.source_spec)
            follower = spec.follower(node.name) if offers(spec, FollowedSpec) else None
            if follower is not None:
                self._by_source[node.name] = follower

    def tell(self, held: Mapping[str, Held]) -> None:
        """Tell them what every sink holds.  Any thread may; returns at once."""
        if not self._by_source:
            return
        positions = held_by_every(each.positions for each in held.values())
        for source, follower in self._by_source.items():
            if source in positions:
                follower.tell(positions[source])

    def close(self) -> None:
        """Let each tell its last."""
        for follower in self._by_source.values():
            follower.close()
