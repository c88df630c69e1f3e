"""Which sink of a pipeline keeps its lease."""

from __future__ import annotations

from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.ports import LeasedSpec, LeasePlace


def lease_of(pipeline: Graph) -> LeasePlace:
    """Return where the lease of a pipeline is kept: with the first of its sinks that can.

    Raises
    ------
    InvalidPipeline
        If none can.
    """
    for node in pipeline.sinks:
        if isinstance(node.spec, LeasedSpec):
            return node.spec.lease(node.name, pipeline.name)
    raise InvalidPipeline(
        f"no sink of pipeline {pipeline.name!r} can keep a lease.",
        why="main and replica find each other in the system of a sink: write.postgres, write.mysql, write.sqlite, or "
        "write.files on a disk.",
        do="add such a sink; or run without --lease and --replica.",
        pipeline=pipeline.name,
    )
