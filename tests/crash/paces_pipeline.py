"""The pipeline that is killed to show that sinks of different pace agree: tables, segments, a byte stream.

Among the rows are commands: a table and segments carry them out, to the others they are filtered out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import holdfast as hf

WORK = Path(os.environ.get("CRASH_WORK", "."))
FILES, ROWS = 48, 400
"""Files, one for each epoch, and rows in each."""

TARGET = "64 KB"
KEY_EVERY = 30
SCHEMA = "id BIGINT, camera STRING, at BIGINT, is_key BOOLEAN, data STRING, control STRING, extra STRING"

COMMANDS = {
    7: hf.control.add_column("gust", "float"),
    9: hf.control.drop_partition(camera="c1"),
    13: hf.control.widen("gust", "double"),
    15: hf.control.drop_partition(camera="c1"),
}
"""File -> the command in the middle of it."""

HAS_GUST = 7 * ROWS + ROWS // 2
DROPPED = 15 * ROWS + ROWS // 2
"""The first rows behind the first command, and behind the last one."""


def data_of(number: int) -> str:
    """Return what a message holds: nothing that compresses."""
    return "".join(f"{(number * 2654435761 + n * 40503) % 2**32:08x}" for n in range(12))


def write_input(work: Path) -> None:
    """Write the files."""
    (work / "in").mkdir()
    for file in range(FILES):
        rows = [
            {
                "id": number,
                "camera": f"c{number % 3}",
                "at": 10 * number,
                "is_key": number // 3 % KEY_EVERY == 0,
                "data": data_of(number),
                **({"extra": json.dumps({"gust": number + 0.5})} if number >= HAS_GUST else {}),
            }
            for number in range(file * ROWS, (file + 1) * ROWS)
        ]
        if file in COMMANDS:
            rows.insert(ROWS // 2, {"control": COMMANDS[file]})
        (work / "in" / f"{file:03}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


CONTROL: dict[str, Any] = {"control": "control", "extra": "extra"}
NEWEST: dict[str, Any] = {"mode": "upsert", "key": ["camera"]}

everything = hf.read.files(WORK / "in", format="json", schema=SCHEMA, max_files_per_epoch=1, name="everything")
controlled = everything | hf.select("id", "camera", "control", "extra", name="controlled")
rows = (
    everything
    | hf.filter("control is null", name="data")
    | hf.select("id", "camera", "at", "is_key", "data", name="rows")
)
messages = rows | hf.select("camera", "at", "is_key", data="cast(data as binary)", name="messages")
pipeline = hf.Pipeline(
    "paces",
    rows | hf.write.sqlite(WORK / "out.db", table="rows", name="table"),
    rows | hf.write.sqlite(WORK / "slow.db", table="rows", commit_every=1000, name="slow"),
    rows | hf.write.sqlite(WORK / "newest.db", table="rows", **NEWEST, commit_every="500 ms", name="newest"),
    rows | hf.write.segments(WORK / "segments", partition_by=["camera"], target_size=TARGET, name="segments"),
    controlled | hf.write.sqlite(WORK / "controlled.db", table="rows", **CONTROL, name="controlled_table"),
    controlled | hf.write.segments(WORK / "controlled", partition_by=["camera"], **CONTROL, name="controlled_segments"),
    messages | hf.write.byte_stream(WORK / "stream", timestamp="at", stream="camera", key="is_key", name="recording"),
)
