"""The pipeline of a join that the process tests kill: pairs and rows without a partner, numbered behind it."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])
HOW = os.environ.get("CRASH_HOW", "full")
WITHIN = int(os.environ.get("CRASH_WITHIN", "12"))

left, right = (
    hf.read.files(
        WORK / side,
        format="json",
        schema=f"k BIGINT, t BIGINT, {value} BIGINT",
        timestamp="t",
        max_files_per_epoch=1,
        bounded=True,
        name=side,
    )
    for side, value in (("left", "v"), ("right", "w"))
)
joined = hf.join(left, right, on="k", within=WITHIN, how=HOW, disorder=5, name="joined")
flat = joined | hf.select("k", "v", "w", at="joined_time", name="flat")
numbered = flat | hf.accumulate(by="k", n=hf.count(), name="numbered")

pipeline = hf.Pipeline(
    "joins",
    numbered | hf.write.sqlite(WORK / "out.db", table="pairs", name="pairs_table"),
    joined.late | hf.write.files(WORK / "late", name="late_files"),
)
