"""Spark as the host of state: levels inside ``transformWithState``, one call for each bucket and epoch.

Spark gives a bucket's chunks to :meth:`LevelProcessor.handleInputRows`; what the level makes of them are chunks for
the next one.  The Row variant of the Python API is used: for a few binary rows per key it has the least overhead (no
DataFrame is made of them).

Batch time and epoch come as local properties of the job, which the driver sets from Spark's offset log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from holdfast.errors import crossing, present
from holdfast.plan.chunks import CHUNKS, Chunk, Routing
from holdfast.plan.levels.level import EpochContext, Level, WorkerMemory
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds
from holdfast.plan.stages import Stage
from holdfast.spark import private

EPOCH_PROPERTY, BATCH_TIME_PROPERTY = "holdfast.epoch", "holdfast.batch_us"
"""Local properties of an epoch's job."""

ACTIVE_UNTIL_PROPERTY = "holdfast.active_until"
"""Local property: the time up to which each source counts as active although no row of it arrived, as JSON."""

BARRIER_PROPERTY = "holdfast.barrier"
"""Set for the job of an epoch whose state is needed for a snapshot."""

# NB types and not DDL: to parse DDL each task asks the JVM, three times for each state variable.
RECORD = StructType([StructField("value", StringType())])
PART = StructType([StructField("part", LongType()), StructField("piece", IntegerType())])
PIECE = StructType([StructField("data", BinaryType())])

_memory = WorkerMemory()
"""What this worker holds: workers are reused from epoch to epoch."""


class LevelProcessor(StatefulProcessor):  # type: ignore[misc]
    """One level (:class:`holdfast.plan.levels.level.Level`) as Spark calls it.

    Parameters
    ----------
    level : Level
        Processes the chunks.
    """

    def __init__(self, level: Level) -> None:
        self._level = level

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        private.silence_state_planning()

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables."""
        self._record = handle.getValueState("record", RECORD)
        self._parts = handle.getMapState("parts", PART, PIECE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Take the chunks of one bucket, or of one passage; yield chunks."""
        with crossing():
            chunks = [_from_row(row) for row in rows]
            cells = _Variables(self._record, self._parts)
            for chunk in self._level.run((key[0], key[1]), chunks, cells, _context(), _memory):
                yield _to_row(chunk, *self._level.onward(chunk))

    def close(self) -> None:
        """Do nothing: the store commits by itself."""


def _context() -> EpochContext:
    """Return what the driver has set for the epoch, as properties of its job."""
    context = TaskContext.get()
    assert context is not None
    epoch, batch_us = context.getLocalProperty(EPOCH_PROPERTY), context.getLocalProperty(BATCH_TIME_PROPERTY)
    active_until_us = json.loads(context.getLocalProperty(ACTIVE_UNTIL_PROPERTY) or "{}")
    why = "the driver sets it before each job."
    epoch = present(epoch, "a task does not know its epoch.", why=why)
    batch_us = present(batch_us, "a task does not know its batch time.", why=why)
    return EpochContext(int(epoch), int(batch_us), active_until_us, context.getLocalProperty(BARRIER_PROPERTY) == "1")


def _to_row(chunk: Chunk, operator: str, label: int) -> Row:
    return Row(
        operator=operator,
        label=label,
        target=chunk.target,
        bucket=chunk.bucket,
        kind=chunk.kind,
        rank=chunk.rank,
        seq=chunk.seq,
        source=chunk.source,
        data=chunk.data,
    )


def _from_row(row: Row) -> Chunk:
    return Chunk(row.target, row.bucket, row.kind, row.rank, row.seq, row.source, row.data)


@dataclass(frozen=True)
class _Variables:
    """A bucket's cells in Spark's state variables."""

    record_state: Any
    parts: Any

    def record(self) -> str | None:
        value = self.record_state.get()
        return None if value is None else str(value[0])

    def put_record(self, record: str) -> None:
        self.record_state.update((record,))

    def piece(self, part: int, number: int) -> bytes:
        return bytes(self.parts.getValue((part, number))[0])

    def put_piece(self, part: int, number: int, data: bytes) -> None:
        self.parts.updateValue((part, number), (data,))

    def drop_piece(self, part: int, number: int) -> None:
        self.parts.removeKey((part, number))


POOL_VARIABLE = "HOLDFAST_POOL"
"""Levels get separate workers, by an environment variable.

So few processes hold state, and one that held a bucket in the last epoch is likely to get it again.
"""


def with_levels(
    frame: DataFrame,
    stages: Sequence[Stage],
    routing: Routing,
    token: str,
    seeds: Seeds | None = None,
    parts: SnapshotParts | None = None,
) -> DataFrame:
    """Return a frame of chunks after all levels."""
    for number, stage in enumerate(stages[1:], start=1):
        with private.workers_apart(frame, POOL_VARIABLE, f"level-{number}"):
            processor = LevelProcessor(Level(number, stage, routing, token, seeds, parts))
            frame = frame.groupBy("operator", "label").transformWithState(processor, CHUNKS, "append", "none")
    return frame
