"""What the metrics of a run are: pure functions from its status to labels and numbers.

A number that is not known gives no sample: 0 would say that all is well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from holdfast.positions import lag_between
from holdfast.status import OperatorStatus, ShardState, State, Status
from holdfast.time_use import BUCKETS_S

Sample = tuple[tuple[str, ...], float]
"""Values of the labels of a metric, and the number."""

HistogramSample = tuple[tuple[str, ...], tuple[tuple[str, float], ...], float]
"""Values of the labels, how many were at most so large (the last one: all), and the sum."""

SEGMENTS_MAX = 50
"""So many segments of a source have a number of their own; the others have one together."""

OTHERS = "(others)"

_MARK = "@"


def states(status: Status) -> Iterator[Sample]:
    """Yield 1 for the state of the run, 0 for each other."""
    for state in get_args(State):
        yield (state,), float(status.state == state)


def generation(status: Status) -> Iterator[Sample]:
    """Yield the generation of the run."""
    yield (), status.generation


def epoch(status: Status) -> Iterator[Sample]:
    """Yield the last epoch that every sink has."""
    yield (), status.epoch


def start_time(status: Status) -> Iterator[Sample]:
    """Yield when the run began, seconds of Unix time."""
    if status.started_at_us:
        yield (), status.started_at_us / 1e6


def rows(status: Status) -> Iterator[Sample]:
    """Yield the rows that came in and went out, by node."""
    for source in status.sources:
        yield (source.name, "in"), source.rows
    for node in status.filters:
        if node.rows is not None:
            yield (node.name, "in"), node.rows
        if node.rows is not None and node.filtered is not None:
            yield (node.name, "out"), node.rows - node.filtered
    for sink in status.sinks:
        yield (sink.name, "out"), sink.rows


def retries(status: Status) -> Iterator[Sample]:
    """Yield the failures that were retried."""
    yield (), status.retries


def is_waiting(status: Status) -> Iterator[Sample]:
    """Yield whether a system does not answer and is tried again."""
    yield (), float(bool(status.waits_for))


def queue(status: Status) -> Iterator[Sample]:
    """Yield the epochs that wait for the commit thread."""
    yield (), status.queue


def in_doubt(status: Status) -> Iterator[Sample]:
    """Yield the epochs that are decided and not yet in every sink."""
    yield (), status.in_doubt


def audit_difference(status: Status) -> Iterator[Sample]:
    """Yield the rows by which epochs did not add up."""
    yield (), status.audit_difference


def dead_letters(status: Status) -> Iterator[Sample]:
    """Yield the rows that were isolated and not sent again, by whose they are; of none no sample."""
    for node, count in status.dead_letters.items():
        yield (node,), count


def is_spare_ready(status: Status) -> Iterator[Sample]:
    """Yield whether a spare waits, where there should be one."""
    if status.spare:
        yield (), float(status.spare == "ready")


def replica_waits(status: Status) -> Iterator[Sample]:
    """Yield 1 of a process that waits to take over."""
    if status.is_replica:
        yield (), 1.0


def telemetry_drops(status: Status) -> Iterator[Sample]:
    """Yield how much of what is told to other systems was dropped, by what it is."""
    for what, count in status.drops.items():
        yield (what,), count


# --- time -------------------------------------------------------------------------------------------------------------


def epoch_seconds(status: Status) -> Iterator[HistogramSample]:
    """Yield how long epochs and their stages took."""
    if (totals := status.totals) is None:
        return
    for stage, counts in totals.buckets.items():
        at_most, found = 0, []
        for bound, count in zip((*map(_text, BUCKETS_S), "+Inf"), counts, strict=True):
            at_most += count
            found.append((bound, float(at_most)))
        yield (stage,), tuple(found), totals.stages_s.get(stage, 0.0)


def node_seconds(status: Status) -> Iterator[Sample]:
    """Yield how long each node was at work, by stage."""
    if status.totals is not None:
        for stage, seconds in (("evaluate", status.totals.evaluate_s), ("publish", status.totals.publish_s)):
            for node, spent in seconds.items():
                yield (node, stage), spent


# --- sources ----------------------------------------------------------------------------------------------------------


def lag_rows(status: Status) -> Iterator[Sample]:
    """Yield how many positions each segment is behind; of many segments the last ones together."""
    for source in status.sources:
        if source.newest is None:
            continue
        segments = sorted(segment for segment in source.newest if not segment.startswith(_MARK))
        others: list[int] = []
        for number, segment in enumerate(segments):
            here = {segment: source.positions[segment]} if segment in source.positions else {}
            lag = lag_between(here, {segment: source.newest[segment]})
            if lag is None:
                continue
            if number < SEGMENTS_MAX:
                yield (source.name, segment), lag
            else:
                others.append(lag)
        if others:
            yield (source.name, OTHERS), sum(others)


def lag_seconds(status: Status) -> Iterator[Sample]:
    """Yield for how long each source has had something to read."""
    for source in status.sources:
        if source.lag_s is not None:
            yield (source.name,), source.lag_s


def bound_seconds(status: Status) -> Iterator[Sample]:
    """Yield the time below which each source promises no more rows, seconds of Unix time."""
    for source in status.sources:
        if source.bound_us is not None:
            yield (source.name,), source.bound_us / 1e6


def is_paused(status: Status) -> Iterator[Sample]:
    """Yield whether each source is paused."""
    for source in status.sources:
        yield (source.name,), float(source.is_paused)


def limit_rows_per_s(status: Status) -> Iterator[Sample]:
    """Yield the rows a second that a source may deliver, where they are limited."""
    for source in status.sources:
        if source.limit_rows_per_s is not None:
            yield (source.name,), source.limit_rows_per_s


def rejected_rows(status: Status) -> Iterator[Sample]:
    """Yield malformed rows by reason."""
    for source in status.sources:
        yield from _by_reason(source.name, source.rejects, source.reasons.get("rejects", {}))


def rescued_rows(status: Status) -> Iterator[Sample]:
    """Yield rows with members that are no column, where there are any."""
    for source in status.sources:
        if source.rescued:
            yield (source.name,), source.rescued


# --- operators --------------------------------------------------------------------------------------------------------


def late_rows(status: Status) -> Iterator[Sample]:
    """Yield rows that came too late, by reason."""
    for operator in status.operators:
        yield from _by_reason(operator.name, operator.late, operator.reasons.get("late", {}))


def shed_rows(status: Status) -> Iterator[Sample]:
    """Yield rows that were dropped at the entry, by reason."""
    for operator in status.operators:
        yield from _by_reason(operator.name, operator.shed, operator.reasons.get("shed", {}))


def operator_counts(status: Status) -> Iterator[Sample]:
    """Yield what else the steps of operators count."""
    for operator in status.operators:
        for what, count in operator.counts.items():
            yield (operator.name, what), count


def waiting_rows(status: Status) -> Iterator[Sample]:
    """Yield rows that wait for others."""
    for operator in status.operators:
        yield (operator.name,), operator.waiting_rows


def waiting_keys(status: Status) -> Iterator[Sample]:
    """Yield the keys under which rows wait."""
    for operator in status.operators:
        if operator.waiting_keys is not None:
            yield (operator.name,), operator.waiting_keys


def wait_seconds(status: Status) -> Iterator[Sample]:
    """Yield for how long the key has waited that waits longest, by the input that it waits for."""
    now_us = _now_us()
    for operator in status.operators:
        for name, since_us in _longest(operator).items():
            yield (operator.name, name), max(0.0, (now_us - since_us) / 1e6)


def state_rows(status: Status) -> Iterator[Sample]:
    """Yield rows of state."""
    for operator in status.operators:
        yield (operator.name,), operator.state_rows


def state_bytes(status: Status) -> Iterator[Sample]:
    """Yield bytes of state."""
    for operator in status.operators:
        yield (operator.name,), operator.state_bytes


def snapshots(status: Status) -> Iterator[Sample]:
    """Yield how many snapshots were made, left out, and failed."""
    if (made := status.checkpoints) is not None:
        yield ("made",), made.count
        yield ("dropped",), made.dropped
        yield ("failed",), made.failed


def snapshot_age(status: Status) -> Iterator[Sample]:
    """Yield how old the last snapshot is; before the first, for how long the run has had none."""
    if status.checkpoints is not None:
        since_us = status.checkpoints.at_us or status.started_at_us
        yield (), max(0.0, (_now_us() - since_us) / 1e6)


def snapshot_bytes(status: Status) -> Iterator[Sample]:
    """Yield the size of the last snapshot."""
    if status.checkpoints is not None:
        yield (), status.checkpoints.size_bytes


# --- sinks ------------------------------------------------------------------------------------------------------------


def sink_epoch(status: Status) -> Iterator[Sample]:
    """Yield the highest epoch that each sink has."""
    for sink in status.sinks:
        yield (sink.name,), sink.epoch


def sink_waiting_rows(status: Status) -> Iterator[Sample]:
    """Yield rows that are decided and wait for a sink with a pace of its own."""
    for sink in status.sinks:
        if sink.pace:
            yield (sink.name,), sink.waiting_rows


def sink_staleness(status: Status) -> Iterator[Sample]:
    """Yield the age of the oldest row that each sink lacks."""
    for sink in status.sinks:
        if sink.stale_s is not None:
            yield (sink.name,), sink.stale_s


def sink_freshness(status: Status) -> Iterator[Sample]:
    """Yield how old the oldest row may be that each sink lacks, where that is declared."""
    for sink in status.sinks:
        if sink.freshness_s is not None:
            yield (sink.name,), sink.freshness_s


# --- health -----------------------------------------------------------------------------------------------------------


def is_healthy(status: Status) -> Iterator[Sample]:
    """Yield whether nothing is wrong."""
    yield (), float(status.health.is_healthy)


def expected_rows(status: Status) -> Iterator[Sample]:
    """Yield the rows that met each expectation, and those that did not, in all epochs."""
    for each in status.expectations:
        yield (each.name, "met"), each.rows_total - each.failed_total
        yield (each.name, "failed"), each.failed_total


def is_broken(status: Status) -> Iterator[Sample]:
    """Yield whether each expectation is broken."""
    for each in status.expectations:
        yield (each.name,), float(each.is_broken)


def call_attempts(status: Status) -> Iterator[Sample]:
    """Yield the attempts of each call by what became of them: each is in one."""
    for each in status.calls:
        yield (each.name, "answered"), each.calls - each.retries - each.failed
        yield (each.name, "retried"), each.retries
        yield (each.name, "failed"), each.failed


def call_reuses(status: Status) -> Iterator[Sample]:
    """Yield how many keys of each call had an answer already."""
    for each in status.calls:
        yield (each.name,), each.reused


def call_seconds(status: Status) -> Iterator[Sample]:
    """Yield how long keys of each call waited."""
    for each in status.calls:
        yield (each.name,), each.seconds


def call_costs(status: Status) -> Iterator[Sample]:
    """Yield what the function of each call reports of its costs."""
    for each in status.calls:
        for name, amount in each.cost.items():
            yield (each.name, name), amount


# --- shards -----------------------------------------------------------------------------------------------------------


def shard_states(status: Status) -> Iterator[Sample]:
    """Yield 1 for the state of each shard, 0 for each other."""
    for shard in status.shards:
        for state in get_args(ShardState):
            yield (str(shard.shard), state), float(shard.state == state)


def shard_restarts(status: Status) -> Iterator[Sample]:
    """Yield how often each shard was started again."""
    for shard in status.shards:
        yield (str(shard.shard),), shard.restarts


def _longest(operator: OperatorStatus) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for wait in operator.waits:
        found[wait.input] = min(wait.since_us, found.get(wait.input, wait.since_us))
    return found


def _by_reason(name: str, whole: int, reasons: Mapping[str, int]) -> Iterable[Sample]:
    for reason, count in reasons.items():
        yield (name, reason), count
    if (rest := whole - sum(reasons.values())) or not reasons:
        yield (name, ""), rest


def _now_us() -> int:
    return time.time_ns() // 1000


def _text(bound: float) -> str:
    return repr(float(bound))
