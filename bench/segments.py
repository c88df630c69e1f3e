"""Files at a short trigger: ``write.segments`` against Spark's own file sink, on the same input, in turns.

Both sides read the same JSON lines, one file an epoch, every 100 ms or as soon as they can, and write Parquet
partitioned by eight values.  Each runs in a process of its own, warmed up by a small query of the same kind; measured
is the time from the start of the query until every row is in a file that readers see.  Then two readers scan both
results, in turns: DuckDB, and Spark in a process that has scanned before.

``write_ratio`` = rows per second, holdfast / raw Spark.  ``files_ratio`` = files, raw Spark / holdfast.
``scan_speedup`` = time to scan, raw Spark / holdfast, of the reader for which it is less.  Medians over the rounds.
``epoch_ratio`` = how long publishing an epoch takes with 10 000 growing segments, compared with 10.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.exactly_once import SCHEMA, write_input
from bench.sides import WORK, median, print_result, run_side

COLUMNS = ("id", "device", "at", "celsius", "CAST(id % 8 AS INT) AS shard")
SIDES = ("raw_spark", "holdfast")
WARM_ROWS, WARM_FILES = 20_000, 4
SCANS = 5


def side_raw_spark(directory: str, warm_directory: str, scratch: str, row_count: int) -> dict[str, Any]:
    """Spark's file sink, its default settings."""
    from bench.raw_spark import default_session

    session = default_session()

    def run(name: str, source: str, _count: int) -> float:
        stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(source)
        writer = stream.selectExpr(*COLUMNS).writeStream.format("parquet").partitionBy("shard")
        writer = writer.option("checkpointLocation", f"{scratch}/{name}-checkpoint").option("path", f"{scratch}/{name}")
        started = time.perf_counter()
        query = writer.trigger(processingTime="100 milliseconds").start()
        query.processAllAvailable()
        seconds = time.perf_counter() - started
        query.stop()
        return seconds

    run("warm", warm_directory, WARM_ROWS)
    return {"seconds": run("out", directory, row_count), **_sizes(f"{scratch}/out", "_spark_metadata")}


def side_holdfast(directory: str, warm_directory: str, scratch: str, row_count: int) -> dict[str, Any]:
    """The pipeline that a user of Holdfast writes, stopped when every row is held: what grows is sealed then."""
    import holdfast as hf

    os.environ.setdefault("HOLDFAST_MASTER", "local[2]")

    def run(name: str, source: str, count: int) -> float:
        rows = hf.read.files(source, format="json", schema=SCHEMA, name="readings", max_files_per_epoch=1)
        sink = hf.write.segments(f"{scratch}/{name}", partition_by=["shard"], name="files")
        pipeline = hf.Pipeline(name, rows | hf.select(*COLUMNS, name="with_shard") | sink)
        started = time.perf_counter()
        running = pipeline.start(checkpoint=f"{scratch}/{name}-checkpoint", trigger=hf.every("100 ms"))
        while running.status().sinks[0].rows < count:
            time.sleep(0.02)
        running.stop()
        running.wait()
        return time.perf_counter() - started

    run("warm", warm_directory, WARM_ROWS)
    return {"seconds": run("out", directory, row_count), **_sizes(f"{scratch}/out", "_holdfast")}


def side_scan_spark(raw_spark: str, holdfast: str, row_count: int) -> dict[str, Any]:
    """Scan both results with Spark, in turns."""
    from bench.raw_spark import default_session

    session = default_session()

    def scan(path: str) -> tuple[int, ...]:
        frame = session.read.parquet(path)
        row = frame.selectExpr("count(*)", "sum(id)", "sum(length(device))", "max(celsius)").first()
        assert row is not None
        return tuple(row)[:2]

    return _scanned(scan, raw_spark, holdfast, row_count)


def side_scan_duckdb(raw_spark: str, holdfast: str, row_count: int) -> dict[str, Any]:
    """Scan both results with DuckDB, in turns."""
    import duckdb

    def scan(path: str) -> tuple[int, ...]:
        (found,) = duckdb.sql(
            "SELECT count(*), sum(id), sum(length(device)), max(celsius) "
            f"FROM read_parquet('{path}/shard=*/*.parquet', hive_partitioning = true)"
        ).fetchall()
        return tuple(found[:2])

    return _scanned(scan, raw_spark, holdfast, row_count)


