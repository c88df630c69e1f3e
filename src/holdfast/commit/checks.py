"""What a commit must be, and where sinks contradict the checkpoint: checks that change nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.commit.records import Decided
from holdfast.errors import Diverged, InvalidPipeline, invariant
from holdfast.ports import EpochRecord, Held, RunIdentity
from holdfast.positions import Positions, covers_all

_CONTINUE_WHERE_SINKS_STAND = (
    "if the checkpoint's Spark directory is older than the sink, remove <checkpoint>/spark and start again: the run "
    "then continues where the sinks are; else start with the checkpoint that belongs to the sink."
)


def check_commit(decided: Decided, sinks: Collection[str], last_epoch: int, run: RunIdentity) -> None:
    """Raise ``InternalError`` unless the epoch belongs to this run, ascends, and names only sinks of the pipeline."""
    record, unknown = decided.record, sorted(set(decided.parts) - set(sinks))
    is_ours = run.generation > 0 and (record.pipeline, record.generation) == (run.pipeline, run.generation)
    demand(is_ours, record, run, f"it belongs to pipeline {record.pipeline!r}, generation {record.generation}")
    demand(not unknown, record, run, f"{unknown} are not sinks of it")
    demand(record.epoch >= last_epoch, record, run, f"epochs ascend, and the last one is {last_epoch}")


def check_parts(decided: Decided, missing: frozenset[str], run: RunIdentity) -> None:
    """Raise ``InternalError`` unless there are parts for exactly the sinks that lack the epoch."""
    record, given = decided.record, sorted(decided.parts)
    demand(missing, record, run, "every sink holds it; epochs ascend")
    demand(set(given) == missing, record, run, f"it has parts for {given}, and what is missing is {sorted(missing)}")


def demand(condition: object, record: EpochRecord, run: RunIdentity, why: str) -> None:
    """Raise ``InternalError`` unless something holds without which an epoch must not be committed."""
    invariant(
        condition,
        f"generation {run.generation} of pipeline {run.pipeline!r} cannot commit epoch {record.epoch}.",
        why=f"{why}.",
        pipeline=run.pipeline,
        epoch=record.epoch,
        generation=run.generation,
    )


def check_known_sinks(decided: Decided, sinks: Collection[str], run: RunIdentity) -> None:
    """Raise ``InvalidPipeline`` if a decision is open for a sink that was taken out of the graph."""
    unknown = sorted(set(decided.parts) - set(sinks))
    if unknown:
        raise InvalidPipeline(
            f"epoch {decided.record.epoch} is decided for sink {unknown[0]!r}, which pipeline {run.pipeline!r} no "
            "longer has.",
            why="the last run died before it published the epoch there; leaving it out would lose those rows.",
            do=f"put sink {unknown[0]!r} back, run until the epoch is published, then take it out; if it refuses a row "
            "of it: holdfast resolve TARGET --checkpoint DIR --reject-rows.",
            pipeline=run.pipeline,
            participant=unknown[0],
            epoch=decided.record.epoch,
        )


def check_no_gap(epoch: int, held: Mapping[str, Held], run: RunIdentity) -> None:
    """Raise ``Diverged`` if a sink lacks epochs before the one that comes first in this run.

    With one sink there is no "done" in the ledger that could tell; this is how a restored sink is noticed.
    """
    for name in sorted(held):
        if 0 < held[name].epoch < epoch - 1:
            raise Diverged(
                f"sink {name!r} holds everything up to epoch {held[name].epoch}, and epoch {epoch} comes next.",
                why="the epochs in between are missing in the sink: it was restored from a backup, or written with "
                "another checkpoint.",
                do=f"restore sink {name!r} to a state that holds epoch {epoch - 1}; or start over with a new "
                "checkpoint and an empty target.",
                pipeline=run.pipeline,
                participant=name,
                epoch=epoch,
                generation=run.generation,
            )


def check_same_positions(epoch: int, holders: Mapping[str, Held], end: Positions, run: RunIdentity) -> None:
    """Raise ``Diverged`` if a sink is said to hold an epoch, but does not hold everything before its end.

    The number alone proves nothing: when Spark's log is older than the sink, Spark counts on from there and gives
    numbers that the sink knows to rows that it has never seen.
    """
    for name in sorted(holders):
        held = holders[name]
        is_same = held.epoch != epoch or _plain(held.positions) == _plain(end)
        if not (is_same and covers_all(held.positions, end)):
            raise Diverged(
                f"sink {name!r} holds epoch {epoch} up to other positions than those of this checkpoint: everything up "
                f"to {_plain(held.positions)} with epoch {held.epoch}, and here epoch {epoch} ends at {_plain(end)}.",
                why="the checkpoint's Spark directory is older than the sink (restored from a backup, or its last "
                "files were lost in a power cut), or the sink was written with another checkpoint.",
                do=_CONTINUE_WHERE_SINKS_STAND,
                pipeline=run.pipeline,
                participant=name,
                epoch=epoch,
                generation=run.generation,
            )


def needs(name: str, epoch: int, held: Held, start: Positions, end: Positions, run: RunIdentity) -> bool:
    """Return whether a sink needs the first epoch of a run, by positions; there must be no gap.

    Epochs are counted anew when Spark's checkpoint was lost; positions keep their meaning.

    Raises
    ------
    Diverged
        If the sink holds a part of the epoch, or lacks something before it.
    """
    if covers_all(held.positions, end):
        return False
    if covers_all(held.positions, start) and covers_all(start, held.positions):
        return True
    raise Diverged(
        f"sink {name!r} holds everything up to {_plain(held.positions)}, and epoch {epoch} begins at {_plain(start)}.",
        why="the sink was restored from a backup, or written with another checkpoint.",
        do=f"restore sink {name!r} or the checkpoint, so that they belong together.",
        pipeline=run.pipeline,
        participant=name,
        epoch=epoch,
        generation=run.generation,
    )


def _plain(positions: Positions) -> dict[str, dict[str, int | str]]:
    return {source: dict(segments) for source, segments in positions.items()}
