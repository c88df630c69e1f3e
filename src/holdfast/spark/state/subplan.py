"""What Spark's plan evaluates between two operators with state: compiled once for its schemas, then put into the line.

The types of what comes back decide how the next operator keeps its state, so they are needed before there is anything
to compute on.  So a part is compiled on an empty stand-in of the rows that it will be given, and what was made of the
stand-in is made of the stream afterwards: functions of users are called once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.plan.chunks import Routing
from holdfast.plan.feeds import Unchanged
from holdfast.plan.levels.opened import (
    CHUNK,
    KEPT,
    NUMBER,
    BatchTask,
    Closing,
    InOneTask,
    Opening,
    ThroughPlan,
    opened_schema,
)
from holdfast.plan.routes import PASSING, STEP, TAG, end_column_name
from holdfast.plan.stages import SparkPart, Stage
from holdfast.spark import private
from holdfast.spark.compile import compile_opened
from holdfast.spark.plans import catalyst
from holdfast.spark.plans.traced import Trace, over_arrays
from holdfast.spark.wishes import wish_of_task


@dataclass(frozen=True)
class CompiledSubplan:
    """A part between two levels, on its stand-in.

    Parameters
    ----------
    stand_in : DataFrame
        No rows, with the columns of opened ones: arrays of them, where rows are gathered.
    frame : DataFrame
        What the part makes of it, without the columns that stay in the heads of chunks.
    schemas : tuple of pa.Schema
        Of its ends.
    analysis : mapping of str to Unchanged
        Operator -> what it leaves as it was.
    through : ThroughPlan
        What goes through the frame.
    """

    stand_in: DataFrame
    frame: DataFrame
    schemas: tuple[pa.Schema, ...]
    analysis: Mapping[str, Unchanged]
    through: ThroughPlan

    @staticmethod
    def of(part: SparkPart, session: SparkSession, token: str) -> CompiledSubplan:
        """Compile a part.

        Raises
        ------
        InvalidPipeline
            If Spark cannot resolve it, or it is more than projections, filters and generators.
        """
        opened = opened_schema(list(part.heads.values()))
        stand_in = session.createDataFrame([], private.spark_schema(opened))
        made, ends, analysis = compile_opened(part, _tag(stand_in), KEPT, token)
        through = _through(made, stand_in, ends)
        names = [name for name in (TAG, CHUNK, NUMBER) if name in made.columns]
        if not through.is_numbered:
            names.remove(NUMBER)
        names += [end_column_name(end, index) for end in range(len(ends)) for index in through.computed(end)]
        schemas = tuple(private.arrow_schema(end) for end in ends)
        frame = catalyst.collapsed(made.select(*names))
        if through.is_row_for_row and STEP not in stand_in.columns and TAG not in names:
            in_arrays = replace(through, is_gathered=True)
            arrays = session.createDataFrame(
                [], private.spark_schema(opened_schema(list(part.heads.values()), in_arrays))
            )
            if (gathered := over_arrays(frame, stand_in, arrays, CHUNK)) is not None:
                return CompiledSubplan(arrays, gathered, schemas, analysis, in_arrays)
        return CompiledSubplan(stand_in, frame, schemas, analysis, through)

    def behind(self, chunks: DataFrame, task: BatchTask, stage: Stage) -> DataFrame:
        """Return what the part makes of the rows of a task's chunks: they are opened in the same task."""
        assert stage.subplan is not None
        spark_schema = private.spark_schema(opened_schema([schema for _, schema in stage.subplan.heads], self.through))
        opening = Opening(stage.subplan, private.arrow_schema(spark_schema), self.through)
        rows = chunks.mapInArrow(InOneTask(task, opening), spark_schema)
        given = set(rows.columns)
        columns = [
            F.col(field.name) if field.name in given else F.lit(None).cast(field.dataType).alias(field.name)
            for field in self.stand_in.schema
        ]  # those that nothing reads are not there
        return catalyst.collapsed(catalyst.planted(self.frame, self.stand_in, rows.select(*columns)))


@dataclass(frozen=True)
class PlacedSubplan:
    """A part in its place on the line of levels.

    Parameters
    ----------
    compiled : CompiledSubplan
        The part.
    number : int
        The level that it is.
    stage : Stage
        The stage behind it.
    routing : Routing
        Where chunks go.
    """

    compiled: CompiledSubplan
    number: int
    stage: Stage
    routing: Routing

    def opened(self, frame: DataFrame, task: BatchTask) -> DataFrame:
        """Return what the part makes of the rows of the chunks that a task gives."""
        return self.compiled.behind(frame, task, self.stage)

    @property
    def closing(self) -> Closing:
        """What closes its rows to chunks."""
        return Closing(self.number, self.stage, self.routing, self.compiled.through, wish_of_task)


def _tag(opened: DataFrame) -> DataFrame:
    """Return opened rows with their tags: of one head every row that is no chunk."""
    if STEP in opened.columns:
        return opened
    return opened.select(F.when(F.col(CHUNK).isNull(), F.lit(0)).otherwise(F.lit(PASSING)).alias(STEP), "*")


def _through(frame: DataFrame, stand_in: DataFrame, ends: tuple[StructType, ...]) -> ThroughPlan:
    """Return what goes through a part's plan: not the columns that are at an end what they were before."""
    base = {
        private.identity_of(column): column.name() for column in private.listed(private.analyzed(stand_in).output())
    }
    trace = Trace.of(private.analyzed(frame), private.analyzed(stand_in))
    output = dict(zip(frame.columns, map(private.identity_of, private.listed(trace.plan.output())), strict=True))
    made = [[output[end_column_name(end, index)] for index in range(len(schema))] for end, schema in enumerate(ends)]
    stays = tuple(tuple(base.get(trace.origins.get(identity, -1)) for identity in end) for end in made)
    crossing = {identity for end in made for identity in end if identity not in trace.origins}
    read = trace.read_for(crossing | ({output[TAG]} if TAG in output else set()))
    return ThroughPlan(frozenset(base[identity] for identity in read) - {STEP, *KEPT}, stays, trace.is_row_for_row)


class Subplans:
    """The parts of one pipeline, compiled when they are first asked for.

    Parameters
    ----------
    session : SparkSession
        Of the run.
    token : str
        Unique for the run.
    """

    def __init__(self, session: SparkSession, token: str) -> None:
        self._session = session
        self._token = token
        self._compiled: list[tuple[SparkPart, CompiledSubplan]] = []

    def compiled(self, part: SparkPart) -> CompiledSubplan:
        """Return a part as it was compiled, now or before: a graph may be cut again with more of them."""
        for known, compiled in self._compiled:
            if (known.nodes, known.sinks, dict(known.heads)) == (part.nodes, part.sinks, dict(part.heads)):
                return compiled
        made = CompiledSubplan.of(part, self._session, self._token)
        self._compiled.append((part, made))
        return made
