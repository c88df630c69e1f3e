"""As ``paces_pipeline`` at real sizes: a PostgreSQL table each epoch, segments of 32 MB, a byte stream."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf

WORK = Path(os.environ.get("CRASH_WORK", "."))
FILES, ROWS = 60, 1000
"""Files, one for each epoch, and rows in each."""

CAMERAS = 3
DATA_BYTES = 5_000
"""Of a row: nothing of it can be compressed, so that each camera fills three files of the target size."""

TARGET = "32 MB"
KEY_EVERY = 30
SCHEMA = "id BIGINT, camera STRING, at BIGINT, is_key BOOLEAN, digest STRING, data BINARY"


def data_of(number: int) -> bytes:
    """Return what a message holds."""
    return random.Random(number).randbytes(DATA_BYTES)


def digest_of(data: bytes) -> str:
    """Return what the table has of it."""
    return hashlib.sha256(data).hexdigest()


def write_input(work: Path) -> None:
    """Write the files."""
    (work / "in").mkdir()
    for file in range(FILES):
        numbers = range(file * ROWS, (file + 1) * ROWS)
        data = [data_of(number) for number in numbers]
        columns = {
            "id": numbers,
            "camera": [f"c{number % CAMERAS}" for number in numbers],
            "at": [10 * number for number in numbers],
            "is_key": [number // CAMERAS % KEY_EVERY == 0 for number in numbers],
            "digest": [digest_of(each) for each in data],
            "data": data,
        }
        pq.write_table(pa.table(columns), work / "in" / f"{file:03}.parquet", compression="none")


rows = hf.read.files(WORK / "in", format="parquet", schema=SCHEMA, max_files_per_epoch=1, name="rows")
small = rows | hf.select("id", "camera", "digest", name="small")
messages = rows | hf.select("camera", "at", "is_key", "data", name="messages")
pipeline = hf.Pipeline(
    "paces",
    small | hf.write.postgres(os.environ.get("CRASH_DSN", "host=localhost"), table="rows", name="table"),
    rows | hf.write.segments(WORK / "segments", partition_by=["camera"], target_size=TARGET, name="segments"),
    messages | hf.write.byte_stream(WORK / "stream", timestamp="at", stream="camera", key="is_key", name="recording"),
)
