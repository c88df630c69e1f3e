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
from holdfast.plan.levels.opened import CHUNK, CHUNK_TYPE, Closing, Opening, opened_schema
from holdfast.plan.program import Program
from holdfast.plan.program_build import Builder, as_it_is
from holdfast.plan.routes import PASSING, STEP, TAG, Routes, column_name, struct_name
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
    """

    fn: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: Callable[[pa.Schema], pa.Schema]


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
        opening = Opening(stage.detour, opened_schema([schema for _, schema in stage.detour.heads]))
        closing = Closing(number, stage, stages.routing)
        program = self._program(part)
        given = (stages.routing.to_batch(each, number) for each in self._cut(chunks))
        made = (row for batch in opening(given) for row in self._rows(program, batch))
        rows = pa.Table.from_batches(list(made), _evaluated(program))
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

    def _rows(self, program: Program, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what becomes of each row, in their order."""
        for number, step in enumerate(batch.column(STEP).to_pylist()):
            row = batch.slice(number, 1)
            if step == PASSING:
                yield _row({TAG: pa.nulls(1, pa.int32()), CHUNK: row.column(CHUNK)}, _evaluated(program))
                continue
            schema = program.schemas[f"{step}"]
            columns = [row.column(column_name(step, index)) for index in range(len(schema))]
            for end, rows in program.run(f"{step}", pa.RecordBatch.from_arrays(columns, schema=schema)):
                tag = program.routes.sinks.index(end)
                given = {TAG: pa.array([tag] * rows.num_rows, pa.int32()), struct_name(tag): rows.to_struct_array()}
                yield _row(given, _evaluated(program))

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


def _evaluated(program: Program) -> pa.Schema:
    structs = [
        pa.field(struct_name(tag), pa.struct([field.with_nullable(True) for field in schema]))
        for tag, schema in enumerate(program.routes.schemas)
    ]
    return pa.schema([pa.field(TAG, pa.int32()), pa.field(CHUNK, CHUNK_TYPE), *structs])


def _row(given: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    count = len(given[TAG])
    arrays = [
        given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
