"""Does the driver's memory grow?  With the number of epochs, and with the rows of one.

1. ``--epochs`` small epochs (one file of 20 rows each) into SQLite.  Every hundredth of the way the Python process's
   resident memory and the JVM's live heap (after a full collection) are noted; ``slope`` is the line through the second
   half, in MB per 1000 epochs.  Raw Spark does the same with ``foreachBatch`` into SQLite.
2. One staged epoch of ``--rows`` rows and one of a quarter of them: the driver's Python process must peak alike, for
   staged rows are never collected.

``ratio`` = memory (Python, live heap, and the Python processes below the JVM) at the end / at a fifth of the way: 1.0
is flat.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.sides import print_result, run_side

SCHEMA = "id BIGINT, celsius DOUBLE"
ROWS_PER_FILE = 20
SAMPLE_COUNT = 100
RAW_EPOCHS_MAX = 2000
"""Raw Spark's slope shows in fewer epochs; it is there for comparison."""


def side_holdfast(directory: str, scratch: str, epochs: int) -> dict[str, Any]:
    """Many small epochs through Holdfast."""
    run = _start_pipeline(directory, scratch, max_files_per_epoch=1)
    return _sample(lambda: run.status().epoch, lambda: not run.is_active, epochs) | {"check": _check(run)}


def side_raw_spark(directory: str, scratch: str, epochs: int) -> dict[str, Any]:
    """Many small batches through raw Spark."""
    from bench.raw_spark import default_session

    database = f"{scratch}/readings.db"
    connection = sqlite3.connect(database, check_same_thread=False)
    connection.execute("CREATE TABLE readings (id, celsius)")
    done = [0]

    def save(batch: Any, batch_id: int) -> None:
        with connection:
            connection.executemany("INSERT INTO readings VALUES (?, ?)", [tuple(row) for row in batch.collect()])
        done[0] = batch_id + 1

    stream = default_session().readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(directory)
    writer = stream.writeStream.foreachBatch(save).option("checkpointLocation", f"{scratch}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    return _sample(lambda: done[0], lambda: not query.isActive, epochs)


def side_one_epoch(directory: str, scratch: str) -> dict[str, Any]:
    """One large epoch, staged by executors: the peak of the driver's Python process."""
    os.environ["HOLDFAST_CARRY_MAX"] = "0 B"
    run = _start_pipeline(directory, scratch)
    run.wait()
    status = run.status()
    peak_mb = _peak_mb()
    return {"rows": status.rows_total, "epochs": status.epoch, "python_peak_mb": peak_mb}


def _start_pipeline(directory: str, scratch: str, **limits: Any) -> Any:
    import holdfast as hf

    os.environ.setdefault("HOLDFAST_MASTER", "local[2]")
    readings = hf.read.files(directory, format="json", schema=SCHEMA, name="readings", **limits)
    sink = hf.write.sqlite(f"{scratch}/readings.db", table="readings", name="table")
    return hf.Pipeline("bench", readings | sink).start(checkpoint=f"{scratch}/checkpoint", trigger=hf.available_now())


def _check(run: Any) -> str:
    run.wait()
    return "ended well"


def _sample(epoch: Any, has_ended: Any, epochs: int) -> dict[str, Any]:
    """Note the driver's memory as epochs go by; return the line through the second half."""
    samples: list[tuple[int, float, float, float]] = []
    began = time.perf_counter()
    while not has_ended():
        if epoch() >= (len(samples) + 1) * max(1, epochs // SAMPLE_COUNT):
            samples.append((epoch(), _resident_mb(), _live_heap_mb(), _workers_mb()))
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    early, late = samples[len(samples) // 5], samples[-1]
    half = samples[len(samples) // 2 :]
    return {
        "epochs": epoch(),
        "epoch_ms": round(seconds / max(1, epoch()) * 1000, 1),
        "slope_python_mb_per_1000": _slope([(e, python) for e, python, _, _ in half]),
        "slope_heap_mb_per_1000": _slope([(e, heap) for e, _, heap, _ in half]),
        "slope_workers_mb_per_1000": _slope([(e, workers) for e, _, _, workers in half]),
        "early_mb": _named(early),
        "late_mb": _named(late),
        "growth": round(sum(late[1:]) / sum(early[1:]), 3),
    }


def _named(sample: tuple[int, float, float, float]) -> dict[str, float]:
    return dict(zip(("epoch", "python", "heap", "workers"), sample, strict=True))


def _slope(points: list[tuple[int, float]]) -> float:
    """Return the slope of the least-squares line, per 1000 epochs."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return round(sum((x - mean_x) * (y - mean_y) for x, y in points) / spread * 1000, 3) if spread else 0.0


def _resident_mb() -> float:
    import psutil

    return round(psutil.Process().memory_info().rss / 1e6, 1)


def _workers_mb() -> float:
    """Return the resident memory of the Python processes below the JVM: the one that plans, and the workers."""
    import psutil

    total = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "python" in child.name():
                total += child.memory_info().rss
    return round(total / 1e6, 1)


def _peak_mb() -> float:
    import resource

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1)


def _live_heap_mb() -> float:
    """Return the JVM's heap in use after a full collection."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return round((runtime.totalMemory() - runtime.freeMemory()) / 1e6, 1)


def write_small_files(directory: Path, file_count: int) -> None:
    """Write the input of the many small epochs."""
    directory.mkdir(parents=True)
    for number in range(file_count):
        first = number * ROWS_PER_FILE
        lines = [f'{{"id": {row}, "celsius": {row % 40}.5}}\n' for row in range(first, first + ROWS_PER_FILE)]
        (directory / f"part-{number:06}.json").write_text("".join(lines))


def write_large_files(directory: Path, row_count: int, file_count: int = 8) -> None:
    """Write the input of one large epoch."""
    import polars as pl

    directory.mkdir(parents=True)
    for number in range(file_count):
        start, end = (row_count * n // file_count for n in (number, number + 1))
        ids = pl.int_range(start, end, dtype=pl.Int64, eager=True).alias("id").to_frame()
        ids.with_columns(celsius=(pl.col("id") % 4000) / 100).write_ndjson(directory / f"part-{number:04}.json")


def main() -> int:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=4_000_000)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        figures: dict[str, Any] = {}
        for side in ("holdfast", "raw_spark"):
            scratch = _scratch(work, side)
            epochs = options.epochs if side == "holdfast" else min(options.epochs, RAW_EPOCHS_MAX)
            write_small_files(work / side, epochs)
            arguments = {"directory": str(work / side), "scratch": scratch, "epochs": epochs}
            figures[side] = run_side("bench.memory", side, arguments)
            print(f"{side}: {figures[side]}", flush=True)
        for name, row_count in (("quarter_epoch", options.rows // 4), ("full_epoch", options.rows)):
            write_large_files(work / name, row_count)
            arguments = {"directory": str(work / name), "scratch": _scratch(work, f"{name}-scratch")}
            figures[name] = run_side("bench.memory", "one_epoch", arguments)
            print(f"{name}: {figures[name]}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    peaks = figures["full_epoch"]["python_peak_mb"] / figures["quarter_epoch"]["python_peak_mb"]
    head = {"bench": "memory", "ratio": figures["holdfast"]["growth"], "epoch_peak_ratio": round(peaks, 3)}
    print_result(head | figures)
    return 0


def _scratch(work: Path, name: str) -> str:
    path = work / f"{name}-work"
    path.mkdir()
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
