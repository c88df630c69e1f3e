"""The pipeline that adds columns to its schema file, and is killed around that."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])

if "CRASH_KAFKA" in os.environ:
    rides = hf.read.kafka(
        os.environ["CRASH_KAFKA"],
        "rides",
        schema=WORK / "ride.ddl",
        on_new_column="add",
        max_rows_per_epoch=300,
        name="rides",
    )
else:
    rides = hf.read.files(
        WORK / "in", schema=WORK / "ride.ddl", on_new_column="add", max_files_per_epoch=1, name="rides"
    )
counted = rides | hf.reduce(by="kind", n=hf.count(), name="counted")
pipeline = hf.Pipeline(
    "added",
    rides | hf.write.sqlite(WORK / "out.db", table="rows", name="table"),
    rides | hf.select("id", "kind", name="known") | hf.write.files(WORK / "files", name="files"),
    counted | hf.write.sqlite(WORK / "counts.db", table="counts", mode="upsert", key="kind", name="counts"),
)
