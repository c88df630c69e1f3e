"""What buckets report to the driver: counts, sizes and the longest waits; folded, shown, and kept in the checkpoint.

A bucket reports how large its state is and what it counted, in every epoch that called its step.  To know what keys
wait for takes a scan of what waits; so a worker does it only as often as it costs a twentieth of its time.  The driver
adds up, and regularly writes the newest report into the checkpoint, where ``holdfast inspect`` reads it without a JVM.
"""

from __future__ import annotations

import heapq
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import invariant
from holdfast.graph.side_outputs import SideOutput
from holdfast.json_values import as_json
from holdfast.operators.waits import WAITS_MAX
from holdfast.ports import Clock, Store
from holdfast.state.bucket_report import BucketReport
from holdfast.state.keyed import parted
from holdfast.status import STATE_REPORT_KEY, OperatorStatus
from holdfast.time_use import TimeUse

if TYPE_CHECKING:
    from holdfast.graph.nodes import Node
    from holdfast.plan.audit import Auditor

KEEP_EVERY_S = 30
"""How often the report in the checkpoint is replaced, besides the first epoch and the end of a run."""

NO_REJECTS: Mapping[str, Mapping[str, int]] = {}
"""Source -> reason -> count, where nothing was rejected."""

_SHARE = 1 / 20

log = logging.getLogger("holdfast.run")


