"""``holdfast resolve``: recovery without a run, and without Java.  Publishes or drops whatever is in doubt.

It is a takeover like that of every start: a run that is still alive is fenced by it.
"""

from __future__ import annotations

from holdfast.cli.reject_rows import Rejected, keeping, would_reject
from holdfast.commit.coordinator import Resumption
from holdfast.commit.owner import Owner
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.graph.pipeline import Pipeline
from holdfast.observe.inspection import Inspection
from holdfast.ports import Store
from holdfast.resume.in_doubt import check_within_reach, connected_sinks, coordinator_alone, open_decisions


def resolve(pipeline: Pipeline, store: Store, settings: Settings, rejected: Rejected | None = None) -> Resumption:
    """Take the pipeline over and resolve what is in doubt.

    Parameters
    ----------
    pipeline : Pipeline
        The graph; its sinks are connected with the schemas that the last run recorded.
    store : Store
        The checkpoint.
    settings : Settings
        For retries, and the length of the ledger.
    rejected : Rejected, optional
        Given: rows of decided epochs that a sink refuses become dead letters, and are noted here.

    Raises
    ------
    HoldfastError
        Whatever :meth:`Coordinator.open` raises; InvalidPipeline for a sink that only a run can write.
    """
    with coordinator_alone(pipeline, store, settings) as (coordinator, sinks):
        if rejected is None:
            return coordinator.open()
        rows_max, decided_for = settings.poison_rows, open_decisions(store)
        return coordinator.open(keeping(store, coordinator, [*sinks.values()], rejected, decided_for, rows_max))


def resolving_would_reject(pipeline: Pipeline, store: Store, settings: Settings) -> Rejected:
    """Say which rows ``--reject-rows`` would reject; changes nothing."""
    check_within_reach(pipeline, store)
    with connected_sinks(pipeline, store) as sinks:
        return would_reject(store, [*sinks.values()], settings.poison_rows)


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
