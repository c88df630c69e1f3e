"""The pipeline that the process tests of ``commit_at="pts"`` kill: two sources of unlike pace, two unlike sinks."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])


def source(name: str, files_per_epoch: int) -> hf.Stream:
    """Return a source of JSON lines in the order of its files' times; a tick is a nanosecond."""
    return hf.read.files(
        WORK / name,
        format="json",
        schema="camera STRING, t BIGINT, v BIGINT",
        timestamp="t",
        max_files_per_epoch=files_per_epoch,
        bounded=True,
        name=name,
    )


left, right = source("left", 2), source("right", 1)
pipeline = hf.Pipeline(
    "frames",
    left | hf.write.sqlite(WORK / "left.db", table="frames", name="left_table"),
    hf.union(left, right, name="both") | hf.write.files(WORK / "both", name="both_files"),
    commit_at="pts",
)
