"""The pipeline that is killed beside its backfill: files with times in any order, a table and a segments store."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])

rides = hf.read.files(
    WORK / "in", schema="id BIGINT, t BIGINT", timestamp="t", max_files_per_epoch=1, block_size="64 B", name="rides"
)
pipeline = hf.Pipeline(
    "filled",
    rides | hf.write.sqlite(WORK / "out.db", table="rows", name="table"),
    rides | hf.write.segments(WORK / "store", max_age="1 s", name="store"),
)
