"""A projection of rows as one of arrays of rows: what crosses into the JVM as one row then holds thousands.

Every row that crosses costs Spark's iterators, two copies, and the question whether its batch is full by now, which
looks at all columns; a value in an array costs none of that.  Spark's own ``transform`` leads an expression over an
array, as generated code::

    v * 2 + bround(total % 1000, 0) AS x
    transform(v, (v_, i) -> v_ * 2 + bround(get(total, i) % 1000, 0)) AS x

So it can be done where a plan is one projection, and what it computes follows from the values of its own row.  Values
have few bytes each, or a row of thousands would be of any size: Spark asks for a batch's size between rows.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F

from holdfast.spark import private
from holdfast.spark.plans import catalyst

OF_FEW_BYTES = (
    *(types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType),
    *(types.FloatType, types.DoubleType, types.DecimalType),
    *(types.DateType, types.TimestampType, types.TimestampNTZType),
)
"""Types whose values have at most 16 bytes."""


def over_arrays(frame: DataFrame, rows: DataFrame, arrays: DataFrame, apart: str) -> DataFrame | None:
    """Return what a frame computes of rows, computed of arrays; None where that cannot be.

    Parameters
    ----------
    frame : DataFrame
        Made of ``rows``.
    rows : DataFrame
        Of several columns.
    arrays : DataFrame
        Of those of them that the frame computes with, under their names, each an array; and ``apart`` as it is.
    apart : str
        A column of ``rows`` that the frame has as it is.  Where it is set there is no row, and no array.
    """
    session = frame.sparkSession
    plan, base = private.analyzed(frame), private.analyzed(rows)
    read = [name for name in arrays.columns if name != apart]
    if not read or private.kind_of(plan) != "Project" or not plan.child().equals(base):
        return None
    computed = [column for column in private.listed(plan.projectList()) if column.name() != apart]
    if not computed or not all(
        isinstance(kind, OF_FEW_BYTES)
        for kind in (
            *(rows.schema[name].dataType for name in read),
            *(frame.schema[c.name()].dataType for c in computed),
        )
    ):
        return None
    if not all(catalyst.is_of_one_row(session, column) for column in computed):
        return None
    identities = {column.name(): private.identity_of(column) for column in private.listed(base.output())}
    (nothing, *templates) = _templates(arrays, read, len(computed))
    made = []
    for column, template in zip(computed, templates, strict=True):
        values = catalyst.values_of_template(template)
        by = {identities[name]: value for name, value in zip(read, values, strict=True)} | {identities[apart]: nothing}
        body = catalyst.replaced(session, column.child(), by)
        made.append(private.column_of(session, catalyst.with_body(session, template, body)).alias(column.name()))
    return arrays.select(apart, *made)


def _templates(arrays: DataFrame, read: list[str], count: int) -> list[Any]:
    """Return expressions, resolved: a null of bytes; and functions over the first array that name the values of a row.

    Each has variables of its own.
    """
    first, *others = read
    template = F.transform(first, lambda value, at: F.struct(value, *(F.get(other, at) for other in others)))
    columns = [F.lit(None).cast("binary"), *(template for _ in range(count))]
    plan = private.analyzed(arrays.select(*(column.alias(f"t{number}") for number, column in enumerate(columns))))
    return [column.child() for column in private.listed(plan.projectList())]