def side_growing(count: int, rows: int, epochs: int, scratch: str) -> dict[str, Any]:
    """Publish epochs whose rows are of ``count`` partitions; return what each of the later ones took, milliseconds."""
    import numpy as np
    import pyarrow as pa

    from holdfast.connectors.segments.spec import SegmentsSinkSpec
    from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity

    schema = pa.schema([("id", pa.int64()), ("key", pa.string())])
    sink = SegmentsSinkSpec(f"{scratch}/growing-{count}", partition_by=("key",)).connect("files", "bench", schema)
    sink.open(RunIdentity("bench", 1))
    taken = []
    for epoch in range(1, epochs + 1):
        ids = np.arange(rows) + epoch * rows
        table = pa.table({"id": ids, "key": np.char.add("k", (ids % count).astype(str))}, schema=schema)
        record = EpochRecord("bench", epoch, 1, {"log": {"log": epoch}})
        started = time.perf_counter()
        sink.publish([Publication(record, (Carried(table),))], Held())
        taken.append(time.perf_counter() - started)
    return {"ms": [each * 1000 for each in taken[epochs // 2 :]]}


def _scanned(scan: Callable[[str], tuple[int, ...]], raw_spark: str, holdfast: str, row_count: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"raw_spark": [], "holdfast": []}
    for number in range(SCANS + 1):
        for name, path in (("raw_spark", raw_spark), ("holdfast", holdfast)):
            started = time.perf_counter()
            found = scan(path)
            if number:  # the first is to warm up
                seconds[name].append(time.perf_counter() - started)
            if found != (row_count, row_count * (row_count - 1) // 2):
                raise RuntimeError(f"{name} has {found} rows (sum of ids second) instead of {row_count}")
    return seconds


def _sizes(directory: str, own: str) -> dict[str, Any]:
    """Return the number of data files, their bytes, and the bytes of what the sink notes beside them."""
    data = [path for path in Path(directory).rglob("*.parquet") if own not in path.parts]
    notes = [path for path in (Path(directory) / own).rglob("*") if path.is_file()]
    return {
        "files": len(data),
        "data_bytes": sum(path.stat().st_size for path in data),
        "metadata_bytes": sum(path.stat().st_size for path in notes),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let the sides take turns and return their figures."""
    source, warm = WORK / f"segments-{options.rows}-{options.files}", WORK / "segments-warm"
    write_input(source, "json", options.rows, options.files)
    write_input(warm, "json", WARM_ROWS, WARM_FILES)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    details: dict[str, Any] = {}
    scans: dict[str, dict[str, list[float]]] = {}
    for number in range(options.rounds):
        scratch = tempfile.mkdtemp(prefix="holdfast-bench-", dir=options.scratch)
        for side in SIDES:
            arguments = {"directory": str(source), "warm_directory": str(warm), "scratch": f"{scratch}/{side}"}
            figures = run_side("bench.segments", side, {**arguments, "row_count": options.rows})
            seconds[side].append(figures.pop("seconds"))
            details[side] = figures
            print(f"round {number + 1} {side}: {seconds[side][-1]:.2f} s {figures}", flush=True)
        paths = {side: f"{scratch}/{side}/out" for side in SIDES}
        for reader in ("duckdb", "spark"):
            found = run_side("bench.segments", f"scan_{reader}", {**paths, "row_count": options.rows})
            for side, each in found.items():
                scans.setdefault(reader, {}).setdefault(side, []).append(median(each))
            print(f"round {number + 1} scan by {reader}: {found}", flush=True)
        shutil.rmtree(scratch, ignore_errors=True)
    rates = {side: options.rows / median(each) for side, each in seconds.items()}
    speedups = {reader: median(of["raw_spark"]) / median(of["holdfast"]) for reader, of in scans.items()}
    return {
        "write_ratio": round(rates["holdfast"] / rates["raw_spark"], 2),
        "files_ratio": round(details["raw_spark"]["files"] / details["holdfast"]["files"], 1),
        "scan_speedup": round(min(speedups.values()), 2),
        "scan_speedups": {reader: round(each, 2) for reader, each in speedups.items()},
        "rows_per_s": {side: round(rate) for side, rate in rates.items()},
        "seconds": {side: [round(each, 2) for each in all_] for side, all_ in seconds.items()},
        "scan_seconds": {r: {s: round(median(each), 3) for s, each in of.items()} for r, of in scans.items()},
        "details": details,
    }


def measure_growing(options: argparse.Namespace) -> dict[str, Any]:
    """Compare epochs of the same rows with few and with many growing segments, in turns."""
    taken: dict[int, list[float]] = {10: [], 10_000: []}
    for _ in range(options.rounds):
        for count, of in taken.items():
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.scratch) as scratch:
                arguments = {"count": count, "rows": options.epoch_rows, "epochs": options.epochs, "scratch": scratch}
                of.append(median(run_side("bench.segments", "growing", arguments)["ms"]))
    few, many = median(taken[10]), median(taken[10_000])
    return {"epoch_ratio": round(many / few, 2), "epoch_ms": {"10": round(few, 2), "10000": round(many, 2)}}


def main() -> int:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.segments", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epoch-rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--scratch", default=None, help="a directory on the disk to be measured")
    options = parser.parse_args()
    head = {"bench": "segments", "rows": options.rows, "files": options.files, "rounds": options.rounds}
    print_result(head | measure(options) | measure_growing(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
