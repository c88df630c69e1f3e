"""The pipeline that is killed in runs that end at a time: text and Parquet files, times in any order, two sinks."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])


def side(name: str, format_name: str) -> hf.Stream:
    """Return the rows of one side."""
    return hf.read.files(
        WORK / name,
        format=format_name,  # type: ignore[arg-type]
        schema="id STRING, t BIGINT",
        timestamp="t",
        max_files_per_epoch=1,
        name=name,
    )


both = hf.union(side("left", "json"), side("right", "parquet"), name="both")
pipeline = hf.Pipeline(
    "until",
    both | hf.write.sqlite(WORK / "out.db", table="rows", name="table"),
    both | hf.write.files(WORK / "out", name="files"),
)
