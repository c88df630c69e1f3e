"""Expectations of a run: what each epoch is held to before it is decided, and what was counted (design/0049, 9).

What was counted of an epoch is part of its record in the ledger, with the totals up to it.  So an epoch that is
evaluated again, after a kill or a failure, is in the totals once: either nothing of it was decided, or it is not
evaluated for a decision any more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.errors import BadRow
from holdfast.graph.graph import Graph
from holdfast.health import ExpectationStatus
from holdfast.operators.expect import Expectation
from holdfast.plan.audit import Audit, Auditor, kept_book
from holdfast.plan.counts import EpochReport, Observed
from holdfast.ports import Store
from holdfast.values import EpochRecord, ExpectationCount

log = logging.getLogger("holdfast.run")

NOTHING = ExpectationCount(0, 0, 0, 0)


@dataclass
class Expectations:
    """Those of one run.

    Parameters
    ----------
    pipeline : str
        Its name.
    declared : mapping of str to Expectation
        Node -> what it expects, in the order of the graph.
    counted : mapping of str to ExpectationCount
        What the ledger says of earlier runs.
    last_epoch : int
        The newest epoch that is counted there.
    """

    pipeline: str
    declared: Mapping[str, Expectation] = field(default_factory=dict)
    counted: Mapping[str, ExpectationCount] = field(default_factory=dict)
    last_epoch: int = 0
    _last: dict[str, ExpectationCount] = field(default_factory=dict)
    _run: dict[str, tuple[int, int]] = field(default_factory=dict)

    @staticmethod
    def of(pipeline: Graph, last: EpochRecord | None) -> Expectations:
        """Return those of a graph, as the newest decision has counted them."""
        declared = {node.name: node.spec for node in pipeline.nodes if isinstance(node.spec, Expectation)}
        return Expectations.declared_as(pipeline.name, declared, last)

    @staticmethod
    def declared_as(pipeline: str, declared: Mapping[str, Expectation], last: EpochRecord | None) -> Expectations:
        """Return those that are declared so."""
        counted = {} if last is None else last.expected
        mine = {name: counted.get(name, NOTHING) for name in declared}
        known = {name: each for name, each in mine.items() if each.rows}
        return Expectations(pipeline, declared, mine, 0 if last is None else last.epoch, known)

    def look(self, epoch: int, observed: Mapping[str, Observed], *, is_new: bool) -> dict[str, ExpectationCount]:
        """Return what was counted of an epoch, for its record; nothing is taken in.

        Parameters
        ----------
        epoch : int
            Which; one that was decided before is not counted again.
        observed : mapping of str to Observed
            Node -> what was counted.
        is_new : bool
            Whether no sink holds its rows: not so where it is replayed to some.

        Raises
        ------
        BadRow
            If one that stops the run is broken: nothing of the epoch is decided.
        """
        found = {}
        for name, declared in self.declared.items():
            of = observed.get(name, Observed())
            before = self.counted[name]
            was_counted = epoch <= self.last_epoch or not is_new
            found[name] = (
                before._replace(rows=of.rows, failed=of.rejects) if was_counted else before.then(of.rows, of.rejects)
            )
            if declared.on_fail == "stop" and is_broken(declared.max_fraction, of.rows, of.rejects):
                raise self._stop(epoch, name, found[name])
        return found

    def note(self, epoch: int, found: Mapping[str, ExpectationCount]) -> None:
        """Take in an epoch that is decided; log which expectations it breaks."""
        for name, count in found.items():
            rows, failed = self._run.get(name, (0, 0))
            self._run[name] = rows + count.rows, failed + count.failed
            if not count.rows:
                continue
            declared = self.declared[name]
            before = self._last.get(name, NOTHING)
            self._last[name] = count
            was_broken = is_broken(declared.max_fraction, before.rows, before.failed)
            if is_broken(declared.max_fraction, count.rows, count.failed) and not was_broken:
                log.warning(
                    "expectation %r (%s) is broken in epoch %d: %d of %d rows do not meet it, and %g of them may; not "
                    "said again before an epoch keeps it",
                    name, declared.condition, epoch, count.failed, count.rows, declared.max_fraction,
                )  # fmt: skip
        self.counted, self.last_epoch = {**self.counted, **found}, max(epoch, self.last_epoch)

    def statuses(self) -> tuple[ExpectationStatus, ...]:
        """Return the status of each.  Any thread may ask."""
        return tuple(
            expectation_status(name, declared, self.counted[name], self._last.get(name), self._run.get(name, (0, 0)))
            for name, declared in self.declared.items()
        )

    def _stop(self, epoch: int, name: str, count: ExpectationCount) -> BadRow:
        declared = self.declared[name]
        error = BadRow(
            f"expectation {name!r} of pipeline {self.pipeline!r} is broken in epoch {epoch}: {count.failed} of "
            f"{count.rows} rows do not meet it.",
            why=f'they are to meet: {declared.condition}; on_fail="stop" lets {declared.max_fraction:g} of the rows '
            "fail, and nothing of the epoch is published.",
            do="mend the rows in the source, or allow more: a larger max_fraction=, or another on_fail=; then start "
            "again.",
            pipeline=self.pipeline,
            participant=name,
            epoch=epoch,
        )
        error.is_expected = True
        return error


def is_broken(max_fraction: float, rows: int, failed: int) -> bool:
    """Return whether more rows of an epoch fail than may.

    Examples
    --------
    >>> is_broken(0.0, 10, 0), is_broken(0.1, 10, 1), is_broken(0.1, 10, 2), is_broken(0.0, 0, 0)
    (False, False, True, False)
    """
    return failed > max_fraction * rows


def expectation_status(
    name: str, declared: Expectation, counted: ExpectationCount, last: ExpectationCount | None, run: tuple[int, int]
) -> ExpectationStatus:
    """Return the status of an expectation: what all epochs counted, the last that had rows, and this run."""
    last = last or NOTHING
    return ExpectationStatus(
        name,
        within=declared.condition,
        on_fail=declared.on_fail,
        max_fraction=declared.max_fraction,
        rows=run[0],
        failed=run[1],
        rows_total=counted.rows_total,
        failed_total=counted.failed_total,
        last_rows=last.rows,
        last_failed=last.failed,
        is_broken=is_broken(declared.max_fraction, last.rows, last.failed),
    )


def auditor_of(pipeline: str, audit: Audit, store: Store, on_audit: str) -> Auditor | None:
    """Return what audits the epochs of a run, with the book of the runs before; None where nothing does."""
    return None if on_audit == "off" else Auditor(pipeline, audit, stops=on_audit == "stop", book=kept_book(store))


@dataclass
class EpochChecks:
    """What an epoch is held to before it is decided: the audit, then what the user expects.

    Parameters
    ----------
    expectations : Expectations
        Of the run.
    auditor : Auditor, optional
        Compares what was counted.
    """

    expectations: Expectations = field(default_factory=lambda: Expectations(""))
    auditor: Auditor | None = None

    @property
    def difference(self) -> int:
        """Rows by which epochs of this run did not add up."""
        return 0 if self.auditor is None else self.auditor.difference

    def look(
        self, epoch: int, report: EpochReport, rows: Mapping[str, int], *, is_new: bool
    ) -> dict[str, ExpectationCount]:
        """Return what was counted of expectations; raise what ends the run before the epoch is decided."""
        if self.auditor is not None:
            self.auditor.look(epoch, report, rows)
        return self.expectations.look(epoch, report.observed, is_new=is_new)

    def note(
        self, epoch: int, report: EpochReport, rows: Mapping[str, int], found: Mapping[str, ExpectationCount]
    ) -> None:
        """Take in an epoch that is decided."""
        self.expectations.note(epoch, found)
        if self.auditor is not None:
            self.auditor.note(epoch, report, rows)
