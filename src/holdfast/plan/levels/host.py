"""Hosts of levels on the journal of state: all levels in this process, or one in a task of a worker.

Which of the two an epoch is given to makes no difference to what comes out: the same calls for the same buckets, in
the same order within each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holdfast.errors import invariant
from holdfast.plan.chunks import Chunk, Routing
from holdfast.plan.levels.journal import BucketChange, JournalCells, StateVersion, StoredPiece
from holdfast.plan.levels.level import EpochContext, Level, WorkerMemory
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds
from holdfast.plan.stages import Stages

ReadPiece = Callable[[StoredPiece], bytes]


def levels_of(
    stages: Stages, token: str, seeds: Seeds | None = None, parts: SnapshotParts | None = None
) -> tuple[Level, ...]:
    """Return the levels of a graph that keep state, in their order."""
    return tuple(
        Level(number, stage, stages.routing, token, seeds, parts)
        for number, stage in enumerate(stages.stages)
        if stage.hosted
    )


def call_bucket(
    level: Level,
    routing: Routing,
    key: tuple[str, int],
    chunks: Sequence[Chunk],
    before: StateVersion,
    read: ReadPiece,
    at: EpochContext,
    memory: WorkerMemory,
) -> tuple[list[Chunk], BucketChange | None]:
    """Give a level the chunks of one bucket, or of one passage.

    Parameters
    ----------
    level : Level
        The level.
    routing : Routing
        How many buckets there are.
    key : (str, int)
        Operator and label; no operator: a passage.
    chunks : sequence of Chunk
        All of the epoch.
    before : StateVersion
        The state with which the epoch begins.
    read : callable
        Returns the bytes of a piece of it.
    at : EpochContext
        The epoch.
    memory : WorkerMemory
        Of this process.

    Returns
    -------
    (list of Chunk, BucketChange or None)
        What comes out, and what was changed of the bucket's state.
    """
    operator, label = key
    bucket = (operator, label % routing.buckets)
    cells = JournalCells(before.buckets.get(bucket) if operator else None, read)
    out = list(level.run(key, chunks, cells, at, memory))
    change = cells.change(bucket)
    invariant(change is None or operator, f"chunks that pass level {label} changed state.")
    return out, change


class LevelsHere:
    """All levels in this process, one after the other: where there is no detour between them that Spark evaluates.

    Parameters
    ----------
    levels : sequence of Level
        In their order.
    routing : Routing
        How many buckets there are.
    """

    def __init__(self, levels: Sequence[Level], routing: Routing) -> None:
        self._levels = levels
        self._routing = routing
        self._memory = WorkerMemory()

    def run(
        self, chunks: Iterable[Chunk], before: StateVersion, read: ReadPiece, at: EpochContext
    ) -> tuple[list[Chunk], list[BucketChange]]:
        """Return what comes out of the last level, and what was changed of state."""
        passing, changes = list(chunks), []
        for level in self._levels:
            came, passing = passing, []
            for key, of_key in level.arriving(came):
                out, change = call_bucket(level, self._routing, key, of_key, before, read, at, self._memory)
                passing += out
                if change is not None:
                    changes.append(change)
        return passing, changes
