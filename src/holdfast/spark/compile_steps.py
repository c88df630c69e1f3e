"""A graph as the compiler walks it: steps, inputs first, and the node to name when Spark refuses one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode
from holdfast.operators.lowering import InSpark, lowering_of
from holdfast.plan.stages import End, SparkPart
from holdfast.spark.failure import summary


@dataclass(frozen=True, eq=False)
class CompileStep:
    """A node of the graph as the compiler sees it.

    A source whose rows come with others, rejects or bound rows, becomes several: all, the good ones, the bounds.
    """

    way: InSpark
    inputs: tuple[CompileStep, ...]
    node: Node
    number: int

    @property
    def title(self) -> str:
        """Kind, name and the line that built it, for errors."""
        return f"{self.node.kind} {self.node.name!r}, built at {self.node.origin},"


@dataclass
class Steps:
    """All steps of a pipeline, inputs first, and which sink ends where."""

    steps: list[CompileStep] = field(default_factory=list)
    ends: list[CompileStep] = field(default_factory=list)

    def add(self, way: InSpark, inputs: tuple[CompileStep, ...], node: Node) -> CompileStep:
        """Add a step after its inputs."""
        step = CompileStep(way, inputs, node, len(self.steps))
        self.steps.append(step)
        return step


def steps_of(pipeline: Graph | SparkPart) -> Steps:
    """Return the steps of a pipeline that lead to a sink; those of the heads of a part have the first numbers."""
    found = Steps()
    heads = pipeline.heads if isinstance(pipeline, SparkPart) else {}
    good: dict[Node, CompileStep] = {node: found.add(InSpark.HOSTED, (), node) for node in heads}
    raw: dict[Node, CompileStep] = {}
    bounds: dict[Node, CompileStep] = {}
    marked = {sink.inputs[0] for sink in pipeline.sinks if _takes_bounds(sink)}
    for node in pipeline.nodes:
        way = lowering_of(node).in_spark
        if way is InSpark.READ:
            raw[node] = good[node] = found.add(way, (), node)
            if node.source_spec.rejects or node in marked:
                good[node] = found.add(InSpark.READABLE, (raw[node],), node)
            if node in marked:
                bounds[node] = found.add(InSpark.BOUND_ROWS, (raw[node],), node)
        else:  # rejects are taken from the raw rows, not from the good ones
            before = raw if way is InSpark.REJECTS else good
            good[node] = found.add(way, tuple(before[each] for each in node.inputs), node)
    found.ends = [(bounds if _takes_bounds(sink) else good)[sink.inputs[0]] for sink in pipeline.sinks]
    return _without_unused(found)


def _takes_bounds(sink: SinkNode | End) -> bool:
    return isinstance(sink, End) and sink.is_bounds


def _without_unused(found: Steps) -> Steps:
    """Drop steps that lead to no sink: the good rows of a source of which only the rejects are used."""
    used = set(found.ends)
    for step in reversed(found.steps):
        if step in used:
            used.update(step.inputs)
    found.steps = [step for step in found.steps if step in used]
    return found


class explained_at:
    """Names the node and its line in the errors that Spark raises about it."""

    def __init__(self, step: CompileStep) -> None:
        self._step = step

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, PySparkException):
            raise InvalidPipeline(
                f"{self._step.title} cannot be run by Spark.",
                why=summary(str(error)),
                do="correct the expression or the schema; holdfast explain shows the columns that are known.",
                participant=self._step.node.name,
            ) from error
        if isinstance(error, HoldfastError) or error is None:
            return
        if (
            self._step.way is not InSpark.READ
            and isinstance(error, Exception)
            and not isinstance(error, AssertionError)
        ):
            raise InvalidPipeline(
                f"{self._step.title} raised {type(error).__name__} while the plan was built.",
                why=str(error),
                do="correct the function; it is called once, on the driver, with a DataFrame.",
                participant=self._step.node.name,
            ) from error
