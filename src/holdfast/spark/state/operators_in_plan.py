"""Which operators of a Spark plan keep state: a pipeline may hold none of them (yet)."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame

_STATEFUL = (
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "EventTimeWatermark",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "GlobalLimit",
    "LocalLimit",
    "Sort",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "TransformWithStateInPandas",
    "Window",
)


def stateful_operators(frame: DataFrame) -> Iterator[str]:
    """Yield the kinds of stateful operators that a frame's plan contains (Spark's names)."""
    waiting = [frame._jdf.queryExecution().analyzed()]
    while waiting:
        plan = waiting.pop()
        if plan.isStreaming():
            kind = plan.getClass().getSimpleName()
            children = plan.children()
            inputs = [children.apply(i) for i in range(children.size())]
            if kind in _STATEFUL or (kind == "Join" and all(child.isStreaming() for child in inputs)):
                yield kind
            waiting.extend(inputs)
