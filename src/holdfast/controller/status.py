"""The status of a pipeline that runs in shards: of each, and all of them in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from holdfast.display.health import with_health
from holdfast.display.tables import ShownStatus
from holdfast.health import CallStatus, ExpectationStatus
from holdfast.positions import Position, lag_between
from holdfast.status import (
    ComparedSink,
    FilterStatus,
    OperatorStatus,
    ShardStatus,
    SinkStatus,
    SourceStatus,
    State,
    Status,
)

StatusT = TypeVar("StatusT", SourceStatus, OperatorStatus, FilterStatus, SinkStatus, ExpectationStatus, CallStatus)


def status_of_all(
    pipeline: str,
    state: State,
    shards: Sequence[ShardStatus],
    pictures: Sequence[Status],
    *,
    started_at_us: int,
    error: str | None = None,
    compared: tuple[ComparedSink, ...] = (),
) -> ShownStatus:
    """Return the status of a run of shards.

    Parameters
    ----------
    pipeline : str
        Its name.
    state : str
        Of the whole.
    shards : sequence of ShardStatus
        Of all shards.
    pictures : sequence of Status
        Of those that have had a run.
    started_at_us : int
        When the whole began.
    error : str, optional
        Why it failed.
    compared : tuple of ComparedSink
        What the start has compared.
    """
    shown = ShownStatus(
        pipeline,
        generation=shards[0].generation if shards else 0,
        state=state,
        rows_total=sum(each.rows_total for each in pictures),
        rows_per_s=sum(each.rows_per_s for each in shards),
        sources=tuple(_source(several) for several in _by_name([each.sources for each in pictures])),
        operators=tuple(_operator(several) for several in _by_name([each.operators for each in pictures])),
        filters=tuple(_filter(several) for several in _by_name([each.filters for each in pictures])),
        sinks=tuple(_sink(several) for several in _by_name([each.sinks for each in pictures])),
        retries=sum(each.retries for each in pictures),
        queue=sum(each.queue for each in pictures),
        in_doubt=sum(each.in_doubt for each in pictures),
        audit_difference=sum(each.audit_difference for each in pictures),
        started_at_us=started_at_us,
        error=error,
        waits_for=next((each.waits_for for each in pictures if each.waits_for), ""),
        doing="" if state in ("stopped", "failed") else _doing(shards),
        shards=tuple(shards),
        compared=compared,
        expectations=tuple(_expectation(several) for several in _by_name([each.expectations for each in pictures])),
        calls=tuple(_call(several) for several in _by_name([each.calls for each in pictures])),
    )
    return with_health(shown)


def _doing(shards: Sequence[ShardStatus]) -> str:
    """Return how many shards there are, and how many of them do not run.

    Examples
    --------
    >>> _doing([ShardStatus(0, "running"), ShardStatus(1, "waiting"), ShardStatus(2, "running")])
    '3 shards, 2 running, 1 waiting'
    """
    counts: dict[str, int] = {}
    for each in shards:
        counts[each.state] = counts.get(each.state, 0) + 1
    return ", ".join([f"{len(shards)} shards", *(f"{count} {state}" for state, count in counts.items())])


def _by_name(several: Iterable[Sequence[StatusT]]) -> list[list[StatusT]]:
    found: dict[str, list[StatusT]] = {}
    for each in several:
        for one in each:
            found.setdefault(one.name, []).append(one)
    return list(found.values())


def _source(several: Sequence[SourceStatus]) -> SourceStatus:
    positions: dict[str, Position] = {}
    newest: dict[str, Position] | None = {}
    for each in several:
        positions |= each.positions
        newest = None if newest is None or each.newest is None else {**newest, **each.newest}
    lags = [each.lag_s for each in several if each.lag_s is not None]
    bounds = [each.bound_us for each in several if each.bound_us is not None]
    limits = [each.limit_rows_per_s for each in several if each.limit_rows_per_s is not None]  # each has its share
    return replace(
        several[0],
        positions=positions,
        newest=newest,
        lag=lag_between(positions, newest),
        rows=sum(each.rows for each in several),
        rejects=sum(each.rejects for each in several),
        rescued=sum(each.rescued for each in several),
        reasons=_reasons(each.reasons for each in several),
        lag_s=max(lags, default=None),
        bound_us=min(bounds, default=None),
        limit_rows_per_s=sum(limits) if limits else None,
    )


def _operator(several: Sequence[OperatorStatus]) -> OperatorStatus:
    waits = sorted((wait for each in several for wait in each.waits), key=lambda wait: wait.since_us)
    keys = [each.waiting_keys for each in several if each.waiting_keys is not None]
    counts: dict[str, int] = {}
    for each in several:
        for name, count in each.counts.items():
            counts[name] = counts.get(name, 0) + count
    return replace(
        several[0],
        state_rows=sum(each.state_rows for each in several),
        state_bytes=sum(each.state_bytes for each in several),
        waiting_rows=sum(each.waiting_rows for each in several),
        late=sum(each.late for each in several),
        shed=sum(each.shed for each in several),
        counts=counts,
        waits=tuple(waits[:10]),
        waiting_keys=sum(keys) if keys else None,
        reasons=_reasons(each.reasons for each in several),
    )


def _reasons(several: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return what became of rows -> reason -> how many, over all shards.

    Examples
    --------
    >>> _reasons([{"late": {"below its bound": 2}}, {"late": {"below its bound": 1}, "shed": {"too many": 4}}])
    {'late': {'below its bound': 3}, 'shed': {'too many': 4}}
    """
    found: dict[str, dict[str, int]] = {}
    for each in several:
        for what, reasons in each.items():
            counts = found.setdefault(what, {})
            for reason, count in reasons.items():
                counts[reason] = counts.get(reason, 0) + count
    return found


def _filter(several: Sequence[FilterStatus]) -> FilterStatus:
    return replace(
        several[0], rows=_sum(each.rows for each in several), filtered=_sum(each.filtered for each in several)
    )


def _sink(several: Sequence[SinkStatus]) -> SinkStatus:
    since = [each.waiting_since_us for each in several if each.waiting_since_us]
    stale = [each.stale_s for each in several if each.stale_s is not None]
    return replace(
        several[0],
        epoch=0,
        rows=sum(each.rows for each in several),
        waiting_epochs=sum(each.waiting_epochs for each in several),
        waiting_rows=sum(each.waiting_rows for each in several),
        waiting_since_us=min(since, default=0),
        stale_s=max(stale, default=None),
    )


def _expectation(several: Sequence[ExpectationStatus]) -> ExpectationStatus:
    broken = [each for each in several if each.is_broken]
    of = broken or several  # the last rows are those of the shards where it is broken, if it is anywhere
    return replace(
        several[0],
        rows=sum(each.rows for each in several),
        failed=sum(each.failed for each in several),
        rows_total=sum(each.rows_total for each in several),
        failed_total=sum(each.failed_total for each in several),
        last_rows=sum(each.last_rows for each in of),
        last_failed=sum(each.last_failed for each in of),
        is_broken=bool(broken),
    )


def _call(several: Sequence[CallStatus]) -> CallStatus:
    return max(several, key=lambda each: each.calls)  # one file has the costs of all; this one was read last


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [*counts]
    return None if None in known else sum(count or 0 for count in known)
