"""Which operators of a Spark plan keep state: a pipeline may have none of them (yet)."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame

from holdfast.spark import private


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
