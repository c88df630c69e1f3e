"""Which operators of a Spark plan keep state: a pipeline may have none of them."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame

from holdfast.errors import InvalidPipeline
from holdfast.spark import private


def refuse_state(pipeline: str, frame: DataFrame) -> None:
    """Stop if Spark would keep state for a pipeline.

    Raises
    ------
    InvalidPipeline
        Naming the kinds of operators that do.
    """
    kinds = sorted(set(stateful_operators(frame)))
    if kinds:
        raise InvalidPipeline(
            f"pipeline {pipeline!r} keeps state in Spark: {', '.join(kinds)}.",
            why="map and sql are row-wise here; state without a name could not be restored, moved or inspected.",
            do="use row-wise expressions in map and sql.",
            pipeline=pipeline,
        )


def stateful_operators(frame: DataFrame) -> Iterator[str]:
    """Yield the kinds of stateful operators that a frame's plan contains (Spark's names)."""
    waiting = [private.analyzed(frame)]
    while waiting:
        plan = waiting.pop()
        if private.is_streaming(plan):
            kind, inputs = private.kind_of(plan), private.children_of(plan)
            if kind in private.STATEFUL or (kind == "Join" and all(private.is_streaming(each) for each in inputs)):
                yield kind
            waiting.extend(inputs)
