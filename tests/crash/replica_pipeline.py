"""A pipeline whose every row depends on all rows before it: ``draw`` numbers the rows of each key."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

source = hf.read.files(
    Path(os.environ["CRASH_WORK"]) / "in",
    format="json",
    schema="id BIGINT, at TIMESTAMP",
    timestamp="at",
    max_files_per_epoch=2,
    name="source",
)
keyed = source | hf.select("id", "at", k="id % 7", name="keyed")
numbered = keyed | hf.accumulate(by="k", draw=hf.count(), name="numbered")
pipeline = hf.Pipeline(
    "numbered", numbered | hf.write.postgres(os.environ["CRASH_DSN"], table="rows", name="postgres_rows")
)
