"""A coordinator without a run: for whoever takes a pipeline over only to resolve what is in doubt, or to rewind.

The sinks are connected with the schemas that the last run noted, so neither Spark nor Java is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from holdfast.checkpoint.schemas import OUT_OF_REACH, noted_schema
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator, coordinator_of
from holdfast.commit.ledger import Standing, survey
from holdfast.commit.records import Decided
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.graph.pipeline import Pipeline
from holdfast.ports import Sink, Store


@contextmanager
def connected_sinks(pipeline: Pipeline, store: Store) -> Iterator[dict[str, Sink]]:
    """Yield the sinks that have run with this checkpoint and can be asked from here, connected as they were then.

    A sink that was added since has noted no schema: it was never opened, and nothing can be in doubt there.
    """
    with ExitStack() as closing:
        sinks: dict[str, Sink] = {}
        for node in pipeline.sinks:
            schema = None if node.kind in OUT_OF_REACH else noted_schema(store, node.name)
            if schema is None:
                continue
            sinks[node.name] = node.spec.connect(node.name, pipeline.name, schema)
            closing.callback(sinks[node.name].close)
        yield sinks


@contextmanager
def coordinator_alone(
    pipeline: Pipeline, store: Store, settings: Settings
) -> Iterator[tuple[Coordinator, dict[str, Sink]]]:
    """Yield a coordinator that nobody has opened yet, and its sinks.

    Raises
    ------
    InvalidPipeline
        If an epoch is decided for a sink that only a run can write.
    """
    check_within_reach(pipeline, store)
    with connected_sinks(pipeline, store) as sinks, ExitStack() as closing:
        coordinator = coordinator_of(pipeline, store, [*sinks.values()], settings, clock=SystemClock())
        closing.callback(coordinator.close)
        yield coordinator, sinks


def open_decisions(store: Store) -> dict[int, tuple[str, ...]]:
    """Return each epoch that is decided and not known to be published everywhere, with the sinks that it is for."""
    found = ((entry.key.epoch, entry.content) for entry in survey(store) if entry.standing is Standing.OPEN)
    return {epoch: tuple(content.parts) for epoch, content in found if isinstance(content, Decided)}


def check_within_reach(pipeline: Pipeline, store: Store) -> None:
    """Refuse to resolve where an epoch is decided for a sink that only a run can write.

    Raises
    ------
    InvalidPipeline
        Naming the sink.
    """
    named = {name for several in open_decisions(store).values() for name in several}
    for node in pipeline.sinks:
        if node.kind in OUT_OF_REACH and node.name in named:
            raise InvalidPipeline(
                f"sink {node.name!r} ({node.kind}) cannot be resolved here.",
                why=f"{OUT_OF_REACH[node.kind]}.",
                do="start the pipeline again: every start resolves first.",
                participant=node.name,
            )
