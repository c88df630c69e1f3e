"""Health: whether something is wrong with a run that a person should know of; a line for each reason.

A pure function of its status, which has what the pipeline declares: so a page, a scrape, a hook and ``holdfast status
--check`` say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from holdfast.health import ExpectationStatus, Health
from holdfast.status import Status
from holdfast.types.units import duration_text

StatusT = TypeVar("StatusT", bound=Status)


def with_health(status: StatusT) -> StatusT:
    """Return a status that says what is wrong."""
    return replace(status, health=health_of(status))


def health_of(status: Status) -> Health:
    """Return what is wrong with a run.

    Parameters
    ----------
    status : Status
        Of the run; its own ``health`` is not looked at.

    Examples
    --------
    >>> from holdfast.status import SinkStatus
    >>> table = SinkStatus("table", "sqlite", "exactly-once", stale_s=400.0, freshness_s=300.0)
    >>> health_of(Status("trips", state="running", sinks=(table,))).reasons
    ("sink 'table' lacks a row that is 400 s old, and 5 min are allowed.",)
    """
    return Health(tuple(_reasons(status)))


def _reasons(status: Status) -> Iterator[str]:
    if status.state == "failed":
        yield f"the run has failed: {_line(status.error or 'it does not say why')}"
    if status.state == "stopped":
        yield "the run has ended."
    if status.waits_for:
        yield f"a system does not answer, and is tried again: {_line(status.waits_for)}"
    if status.audit_difference:
        yield f"the rows of epochs do not add up, by {status.audit_difference:,}: holdfast inspect --audit."
    for shard in status.shards:
        if shard.state in ("waiting", "failed"):
            yield f"shard {shard.shard} does not run: {_line(shard.error or shard.state)}"
    for sink in status.sinks:
        if sink.freshness_s is not None and sink.stale_s is not None and sink.stale_s > sink.freshness_s:
            allowed = duration_text(round(sink.freshness_s * 1e6))
            yield f"sink {sink.name!r} lacks a row that is {sink.stale_s:,.0f} s old, and {allowed} are allowed."
    yield from map(broken_text, filter(lambda each: each.is_broken, status.expectations))
    if status.checkpoints is not None and status.checkpoints.is_failing:
        yield f"no snapshot of the state can be made: {_line(status.checkpoints.last_error)}"


def broken_text(of: ExpectationStatus) -> str:
    """Return why an expectation is broken, in a line.

    Examples
    --------
    >>> broken_text(ExpectationStatus("valid", "speed > 0", max_fraction=0.01, last_rows=50, last_failed=3))
    "expectation 'valid' (speed > 0) is broken: 3 of the last 50 rows do not meet it, and 0.01 of them may."
    """
    return (
        f"expectation {of.name!r} ({of.within}) is broken: {of.last_failed:,} of the last {of.last_rows:,} rows do not "
        f"meet it, and {of.max_fraction:g} of them may."
    )


def _line(text: str) -> str:
    return " ".join(text.split("\n", 1)[0].split())
