"""The pipeline as a drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.graph import Pipeline


def diagram(pipeline: Pipeline, format: str) -> str:
    """Return the pipeline as a drawing."""
    return repr(pipeline) + format
