"""The audit of an epoch: what came to an operator leaves it, is held by it, or is counted where it went (design/0026).

Every process that runs operators counts the rows of each (:mod:`holdfast.plan.counts`); the driver adds up,
and here the sums are compared.  An equation is about one operator, or about one edge between two; so the one that fails
names where rows were lost, or came from nowhere.  What Spark's plan evaluates is not counted: equations begin behind
it.

The auditor of a run: it holds each epoch to the audit before the decision, and keeps the book of what it counted.

The book goes into the report that the checkpoint has anyway (:mod:`holdfast.plan.report`): no durable write of its own.
So after a crash it may lack the last epochs; they were held to the audit all the same, and the book says how many it
lacks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import InternalError
from holdfast.graph.graph import Graph
from holdfast.graph.side_outputs import SideOutput
from holdfast.operators.lowering import lowering_of
from holdfast.operators.stateful.gate import Released
from holdfast.plan.counts import Balance, Balances, EpochReport, Tally, Totals, added
from holdfast.plan.program import Program
from holdfast.plan.stages import ROWS, Stages
from holdfast.ports import Store
from holdfast.state.bucket_report import BucketReport
from holdfast.status import STATE_REPORT_KEY


@dataclass(frozen=True)
class Imbalance:
    """What does not add up in an epoch.

    Parameters
    ----------
    operator : str
        Operator or sink.
    what : str
        What is compared.
    due, found : int
        Rows that there must be, and that there are.
    """

    operator: str
    what: str
    due: int
    found: int

    def as_error(self, pipeline: str, epoch: int) -> InternalError:
        """Return it as the error of a run."""
        lost = self.due - self.found
        kind = f"{lost} rows are missing" if lost > 0 else f"{-lost} rows are too many"
        return InternalError(
            f"the audit of epoch {epoch} of pipeline {pipeline!r} does not add up at {self.operator!r}: {kind}.",
            why=f"{self.what}: {self.due} rows are due, and there are {self.found}; nothing of the epoch is published.",
            do='report it, with this text; on_audit="warn" lets the pipeline go on, and logs it.',
            pipeline=pipeline,
            participant=self.operator,
            epoch=epoch,
        )


@dataclass(frozen=True)
class Edge:
    """Rows that leave operators for an input: of each, which of its counts; and the count of those that arrive."""

    sources: tuple[tuple[str, str], ...]
    operator: str
    count: str


@dataclass(frozen=True)
class Audit:
    """The equations of a pipeline.

    Parameters
    ----------
    edges : tuple of Edge
        Where both ends are counted.
    sinks : mapping of str to (str, str)
        Sink -> the operator before it, and which of its counts; without those behind Spark's plan.
    totals : Totals, optional
        How counts are totals.
    """

    edges: tuple[Edge, ...]
    sinks: Mapping[str, tuple[str, str]]
    totals: Totals | None = None

    def imbalances(self, tally: Tally, sink_rows: Mapping[str, int]) -> Iterator[Imbalance]:
        """Yield what does not add up.

        Parameters
        ----------
        tally : mapping of str to mapping of str to int
            What was counted in the epoch.
        sink_rows : mapping of str to int
            Sink -> rows of its parts; without the sinks that hold the epoch.
        """
        for name, counted in tally.items():
            yield from _at(name, counted)
        for edge in self.edges:
            due = sum(_count(tally, *source) for source in edge.sources)
            if (found := _count(tally, edge.operator, edge.count)) != due:
                names = ", ".join(name for name, _ in edge.sources)
                yield Imbalance(edge.operator, f"what left {names} arrives", due, found)
        for sink, before in self.sinks.items():
            if sink in sink_rows and (due := _count(tally, *before)) != sink_rows[sink]:
                yield Imbalance(sink, f"what left {before[0]} is carried or staged", due, sink_rows[sink])

    def balances(self, report: EpochReport, sink_rows: Mapping[str, int]) -> dict[str, Balance]:
        """Return the rows of each source, operator and sink in an epoch, and where they are."""
        due = {sink: _count(report.tally, *before) for sink, before in self.sinks.items()}
        return {} if self.totals is None else self.totals.of(report, sink_rows, due)


def _at(name: str, counted: Mapping[str, int]) -> Iterator[Imbalance]:
    """Yield what does not add up within an operator."""
    if "due" in counted and counted["due"] != counted["out"]:
        yield Imbalance(
            name, "what its condition, its function or its input makes due leaves it", counted["due"], counted["out"]
        )
    if "fates" in counted:
        due = counted["in"] + counted["held before"]
        found = counted["fates"] + counted["held after"]
        if due != found:
            yield Imbalance(
                name, "what came, and what was held, is held, leaves, or is counted as late or dropped", due, found
            )
    for what, count in counted.items():
        output = what.removeprefix("due.")
        if output != what and counted.get(f"made.{output}", 0) != count:
            yield Imbalance(name, f"what it counts of its {output} is there", count, counted.get(f"made.{output}", 0))


def _count(tally: Tally, name: str, what: str) -> int:
    return tally.get(name, {}).get(what, 0)


def audit_behind_spark(pipeline: Graph) -> Audit:
    """Return those of a pipeline that Spark's plan evaluates: rows of sources and sinks alone are counted."""
    return _audit(pipeline, frozenset(), frozenset())


def audit_of_program(pipeline: Graph, program: Program) -> Audit:
    """Return the equations of a pipeline without state."""
    return _audit(pipeline, program.counted, frozenset())


def audit_of_stages(pipeline: Graph, stages: Stages) -> Audit:
    """Return the equations of a pipeline with state."""
    programs = [stage.program for stage in stages.stages if stage.program is not None]
    counted = frozenset[str]().union(*(program.counted for program in programs))
    hosted = frozenset(name for stage in stages.stages for name in stage.hosted)
    return _audit(pipeline, counted, hosted)


def _audit(pipeline: Graph, counted: Collection[str], hosted: Collection[str]) -> Audit:
    outs: dict[str, tuple[str, str]] = {}
    for node in pipeline.nodes:
        if lowering_of(node).keeps_state:
            if node.name in hosted:
                outs[node.name] = (node.name, f"out.{ROWS}")
        elif isinstance(node.spec, SideOutput | Released) and node.inputs[0].name in hosted:
            outs[node.name] = (node.inputs[0].name, f"out.{node.spec.output}")
        elif node.name in counted:
            outs[node.name] = (node.name, "out")
    edges = []
    for node in pipeline.nodes:
        if node.is_source or isinstance(node.spec, SideOutput | Released):
            continue
        known = [before.name in outs for before in node.inputs]
        if node.name in hosted:
            names = node.stateful_spec.input_names
            edges += [
                Edge((outs[before.name],), node.name, f"in.{name}")
                for before, name, is_known in zip(node.inputs, names, known, strict=True)
                if is_known
            ]
        elif node.name in counted and node.kind != "rejects" and all(known):
            edges.append(Edge(tuple(outs[before.name] for before in node.inputs), node.name, "in"))
    sinks = {sink.name: outs[sink.inputs[0].name] for sink in pipeline.sinks if sink.inputs[0].name in outs}
    return Audit(tuple(edges), sinks, Totals(pipeline))


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
        self.difference = 0
        """Rows by which epochs that it looked at did not add up."""

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
        self.difference += sum(abs(each.due - each.found) for each in found)
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
