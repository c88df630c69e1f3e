"""Builds the Arrow program of a pipeline, where every operator is one that Arrow evaluates as Spark does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.expressions.compile import columnar, columnar_items
from holdfast.graph.nodes import Node, Rejects
from holdfast.graph.pipeline import Pipeline
from holdfast.operators.clip import Clip
from holdfast.operators.filter import Filter
from holdfast.operators.map_batches import MapBatches
from holdfast.operators.select import Select
from holdfast.operators.split import SplitBranch
from holdfast.operators.union import Union
from holdfast.plan.batches import BatchFunction
from holdfast.plan.laziness import Evaluations, after_filter, after_select, after_union, at_border
from holdfast.plan.program import (
    Bad,
    Between,
    Call,
    Compute,
    Keep,
    Operation,
    Pass,
    Program,
    ProgramStep,
    Unite,
    WithoutRejects,
)
from holdfast.plan.routes import Routes
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE

Made = tuple[Operation, pa.Schema, Evaluations]
"""A step to be added: what it does, the schema of its rows, and what has been evaluated of them."""


def build_program(pipeline: Pipeline, normal: Callable[[pa.Schema], pa.Schema], token: str) -> Program | None:
    """Return a pipeline's program; None where some operator is Spark's business.

    Parameters
    ----------
    pipeline : Pipeline
        The checked graph.
    normal : callable
        Returns a schema as it comes back from Spark, so that a sink's schema does not depend on the way.
    token : str
        Unique for the run.
    """
    builder = Builder(normal, token)
    sources = {node: builder.source(node) for node in pipeline.sources if node.kind != "spark"}
    if len(sources) != len(pipeline.sources):
        return None
    schemas = {node.name: builder.steps[number].schema for node, number in sources.items()}
    for node in pipeline.nodes:
        if not builder.add(node):
            return None
    ends = tuple(builder.number_of(sink.inputs[0]) for sink in pipeline.sinks)
    shared = _shared(builder.steps, ends)
    rows = [builder.steps[end].schema for end in ends]
    schemas_of_sinks = [_nullable(schema) if end in shared else schema for end, schema in zip(ends, rows, strict=True)]
    routes = Routes(tuple(sink.name for sink in pipeline.sinks), tuple(schemas_of_sinks))
    has_user_code = any(isinstance(node.spec, MapBatches) for node in pipeline.nodes)
    return Program(schemas, tuple(builder.steps), ends, routes, has_user_code)


def _shared(steps: Sequence[ProgramStep], ends: Sequence[int]) -> frozenset[int]:
    """Return the steps whose rows come from a step that several steps or sinks take rows of."""
    used = set(ends)
    taken = list(ends)
    for number in reversed(range(len(steps))):  # inputs have lower numbers
        if number in used:
            used.update(steps[number].inputs)
            taken += steps[number].inputs
    shared: set[int] = set()
    for number, step in enumerate(steps):
        if taken.count(number) > 1 or shared.intersection(step.inputs):
            shared.add(number)
    return frozenset(shared)


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema as Spark's plan has it behind a fan-out, where one frame holds the columns of all branches.

    A sink must not find NOT NULL, or miss it, because a run went the other way.
    """
    return pa.schema([_nullable_field(field) for field in schema])


