"""Where the pipelines read and write: one directory, and a database or a broker where the environment names one."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("VIDEO_WORK", Path(__file__).parent / "out")).absolute()
DSN, BROKER = os.environ.get("VIDEO_DSN"), os.environ.get("VIDEO_KAFKA")

EVENT = "frame INT, objects STRING"
VIDEO = "is_key BOOLEAN, data BINARY"
REJECT = "pts BIGINT, count INT, reason STRING, cure STRING, data BINARY"


def camera(name: str) -> hf.Stream:
    """Read what a camera has sent: a byte stream of encoded packets."""
    return hf.read.byte_stream(
        WORK / "cameras",
        streams=[name],
        end=os.environ.get("VIDEO_END", "latest"),  # of footage; leave it out for a camera that goes on
        timestamps="bigint",
        max_rows_per_epoch=int(os.environ.get("VIDEO_ROWS", "90")),
        name=name,
    )


def table(name: str) -> hf.SinkNode:
    """Write events: to a topic of Kafka, a table of PostgreSQL, or a file of SQLite."""
    if BROKER:
        return hf.write.kafka(BROKER, name, key="stream", name=f"{name}_topic")
    if DSN:
        return hf.write.postgres("${VIDEO_DSN}", table=name, name=f"{name}_table")
    return hf.write.sqlite(WORK / f"{name}.db", table=name, name=f"{name}_table")


def video(name: str) -> hf.SinkNode:
    """Write video: a byte stream, of which each part from a key frame on can be played."""
    return hf.write.byte_stream(
        WORK / "videos", timestamp="timestamp", data="data", stream="stream", key="is_key", name=name
    )
