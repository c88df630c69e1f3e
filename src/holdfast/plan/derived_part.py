"""The schemas of a part that Spark's plan evaluates, derived without Spark where its expressions allow that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.expressions.derive import derived, derived_items
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.operators.lowering import InSpark, lowering_of
from holdfast.plan.cutting import build_stages, has_state
from holdfast.plan.feeds import Unchanged
from holdfast.plan.program_build import Builder, as_it_is
from holdfast.plan.stages import SparkPart, Stages
from holdfast.types.casting import nullable_field


class Underived(Exception):
    """A node's schema does not follow from its text: the argument."""


def stages_without_spark(
    pipeline: Graph, normal: Callable[[pa.Schema], pa.Schema], token: str, *, is_columnar: bool
) -> Stages | None:
    """Return the stages of a pipeline with state, in one bucket each, without Spark; None where it has to be asked.

    Their schemas and bounds are those of a start; what Spark's plan would compute is not in them.

    Parameters
    ----------
    pipeline, normal, token, is_columnar
        As for :func:`holdfast.plan.cutting.build_stages`.
    """
    analysis: dict[str, Unchanged] = {}

    def derive(part: SparkPart) -> Sequence[pa.Schema]:
        schemas, unchanged = derived_part(part, normal)
        analysis.update(unchanged)
        return schemas

    try:
        return build_stages(
            pipeline,
            normal,
            token,
            buckets=1,
            partitions=1,
            prefix=derive,
            is_columnar=is_columnar,
            analysis=analysis,
        )
    except Underived:
        return None


def sink_schemas(pipeline: Graph) -> dict[str, pa.Schema]:
    """Return the schema of the rows that each sink is given, for the sinks of which it is known without Spark."""
    if has_state(pipeline):
        stages = stages_without_spark(pipeline, as_it_is, "", is_columnar=True)
        return {} if stages is None else dict(zip(stages.routes.sinks, stages.routes.schemas, strict=True))
    builder = Builder(as_it_is, "")
    unknown: set[Node] = set()
    for node in pipeline.nodes:
        if node.is_source and node.kind != "spark":
            builder.source(node)
        try:
            if not unknown.isdisjoint(node.inputs) or node.kind == "spark":
                raise Underived(node.name)
            _add(builder, node, {})
        except Underived:
            unknown.add(node)
    ends = {sink.name: sink.inputs[0] for sink in pipeline.sinks}
    return {name: builder.steps[builder.number_of(end)].schema for name, end in ends.items() if end not in unknown}


def derived_part(
    part: SparkPart, normal: Callable[[pa.Schema], pa.Schema]
) -> tuple[Sequence[pa.Schema], dict[str, Unchanged]]:
    """Return the schemas of a part's ends, and what its statements leave as it is, as Spark's plan of it has them.

    Parameters
    ----------
    part : SparkPart
        Operators, inputs first.
    normal : callable
        Returns a schema as it comes back from Spark.

    Raises
    ------
    Underived
        If Spark has to be asked.
    """
    builder = Builder(normal, "", is_behind_state=bool(part.heads))
    unchanged: dict[str, Unchanged] = {}
    for node, schema in part.heads.items():
        builder.head(node, schema)
    for node in part.nodes:
        if node in part.heads:
            continue
        if node.is_source:
            if node.kind == "spark":
                raise Underived(node.name)
            builder.source(node)
        _add(builder, node, unchanged)
    schemas = [builder.steps[builder.number_of(end.node)].schema for end in part.sinks]
    if len(schemas) > 1:  # one frame has the columns of all branches
        schemas = [pa.schema([nullable_field(field) for field in schema]) for schema in schemas]
    return schemas, {**unchanged, **builder.unchanged}


def _add(builder: Builder, node: Node, unchanged: dict[str, Unchanged]) -> None:
    try:
        if builder.add(node):
            return
    except InvalidPipeline:
        raise Underived(node.name) from None  # the start says what is wrong, with Spark's words
    befores = [builder.steps[builder.number_of(before)].schema for before in node.inputs]
    schema = _schema(node, befores[0], unchanged) if len(befores) == 1 else None
    if schema is None:
        raise Underived(node.name)
    builder.head(node, builder.normal(schema))


def _schema(node: Node, before: pa.Schema, unchanged: dict[str, Unchanged]) -> pa.Schema | None:
    spec: Any = node.spec
    way = lowering_of(node).in_spark
    if way is InSpark.SELECT:
        return derived_items(spec.items, before)
    if way in (InSpark.FILTER, InSpark.EXPECT):
        test = derived(spec.condition, before) if isinstance(spec.condition, str) else None
        return before if test is not None and test.type == pa.bool_() else None
    stated = spec.statement if way is InSpark.SQL else None
    if stated is None or (given := derived_items(stated.items, before)) is None:
        return None
    if stated.condition is not None:
        test = derived(stated.condition, before)
        if test is None or test.type != pa.bool_():
            return None
    passed: list[tuple[str, str]] = []
    for item in spec.items_read() or ():
        if item.is_star:
            passed += [(name, name) for name in before.names if name.lower() not in item.excluded]
        elif item.source is not None and item.names:
            passed.append((item.names[0], next(n for n in before.names if n.lower() == item.source.lower())))
    unchanged[node.name] = Unchanged(tuple(passed), tuple(given.names))
    return given
