"""One row-wise operator on a DataFrame: what each declaration means to Spark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.errors import InternalError, InvalidPipeline
from holdfast.graph.nodes import Rejects
from holdfast.operators.clip import Clip
from holdfast.operators.filter import Filter
from holdfast.operators.map import Map
from holdfast.operators.select import Select
from holdfast.operators.split import SplitBranch
from holdfast.operators.sql import Sql
from holdfast.operators.union import Union
from holdfast.ports import REJECT_COLUMN

INPUT_VIEW = "input"
"""Name that ``sql`` queries know their input by."""

_view_lock = threading.Lock()


@dataclass(frozen=True)
class GoodRows:
    """The rows of a source that could be read: its rejects left out."""


def applied(spec: Any, inputs: Sequence[DataFrame]) -> DataFrame:
    """Return what an operator makes of its inputs.

    Raises
    ------
    InvalidPipeline
        If a user's function returns something else than it must.
    PySparkException
        If Spark cannot resolve an expression; the caller names the node.
    """
    frame = inputs[0]
    match spec:
        case GoodRows():
            return frame.filter(F.col(REJECT_COLUMN).isNull()).drop(REJECT_COLUMN)
        case Rejects():
            return frame.filter(F.col(REJECT_COLUMN).isNotNull()).select(f"{REJECT_COLUMN}.*")
        case Map(fn=fn):
            return _frame_of(fn(frame))
        case Select(items=items):
            return frame.selectExpr(*items)
        case Filter(condition=condition):
            return frame.filter(condition if isinstance(condition, str) else _column_of(condition(frame)))
        case SplitBranch(condition=condition):
            return frame.filter(condition)
        case Sql(query=query):
            return _sql(query, frame)
        case Clip():
            return _clipped(spec, frame)
        case Union():
            return reduce(DataFrame.unionByName, inputs)
    raise InternalError(f"no rule says what the operator {type(spec).__name__} means to Spark.")


def _sql(query: str, frame: DataFrame) -> DataFrame:
    session = frame.sparkSession
    # The name is looked up while the query is analysed, so the view lives for this call only.
    with _view_lock:
        frame.createOrReplaceTempView(INPUT_VIEW)
        try:
            return session.sql(query)
        finally:
            session.catalog.dropTempView(INPUT_VIEW)


def _clipped(clip: Clip, frame: DataFrame) -> DataFrame:
    column = F.col(f"`{clip.column}`")
    is_number = frame.schema[clip.column].dataType.typeName() in ("long", "integer")
    conditions = []
    for border_us, is_start in ((clip.start_us, True), (clip.end_us, False)):
        if border_us is not None:
            border = F.lit(border_us) if is_number else F.timestamp_micros(F.lit(border_us))
            conditions.append(column >= border if is_start else column < border)
    return frame.filter(reduce(Column.__and__, conditions))


def _frame_of(result: Any) -> DataFrame:
    if isinstance(result, DataFrame):
        return result
    raise InvalidPipeline(
        f"the function of map returned {type(result).__name__} instead of a DataFrame.",
        why="map takes a DataFrame and must return the transformed one.",
        do='for instance hf.map(lambda df: df.withColumn("late", df.dep_delay > 15)).',
    )


def _column_of(result: Any) -> Column:
    if isinstance(result, Column):
        return result
    raise InvalidPipeline(
        f"the function of filter returned {type(result).__name__} instead of a Column.",
        why="filter takes a DataFrame and must return the condition.",
        do="for instance hf.filter(lambda df: df.dep_delay > 15).",
    )
