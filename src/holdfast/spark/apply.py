"""Row-wise operators on a DataFrame: what a declaration means to Spark, one function for each way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Node
from holdfast.operators.arguments import closed
from holdfast.operators.row_id import check_into
from holdfast.operators.sql import TABLE
from holdfast.plan.feeds import Unchanged
from holdfast.ports import REJECT_COLUMN
from holdfast.spark import private
from holdfast.spark.plans import catalyst
from holdfast.spark.plans.lookups import lookup_of
from holdfast.types.row_ids import check_columns, ids_of_columns

_view_lock = threading.Lock()


def readable(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the rows of a source that could be read, without its bound rows."""
    if REJECT_COLUMN in frame.columns:
        frame = frame.filter(F.col(REJECT_COLUMN).isNull()).drop(REJECT_COLUMN)
    is_bound = marked(spec, frame)
    return frame if is_bound is None else frame.filter(~is_bound).drop(spec.marker)


def bound_rows(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the bound rows of a source."""
    is_bound = marked(spec, frame)
    assert is_bound is not None
    return frame.filter(is_bound).drop(spec.marker, REJECT_COLUMN)


def marked(spec: Any, frame: DataFrame) -> Column | None:
    """Return whether a row of a source is a bound; None where its frame has no such rows."""
    if not isinstance(spec, MarkedSpec) or spec.marker not in frame.columns:
        return None
    return F.coalesce(F.col(f"`{spec.marker}`"), F.lit(False))


def rejected(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the rows of a source that could not be read."""
    return frame.filter(F.col(REJECT_COLUMN).isNotNull()).select(f"{REJECT_COLUMN}.*")


def transformed(spec: Any, frame: DataFrame) -> DataFrame:
    """Return what a user's function makes of a frame.

    Raises
    ------
    InvalidPipeline
        If it returns something else, or no column of the name that is to hold event time.
    """
    made = _frame_of(spec.fn(frame))
    if spec.timestamp is not None and spec.timestamp not in made.columns:
        raise InvalidPipeline(
            f"the function of map gives no column {spec.timestamp!r}.",
            why=f"timestamp= names it, and the columns are {', '.join(made.columns)}.",
            do="name the column that holds event time, or leave timestamp= out.",
        )
    return made


def selected(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the items of a select."""
    return frame.selectExpr(*spec.items)


def identified(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the frame with the ids of some of its columns."""
    columns, timestamp = spec.resolved(frame.columns)
    check_columns(private.arrow_schema(frame.schema), columns, timestamp)
    check_into(spec.into, frame.columns)
    key, count = spec.key, len(columns)

    def ids(*arrays: pa.Array) -> pa.Array:
        return ids_of_columns(key, arrays[:count], arrays[count] if len(arrays) > count else None)

    made = F.arrow_udf(ids, "string")  # its kind follows from the annotations
    taken = [F.col(f"`{name}`") for name in [*columns, *([timestamp] if timestamp else [])]]
    return frame.withColumn(spec.into, made(*taken))


def filtered(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the rows for which a condition is true.

    Raises
    ------
    InvalidPipeline
        If the condition is a user's function, and returns no Column.
    """
    condition = spec.condition
    return frame.filter(condition if isinstance(condition, str) else _column_of(condition(frame)))


def marked_unmet(spec: Any, frame: DataFrame) -> DataFrame:
    """Return the frame with one more column: whether a row does not meet an expectation."""
    mark = F.expr(f"NOT coalesce(({closed(spec.condition)}), false)")
    return frame.select("*", mark.alias("__holdfast_unmet"))


def counted_unmet(frame: DataFrame, node: Node, is_its: Column, mark: Column) -> DataFrame:
    """Return the frame with its rows counted as they pass, those that do not meet an expectation apart, or dropped.

    Parameters
    ----------
    frame : DataFrame
        Its rows, and others.
    node : Node
        The expectation.
    is_its : Column
        Whether a row is its.
    mark : Column
        Whether a row does not meet it.
    """
    spec: Any = node.spec
    fails = is_its & mark
    counts = [F.count(F.when(is_its, 1)), F.count(F.when(fails, 1)), F.lit(None).cast("long")]
    named = [count.alias(name) for count, name in zip(counts, ("rows", "rejects", "timestamp_max"), strict=True)]
    counted = frame.observe(observation(node.name), *named)
    return counted.filter(~F.coalesce(fails, F.lit(False))) if spec.drops else counted


def observation(name: str) -> str:
    """Return the name under which Spark reports what it counted at a node."""
    return f"holdfast_{name}"


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


def streams_read(frame: DataFrame) -> int:
    """Return how often the plan of a frame reads a stream."""

    def count(plan: Any) -> int:
        inputs = private.children_of(plan)
        return sum(count(each) for each in inputs) if inputs else int(private.is_streaming(plan))

    return count(catalyst.inlined(frame))


def unchanged(before: DataFrame, after: DataFrame) -> Unchanged:
    """Return which columns of a frame stand in what was made of it as they are, by Spark's analysed plan.

    A column is known by its identity, not its name: where it is only renamed, or passes a filter or ``explode``, it is
    the same one; a join with a static table drops and repeats rows, and changes none.  Behind any other kind of node
    nothing is taken for unchanged: a union, for instance, gives the identities of its first branch to the rows of all.
    """
    base, plan = private.analyzed(before), catalyst.inlined(after)
    names = tuple(after.columns)
    layers = []
    while not plan.equals(base):
        kind = private.kind_of(plan)
        children = private.children_of(plan)
        if kind == "Join" and (found := lookup_of(plan, base)) is not None:
            plan = found[0]
            continue
        if kind not in ("Project", "Filter", "Generate", *private.TRANSPARENT) or len(children) != 1:
            return Unchanged((), names, kind)
        layers.append(plan)
        (plan,) = children
    origins = _named(base)
    for layer in reversed(layers):
        if private.kind_of(layer) == "Project":
            for column in private.listed(layer.projectList()):
                if private.kind_of(column) == "Alias" and private.kind_of(column.child()) == "AttributeReference":
                    origin = origins.get(private.identity_of(column.child()))
                    origins |= {} if origin is None else {private.identity_of(column): origin}
    passed = ((name, origins.get(identity)) for identity, name in _named(private.analyzed(after)).items())
    return Unchanged(tuple((name, origin) for name, origin in passed if origin is not None), names)


def _named(plan: Any) -> dict[int, str]:
    """Return the columns of a plan: identity -> name."""
    return {private.identity_of(column): column.name() for column in private.listed(plan.output())}


def united(frames: Sequence[DataFrame], spec: Any) -> DataFrame:
    """Return the rows of several frames, by the names of their columns."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=spec.fills), frames)


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
