"""A pipeline whose every row depends on all rows before it: ``draw`` numbers the rows of each key.

With ``CRASH_STATE=0`` one without state, whose rows can be computed again.
"""

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
if os.environ.get("CRASH_STATE", "1") == "1":
    numbered = keyed | hf.accumulate(by="k", draw=hf.count(), name="numbered")
else:
    numbered = keyed | hf.select("id", "k", draw="CAST(id AS DOUBLE)", name="numbered")
pipeline = hf.Pipeline(
    "numbered", numbered | hf.write.postgres(os.environ["CRASH_DSN"], table="rows", name="postgres_rows")
)
