"""What stands in for Spark's plan where there is no Spark: functions of Arrow rows, one for each operator.

Opening and closing, places, bounds and what follows are those of a run (:mod:`holdfast.plan.levels.opened`); simulated
is what Spark computes between.  Rows are computed one by one, as Spark does it, and are cut into batches anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph import naming
from holdfast.graph.nodes import Node
from holdfast.operators.map_batches import MapBatches
from holdfast.plan.chunks import Chunk, from_batch
from holdfast.plan.levels.opened import CHUNK, NUMBER, Closing, Opening, ThroughPlan, opened_schema
from holdfast.plan.program import Program
from holdfast.plan.program_build import Builder, as_it_is
from holdfast.plan.routes import STEP, TAG, Routes, column_name, end_column_name
from holdfast.plan.stages import SparkPart, Stages


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


class StandInPlan:
    """Stands in for Spark's plan in all detours of a graph.

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
        self._programs: list[tuple[SparkPart, Program]] = []

    def schemas(self, part: SparkPart) -> Sequence[pa.Schema]:
        """Return the schemas of a part's ends: what :func:`~holdfast.plan.cutting.build_stages` asks for."""
        return self._program(part).routes.schemas

    def led_through(self, stages: Stages, number: int, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Return what a detour makes of the chunks of one task."""
        stage, part = stages.stages[number], stages.detours[number]
        assert stage.detour is not None
        program = self._program(part)
        through = self._through(part, program)
        opening = Opening(stage.detour, opened_schema([schema for _, schema in stage.detour.heads], through), through)
        closing = Closing(number, stage, stages.routing, through)
        given = (stages.routing.to_batch(each, number) for each in self._cut(chunks))
        made = (row for batch in opening(given) for row in _rows(program, through, batch))
        rows = pa.Table.from_batches(list(made), _evaluated(program, through))
        batches = (
            rows.slice(start, count).combine_chunks().to_batches() for start, count in self._spans(rows.num_rows)
        )
        return [chunk for batch in closing(one for some in batches for one in some) for chunk in from_batch(batch)]

    def _program(self, part: SparkPart) -> Program:
        for known, program in self._programs:
            if known is part:
                return program
        self._programs.append((part, self._built(part)))
        return self._programs[-1][1]

    def _built(self, part: SparkPart) -> Program:
        builder = Builder(as_it_is, "", is_behind_state=True)
        heads = {f"{number}": schema for number, schema in enumerate(part.heads.values())}
        made: dict[Node, Node] = {}
        for head, schema in part.heads.items():
            builder.head(head, schema)
            made[head] = head
        for node in part.nodes:
            inputs = tuple(made[before] for before in node.inputs)
            made[node] = replace(node, inputs=inputs)
            if node.name in self._functions:
                stand_in = self._functions[node.name]
                schema = stand_in.schema(builder.steps[builder.number_of(inputs[0])].schema)
                made[node] = replace(node, inputs=inputs, spec=MapBatches(stand_in.fn, schema))
            if not builder.add(made[node]):
                raise without_spark(node)
        ends = tuple(builder.number_of(made[end.node]) for end in part.sinks)
        routes = Routes(tuple(end.name for end in part.sinks), tuple(builder.steps[end].schema for end in ends))
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


def without_spark(node: Node) -> InvalidPipeline:
    """Return the error for an operator that only Spark evaluates, where nothing stands in for it."""
    return InvalidPipeline(
        f"{node.kind} {node.name!r}, built at {node.origin}, cannot be driven without Spark.",
        why=f"its arguments are Spark's to evaluate: {naming.canonical_json(dict(node.arguments()))}.",
        do="write it with expressions that Arrow evaluates, test the graph with Pipeline.run, or, behind state, "
        "say by stand_ins= what it makes of rows.",
        participant=node.name,
    )


def _rows(program: Program, through: ThroughPlan, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield what becomes of each row, in their order."""
    evaluated = _evaluated(program, through)
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


def _evaluated(program: Program, through: ThroughPlan) -> pa.Schema:
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
