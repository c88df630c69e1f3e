"""What the next start would do, from what the checkpoint and the sinks say now: ``holdfast plan``, and ``inspect``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.participation import Participation
from holdfast.config import Settings
from holdfast.graph.graph import Graph
from holdfast.observe.inspection import Inspection, inspect_checkpoint
from holdfast.observe.ledgers import AskedLedgers, ask_ledgers
from holdfast.observe.sink_answers import held_when_resolved, inspect_sinks
from holdfast.store.paths import open_store

if TYPE_CHECKING:
    from holdfast.starts.plan import Plan
    from holdfast.starts.start_at import StartAt


@dataclass(frozen=True)
class Foreseen:
    """What the next start would do.

    Parameters
    ----------
    inspection : Inspection
        What checkpoint and sinks say.
    asked : AskedLedgers
        What the sinks' own ledgers say; nothing where Spark's part of the checkpoint is there.
    plan : Plan, optional
        None for a first start: nothing has run, and no sink holds an epoch.
    is_lost : bool
        Spark has no directory in the checkpoint, and a sink holds something.
    """

    inspection: Inspection
    asked: AskedLedgers
    plan: Plan | None = None
    is_lost: bool = False


def foreseen(
    pipeline: Graph,
    location: str,
    directory: Path,
    settings: Settings,
    inspection: Inspection | None,
    *,
    drop_state: frozenset[str] = frozenset(),
    rebuild_state: bool = False,
    begins: StartAt | None = None,
    only_if_lost: bool = False,
) -> Foreseen:
    """Return what a start would do.  Changes nothing; raises as :func:`holdfast.starts.plan.plan`.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    location, directory : str, Path
        The checkpoint, as the user wrote it, and where it lies.
    settings : Settings
        As a start would have them.
    inspection : Inspection, optional
        With the sinks' answers; None where nothing has run in the checkpoint.
    drop_state, rebuild_state, begins
        As the start would be asked for.
    only_if_lost : bool
        Make no plan unless :attr:`Foreseen.is_lost`: with state it may need Java.
    """
    from holdfast.starts.plan import plan

    store = open_store(str(directory))
    has_spark = inspection is not None and bool(inspection.spark)
    asked = AskedLedgers({}, {}) if has_spark else ask_ledgers(pipeline)
    if inspection is None:
        found = inspect_checkpoint(location, store, directory)
        if asked.has_epochs:
            found = replace(found, sinks=inspect_sinks(pipeline, store, found))
        elif not begins:
            return Foreseen(found, asked)
        held, last_epoch = asked.held(pipeline), 0
    elif only_if_lost and not asked.has_epochs:
        return Foreseen(inspection, asked)
    else:
        # During a live run the sinks and Spark's log would be read at different moments: a comparison would be wrong.
        found = inspection
        held = None if found.owner.is_alive else held_when_resolved(pipeline, found)
        last_epoch = max([found.last_done, *found.open_epochs])
    if held is not None and not newest_directory(store):
        held = Participation(pipeline.name, store, held).begun_together(held)
    last_epoch = max([last_epoch, *(each.epoch for each in (held or {}).values())])
    planned = plan(
        pipeline,
        store,
        directory,
        settings,
        held,
        last_epoch,
        drop_state,
        begins,
        asked.said,
        rebuild_state=rebuild_state,
    )
    return Foreseen(found, asked, planned, asked.has_epochs)
