"""What others are told of a run: its metrics to Prometheus, its epochs to OpenTelemetry, its life to OpenLineage.

Whoever is told may be away: the run goes on.  Only a library that is not installed is refused, before anything runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.config import Settings
from holdfast.controller.steering import call_at_end
from holdfast.errors import HoldfastError
from holdfast.graph.graph import Graph

if TYPE_CHECKING:
    from holdfast.spark.run import Run

log = logging.getLogger("holdfast.run")


def begin_followed(pipeline: Graph, settings: Settings, begin: Callable[[], Run]) -> Run:
    """Begin a run, and tell of it what is asked for.

    Parameters
    ----------
    pipeline : Graph
        Of the whole, also of a run in shards.
    settings : Settings
        Of the start.
    begin : callable
        Begins the run.

    Raises
    ------
    InvalidPipeline
        If a library is not installed: names the extra.
    """
    if settings.tracing:
        import holdfast.metrics.tracing  # noqa: F401
    if settings.metrics:
        from holdfast.metrics.exporter import show_metrics
    run = _with_lineage(pipeline, begin) if settings.lineage else begin()
    if settings.metrics:
        show_metrics(run, settings.metrics)
    return run


def _with_lineage(pipeline: Graph, begin: Callable[[], Run]) -> Run:
    from holdfast.metrics.lineage import LineageRun
    from holdfast.plan.lineage import lineage_of

    try:
        told = LineageRun(lineage_of(pipeline))
        told.begin()
    except Exception as error:  # of any kind: what watches never stops a run
        log.warning("no lineage is told, and the run goes on: %s", error)
        return begin()
    try:
        run = begin()
    except HoldfastError as error:
        told.end(error)
        raise
    call_at_end(run, told.end)
    if not run.is_active:  # it has ended before it was asked to tell
        told.end(_failure(run))
    return run


def _failure(run: Run) -> HoldfastError | None:
    try:
        run.wait()
    except HoldfastError as error:
        return error
    return None
