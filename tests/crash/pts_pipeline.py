"""The pipeline that the process tests of ``commit_at="pts"`` kill: two sources of unlike pace, three unlike sinks."""

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
both = hf.union(left, right, name="both")
pipeline = hf.Pipeline(
    "frames",
    left | hf.write.sqlite(WORK / "left.db", table="frames", name="left_table"),
    both | hf.write.files(WORK / "both", name="both_files"),
    both
    | hf.filter("camera = 'a'", name="some")
    | hf.write.postgres(os.environ["CRASH_DSN"], table="frames", name="some_rows"),
    commit_at="pts",
)
