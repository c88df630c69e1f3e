"""The pipeline that is killed while it rescues members of its rows that are no column."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])
SCHEMA = "id BIGINT, place STRUCT<x: DOUBLE>"

if "CRASH_KAFKA" in os.environ:
    rides = hf.read.kafka(
        os.environ["CRASH_KAFKA"],
        "rides",
        schema=SCHEMA,
        on_new_column="rescue",
        on_bad_row="reject",
        max_rows_per_epoch=300,
        name="rides",
    )
else:
    rides = hf.read.files(
        WORK / "in",
        schema=SCHEMA,
        on_new_column="rescue",
        on_bad_row="reject",
        max_files_per_epoch=1,
        name="rides",
    )
rows = rides | hf.select("id", rescued="_rescued", name="rows")
pipeline = hf.Pipeline(
    "rescued",
    rows | hf.write.sqlite(WORK / "out.db", table="rows", name="table"),
    rows | hf.write.files(WORK / "files", name="files"),
    rides.rejects | hf.write.sqlite(WORK / "bad.db", table="rows", name="bad"),
)
