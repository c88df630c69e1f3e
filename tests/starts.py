"""What a start does with a checkpoint, once its sinks have answered: it looks, decides and acts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.graph_record import described
from holdfast.graph.graph import Graph
from holdfast.graph.hooks import NONE
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node
from holdfast.graph.trigger import available_now
from holdfast.pipeline import Pipeline
from holdfast.ports import Held, Store
from holdfast.spark.read import SourceReader
from holdfast.spark.state.plan import state_schemas_of, upgrades_of
from holdfast.starts import context, starting
from holdfast.starts.act import Beginning, act
from holdfast.starts.context import StartContext, StartOptions
from holdfast.starts.decide import decide
from holdfast.starts.directory import Directory
from holdfast.starts.facts import look
from holdfast.starts.inputs import StartInputs
from holdfast.starts.plan import _stages
from holdfast.starts.start import start
from holdfast.starts.table import Spark


def inputs_of(
    store: Store,
    directory: Path,
    below: str,
    pipeline: str,
    sources: Iterable[Node] = (),
    *more: Any,
    previous: str = "",
    spark: Spark = Spark.NONE,
    backfilled: Iterable[str] = (),
    **others: Any,
) -> StartInputs:
    """Return what a start is decided by, for a graph of which only sources count, and sinks that get everything.

    Parameters
    ----------
    *more, **others
        As those of :class:`~holdfast.starts.inputs.StartInputs` after the graph.
    """
    sinks: Any = tuple(SimpleNamespace(name=name, backfill=True) for name in backfilled)
    graph = Graph(pipeline, sinks, tuple(sources), (), Origin("test", 1), NONE, None)
    return StartInputs(store, directory, Directory(below, spark, previous), graph, *more, **others)


def begun(
    inputs: StartInputs,
    held: Mapping[str, Held],
    last_epoch: int = 0,
    beginning: Beginning | None = None,
    check_fenced: Callable[[], None] = lambda: None,
) -> DirectoryHeader:
    """Return the header of Spark's directory, made now if that is new."""
    return act(decide(look(inputs, held, last_epoch)), check_fenced, beginning)


def start_of(pipeline: Pipeline, checkpoint: str, schema: pa.Schema, patch: pytest.MonkeyPatch, **begins: Any) -> None:
    """Start a pipeline up to where its query would begin, in a process without Spark; raise what a start raises.

    Parameters
    ----------
    pipeline, checkpoint : Pipeline, str
        The graph, which an Arrow program or stages evaluate, and its checkpoint.
    schema : pa.Schema
        The rows of each of its sinks, as Spark would say.
    patch : pytest.MonkeyPatch
        For what Spark does: a session, and the plan.
    **begins
        As of a start: ``from_checkpoint``, ``at``, ``state``.
    """
    spark = SimpleNamespace(defaultParallelism=2, master="local[2]")
    session: Any = SimpleNamespace(sparkContext=spark)

    def physical_plan_of(asked: StartOptions, context: StartContext) -> Any:
        stages = _stages(pipeline, asked.settings)
        schemas = {} if stages is None else state_schemas_of(pipeline, stages)
        return SimpleNamespace(
            compiled=SimpleNamespace(routes=SimpleNamespace(schemas=[schema] * len(pipeline.sinks))),
            graph=described(pipeline, schemas, 2 if schemas else 0),
            reader=SourceReader(session, context.directory, 1, 0, "", context.chosen.below),
            state_schemas=schemas,
            upgrades={} if stages is None else upgrades_of(pipeline, stages),
        )

    patch.setattr(context, "run_session", lambda base, parallelism: base)
    patch.setattr(context, "divert", lambda spark: lambda: None)
    patch.setattr(starting, "physical_plan_of", physical_plan_of)
    start(pipeline, checkpoint=checkpoint, trigger=available_now(), session=session, **begins)
