"""A pipeline's coordinator, and what is in doubt, resolved without a run.

By ``holdfast resolve``, a rewind, and a start that has no session yet.  The sinks are connected with the schemas that
the last run noted, so neither Spark nor Java is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.graph_record import read_graph
from holdfast.checkpoint.schemas import OUT_OF_REACH, noted_schema
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.ledger import Standing, survey
from holdfast.commit.owner import noted_owner
from holdfast.commit.records import Decided
from holdfast.config import Settings
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.graph.graph import Graph
from holdfast.ports import Clock, Held, Inspectable, Outcome, Sink, Store
from holdfast.retry import RetryPolicy

log = logging.getLogger("holdfast.run")


class _LeftToTheStart(Exception):
    """Whether it may be resolved only the rest of the start can tell."""


def resolve_dead_run(pipeline: Graph, store: Store, settings: Settings) -> None:
    """Resolve what a dead run of this graph left, before there is a session: prepared rows hold their locks until then.

    A start does so first (design/0002).  What is not done here it does when the graph is compiled: where nothing is in
    doubt; where the run that took over last is not known to be dead, because a start that is refused must not fence it;
    where it was of another graph, whose sinks may be others; and where a sink has lost what is done in it, or what was
    staged for it, because only the sources can tell whether that can be given to it again.

    Raises
    ------
    HoldfastError
        Whatever :meth:`Coordinator.open` raises, and would raise again once there is a session.
    """
    with ExitStack() as closing:
        try:
            owner = noted_owner(store)
            is_dead = owner.is_alive is False and owner.is_of_this_machine
            if not is_dead or not ran_last(pipeline, store):
                return
            coordinator, sinks = closing.enter_context(coordinator_alone(pipeline, store, settings))
            # Somebody may have taken over while the sinks were connected.
            if not _is_in_doubt(store, sinks) or noted_owner(store) != owner:
                return
        except HoldfastError as error:  # where it matters, the rest of the start meets it again
            log.info("what is in doubt is not resolved before there is a session: %s", error.what)
            return
        try:
            resumption = coordinator.open(on_behind=_leave_to_the_start, on_expired=_leave_to_the_start)
        except _LeftToTheStart:
            return
        log.info("generation %d has resolved what a dead run left, before there is a session", resumption.generation)


def take_over_alone(pipeline: Graph, store: Store, settings: Settings) -> None:
    """Take over a pipeline that no run has, and resolve what is in doubt as far as a start need not do it.

    What is decided is published, and what is staged is swept: it holds no reader back, and no lock.

    Raises
    ------
    HoldfastError
        Whatever :meth:`Coordinator.open` raises.
    """
    with coordinator_alone(pipeline, store, settings) as (coordinator, _), suppress(_LeftToTheStart):
        coordinator.open(on_behind=_leave_to_the_start, on_expired=_leave_to_the_start)


def resolve_with_former_columns(
    pipeline: Graph, store: Store, settings: Settings, schemas: Mapping[str, pa.Schema]
) -> None:
    """Resolve what was decided with other columns than the rows of a start have, by sinks with those columns.

    A start does so when it has checked everything else, and takes over next (design/0035).  Where it cannot be done
    here, because a sink has lost what was in it or can only be written by a run, its sinks say what to do.

    Parameters
    ----------
    pipeline, store, settings
        Of the start.
    schemas : mapping of str to pyarrow.Schema
        Sink -> its rows in this start.

    Raises
    ------
    HoldfastError
        Whatever :meth:`Coordinator.open` raises.
    """
    named = sorted({name for several in open_decisions(store).values() for name in several} & schemas.keys())
    changed = [name for name in named if _is_changed(_schema_before(store, name), schemas[name])]
    if not changed:
        return
    with ExitStack() as closing:
        try:
            coordinator, _ = closing.enter_context(coordinator_alone(pipeline, store, settings))
        except HoldfastError as error:
            log.info("what was decided with other columns is not resolved first: %s", error.what)
            return
        log.info("sinks %s have other columns now: what was decided before is resolved first", ", ".join(changed))
        with suppress(_LeftToTheStart):
            coordinator.open(on_behind=_leave_to_the_start, on_expired=_leave_to_the_start)


def _schema_before(store: Store, sink: str) -> pa.Schema | None:
    """Return the columns that a sink had; None where nobody knows: this start notes them again."""
    try:
        return noted_schema(store, sink)
    except Corrupt as error:
        log.warning("%s It is written again.", error.what)
        return None


def _is_changed(before: pa.Schema | None, now: pa.Schema) -> bool:
    return before is not None and [(of.name, of.type) for of in before] != [(of.name, of.type) for of in now]


def ran_last(pipeline: Graph, store: Store) -> bool:
    """Tell whether a graph is, word for word, the one that ran last: its sinks are those that it has noted."""
    number = newest_directory(store)
    return number > 0 and read_graph(store, f"spark/{number}").fingerprint == pipeline.fingerprint()


def _is_in_doubt(store: Store, sinks: Mapping[str, Sink]) -> bool:
    """Tell whether an epoch is decided, or rows are staged, and all sinks that it is about can be asked."""
    named = {name for several in open_decisions(store).values() for name in several}
    return named <= sinks.keys() and (bool(named) or any(_has_staged(sink) for sink in sinks.values()))


def _has_staged(sink: Sink) -> bool:
    """Return whether a sink has staged rows: orphans, or of an epoch that it is in the middle of publishing.

    One that cannot be looked at may have: an open transaction of the dead run hides it, which taking over ends.
    """
    if not offers(sink, Inspectable):
        return False
    try:
        held, staged = sink.inspect()
    except Unavailable:
        return True
    return bool(staged) or (held.epoch > 0 and sink.outcome(held.epoch) is Outcome.STAGED)


def _leave_to_the_start(lacking: object, held: Mapping[str, Held]) -> None:
    raise _LeftToTheStart


def coordinator_of(
    pipeline: Graph,
    store: Store,
    sinks: Sequence[Sink],
    settings: Settings,
    *,
    clock: Clock,
    commit_every_ticks: int | None = None,
    commit_thread: bool = False,
) -> Coordinator:
    """Return the coordinator of a pipeline, as its settings have it: of a run, or alone.

    Parameters
    ----------
    pipeline, store, sinks, settings, clock, commit_every_ticks, commit_thread
        As for :class:`~holdfast.commit.coordinator.Coordinator`.
    """
    return Coordinator(
        pipeline=pipeline.name,
        store=store,
        sinks=sinks,
        clock=clock,
        retry=RetryPolicy(settings.retry_attempts, settings.retry_first_s, settings.retry_cap_s),
        commit_every_ticks=commit_every_ticks,
        commit_at_pts=pipeline.commit_at is not None,
        commit_thread=commit_thread,
        queue_size=settings.commit_queue,
        ledger_keep=settings.ledger_keep,
        backfilled=[sink.name for sink in pipeline.sinks if sink.backfill],
        paces={sink.name: sink.pace for sink in pipeline.sinks if sink.pace is not None},
        held_limit_bytes=settings.held_max_bytes,
    )


@contextmanager
def connected_sinks(pipeline: Graph, store: Store) -> Iterator[dict[str, Sink]]:
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
    pipeline: Graph, store: Store, settings: Settings
) -> Iterator[tuple[Coordinator, dict[str, Sink]]]:
    """Yield a coordinator that is not opened yet, and its sinks.

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


def check_within_reach(pipeline: Graph, store: Store) -> None:
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
