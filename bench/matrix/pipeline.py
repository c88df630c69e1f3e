"""The pipeline of the matrix: files, duplicates dropped by id (so that it has state), one sink or two."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import holdfast as hf

WORK = Path(os.environ["MATRIX_WORK"])
ADDRESS = os.environ["MATRIX_ADDRESS"]


def sink_of(kind: str) -> Any:
    """Return the sink of one kind at the cell's place."""
    if kind in ("files", "files in S3"):
        return hf.write.files(ADDRESS, name="sink")
    if kind == "segments":
        return hf.write.segments(ADDRESS, name="sink")
    if kind == "sqlite":
        return hf.write.sqlite(ADDRESS, table="rows", name="sink")
    if kind == "postgres":
        return hf.write.postgres(ADDRESS, table="rows", stage="prepared", name="sink")
    if kind == "mysql":
        return hf.write.mysql(ADDRESS, table="rows", name="sink")
    if kind == "redis":
        return hf.write.redis(ADDRESS, key="rows", id="id", name="sink")
    bootstrap, _, topic = ADDRESS.partition("/")
    return hf.write.kafka(bootstrap, topic, name="sink")


readings = hf.read.files(
    WORK / "in",
    format="json",
    schema="id BIGINT, at TIMESTAMP, value DOUBLE",
    timestamp="at",
    max_files_per_epoch=1,
    name="readings",
)
once = readings | hf.distinct(by="id", horizon="1 h", name="once")
sinks = [once | sink_of(os.environ["MATRIX_SINK"])]
if os.environ.get("MATRIX_BESIDE"):
    sinks.append(once | hf.write.sqlite(WORK / "beside.db", table="rows", name="beside"))
# A broker knows a pipeline by its name, whatever its topic: each chain is a pipeline of its own.
pipeline = hf.Pipeline("matrix_" + WORK.name.rpartition("-")[2], *sinks)
