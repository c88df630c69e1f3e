"""What a start will need, made ready before a takeover: in a replica, and in a spare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config import Settings
from holdfast.graph.graph import Graph
from holdfast.spark.launch import jvm
from holdfast.spark.launch.early import begin, rows_in_jvm


def warm_up(pipeline: Graph, options: Mapping[str, Any]) -> None:
    """Prepare what a start will need before the takeover: the engine's modules, and a session with its JVM.

    Parameters
    ----------
    pipeline, options
        As for :func:`~holdfast.spark.launch.early.begin`.
    """
    begin(pipeline, options)
    # Not above: the JVM comes up while this is imported.
    import holdfast.starts.start  # noqa: F401  (all that a start needs)
    from holdfast.spark.launch import session

    if pipeline.hooks.on_setup is not None:
        return
    settings = options.get("settings") or Settings()
    if master := options.get("master"):
        settings = Settings(**{**settings.model_dump(), "master": master})
    if not settings.master.startswith("local"):
        return  # it would be an application of its own there, and hold executors
    # A session of a run is made and dropped: the first one has Spark look for Python data sources, in a process.
    base = session.session_of(settings, rows=rows_in_jvm(pipeline, settings))
    session.run_session(base, 1)


def is_warm() -> bool:
    """Tell whether what :func:`warm_up` has made ready can still be used."""
    return not jvm.has_ended()
