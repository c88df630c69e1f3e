"""Row-wise operators on a DataFrame: what a declaration means to Spark, one function for each way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.errors import InvalidPipeline
from holdfast.operators.sql import TABLE
from holdfast.ports import REJECT_COLUMN

_view_lock = threading.Lock()


def readable(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the rows of a source that could be read."""
    return frame.filter(F.col(REJECT_COLUMN).isNull()).drop(REJECT_COLUMN)


def rejected(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the rows of a source that could not be read."""
    return frame.filter(F.col(REJECT_COLUMN).isNotNull()).select(f"{REJECT_COLUMN}.*")


def transformed(spec: Any, frame: DataFrame) -> DataFrame:
    """Return what a user's function makes of a frame.

    Raises
    ------
    InvalidPipeline
        If it returns something else.
    """
    return _frame_of(spec.fn(frame))


def selected(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the items of a select."""
    return frame.selectExpr(*spec.items)


def filtered(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the rows for which a condition is true.

    Raises
    ------
    InvalidPipeline
        If the condition is a user's function, and returns no Column.
    """
    condition = spec.condition
    return frame.filter(condition if isinstance(condition, str) else _column_of(condition(frame)))


def queried(spec: Any, frame: DataFrame) -> DataFrame:
    """Return what a statement makes of a frame."""
    session = frame.sparkSession
    # The name is looked up while the query is analysed, so the view lives for this call only.
    with _view_lock:
        frame.createOrReplaceTempView(TABLE)
        try:
            return session.sql(spec.query)
        finally:
            session.catalog.dropTempView(TABLE)


def clipped(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the rows of a span of time."""
    column = F.col(f"`{spec.column}`")
    is_number = frame.schema[spec.column].dataType.typeName() in ("long", "integer")
    conditions = []
    for border_us, is_start in ((spec.start_us, True), (spec.end_us, False)):
        if border_us is not None:
            border = F.lit(border_us) if is_number else F.timestamp_micros(F.lit(border_us))
            conditions.append(column >= border if is_start else column < border)
    return frame.filter(reduce(Column.__and__, conditions))


def united(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of several frames, by the names of their columns."""
    return reduce(DataFrame.unionByName, frames)


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