def _nullable_field(field: pa.Field) -> pa.Field:
    return field.with_type(_nullable_type(field.type)).with_nullable(True)


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    """Return a type in which every member of a struct may be null; elements and values of a map stay as they are."""
    if pa.types.is_struct(kind):
        return pa.struct([_nullable_field(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_nullable_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_nullable_type(kind.item_type)))
    return kind


class Builder:
    """Builds a program node by node; heads and sources first.

    Parameters
    ----------
    normal : callable
        Returns a schema as it comes back from Spark.
    token : str
        Unique for the run.
    """

    def __init__(self, normal: Callable[[pa.Schema], pa.Schema], token: str) -> None:
        self.steps: list[ProgramStep] = []
        self._normal = normal
        self._token = token
        self._raw: dict[Node, int] = {}
        self._numbers: dict[Node, int] = {}
        self._evaluations: list[Evaluations] = []

    def source(self, node: Node) -> int:
        """Add the step of a source's rows as they are read."""
        spec: Any = node.spec
        schema = spec.schema
        if spec.rejects:
            nullable = [field.with_nullable(True) for field in schema]
            schema = pa.schema([*nullable, pa.field(REJECT_COLUMN, REJECT_TYPE)])
        self._raw[node] = self._step(Pass(), (), self._normal(schema))
        return self._raw[node]

    def head(self, node: Node, schema: pa.Schema) -> int:
        """Add a node whose rows come from elsewhere; return its step."""
        self._numbers[node] = self._step(Pass(), (), schema)
        return self._numbers[node]

    def number_of(self, node: Node) -> int:
        """Return the step of a node's output."""
        return self._numbers[node]

    def add(self, node: Node) -> bool:
        """Add a node's step; False where its operator is Spark's business."""
        if node.is_source:
            number = self._raw[node]
            if getattr(node.spec, "rejects", False):
                kept = pa.schema([field for field in self.steps[number].schema if field.name != REJECT_COLUMN])
                number = self._step(WithoutRejects(), (number,), kept)
            self._numbers[node] = number
            return True
        if isinstance(node.spec, Rejects):
            raw = self._raw[node.inputs[0]]
            self._numbers[node] = self._step(Bad(), (raw,), self._normal(pa.schema(list(REJECT_TYPE))))
            return True
        inputs = tuple(self._numbers[before] for before in node.inputs)
        made = self._made(node, inputs)
        if made is None:
            return False
        operation, schema, evaluations = made
        counted_as = node.name if isinstance(node.spec, Filter | Clip) else ""
        self._numbers[node] = self._step(operation, inputs, schema, evaluations, counted_as)
        return True

    def _step(
        self,
        operation: Operation,
        inputs: tuple[int, ...],
        schema: pa.Schema,
        evaluations: Evaluations | None = None,
        counted_as: str = "",
    ) -> int:
        self.steps.append(ProgramStep(operation, inputs, schema, counted_as))
        self._evaluations.append(evaluations or at_border(schema.names))
        return len(self.steps) - 1

    def _made(self, node: Node, inputs: tuple[int, ...]) -> Made | None:
        schemas = [self.steps[number].schema for number in inputs]
        schema, before = schemas[0], self._evaluations[inputs[0]]
        match node.spec:
            case Filter(condition=str() as condition) | SplitBranch(condition=condition):
                test = columnar(condition, schema)
                if test is None or test.type != pa.bool_() or (after := after_filter(before, test)) is None:
                    return None
                return Keep(test), schema, after
            case Select(items=items):
                chosen = columnar_items(items, schema)
                if chosen is None or (after := after_select(before, chosen)) is None:
                    return None
                fields = [pa.field(name, item.type, item.nullable) for name, item in chosen]
                output = self._normal(pa.schema(fields))
                return Compute(tuple(item for _, item in chosen), output), output, after
            case Clip(column=column, start_us=start_us, end_us=end_us):
                between = _between(schema, column, start_us, end_us)
                if between is None or (after := after_filter(before, None)) is None:
                    return None
                return between, schema, after
            case Union():
                united = _united(schemas)
                if united is None:
                    return None
                return Unite(united), united, after_union([self._evaluations[number] for number in inputs])
            case MapBatches(fn=fn, setup=setup, schema=declared):
                output = self._normal(declared)
                function = BatchFunction(fn, setup, output, node.name, self._token + node.name)
                return Call(function), output, at_border(output.names)
        return None


def _between(schema: pa.Schema, column: str, start_us: int | None, end_us: int | None) -> Between | None:
    index = schema.get_field_index(column)
    kind = schema.field(index).type if index >= 0 else pa.null()
    if kind not in (pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        return None
    if any(border is not None and not -(2**63) <= border < 2**63 for border in (start_us, end_us)):
        return None  # no BIGINT: Spark compares with a decimal, or refuses
    return Between(column, start_us, end_us)


def _united(schemas: list[pa.Schema]) -> pa.Schema | None:
    first = schemas[0]
    for other in schemas[1:]:
        if sorted(other.names) != sorted(first.names) or any(other.field(f.name).type != f.type for f in first):
            return None  # Spark widens types; names that differ by case are its business too
    nullable = [any(schema.field(f.name).nullable for schema in schemas) for f in first]
    return pa.schema([f.with_nullable(n) for f, n in zip(first, nullable, strict=True)])
