"""Builds the Arrow program of a pipeline, where every operator is one that Arrow evaluates as Spark does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.errors import invariant
from holdfast.expressions.compile import columnar, columnar_items
from holdfast.expressions.logic import Columnar
from holdfast.expressions.text import item_of
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.operators.lowering import InArrow, entry_of, lowering_of
from holdfast.operators.sync.custom import Custom
from holdfast.operators.sync.spec import Sync
from holdfast.plan.batches import BatchFunction, promise_of
from holdfast.plan.feeds import Unchanged
from holdfast.plan.laziness import Evaluations, after_filter, after_select, after_union, at_border
from holdfast.plan.lookup_operation import look_up_of
from holdfast.plan.operation import Operation
from holdfast.plan.program import (
    Bad,
    Between,
    Call,
    Chain,
    Compute,
    Fit,
    Identify,
    Keep,
    Latest,
    Pass,
    Program,
    ProgramStep,
    Project,
    Unite,
    Verify,
    WithoutRejects,
)
from holdfast.plan.routes import Routes
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE
from holdfast.types.casting import nullable_field, united_field
from holdfast.types.row_ids import check_columns

Made = tuple[Operation, pa.Schema, Evaluations]
"""A step to be added: what it does, the schema of its rows, and what has been evaluated of them."""

_HERE = "holdfast/plan/program_build.py"


def build_program(pipeline: Graph, normal: Callable[[pa.Schema], pa.Schema], token: str) -> Program | None:
    """Return a pipeline's program; None where some operator needs Spark's plan.

    Parameters
    ----------
    pipeline : Graph
        The checked graph.
    normal : callable
        Returns a schema as it comes back from Spark, so that a sink's schema does not depend on how rows are evaluated.
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
    return Program(schemas, tuple(builder.steps), ends, routes, has_user_code(pipeline.nodes))


def as_it_is(schema: pa.Schema) -> pa.Schema:
    """Return a schema unchanged: the stand-in for Spark's, where there is no Spark and no result depends on it."""
    return schema


def has_user_code(nodes: Iterable[Node]) -> bool:
    """Tell whether a program of these nodes, or a step of one, calls functions of the user."""
    return any(lowering_of(node).calls_user or _decides_by_user(node) for node in nodes)


def _decides_by_user(node: Node) -> bool:
    return isinstance(node.spec, Sync) and isinstance(node.spec.policy, Custom)


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
    """Return a schema as Spark's plan has it after a fan-out, where one frame holds the columns of all branches.

    Whether a sink sees NOT NULL must not depend on how a run evaluates its rows.
    """
    return pa.schema([nullable_field(field) for field in schema])


class Builder:
    """Builds a program node by node; heads and sources first.

    Parameters
    ----------
    normal : callable
        Returns a schema as it comes back from Spark.
    token : str
        Unique for the run.
    is_behind_state : bool
        Whether rows come from operators with state: Spark's plan would evaluate a statement on its own there, and
        so does Arrow.  Upstream of state one plan has all operators, and a statement is left to it.

    Attributes
    ----------
    unchanged : dict of str to Unchanged
        Statement -> which columns it leaves as they are.
    """

    def __init__(self, normal: Callable[[pa.Schema], pa.Schema], token: str, *, is_behind_state: bool = False) -> None:
        self.steps: list[ProgramStep] = []
        self.unchanged: dict[str, Unchanged] = {}
        self.normal = normal
        self.token = token
        self.is_behind_state = is_behind_state
        self._raw: dict[Node, int] = {}
        self._numbers: dict[Node, int] = {}
        self._evaluations: list[Evaluations] = []

    def source(self, node: Node) -> int:
        """Add the step of a source's rows as they are read."""
        schema = node.source_spec.schema
        if node.source_spec.rejects:
            nullable = [field.with_nullable(True) for field in schema]
            schema = pa.schema([*nullable, pa.field(REJECT_COLUMN, REJECT_TYPE)])
        self._raw[node] = self._step(
            Pass(), (), self.normal(schema), name="" if node.source_spec.rejects else node.name
        )
        return self._raw[node]

    def head(self, node: Node, schema: pa.Schema) -> int:
        """Add a node whose rows come from elsewhere; return its step."""
        self._numbers[node] = self._step(Pass(), (), schema)
        return self._numbers[node]

    def number_of(self, node: Node) -> int:
        """Return the step of a node's output."""
        return self._numbers[node]

    def project(self, number: int, columns: Collection[str]) -> int:
        """Add a step that takes some columns of another one's rows, named without regard to case; return it."""
        of, wanted = self.steps[number].schema, {name.lower() for name in columns}
        schema = pa.schema([field for field in of if field.name.lower() in wanted])
        return number if schema.equals(of) else self._step(Project(schema), (number,), schema)

    def add(self, node: Node) -> bool:
        """Add a node's step; False where its operator needs Spark's plan."""
        number = entry_of(WAYS, lowering_of(node).in_arrow, _HERE)(self, node)
        if number is None:
            return False
        self._numbers[node] = number
        return True

    def _readable(self, node: Node) -> int:
        number = self._raw[node]
        if not node.source_spec.rejects:
            return number
        kept = pa.schema([field for field in self.steps[number].schema if field.name != REJECT_COLUMN])
        return self._step(WithoutRejects(), (number,), kept, name=node.name)

    def _rejects(self, node: Node) -> int:
        return self._step(
            Bad(), (self._raw[node.inputs[0]],), self.normal(pa.schema(list(REJECT_TYPE))), name=node.name
        )

    def _computed(self, node: Node, make: Make) -> int | None:
        numbers = tuple(self._numbers[before] for before in node.inputs)
        made = make(self, node, [Before(self.steps[number].schema, self._evaluations[number]) for number in numbers])
        if made is None:
            return None
        drops = lowering_of(node).counts_dropped
        return self._step(made[0], numbers, made[1], made[2], name=node.name, drops=drops)

    def _step(
        self,
        operation: Operation,
        inputs: tuple[int, ...],
        schema: pa.Schema,
        evaluations: Evaluations | None = None,
        *,
        name: str = "",
        drops: bool = False,
    ) -> int:
        missing = [number for number in inputs if number >= len(self.steps)]
        invariant(not missing, f"step {len(self.steps)} of a program takes the rows of {missing}, which come later.")
        self.steps.append(ProgramStep(operation, inputs, schema, name, drops))
        self._evaluations.append(evaluations or at_border(schema.names))
        return len(self.steps) - 1


