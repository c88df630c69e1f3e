"""Conditions of aggregates, as Boolean columns that a ``select`` adds before the aggregation."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.expressions import text as expressions
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream, apply
from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.arguments import check_reads, check_text, closed
from holdfast.operators.select import Select


def check_condition(output: str, aggregate: Aggregate) -> None:
    """Check the condition of an aggregate, if it has one.

    Parameters
    ----------
    output : str
        The column that it becomes.
    aggregate : Aggregate
        The aggregate.

    Raises
    ------
    InvalidPipeline
        If the condition processes several rows together, or need not be the same when it is evaluated again.
    """
    if aggregate.where is None:
        return
    argument = f"{output}=hf.{aggregate.kind}(where)"
    check_text(aggregate.where, argument, right='hf.count(where="dep_delay > 15")')
    if (function := expressions.varying(aggregate.where)) is not None:
        raise InvalidPipeline(
            f"{argument}={aggregate.where!r} uses {function}.",
            why="it gives another value each time, so a replay would count other rows than sinks hold.",
            do="write a condition on the columns of the row.",
        )


def check_boolean(output: str, aggregate: Aggregate, schema: pa.Schema) -> None:
    """Check that the condition of an aggregate is one, where rows have its column.

    Raises
    ------
    InvalidPipeline
        If it is of another type than BOOLEAN.
    """
    if aggregate.condition is None or aggregate.condition not in schema.names:
        return
    kind = schema.field(aggregate.condition).type
    if not pa.types.is_boolean(kind):
        raise InvalidPipeline(
            f"{output}=hf.{aggregate.kind}(where)={aggregate.where!r} gives {kind}.",
            why="a condition is true, false or null.",
            do=f'compare it: where="{aggregate.where} > 0".',
        )


def with_conditions(stream: Stream, aggregates: Mapping[str, Aggregate], built_at: Origin) -> Stream:
    """Return the stream with a Boolean column for each condition of some aggregates; the same where they have none.

    Parameters
    ----------
    stream : Stream
        The rows.
    aggregates : mapping of str to Aggregate
        Output column -> aggregate.
    built_at : Origin
        The line that builds the aggregation.

    Raises
    ------
    InvalidPipeline
        If a condition reads a column that the stream does not have.
    """
    items: dict[str, str] = {}
    for output, one in aggregates.items():
        if one.where is not None and one.condition is not None:
            check_reads(one.where, stream.columns, f"{output}=hf.{one.kind}(where)")
            items[one.condition] = f"({closed(one.where)}) AS {one.condition}"
    if not items:
        return stream
    # in an order of their own, so that the order of the aggregates is no change of the graph
    return apply(Select(("*", *(items[name] for name in sorted(items)))), (stream,), name=None, built_at=built_at)
