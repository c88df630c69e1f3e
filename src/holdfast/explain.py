"""The pipeline in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.graph import Pipeline


def explain(pipeline: Pipeline) -> str:
    """Return the pipeline in words."""
    return "\n".join(repr(node) for node in (*pipeline.nodes, *pipeline.sinks))
