"""Drivers of one pipeline in four shards, from files to SQLite and a segments store.

``python -m tests.crash.shards_process WORK SEED COUNT``

Single shards fail at named points, by chance; shard 2 fails at each epoch while there is a file ``WORK/down``.  With a
count the process ends by itself when the table has so many rows.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.connectors.segments.policies import rows
from tests.spark.running import sqlite_rows

SHARDS = 4
DOWN = 2
POINTS = ("before-stage", "after-stage", "after-decide", "before-publish", "after-publish", "before-forget")


def pipeline(work: Path) -> hf.Pipeline:
    """Return the pipeline."""
    numbers = hf.read.files(str(work / "in"), schema="id BIGINT", max_files_per_epoch=2, name="numbers")
    table = numbers | hf.write.sqlite(str(work / "table.db"), table="rows", name="table")
    store = numbers | hf.write.segments(str(work / "store"), seal=[rows(20)], name="store")
    return hf.Pipeline("numbers", table, store)


def fail(work: Path, chance: random.Random) -> faults.Hook:
    """Return what lets shards fail: the thread that reaches a point is one of that shard alone."""

    def hook(point: str, epoch: int) -> None:
        is_down = point == "before-stage" and (work / "down").exists()
        if is_down or (point in POINTS and chance.random() < 0.05):
            raise RuntimeError(f"{point}:{epoch}")

    return hook


def main(work: Path, seed: int, count: int) -> None:
    """Run until the table has so many rows."""
    faults.install(fail(work, random.Random(seed)), shard=DOWN)
    settings = Settings(restart_first="50 ms", restart_cap="200 ms", max_restarts=1_000_000)
    run = pipeline(work).start(
        checkpoint=work / "checkpoint", trigger=hf.every("20 ms"), shards=SHARDS, master="local[2]", settings=settings
    )
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    waiting = threading.Event()
    while not count or len(sqlite_rows(work / "table.db")) < count:
        if run.wait(0):
            return
        waiting.wait(0.05)
    faults.install(None)
    run.stop()
    run.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)