class Before(NamedTuple):
    """An input of a step to be made: the schema of its rows, and what has been evaluated of them."""

    schema: pa.Schema
    evaluations: Evaluations


Make = Callable[[Builder, Node, Sequence[Before]], Made | None]
"""Makes an operator's step; None where it is Spark's to evaluate."""


def _keep(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    spec: Any = node.spec
    return _kept(spec.condition, inputs[0]) if isinstance(spec.condition, str) else None


def _kept(condition: str, before: Before) -> tuple[Keep, pa.Schema, Evaluations] | None:
    test = columnar(condition, before.schema)
    if test is None or test.type != pa.bool_() or (after := after_filter(before.evaluations, test)) is None:
        return None
    return Keep.of(test), before.schema, after


def _verify(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    spec: Any = node.spec
    kept = _kept(spec.condition, inputs[0])
    return None if kept is None else (Verify(kept[0], spec.drops), *kept[1:])


def _compute(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    spec: Any = node.spec
    chosen = columnar_items(spec.items, inputs[0].schema)
    return None if chosen is None else _choose(builder, chosen, inputs[0])


def _choose(builder: Builder, chosen: Sequence[tuple[str, Columnar]], before: Before) -> Made | None:
    after = after_select(before.evaluations, chosen)
    if after is None:
        return None
    output = builder.normal(pa.schema([pa.field(name, item.type, item.nullable) for name, item in chosen]))
    return Compute.of([item for _, item in chosen], output), output, after


def _query(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    """Return a statement as a filter and a projection between two borders, where it is no more than that.

    All of its columns may be null, as where Spark's plan evaluates it among the rows of other branches: which way it
    goes must not show in the state of an operator downstream.
    """
    spec: Any = node.spec
    stated = spec.statement if builder.is_behind_state else None
    if stated is None:
        return None
    before = Before(inputs[0].schema, at_border(inputs[0].schema.names))
    kept = None if stated.condition is None else _kept(stated.condition, before)
    if kept is not None:
        before = before._replace(evaluations=kept[2])
    elif stated.condition is not None:
        return None
    chosen = columnar_items(stated.items, before.schema)
    computed = None if chosen is None else _choose(builder, chosen, before)
    if chosen is None or computed is None or not _is_plain(stated.items, dict(chosen)):
        return None
    passed = tuple((name, item.reference) for name, item in chosen if item.reference is not None)
    builder.unchanged[node.name] = Unchanged(passed, tuple(name for name, _ in chosen))
    output = _nullable(computed[1])
    operations = [step[0] for step in (kept, computed) if step is not None]
    return Chain((*operations, Fit(output))), output, at_border(output.names)


def _is_plain(items: Sequence[str], given: Mapping[str, Columnar]) -> bool:
    """Return whether every column that is passed on is a name in the text, too.

    Of a cast to the type that a column has, Spark's plan does not say that it leaves it as it is: bounds end there.
    """
    named = [item for item in map(item_of, items) if not item.is_star]
    return all(
        item.names is not None and (given[item.names[0]].reference is None) == (item.source is None) for item in named
    )


def _cut_to_span(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    spec: Any = node.spec
    between = _between(inputs[0].schema, spec.column, spec.start_us, spec.end_us)
    if between is None or (after := after_filter(inputs[0].evaluations, None)) is None:
        return None
    return between, inputs[0].schema, after


def _latest(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    spec: Any = node.spec
    field = inputs[0].schema.field(spec.column).with_nullable(True)
    output = builder.normal(pa.schema([field]))
    return Latest(field.name, output, spec.is_silent), output, at_border(output.names)


def _unite(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    spec: Any = node.spec
    united = _united([before.schema for before in inputs], fills=spec.fills)
    if united is None:
        return None
    return Unite(united), united, after_union([before.evaluations for before in inputs])


def _identify(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    spec: Any = node.spec
    schema, evaluated = inputs[0]
    columns, timestamp = spec.resolved(schema.names)
    check_columns(schema, columns, timestamp)
    if {*columns, timestamp} & evaluated.raising:
        return None  # Spark computes these only where the id is wanted
    output = builder.normal(schema.append(pa.field(spec.into, pa.string())))
    return Identify(spec.key, tuple(columns), timestamp, output), output, evaluated


def _call(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made | None:
    spec: Any = node.spec
    output = builder.normal(spec.output(inputs[0].schema))
    function = BatchFunction(spec.fn, spec.setup, output, node.name, builder.token + node.name, promise_of(node))
    return Call(function), output, at_border(output.names)


def _looked_up(builder: Builder, node: Node, inputs: Sequence[Before]) -> Made:
    operation = look_up_of(node, inputs[0].schema, builder.token, builder.normal)
    return operation, operation.schema, at_border(operation.schema.names)


def _between(schema: pa.Schema, column: str, start_us: int | None, end_us: int | None) -> Between | None:
    index = schema.get_field_index(column)
    kind = schema.field(index).type if index >= 0 else pa.null()
    if kind not in (pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        return None
    if any(border is not None and not -(2**63) <= border < 2**63 for border in (start_us, end_us)):
        return None  # no BIGINT: Spark compares with a decimal, or refuses
    return Between(column, start_us, end_us)


def _united(schemas: list[pa.Schema], *, fills: bool) -> pa.Schema | None:
    first = schemas[0]
    if fills:
        return _fill(schemas)
    for other in schemas[1:]:
        if sorted(other.names) != sorted(first.names):
            return None  # names that differ by case need Spark
        fields = [united_field(field, other.field(field.name)) for field in first]
        if any(field is None for field in fields):
            return None  # Spark widens types
        first = pa.schema(fields)
    return first


def _fill(schemas: list[pa.Schema]) -> pa.Schema | None:
    """Return the schema of rows in which a column that an input lacks is null."""
    fields: dict[str, pa.Field] = {}
    for field in (field for schema in schemas for field in schema):
        known = fields.setdefault(field.name, field.with_nullable(any(field.name not in one.names for one in schemas)))
        if (united := united_field(known, field)) is None:
            return None
        fields[field.name] = united
    return pa.schema(list(fields.values())) if len({name.lower() for name in fields}) == len(fields) else None


def _computed(make: Make) -> Callable[[Builder, Node], int | None]:
    return lambda builder, node: builder._computed(node, make)


def _from_elsewhere(builder: Builder, node: Node) -> None:
    """Return None: its rows are the head of a program (:meth:`Builder.head`), or Spark's."""


WAYS: Mapping[InArrow, Callable[[Builder, Node], int | None]] = {
    InArrow.READ: Builder._readable,
    InArrow.REJECTS: Builder._rejects,
    InArrow.COMPUTE: _computed(_compute),
    InArrow.KEEP: _computed(_keep),
    InArrow.VERIFY: _computed(_verify),
    InArrow.BETWEEN: _computed(_cut_to_span),
    InArrow.IDENTIFY: _computed(_identify),
    InArrow.CALL: _computed(_call),
    InArrow.LOOK_UP: _computed(_looked_up),
    InArrow.UNITE: _computed(_unite),
    InArrow.LATEST: _computed(_latest),
    InArrow.STEP: _from_elsewhere,
    InArrow.SIDE_OUTPUT: _from_elsewhere,
    InArrow.STATEMENT: _computed(_query),
    InArrow.SPARK_ONLY: _from_elsewhere,
}
"""How Arrow does an operator -> what adds its step, and returns its number; None where it adds none."""
