"""The audit of an epoch: what came to an operator leaves it, is held by it, or is counted where it went (design/0026).

Every process that runs operators counts the rows of each (:mod:`holdfast.plan.counting.counts`); the driver adds up,
and here the sums are compared.  An equation is about one operator, or about one edge between two; so the one that fails
names where rows were lost, or came from nowhere.  What Spark's plan evaluates is not counted: equations begin behind
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from holdfast.errors import InternalError
from holdfast.graph.graph import Graph
from holdfast.graph.side_outputs import SideOutput
from holdfast.operators.lowering import lowering_of
from holdfast.operators.stateful.gate import Released
from holdfast.plan.counting.counts import EpochReport, Tally
from holdfast.plan.counting.totals import Balance, Totals
from holdfast.plan.program import Program
from holdfast.plan.stages import ROWS, Stages


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
