"""The targets of sinks, looked at before anything runs: do the rows that a start would bring fit (design/0031)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.graph.graph import Graph
from holdfast.plan.derived_part import sink_schemas
from holdfast.ports import ExaminedSpec


@dataclass(frozen=True)
class Targets:
    """What a look at the targets found.

    Parameters
    ----------
    misfits : tuple of HoldfastError
        What a start would raise: types, keys, privileges, columns that it may not add.
    new_columns : mapping of str to tuple of str
        Sink -> the columns that a start adds to its target (design/0035).
    """

    misfits: tuple[HoldfastError, ...]
    new_columns: Mapping[str, tuple[str, ...]]


def examined(pipeline: Graph) -> Targets:
    """Look at the targets of the sinks that can be asked so, and whose rows are known without Spark.

    Creates and changes nothing.
    """
    schemas = sink_schemas(pipeline)
    misfits: list[HoldfastError] = []
    new_columns: dict[str, tuple[str, ...]] = {}
    for node in pipeline.sinks:
        if node.name in schemas and isinstance(node.spec, ExaminedSpec):
            try:
                added = node.spec.examine(node.name, pipeline.name, schemas[node.name])
            except HoldfastError as error:
                error.pipeline, error.participant = pipeline.name, node.name
                misfits.append(error)
            else:
                new_columns.update({node.name: tuple(added)} if added else {})
    return Targets(tuple(misfits), new_columns)
