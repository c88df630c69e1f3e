"""What of a start takes time, begun before anything else: the JVM comes up while this process imports the engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.capabilities import offers
from holdfast.config import Settings
from holdfast.connectors.reading.partitioned import beneath
from holdfast.errors import HoldfastError
from holdfast.graph.graph import Graph
from holdfast.plan.cutting import first_in_spark, has_state
from holdfast.plan.program_build import as_it_is, build_program
from holdfast.ports import PreparedSpec
from holdfast.spark.launch import class_archive, jvm
from holdfast.spark.launch.jvm_options import JvmOptions, RowsInJvm, rows_to_expect

_known: WeakKeyDictionary[Graph, RowsInJvm] = WeakKeyDictionary()
"""What the JVM evaluates of a graph: a start asks for its JVM and its session, and a graph may be large."""


def begin(pipeline: Graph, options: Mapping[str, Any]) -> None:
    """Begin the JVM that a start will need, and what its sources and sinks have to begin on this machine.

    Parameters
    ----------
    pipeline : Graph
        What is to be started.
    options : mapping of str to Any
        The arguments of :func:`holdfast.starts.start.start`.
    """
    _begin_jvm(pipeline, options)
    for spec in (*(beneath(node.source_spec) for node in pipeline.sources), *(node.spec for node in pipeline.sinks)):
        if offers(spec, PreparedSpec):
            with suppress(HoldfastError):
                spec.prepare()


def _begin_jvm(pipeline: Graph, options: Mapping[str, Any]) -> None:
    """Begin the JVM, where its options are known and no hook has to be called first."""
    # Hooks may set variables that Spark reads; they are called first.
    if options.get("session") is not None or pipeline.hooks.on_setup is not None:
        jvm.discard()
        return
    with suppress(HoldfastError, OSError):  # a wrong setting, no Java, a full disk: the start says so
        settings = options.get("settings") or Settings()
        if str(options.get("master") or settings.master).startswith("local"):
            jvm.begin(jvm_options(pipeline, settings))


def jvm_options(pipeline: Graph, settings: Settings) -> JvmOptions:
    """Return the options of the JVM for a pipeline with a local master."""
    return jvm.options_for(
        f"{settings.driver_memory_mib}m",
        rows=rows_to_expect(settings.jvm, rows_in_jvm(pipeline, settings)),
        has_archive=settings.class_archive != class_archive.OFF,
    )


def rows_in_jvm(pipeline: Graph, settings: Settings) -> RowsInJvm:
    """Return which rows of a pipeline the JVM evaluates: with state, others pass through it in packets of Arrow."""
    is_given_frames = any(sink.kind == "foreach_batch" for sink in pipeline.sinks)
    if is_given_frames or not settings.columnar:
        return RowsInJvm.ALL
    if pipeline not in _known:
        _known[pipeline] = _rows_of(pipeline)
    return _known[pipeline]


def _rows_of(pipeline: Graph) -> RowsInJvm:
    if not has_state(pipeline):
        return RowsInJvm.ALL if build_program(pipeline, as_it_is, "") is None else RowsInJvm.NONE
    part = first_in_spark(pipeline)
    if part is None:
        return RowsInJvm.NONE
    return RowsInJvm.BETWEEN_STATE if part.heads else RowsInJvm.ALL