class Pace:
    """How often things that cost time may be done: so that all of them together take at most a twentieth of it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s: dict[str, float] = {}

    def measured(self, name: str, look: Callable[[], Any]) -> Any | None:
        """Do it and return what it gives; None where it is too early."""
        began = self._now_s()
        if began < self._next_s.get(name, began):
            return None
        found = look()
        ended = self._now_s()
        self._next_s[name] = ended  # counted below, also the first time
        self._next_s[name] = ended + (ended - began) / _SHARE * len(self._next_s)
        return found


class OperatorReports:
    """What all buckets of a run have reported.  Lives on the driver; read from any thread.

    Parameters
    ----------
    kinds : mapping of str to str
        Stateful operator -> its kind, in the order of the graph.
    store : Store
        The checkpoint.
    clock : Clock
        For the interval of keeping.
    generation : int
        Of this run.
    auditor : Auditor, optional
        Whose book is kept with the report.
    drops_late : collection of str
        Operators whose late rows go nowhere, because nothing reads their side output: the first ones are warned of.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        store: Store,
        clock: Clock,
        generation: int,
        auditor: Auditor | None = None,
        drops_late: Collection[str] = (),
    ) -> None:
        self._kinds = kinds
        self._store = store
        self._clock = clock
        self._generation = generation
        self._auditor = auditor
        self._drops_late = set(drops_late)
        self._kept_us: int | None = None
        self._epoch = 0
        self._book = None if auditor is not None else _kept_report(store).get("audit")
        self._buckets: Mapping[str, BucketReport] = _kept_buckets(store, kinds) if kinds else {}
        self._counts: Mapping[str, Mapping[str, int]] = {}
        self._rejects: Mapping[str, Mapping[str, int]] = {}
        self.time_use: Callable[[], TimeUse | None] = lambda: None
        """Returns where the time goes, to be kept with the rest."""

    def note(
        self, epoch: int, reported: Mapping[str, BucketReport], rejects: Mapping[str, Mapping[str, int]] = NO_REJECTS
    ) -> None:
        """Take in what the buckets (``operator/bucket``) reported in an epoch; keep the report if that is due.

        Parameters
        ----------
        epoch : int
            The epoch.
        reported : mapping of str to BucketReport
            Of the buckets that were called in it.
        rejects : mapping of str to mapping of str to int
            Source -> how many rows it has rejected for which reason, in this run.
        """
        if not self._kinds and not rejects and self._auditor is None:
            return
        strangers = sorted(bucket for bucket in reported if bucket.partition("/")[0] not in self._kinds)
        invariant(not strangers, f"{strangers} report, and are no buckets of stateful operators.", epoch=epoch)
        buckets = dict(self._buckets)
        counts = {operator: dict(of) for operator, of in self._counts.items()}
        for bucket, report in reported.items():
            waits, keys, before = report.waits, report.waiting_keys, buckets.get(bucket)
            # Not computed this time: what waited before still does, unless nothing waits any more.
            if waits is None and before is not None:
                waits, keys = (before.waits, before.waiting_keys) if report.waiting_rows else (None, _none_of(before))
            buckets[bucket] = replace(report, counts={}, waits=waits, waiting_keys=keys)
            totals = counts.setdefault(bucket.partition("/")[0], {})
            for name, count in report.counts.items():
                totals[name] = totals.get(name, 0) + count
        self._warn_of_late(counts)
        # New mappings in place of the old: a thread that reads meanwhile has the one or the other.
        self._buckets, self._counts, self._rejects, self._epoch = buckets, counts, rejects, epoch
        if self._kept_us is None or self._clock.now_us() - self._kept_us >= KEEP_EVERY_S * 1e6:
            self.keep()

    def _warn_of_late(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        for name in sorted(self._drops_late):
            if late := counts.get(name, {}).get("late", 0):
                self._drops_late.discard(name)
                log.warning(
                    "operator %r: %d rows came too late and go nowhere. Give its side output .late a sink, or allow "
                    "more disorder=; the status counts them. Not said again in this run",
                    name,
                    late,
                )

    def statuses(self) -> tuple[OperatorStatus, ...]:
        """Return the current status of each stateful operator."""
        buckets, counts = self._buckets, self._counts
        return tuple(_status(name, kind, buckets, counts.get(name, {})) for name, kind in self._kinds.items())

    def keep(self) -> None:
        """Write the report into the checkpoint.  If the checkpoint cannot be written, the ledger reports that."""
        if not self._epoch and (self._auditor is None or not self._auditor.book.problems):
            return
        self._kept_us = self._clock.now_us()
        try:
            report = {
                "format": 1,
                "epoch": self._epoch or (0 if self._auditor is None else self._auditor.book.last),
                "generation": self._generation,
                "at_us": self._kept_us,
                "operators": [status.as_json() for status in self.statuses()],
                "rejects": self._rejects,
                "audit": self._book_json(),
                "time": as_json(self.time_use()),
                "buckets": {bucket: report.to_json() for bucket, report in self._buckets.items()},
            }
            self._store.put(STATE_REPORT_KEY, json.dumps(report).encode())
        except Exception:  # of any kind: it is for people to read, and the run goes on
            log.warning("the report on state cannot be kept", exc_info=True)

    def _book_json(self) -> Any:
        """Return the book of the audit; a run without one leaves that of the last run."""
        if self._auditor is not None:
            return self._auditor.book.to_json()
        return self._book


def _status(name: str, kind: str, buckets: Mapping[str, BucketReport], counts: Mapping[str, int]) -> OperatorStatus:
    mine = [report for bucket, report in buckets.items() if bucket.partition("/")[0] == name]
    waits = heapq.nsmallest(
        WAITS_MAX, (wait for report in mine for wait in report.waits or ()), key=lambda wait: wait.since_us
    )
    whole, by_reason = parted(counts)
    keys = [report.waiting_keys for report in mine if report.waiting_keys is not None]
    return OperatorStatus(
        name,
        kind,
        late=whole.get("late", 0),
        shed=whole.get("shed", 0),
        counts={what: count for what, count in whole.items() if what not in ("late", "shed")},
        reasons=by_reason,
        waits=tuple(waits),
        state_rows=sum(report.state_rows for report in mine),
        state_bytes=sum(report.state_bytes for report in mine),
        waiting_rows=sum(report.waiting_rows or 0 for report in mine),
        waiting_keys=sum(keys) if keys else None,
    )


def late_rows_read(nodes: Iterable[Node]) -> frozenset[str]:
    """Return the operators whose late rows something reads."""
    return frozenset(
        node.inputs[0].name for node in nodes if isinstance(node.spec, SideOutput) and node.spec.output == "late"
    )


def _none_of(before: BucketReport) -> int | None:
    return None if before.waiting_keys is None else 0


def _kept_report(store: Store) -> Mapping[str, Any]:
    try:
        found = json.loads(store.get(STATE_REPORT_KEY) or b"{}")
        return found if isinstance(found, dict) else {}
    except Exception:  # of any kind: it is for people to read
        return {}


def _kept_buckets(store: Store, kinds: Mapping[str, str]) -> Mapping[str, BucketReport]:
    """Return what the last run knew about each bucket: those without arrivals report nothing in this one."""
    try:
        kept = json.loads(store.get(STATE_REPORT_KEY) or b"{}")
        buckets = kept.get("buckets", {}) if kept.get("format") == 1 else {}
        mine = {bucket: value for bucket, value in buckets.items() if bucket.partition("/")[0] in kinds}
        return {bucket: report for bucket, value in mine.items() if (report := _sound(value)) is not None}
    except Exception as error:  # of any kind: the figures are shown again once the buckets are called
        log.warning("the last run's report on state cannot be read: %s", error)
        return {}


def _sound(value: Any) -> BucketReport | None:
    """Return a bucket's part, if it can be added up and shown.  It has no checksum: a change may leave it JSON."""
    try:
        return BucketReport.from_json(value)
    except (ValueError, TypeError):
        return None
