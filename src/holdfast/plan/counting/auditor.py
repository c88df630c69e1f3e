"""The auditor of a run: it holds each epoch to the audit before the decision, and keeps the book of what it counted.

The book goes into the report that the checkpoint has anyway (:mod:`holdfast.plan.report`): no durable write of its own.
So after a crash it may lack the last epochs; they were held to the audit all the same, and the book says how many it
lacks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.plan.counting.audit import Audit, Imbalance
from holdfast.plan.counting.counts import EpochReport
from holdfast.plan.counting.totals import Balance, Balances, added
from holdfast.ports import Store
from holdfast.state.bucket_report import BucketReport
from holdfast.status import STATE_REPORT_KEY

EPOCHS_KEPT = 100
"""Epochs whose totals stand alone in the book; all together are a sum."""

log = logging.getLogger("holdfast.run")


@dataclass(frozen=True)
class Book:
    """What the audit has counted.

    Parameters
    ----------
    first, last : int
        Epochs; 0 where there is none.
    missing : int
        Epochs between them that are not in the book: their run ended before it was kept, or did not look.
    totals : mapping of str to Balance
        Source, operator or sink -> its rows in all epochs of the book.
    epochs : mapping of int to mapping of str to Balance
        The last of them, one by one.
    problems : tuple of (int, Imbalance)
        What did not add up, with its epoch.
    """

    first: int = 0
    last: int = 0
    missing: int = 0
    totals: Balances = field(default_factory=dict)
    epochs: Mapping[int, Balances] = field(default_factory=dict)
    problems: tuple[tuple[int, Imbalance], ...] = ()

    def with_epoch(self, epoch: int, found: Balances) -> Book:
        """Return it with one more epoch; one that it has already is not counted twice."""
        if epoch <= self.last:
            return self
        missing = self.missing + (epoch - self.last - 1 if self.last else 0)
        epochs = dict([*self.epochs.items(), (epoch, found)][-EPOCHS_KEPT:])
        return replace(
            self,
            first=self.first or epoch,
            last=epoch,
            missing=missing,
            totals=added(self.totals, found),
            epochs=epochs,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return {
            "first": self.first,
            "last": self.last,
            "missing": self.missing,
            "totals": balances_json(self.totals),
            "epochs": {str(epoch): balances_json(of) for epoch, of in self.epochs.items()},
            "problems": [[epoch, of.operator, of.what, of.due, of.found] for epoch, of in self.problems],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Book:
        """Return the book that :meth:`to_json` gave.  Raises KeyError, TypeError or ValueError if it is none."""
        epochs = {int(epoch): _balances(of) for epoch, of in value["epochs"].items()}
        problems = tuple((int(epoch), Imbalance(*of)) for epoch, *of in value["problems"])
        first, last, missing = int(value["first"]), int(value["last"]), int(value["missing"])
        return cls(first, last, missing, _balances(value["totals"]), epochs, problems)


def balances_json(balances: Balances) -> dict[str, dict[str, int]]:
    """Return balances as JSON values."""
    return {name: of.to_json() for name, of in balances.items()}


def _balances(value: Mapping[str, Any]) -> dict[str, Balance]:
    return {str(name): Balance.from_json(of) for name, of in value.items()}


def kept_book(store: Store) -> Book | None:
    """Return the book of the audit that the last run has kept; None where there is none that can be read."""
    try:
        kept = json.loads(store.get(STATE_REPORT_KEY) or b"{}")
        found = kept.get("audit") if kept.get("format") == 1 else None
        return None if found is None else Book.from_json(found)
    except Exception as error:  # of any kind: it is for people to read, and begins anew
        log.warning("what the last run's audit has counted cannot be read: %s", error)
        return None


class HeldRows:
    """Rows that wait in each bucket of state: what one epoch leaves is what the next one finds."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def imbalances(self, reported: Mapping[str, BucketReport]) -> Iterator[Imbalance]:
        """Yield the buckets that do not hold what they held when they were called last, in this run."""
        for bucket, report in reported.items():
            if report.held is not None and self._known.get(bucket, report.held[0]) != report.held[0]:
                operator, _, number = bucket.rpartition("/")
                what = f"what bucket {number} held when it was called last is held when it is called again"
                yield Imbalance(operator, what, self._known[bucket], report.held[0])

    def take(self, reported: Mapping[str, BucketReport]) -> None:
        """Take in an epoch that counts."""
        self._known |= {bucket: of.held[1] for bucket, of in reported.items() if of.held is not None}


class Auditor:
    """Looks at each epoch of a run.

    Parameters
    ----------
    pipeline : str
        Its name.
    audit : Audit
        What is compared.
    stops : bool
        Whether what does not add up ends the run; else it is logged.
    book : Book
        With which it begins.
    """

    def __init__(self, pipeline: str, audit: Audit, *, stops: bool, book: Book | None = None) -> None:
        self._pipeline = pipeline
        self._audit = audit
        self._stops = stops
        self._held = HeldRows()
        self.book = book or Book()

    def look(self, epoch: int, report: EpochReport, sink_rows: Mapping[str, int]) -> None:
        """Compare what was counted of an epoch, before it is decided.

        Raises
        ------
        InternalError
            If rows do not add up, and this ends the run.
        """
        found = [*self._audit.imbalances(report.tally, sink_rows), *self._held.imbalances(report.buckets)]
        if not found:
            return
        self.book = replace(self.book, problems=(*self.book.problems, *((epoch, of) for of in found))[-EPOCHS_KEPT:])
        for imbalance in found:
            error = imbalance.as_error(self._pipeline, epoch)
            if self._stops:
                raise error
            log.warning("%s %s", error.what, imbalance.what)

    def note(self, epoch: int, report: EpochReport, sink_rows: Mapping[str, int]) -> None:
        """Take in an epoch that is decided."""
        self._held.take(report.buckets)
        self.book = self.book.with_epoch(epoch, self._audit.balances(report, sink_rows))
