"""Runs that end at a time: which sources can, and how the driver learns that all of them have passed it.

A source is asked for its latest position in a process of its own.  When that finds nothing more below the time, it
leaves a mark in the temporary directory of the run; once every source has left one, the run stops as if it was told
to, at an epoch's boundary.  Marks are of one run: a source that has passed a time says so again in the next.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import cast

from holdfast.connectors.reading.until import obstacle
from holdfast.errors import InvalidPipeline
from holdfast.graph.event_time import end_at
from holdfast.graph.graph import Graph
from holdfast.ports import SourceSpec


def ends_at(pipeline: Graph, until: str | datetime | int | None, *, at: int | None) -> int | None:
    """Return the time at which a run of a pipeline ends, in the unit of its timestamps; None where it does not.

    Raises
    ------
    InvalidPipeline
        If it is no time, not after the beginning, or a source cannot be read up to a time: names it.
    """
    end = end_at(until, pipeline.sources, at=at)
    for node in pipeline.sources if end is not None else ():
        why = obstacle(cast("SourceSpec", node.spec))
        if why:
            raise InvalidPipeline(
                f"source {node.name!r} cannot be read up to a time.",
                why=why,
                do='declare timestamp="<column>" at the source; or leave until= out, and filter its rows.',
                pipeline=pipeline.name,
                participant=node.name,
            )
    return end


def passed_mark(stop_file: str, source: str) -> str:
    """Return the file that says that a source has passed the time at which its run ends."""
    return os.path.join(os.path.dirname(stop_file), f"{source}.passed")


def have_passed(stop_file: str, sources: Iterable[str]) -> bool:
    """Return whether every source has left its mark."""
    return all(os.path.exists(passed_mark(stop_file, source)) for source in sources)
