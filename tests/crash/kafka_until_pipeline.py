"""The pipeline that is killed in runs that end at a time, over a topic with times in any order: two sinks."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])

rows = hf.read.kafka(
    os.environ["CRASH_KAFKA"],
    os.environ["CRASH_TOPIC"],
    schema="id STRING, t BIGINT",
    timestamp="t",
    max_rows_per_epoch=15,
    name="messages",
)
pipeline = hf.Pipeline(
    "until",
    rows | hf.write.sqlite(WORK / "out.db", table="rows", name="table"),
    rows | hf.write.files(WORK / "out", name="files"),
)
