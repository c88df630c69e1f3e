"""What stands in for Spark's plan where there is no Spark: functions of Arrow rows, one for each operator.

Packing, opening and closing, places, bounds and what follows are those of a run (:mod:`holdfast.plan.levels`);
simulated is what Spark computes between.  Rows are computed one by one, as Spark does it, and are cut into batches
anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.errors import InvalidPipeline
from holdfast.graph import naming
from holdfast.graph.nodes import Node
from holdfast.operators.map_batches import MapBatches
from holdfast.plan.chunks import Chunk, from_batch
from holdfast.plan.levels.opened import CHUNK, NUMBER, Closing, Opening, ThroughPlan, opened_schema
from holdfast.plan.levels.packing import control_packing, plan_packing
from holdfast.plan.program import Program
from holdfast.plan.program_build import Builder, as_it_is
from holdfast.plan.routes import STEP, TAG, Routes, column_name, end_column_name, struct_name
from holdfast.plan.stages import BOUND_ROWS, SparkPart, Stages


@dataclass(frozen=True)
class StandIn:
    """What an operator that only Spark evaluates makes of rows.

    Parameters
    ----------
    fn : callable
        Takes a batch of one row, gives a batch of any number of rows.
    schema : callable
        Takes the schema before it, gives the one behind it.
    leaves_columns : bool
        Whether every column that there is before it and behind it is left as it was: such columns do not go through
        Spark's plan then, as in a run.
    """

    fn: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: Callable[[pa.Schema], pa.Schema]
    leaves_columns: bool = False


@dataclass(frozen=True)
class _Built:
    """A part of Spark's plan, as a program of Arrow.

    Parameters
    ----------
    part : SparkPart
        The part.
    program : Program
        Rows of its heads, or of the sources, to its ends, without those that take the bound rows of sources.
    routes : Routes
        All of its ends.
    """

    part: SparkPart
    program: Program
    routes: Routes


class StandInPlan:
    """Stands in for Spark's plan in stage 0 and in all subplans of a graph.

    Parameters
    ----------
    functions : mapping of str to StandIn
        Operator -> what it does.
    random_ : random.Random, optional
        Decides where batches are cut; without it they are not.
    """

    def __init__(self, functions: Mapping[str, StandIn], random_: random.Random | None = None) -> None:
        self._functions = functions
        self._random = random_
        self._parts: list[_Built] = []

    def schemas(self, part: SparkPart) -> Sequence[pa.Schema]:
        """Return the schemas of a part's ends: what :func:`~holdfast.plan.cutting.build_stages` asks for."""
        return self._built(part).routes.schemas

    def first_stage(self, stages: Stages) -> FirstStage | None:
        """Return what computes stage 0 of a graph that was cut with this plan; None where Arrow does."""
        if stages.stages[0].program is not None:
            return None
        built = next(one for one in reversed(self._parts) if not one.part.heads)  # of the last time that it was cut
        return FirstStage(self, built, stages)

    def led_through(self, stages: Stages, number: int, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Return what a subplan makes of the chunks of one task."""
        stage, part = stages.stages[number], stages.subplans[number]
        assert stage.subplan is not None
        program = self._built(part).program
        through = self._through(part, program)
        opening = Opening(stage.subplan, opened_schema([schema for _, schema in stage.subplan.heads], through), through)
        closing = Closing(number, stage, stages.routing, through)
        given = (stages.routing.to_batch(each, number) for each in self._cut(chunks))
        made = (row for batch in opening(given) for row in _rows(program, through, batch))
        evaluated = self.cut(pa.Table.from_batches(list(made), _evaluate(program, through)))
        return [chunk for batch in closing(evaluated) for chunk in from_batch(batch)]

    def cut(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield rows in batches."""
        for start, count in self._spans(rows.num_rows):
            yield from rows.slice(start, count).combine_chunks().to_batches()

    def _built(self, part: SparkPart) -> _Built:
        for known in self._parts:
            if known.part is part:
                return known
        program = self._program(part)
        bounds = [end for end in part.sinks if end.is_bounds]
        ends = (*program.routes.sinks, *(end.name for end in bounds))
        schemas = (*program.routes.schemas, *(end.node.source_spec.schema for end in bounds))
        self._parts.append(_Built(part, program, Routes(ends, schemas)))
        return self._parts[-1]

    def _program(self, part: SparkPart) -> Program:
        builder = Builder(as_it_is, "", is_behind_state=bool(part.heads))
        heads = {f"{number}": schema for number, schema in enumerate(part.heads.values())}
        made: dict[Node, Node] = {}
        for head, schema in part.heads.items():
            builder.head(head, schema)
            made[head] = head
        for node in part.nodes:
            if node.is_source:
                heads[node.name] = builder.steps[builder.source(node)].schema
        for node in part.nodes:
            inputs = tuple(made[before] for before in node.inputs)
            made[node] = node if node.is_source else replace(node, inputs=inputs)
            if node.name in self._functions:
                stand_in = self._functions[node.name]
                schema = stand_in.schema(builder.steps[builder.number_of(inputs[0])].schema)
                made[node] = replace(node, inputs=inputs, spec=MapBatches(stand_in.fn, schema))
            if not builder.add(made[node]):
                raise without_spark(node)
        own = [end for end in part.sinks if not end.is_bounds]
        ends = tuple(builder.number_of(made[end.node]) for end in own)
        routes = Routes(tuple(end.name for end in own), tuple(builder.steps[end].schema for end in ends))
        return Program(heads, tuple(builder.steps), ends, routes, False)

    def _through(self, part: SparkPart, program: Program) -> ThroughPlan:
        """Return what goes through: every column in, and back what is not left as it was."""
        names = [
            [column_name(tag, index) for index in range(len(schema))] for tag, schema in enumerate(part.heads.values())
        ]
        origins = {
            head: dict(zip(schema.names, of, strict=True))
            for (head, schema), of in zip(part.heads.items(), names, strict=True)
        }
        for node in part.nodes:
            is_left = node.name in self._functions and self._functions[node.name].leaves_columns
            origins[node] = origins[node.inputs[0]] if is_left else {}
        stays = tuple(
            tuple(origins[end.node].get(name) for name in schema.names)
            for end, schema in zip(part.sinks, program.routes.schemas, strict=True)
        )
        return ThroughPlan(frozenset(name for of in names for name in of), stays, is_row_for_row=False)

    def _cut(self, chunks: Sequence[Chunk]) -> Iterator[Sequence[Chunk]]:
        return (chunks[start : start + count] for start, count in self._spans(len(chunks)))

    def _spans(self, count: int) -> Iterator[tuple[int, int]]:
        start = 0
        while start < count:
            taken = count - start if self._random is None else self._random.randint(1, count - start)
            yield start, taken
            start += taken


class FirstStage:
    """Stands in for Spark's plan of stage 0: what one task gives for the rows that it has read.

    Parameters
    ----------
    plan : StandInPlan
        Cuts batches.
    built : object
        The part.
    stages : Stages
        The graph.
    """

    def __init__(self, plan: StandInPlan, built: _Built, stages: Stages) -> None:
        self._plan = plan
        self._built = built
        self._packing = plan_packing(stages, built.routes)
        self._sources = [node for node in built.part.nodes if node.is_source]
        self.controls = control_packing(stages, len(self._sources))

    def chunks(self, number: int, source: str, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
        """Yield the chunks of the task of a number, which has read rows of one source: with its bound rows, if any."""
        rows = [row for batch in batches for row in self._rows(source, batch)]
        made = self._plan.cut(pa.Table.from_batches(rows)) if rows else iter(())
        for batch in self._packing.packed(number, made):
            yield from from_batch(batch)

    def _rows(self, source: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what becomes of each row of a batch, tagged for its end, in their order."""
        program, routes = self._built.program, self._built.routes
        node = next(each for each in self._sources if each.name == source)
        marker = node.spec.marker if isinstance(node.spec, MarkedSpec) else None
        for number in range(batch.num_rows):
            row = batch.slice(number, 1)
            if marker is not None and row.column(marker)[0].as_py():
                end = f"{BOUND_ROWS}{source}"
                yield _tag(routes, end, row.select([field.name for field in node.source_spec.schema]))
                continue
            plain = row if marker is None else row.drop_columns([marker])
            for end, rows in program.run(source, plain):
                yield _tag(routes, end, rows)


def _tag(routes: Routes, end: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows for one end as Spark's plan gives them, where it has several."""
    if not routes.is_tagged:
        return rows
    tag = routes.sinks.index(end)
    columns: dict[str, Any] = {TAG: pa.array([tag] * rows.num_rows, pa.int32())}
    for other, schema in enumerate(routes.schemas):
        struct = pa.struct([field.with_nullable(True) for field in schema])
        columns[struct_name(other)] = (
            rows.to_struct_array().cast(struct) if other == tag else pa.nulls(rows.num_rows, struct)
        )
    return pa.RecordBatch.from_pydict(columns)


def without_spark(node: Node) -> InvalidPipeline:
    """Return the error for an operator that only Spark evaluates, where nothing stands in for it."""
    return InvalidPipeline(
        f"{node.kind} {node.name!r}, built at {node.origin}, cannot be driven without Spark.",
        why=f"its arguments are Spark's to evaluate: {naming.canonical_json(dict(node.arguments()))}.",
        do="write it with expressions that Arrow evaluates, test the graph with Pipeline.run, or say by "
        "stand_ins= what it makes of rows.",
        participant=node.name,
    )


def _rows(program: Program, through: ThroughPlan, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield what becomes of each row, in their order."""
    evaluated = _evaluate(program, through)
    steps = batch.column(STEP).to_pylist() if STEP in batch.schema.names else [0] * batch.num_rows
    for number, (step, is_chunk) in enumerate(zip(steps, batch.column(CHUNK).is_valid().to_pylist(), strict=True)):
        row = batch.slice(number, 1)
        if is_chunk:
            yield _row(1, {CHUNK: row.column(CHUNK)}, evaluated)
            continue
        schema = program.schemas[f"{step}"]
        columns = [row.column(column_name(step, index)) for index in range(len(schema))]
        for name, rows in program.run(f"{step}", pa.RecordBatch.from_arrays(columns, schema=schema)):
            end = program.routes.sinks.index(name)
            given = {end_column_name(end, index): rows.column(index) for index in through.computed(end)}
            if through.is_numbered:
                given[NUMBER] = row.column(NUMBER).take(pa.array([0] * rows.num_rows, pa.int64()))
            yield _row(rows.num_rows, {TAG: pa.array([end] * rows.num_rows, pa.int32()), **given}, evaluated)


def _evaluate(program: Program, through: ThroughPlan) -> pa.Schema:
    """Return the schema of what comes back."""
    tag = [pa.field(TAG, pa.int32())] if len(program.routes.sinks) > 1 else []
    number = [pa.field(NUMBER, pa.int32())] if through.is_numbered else []
    columns = [
        schema.field(index).with_name(end_column_name(end, index)).with_nullable(True)
        for end, schema in enumerate(program.routes.schemas)
        for index in through.computed(end)
    ]
    return pa.schema([*tag, pa.field(CHUNK, pa.binary()), *number, *columns])


def _row(count: int, given: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
