"""The pipeline of ``test_poison``: one row kills the driver, whoever evaluates it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import holdfast as hf

WORK = Path(os.environ["CRASH_WORK"])
BAD = int(os.environ["CRASH_BAD"])
DRIVER = os.getpid()


def killing(driver: int, bad: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that kills the driver when it is given the bad row."""

    def check(rows: pa.RecordBatch) -> pa.RecordBatch:
        if bad in rows.column("id").to_pylist():
            os.kill(driver, signal.SIGKILL)
            raise RuntimeError("the driver is gone")
        return rows

    return check


source = hf.read.files(WORK / "in", format="json", schema="id BIGINT", name="source")
checked = source | hf.map_batches(killing(DRIVER, BAD), "id BIGINT", name="checked")
pipeline = hf.Pipeline("poisoned", checked | hf.write.sqlite(WORK / "out.db", table="rows", name="table"))
