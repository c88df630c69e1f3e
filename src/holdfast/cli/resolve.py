"""``holdfast resolve``: recovery without a run, and without Java.  Publishes or drops whatever is in doubt.

It is a takeover like that of every start: a run that is still alive is fenced by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack

from holdfast.checkpoint.schemas import OUT_OF_REACH, noted_schema
from holdfast.cli.reject_rows import Rejected, keeping, would_reject
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator, Resumption
from holdfast.commit.ledger import Standing
from holdfast.commit.owner import Owner
from holdfast.commit.retry import Retry
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.graph.pipeline import Pipeline
from holdfast.observe.inspection import Inspection
from holdfast.ports import Sink, Store


def resolve(
    pipeline: Pipeline, store: Store, inspection: Inspection, settings: Settings, rejected: Rejected | None = None
) -> Resumption:
    """Take the pipeline over and resolve what is in doubt.

    Parameters
    ----------
    pipeline : Pipeline
        The graph; its sinks are connected with the schemas that the last run recorded.
    store : Store
        The checkpoint.
    inspection : Inspection
        The checkpoint: which sinks its open decisions name.
    settings : Settings
        For retries, and the length of the ledger.
    rejected : Rejected, optional
        Given: rows of decided epochs that a sink refuses become dead letters, and are noted here.

    Raises
    ------
    HoldfastError
        Whatever :meth:`Coordinator.open` raises; InvalidPipeline for a sink that only a run can write.
    """
    with ExitStack() as closing:
        sinks = []
        for sink in _connect(pipeline, store, _decided_for(inspection)):
            closing.callback(sink.close)
            sinks.append(sink)
        coordinator = Coordinator(
            pipeline=pipeline.name,
            store=store,
            sinks=sinks,
            clock=SystemClock(),
            retry=Retry(settings.retry_attempts, settings.retry_first_s, settings.retry_cap_s),
            commit_thread=False,
            ledger_keep=settings.ledger_keep,
        )
        closing.callback(coordinator.close)
        if rejected is None:
            return coordinator.open()
        decided_for = {d.epoch: tuple(d.rows) for d in inspection.decisions if d.standing is Standing.OPEN}
        return coordinator.open(keeping(store, coordinator, sinks, rejected, decided_for, settings.poison_rows))


def resolving_would_reject(pipeline: Pipeline, store: Store, inspection: Inspection, settings: Settings) -> Rejected:
    """Say which rows ``--reject-rows`` would reject; changes nothing."""
    with ExitStack() as closing:
        sinks = list(_connect(pipeline, store, _decided_for(inspection)))
        for sink in sinks:
            closing.callback(sink.close)
        return would_reject(store, sinks, settings.poison_rows)


def _decided_for(inspection: Inspection) -> set[str]:
    return {name for d in inspection.decisions if d.standing is Standing.OPEN for name in d.rows}


def check_nobody_runs(owner: Owner, why: str) -> None:
    """Refuse what must not be done beside a process that is alive on this host.

    Parameters
    ----------
    owner : Owner
        Who took the pipeline over last.
    why : str
        What it would do to that one.

    Raises
    ------
    InvalidPipeline
        If it is alive.
    """
    if owner.is_alive:
        raise InvalidPipeline(
            f"generation {owner.generation} seems to run: process {owner.pid} on this host is alive.",
            why=why,
            do="stop it first (Ctrl-C, or kill -TERM); if that process is another program by now, add --force.",
            generation=owner.generation,
        )


def check_epoch_is_open(inspection: Inspection, epoch: int) -> None:
    """Refuse an epoch that is not in doubt.

    Raises
    ------
    InvalidPipeline
        If the ledger has no open decision of that number.
    """
    if epoch not in inspection.open_epochs:
        there = ", ".join(map(str, inspection.open_epochs)) or "none"
        raise InvalidPipeline(
            f"epoch {epoch} is not in doubt.",
            why=f"epochs in doubt: {there}; last done: {inspection.last_done or 'none'}.",
            do="leave --epoch out to resolve all.",
            epoch=epoch,
        )


def _connect(pipeline: Pipeline, store: Store, decided_for: Collection[str]) -> Iterator[Sink]:
    for node in pipeline.sinks:
        schema = noted_schema(store, node.name)
        if node.kind in OUT_OF_REACH and node.name in decided_for:
            raise InvalidPipeline(
                f"sink {node.name!r} ({node.kind}) cannot be resolved here.",
                why=f"{OUT_OF_REACH[node.kind]}.",
                do="start the pipeline again: every start resolves first.",
                participant=node.name,
            )
        # Without a schema: added to the graph since the last run, and never opened, so nothing can be in doubt there.
        if schema is not None and node.kind not in OUT_OF_REACH:
            yield node.spec.connect(node.name, pipeline.name, schema)
