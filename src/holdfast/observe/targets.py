"""The targets of sinks, looked at before anything runs: do the rows that a start would bring fit (design/0031)."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.errors import HoldfastError
from holdfast.graph.pipeline import Pipeline
from holdfast.plan.derived_part import sink_schemas
from holdfast.ports import ExaminedSpec


def misfits(pipeline: Pipeline) -> Iterator[HoldfastError]:
    """Yield what a start would raise of the targets: columns that are missing or of other types, keys, privileges.

    Only of sinks that can be asked so, and whose rows are known without Spark.  Creates and changes nothing.
    """
    schemas = sink_schemas(pipeline)
    for node in pipeline.sinks:
        if node.name in schemas and isinstance(node.spec, ExaminedSpec):
            try:
                node.spec.examine(node.name, pipeline.name, schemas[node.name])
            except HoldfastError as error:
                error.pipeline, error.participant = pipeline.name, node.name
                yield error
