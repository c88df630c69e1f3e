"""A pipeline whose function waits on the executors while there is a file ``CRASH_WORK/held``.

Each call leaves a file in ``calls``, which says the ids of its rows and which executor has it, as a process id.  Those
of one executor go on when there is a file of that id in ``let-go``.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import psutil
import pyarrow as pa

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])


def hold(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows when they may go on."""
    above = psutil.Process().parents()
    executor = next(each.pid for each in above if any("ExecutorBackend" in part for part in each.cmdline()))
    call = WORK / "calls" / uuid.uuid4().hex
    call.with_suffix(".tmp").write_text(json.dumps([executor, batch["id"].to_pylist()]))
    call.with_suffix(".tmp").rename(call.with_suffix(".json"))
    while (WORK / "held").exists() and not (WORK / "let-go" / str(executor)).exists():
        time.sleep(0.01)
    return batch


numbers = hf.read.files(str(WORK / "in"), schema="id BIGINT", max_files_per_epoch=1, name="numbers")
held = numbers | hf.map_batches(hold, "id BIGINT", name="held")
pipeline = hf.Pipeline(
    "numbers",
    held | hf.write.sqlite(str(WORK / "table.db"), table="rows", name="table"),
    held | hf.write.files(str(WORK / "files"), name="files"),
)
