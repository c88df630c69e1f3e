"""What ``read.byte_stream`` is asked to read: the data that planning and reading go by."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa

from holdfast.connectors.byte_stream.manifest import Times
from holdfast.positions import ALL_SEGMENTS, SegmentSet
from holdfast.store import durable

KINDS = {"timestamp": pa.timestamp("us", tz="UTC"), "bigint": pa.int64()}
"""What ``timestamps=`` says -> the type of the column."""


@dataclass(frozen=True)
class ByteStreamReading:
    """What a source of messages in a store reads.

    Times are nanoseconds of Unix time, or ticks, as in the store.
    """

    path: str
    streams: tuple[str, ...] | None = None
    start: str | int = "earliest"
    end: str | int | None = None
    clip: bool = False
    timestamps: str = "timestamp"
    max_rows_per_epoch: int | None = None
    holds_retention: bool = True
    idle_us: int | None = None
    at: int | None = None
    """Where reading begins instead of ``start``; no argument of users."""
    before: int | None = None
    """Where this run ends, exclusive; no argument of users."""
    reads: SegmentSet = ALL_SEGMENTS
    """The streams that are read, as segments; no argument of users."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the messages."""
        return pa.schema(
            [
                pa.field("stream", pa.string(), nullable=False),
                pa.field("timestamp", KINDS[self.timestamps], nullable=False),
                pa.field("is_key", pa.bool_(), nullable=False),
                pa.field("data", pa.binary(), nullable=False),
            ]
        )

    @property
    def bounded(self) -> bool:
        """Whether it ends."""
        return self.end is not None

    @property
    def directory(self) -> str:
        """The store as an absolute path."""
        return os.path.abspath(durable.local_path(self.path) or "")

    @property
    def times(self) -> Times:
        """What the timestamps of its rows are."""
        return "time" if self.timestamps == "timestamp" else "ticks"

    @property
    def clip_at(self) -> int | None:
        """The time below which messages are left out."""
        return self.start if self.clip and isinstance(self.start, int) else None
