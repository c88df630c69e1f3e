"""Which columns go through a plan as they are, and which ones it computes with: by Spark's analysed plan.

A column is known by its identity, not its name: where it is only renamed, or passes a filter, ``explode`` or a join
with a static table, it is the same one.

A projection of rows as one of arrays of rows: what crosses into the JVM as one row then holds thousands.

Every row that crosses costs Spark's iterators, two copies, and the question whether its batch is full by now, which
looks at all columns; a value in an array costs none of that.  Spark's own ``transform`` leads an expression over an
array, as generated code::

    v * 2 + bround(total % 1000, 0) AS x
    transform(v, (v_, i) -> v_ * 2 + bround(get(total, i) % 1000, 0)) AS x

So it can be done where a plan is one projection, and what it computes follows from the values of its own row.  Values
have few bytes each, or a row of thousands would be of any size: Spark asks for a batch's size between rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F

from holdfast.spark import private
from holdfast.spark.plans import catalyst


@dataclass(frozen=True)
class Trace:
    """A plan from its rows down to those that it is made of: projections, filters, generators, joins with tables.

    Parameters
    ----------
    plan : plan node
        The rows.
    layers : sequence of plan nodes
        From it down, the uppermost first.
    base : plan node
        What they are made of.
    """

    plan: Any
    layers: Sequence[Any]
    base: Any

    @staticmethod
    def of(plan: Any, base: Any) -> Trace:
        """Return the nodes between two."""
        layers, below = [], plan
        while not below.equals(base):
            layers.append(below)
            below = next(child for child in private.children_of(below) if catalyst.contains(child, base))
        return Trace(plan, layers, base)

    @cached_property
    def is_row_for_row(self) -> bool:
        """Whether exactly one row is made of each, in their order."""
        return all(private.kind_of(layer) in ("Project", *private.TRANSPARENT) for layer in self.layers)

    @cached_property
    def origins(self) -> dict[int, int]:
        """Every column that is one of the base's as it was -> that one, by their identities."""
        found = {identity: identity for identity in map(private.identity_of, private.listed(self.base.output()))}
        for layer in reversed(self.layers):
            if private.kind_of(layer) != "Project":
                continue
            for column in private.listed(layer.projectList()):
                if private.kind_of(column) == "Alias" and private.kind_of(column.child()) == "AttributeReference":
                    origin = found.get(private.identity_of(column.child()))
                    found |= {} if origin is None else {private.identity_of(column): origin}
        return found

    def read_for(self, wanted: Iterable[int]) -> set[int]:
        """Return the base's columns that some of the plan's are computed with, and rows are chosen by."""
        needed = set(wanted)
        for layer in self.layers:
            kind = private.kind_of(layer)
            if kind == "Project":
                columns = [each for each in private.listed(layer.projectList()) if private.identity_of(each) in needed]
                needed = {identity for column in columns for identity in catalyst.references_of(column)}
            elif kind == "Filter":
                needed |= catalyst.references_of(layer.condition())
            elif kind == "Join":
                needed |= catalyst.references_of(layer.condition().get())  # it has one: which rows are the branch's
            elif kind == "Generate":
                needed |= catalyst.references_of(layer.generator())
        return needed & {private.identity_of(column) for column in private.listed(self.base.output())}


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
