"""Hosts of levels on the journal of state: all levels in this process, or one in a task of a worker.

Which of the two an epoch is given to makes no difference to what comes out: the same calls for the same buckets, in
the same order within each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from holdfast.errors import invariant
from holdfast.plan.chunks import DRIVER, REPORT, Chunk, Routing
from holdfast.plan.counts import EpochReport
from holdfast.plan.laps import HERE, OTHER
from holdfast.plan.levels.journal import At, BucketChange, PieceKey, StateVersion, StoredBucket, StoredPiece
from holdfast.plan.levels.level import EpochContext, Level, WorkerMemory
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds
from holdfast.plan.stages import Stages

ReadPiece = Callable[[StoredPiece], bytes]


class JournalCells:
    """The :class:`~holdfast.plan.levels.store.Cells` of one bucket: read from the journal, changed in memory.

    Parameters
    ----------
    stored : StoredBucket, optional
        The bucket at the end of the epoch before; None where it has no state.
    read : callable
        Returns the bytes of a piece.
    """

    def __init__(self, stored: StoredBucket | None, read: Callable[[StoredPiece], bytes]) -> None:
        self._record = None if stored is None else stored.record
        self._kept = {} if stored is None else dict(stored.pieces)
        self._written: dict[PieceKey, pa.Buffer] = {}
        self._read = read
        self._has_changed = False

    def record(self) -> str | None:
        """Return the record; None when there is none."""
        return self._record

    def put_record(self, record: str) -> None:
        """Replace the record."""
        self._record, self._has_changed = record, True

    def piece(self, part: int, number: int) -> bytes | pa.Buffer:
        """Return a piece of a part."""
        at = (part, number)
        return self._written[at] if at in self._written else self._read(self._kept[at])

    def put_piece(self, part: int, number: int, data: pa.Buffer) -> None:
        """Store a piece of a part."""
        self._written[part, number] = data
        self._has_changed = True

    def drop_piece(self, part: int, number: int) -> None:
        """Remove a piece of a part."""
        self._kept.pop((part, number), None)
        self._written.pop((part, number), None)
        self._has_changed = True

    def change(self, at: At) -> BucketChange | None:
        """Return what was changed; None for nothing."""
        if not self._has_changed:
            return None
        invariant(self._record is not None, f"bucket {at[1]} of {at[0]!r} has pieces of state and no record.")
        return BucketChange(at, self._record or "", self._kept, self._written)


def levels_of(
    stages: Stages, token: str, seeds: Seeds | None = None, parts: SnapshotParts | None = None
) -> tuple[Level, ...]:
    """Return the levels of a graph that keep state, in their order."""
    return tuple(
        Level(number, stage, stages.routing, token, seeds, parts, _opened_behind(stages, number))
        for number, stage in enumerate(stages.stages)
        if stage.hosted
    )


def _opened_behind(stages: Stages, number: int) -> frozenset[int]:
    """Return the targets of a subplan right behind a level: its chunks are opened in the level's own task."""
    subplan = stages.stages[number + 1].subplan if number + 1 < len(stages.stages) else None
    return frozenset() if subplan is None else frozenset(target for target, _ in subplan.heads)


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


def report_of(report: EpochReport, operator: str = "", number: int = 0) -> Chunk:
    """Return the report of a host as a chunk."""
    return Chunk(DRIVER, number, REPORT, 0, 0, operator, report.to_json().encode())


class LevelsHere:
    """All levels in this process, one after the other: where there is no subplan between them that Spark evaluates.

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
        laps = self._memory.laps
        laps.take()  # what an epoch has left that failed
        laps.to(OTHER)
        self._memory.taps.begin(at.wish)
        for level in self._levels:
            came, passing = passing, []
            for key, of_key in level.arriving(came):
                out, change = call_bucket(level, self._routing, key, of_key, before, read, at, self._memory)
                passing += out
                if change is not None:
                    changes.append(change)
        passing.append(report_of(EpochReport(waves={HERE: laps.take()})))
        return passing, changes
