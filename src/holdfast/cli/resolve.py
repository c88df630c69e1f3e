"""``holdfast resolve``: recovery without a run, and without Java.  Publishes or drops whatever is in doubt.

It is a takeover like that of every start: a run that is still alive is fenced by it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from holdfast.checkpoint.participation import Participation
from holdfast.cli.reject_rows import Rejected, keeping, would_reject
from holdfast.commit.coordinator import Resumption
from holdfast.commit.delivery import remembers
from holdfast.commit.owner import Owner
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.graph.pipeline import Pipeline
from holdfast.observe.inspection import Inspection
from holdfast.ports import Held, Store
from holdfast.resume.directory_header import FILE_NAME, newest_directory, read_origin
from holdfast.resume.graph_record import read_graph
from holdfast.resume.in_doubt import check_within_reach, connected_sinks, coordinator_alone, open_decisions
from holdfast.resume.rewind import check_none_holds_withdrawn
from holdfast.spark.resume.beginning import Beginning
from holdfast.spark.resume.catching_up import check_replayable


def resolve(
    pipeline: Pipeline, store: Store, directory: Path, settings: Settings, rejected: Rejected | None = None
) -> Resumption:
    """Take the pipeline over and resolve what is in doubt.

    Parameters
    ----------
    pipeline : Pipeline
        The graph; its sinks are connected with the schemas that the last run recorded.
    store, directory : Store, Path
        The checkpoint, and its location.
    settings : Settings
        For retries, and the length of the ledger.
    rejected : Rejected, optional
        If given: rows of decided epochs that a sink refuses become dead letters, and are recorded here.

    Raises
    ------
    HoldfastError
        Whatever :meth:`Coordinator.open` raises; InvalidPipeline for a sink that only a run can write; Diverged for one
        that has lost what was published in it, if what is decided for it could not be given to it by a replay.
    """
    with coordinator_alone(pipeline, store, settings) as (coordinator, sinks):
        decided_for, on_refused = open_decisions(store), None
        if rejected is not None:
            rows_max = settings.poison_rows
            on_refused = keeping(store, coordinator, [*sinks.values()], rejected, decided_for, rows_max)
        remembering = [name for name, sink in sinks.items() if remembers(sink)]
        named = {name for several in decided_for.values() for name in several}

        def on_behind(behind: Collection[str], held: Mapping[str, Held]) -> None:
            """Refuse as a start does: resolving forgets what is decided for a sink that is behind."""
            if losing := sorted(named.intersection(behind)):
                remembered = {name: held[name] for name in remembering}
                _check_replayable(pipeline, store, directory, losing, remembered)

        return coordinator.open(on_refused, on_behind)


def _check_replayable(
    pipeline: Pipeline, store: Store, directory: Path, losing: Sequence[str], held: Mapping[str, Held]
) -> None:
    Participation(pipeline.name, store, losing).check({name: held[name] for name in losing})
    check_none_holds_withdrawn(store, pipeline.name, losing, held)
    number = newest_directory(store)
    if not number:
        return  # Spark's directory is lost: nothing is known of what was published, and a start asks no more
    below = f"spark/{number}"
    state_schemas, graph = read_graph(store, below).state_schemas, read_origin(directory / below / FILE_NAME).graph
    beginning = Beginning(store, directory, below, pipeline.name, pipeline.sources, state_schemas, graph or "")
    check_replayable(beginning, losing, held)


def resolving_would_reject(pipeline: Pipeline, store: Store, settings: Settings) -> Rejected:
    """Say which rows ``--reject-rows`` would reject; changes nothing."""
    check_within_reach(pipeline, store)
    with connected_sinks(pipeline, store) as sinks:
        return would_reject(store, [*sinks.values()], settings.poison_rows)


def check_nobody_runs(owner: Owner, why: str) -> None:
    """Refuse what must not be done while a process is alive on this host.

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
