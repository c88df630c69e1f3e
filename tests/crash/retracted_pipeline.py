"""The pipeline of changes that the process tests kill: aggregates over one that changes, rows that leave a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])
LEAST = 300

moves = hf.read.files(
    WORK / "in", format="json", schema="k BIGINT, t BIGINT, c STRING, v BIGINT", max_files_per_epoch=1, name="moves"
)
now = moves | hf.reduce(by="k", c=hf.max_by("c", "t"), v=hf.max_by("v", "t"), delete="is_deleted", name="now")
large = now | hf.filter(f"v >= {LEAST}", name="large")
groups = large | hf.reduce(
    by="c", n=hf.count(), total=hf.sum("v"), least=hf.min("v"), most=hf.max("v"), different=hf.distinct_count("v"),
    delete="is_deleted", name="groups",
)  # fmt: skip
held: dict[str, Any] = {"mode": "upsert", "delete": "is_deleted"}

pipeline = hf.Pipeline(
    "retracted",
    groups | hf.write.sqlite(WORK / "groups.db", table="groups", key="c", name="groups_table", **held),
    large | hf.write.sqlite(WORK / "large.db", table="large", key="k", name="large_table", **held),
)
