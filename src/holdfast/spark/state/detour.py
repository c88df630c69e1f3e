"""What Spark's plan evaluates between two operators with state: compiled once for its schemas, then put into the line.

The types of what comes back decide how the next operator keeps its state, so they are needed before there is anything
to compute on.  So a part is compiled on an empty stand-in of the rows that it will be given, and what was made of the
stand-in is made of the stream afterwards: functions of users are called once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.plan.chunks import CHUNKS, Routing
from holdfast.plan.feeds import Unchanged
from holdfast.plan.levels.opened import CHUNK, Closing, Opening, opened_schema
from holdfast.plan.stages import SparkPart, Stage
from holdfast.spark import private
from holdfast.spark.compile import compile_opened
from holdfast.spark.plans import catalyst


@dataclass(frozen=True)
class CompiledDetour:
    """A part between two levels, on its stand-in.

    Parameters
    ----------
    stand_in : DataFrame
        No rows, with the columns of opened ones.
    frame : DataFrame
        What the part makes of it.
    schemas : tuple of pa.Schema
        Of its ends.
    analysis : mapping of str to Unchanged
        Operator -> what it leaves as it was.
    """

    stand_in: DataFrame
    frame: DataFrame
    schemas: tuple[pa.Schema, ...]
    analysis: Mapping[str, Unchanged]

    @staticmethod
    def of(part: SparkPart, session: SparkSession, token: str) -> CompiledDetour:
        """Compile a part.

        Raises
        ------
        InvalidPipeline
            If Spark cannot resolve it, or it is more than projections, filters and generators.
        """
        opened = opened_schema(list(part.heads.values()))
        stand_in = session.createDataFrame([], private.spark_schema(opened))
        frame, analysis = compile_opened(part, stand_in, [CHUNK], token)
        structs = private.arrow_schema(frame.schema)
        first = len(structs) - len(part.sinks)
        schemas = [pa.schema(list(structs.field(first + number).type)) for number in range(len(part.sinks))]
        return CompiledDetour(stand_in, frame, tuple(schemas), analysis)

    def behind(self, chunks: DataFrame, number: int, stage: Stage, routing: Routing) -> DataFrame:
        """Return the chunks of a level through this part."""
        assert stage.detour is not None
        spark_schema = private.spark_schema(opened_schema([schema for _, schema in stage.detour.heads]))
        opening = Opening(stage.detour, private.arrow_schema(spark_schema))
        opened = chunks.mapInArrow(opening, spark_schema)
        made = catalyst.planted(self.frame, self.stand_in, opened)
        return made.mapInArrow(Closing(number, stage, routing), CHUNKS)


class Detours:
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
        self._compiled: list[tuple[SparkPart, CompiledDetour]] = []

    def compiled(self, part: SparkPart) -> CompiledDetour:
        """Return a part as it was compiled, now or before: a graph may be cut again with more of them."""
        for known, compiled in self._compiled:
            if (known.nodes, known.sinks, dict(known.heads)) == (part.nodes, part.sinks, dict(part.heads)):
                return compiled
        made = CompiledDetour.of(part, self._session, self._token)
        self._compiled.append((part, made))
        return made
