"""A pipeline that calls a shared model for each of its rows: one of several on a host."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from tests.crash.model_caller import model_of

WORK = Path(os.environ["CRASH_PIPELINE"])
MODEL = {"max_batch": 64, "max_delay": "20 ms"}

model = model_of(**MODEL)


def echo(batch: pa.RecordBatch) -> pa.Table:
    """Add what the model says of each row."""
    told = pa.table({"told": [f"{WORK.name} {number}" for number in batch["id"].to_pylist()]})
    return pa.table({"id": batch["id"], "told": model(told)["told"]})


rows = hf.read.files(WORK / "in", format="json", schema="id BIGINT", max_files_per_epoch=1, name="rows")
echoed = rows | hf.map_batches(echo, "id BIGINT, told STRING", name="echoed")
pipeline = hf.Pipeline(f"echoing_{WORK.name}", echoed | hf.write.sqlite(WORK / "out.db", table="told", name="told"))
