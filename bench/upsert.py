"""Changing aggregates into a table: windows of 10 000 keys from 5 million rows of JSON, upserted into PostgreSQL.

Count and sum of each key in tumbling windows of 60 s; every epoch (4 of 40 files) writes the windows that it changed.

- ``raw_spark``: watermark, ``groupBy(window, key)`` in update mode, RocksDB with changelogs, a task per core;
  ``foreachBatch``: each task copies its rows into a temporary table and merges it, at-least-once.
- ``holdfast``: ``hf.aggregate(emit="changes")`` and ``hf.write.postgres(mode="upsert")``, exactly once.

Each side runs in a process of its own, warmed up by a small query of the same kind; measured is the time from the
start of the query to its end.  The table is compared with the windows computed from the rows before a figure is
printed.  ``database_s`` is what PostgreSQL alone needs for Holdfast's changes: the same rows in the same epochs, copied
and merged from a client that has nothing else to do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.sides import WORK, median, print_result, run_side
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

SCHEMA = "id BIGINT, k BIGINT, at TIMESTAMP, v BIGINT"
TABLE = (
    "(k bigint, window_start timestamptz, window_end timestamptz, n bigint, total bigint,"
    " PRIMARY KEY (k, window_start))"
)
SIDES = ("raw_spark", "holdfast")
KEYS = 10_000
SPAN_S = 480
FILES_PER_EPOCH = 4
WARM_ROWS = 20_000


def write_input(directory: Path, row_count: int, file_count: int) -> None:
    """Write the rows once, in order of time, of keys at random."""
    import polars as pl

    done = directory / "_complete"
    if done.exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for number in range(file_count):
        rows = rows_of(row_count, file_count, number)
        hidden = directory / f".part-{number:04}.tmp"
        rows.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")).write_ndjson(hidden)
        hidden.rename(directory / f"part-{number:04}.json")
    done.touch()


def rows_of(row_count: int, file_count: int, number: int) -> Any:
    """Return the rows of one file."""
    import polars as pl

    start, end = (row_count * n // file_count for n in (number, number + 1))
    ids = pl.int_range(start, end, dtype=pl.Int64, eager=True).alias("id")
    at_us = 1_700_000_040_000_000 + ids * (SPAN_S * 1_000_000) // row_count  # a minute begins with the first row
    return ids.to_frame().select(
        "id",
        k=(pl.col("id").hash(7) % KEYS).cast(pl.Int64),
        at=pl.from_epoch(at_us, time_unit="us").dt.replace_time_zone("UTC"),
        v=pl.col("id") % 1000,
    )


def epochs_of(row_count: int, file_count: int) -> Iterator[Any]:
    """Yield the windows that each epoch changes, as Holdfast writes them, computed by polars."""
    import polars as pl

    held: Any = None
    for first in range(0, file_count, FILES_PER_EPOCH):
        numbers = range(first, min(first + FILES_PER_EPOCH, file_count))
        rows = pl.concat([rows_of(row_count, file_count, number) for number in numbers])
        rows = rows.select("k", "v", window_start=pl.col("at").dt.truncate("60s"))
        changed = rows.group_by("k", "window_start").agg(n=pl.len().cast(pl.Int64), total=pl.col("v").sum())
        both = changed if held is None else pl.concat([held, changed])
        held = both.group_by("k", "window_start").agg(pl.col("n").sum(), pl.col("total").sum())
        now = held.join(changed.select("k", "window_start"), on=["k", "window_start"])
        yield now.select(
            "k", "window_start", window_end=pl.col("window_start") + pl.duration(seconds=60), n="n", total="total"
        )


def side_raw_spark(
    directory: str, warm_directory: str, dsn: str, table: str, warm_table: str, scratch: str
) -> dict[str, Any]:
    """Raw Spark as a careful user sets it up for state."""
    from pyspark.sql import functions as F

    from bench.sync import spark

    session = spark()

    def run(name: str, source: str, target: str) -> tuple[float, int]:
        started = time.perf_counter()
        rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_EPOCH).json(source)
        windows = rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "60 seconds"), "k")
        sums = windows.agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("total"))
        flat = sums.select("k", "window.start", "window.end", "n", "total")
        task = _merge_task(dsn, target)

        def save(batch: Any, batch_id: int) -> None:
            batch.mapInArrow(task, "row_count long").collect()

        writer = flat.writeStream.foreachBatch(save).outputMode("update")
        writer = writer.option("checkpointLocation", f"{scratch}/{name}").trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        return time.perf_counter() - started, query.lastProgress.batchId + 1

    run("warm", warm_directory, warm_table)
    seconds, epochs = run("bench", directory, table)
    return {"seconds": seconds, "epochs": epochs}


def _merge_task(dsn: str, table: str) -> Any:
    """Return what each of Spark's tasks does: COPY into a temporary table, merge it, commit."""

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import psycopg
        import pyarrow as pa
        import pyarrow.csv

        row_count = 0
        options = pyarrow.csv.WriteOptions(include_header=False)
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TEMPORARY TABLE changed (LIKE {table}) ON COMMIT DROP".encode())
            with cursor.copy("COPY changed FROM STDIN (FORMAT csv)") as sink:
                for batch in batches:
                    buffer = pa.BufferOutputStream()
                    pyarrow.csv.write_csv(batch, buffer, options)
                    sink.write(memoryview(buffer.getvalue()))
                    row_count += batch.num_rows
            cursor.execute(_MERGE.format(table).encode())
        yield pa.RecordBatch.from_pydict({"row_count": [row_count]})

    return merge


_MERGE = (
    "INSERT INTO {} SELECT * FROM changed ORDER BY k, window_start ON CONFLICT (k, window_start) DO UPDATE"
    " SET window_end = excluded.window_end, n = excluded.n, total = excluded.total"
)


def side_holdfast(
    directory: str, warm_directory: str, dsn: str, table: str, warm_table: str, scratch: str
) -> dict[str, Any]:
    """The pipeline that a user of Holdfast writes."""
    import holdfast as hf

    os.environ.setdefault("HOLDFAST_MASTER", "local[2]")

    def pipeline(name: str, source: str, target: str) -> Any:
        rows = hf.read.files(
            source,
            format="json",
            schema=SCHEMA,
            timestamp="at",
            max_files_per_epoch=FILES_PER_EPOCH,
            name="rows",
        )
        windows = rows | hf.aggregate(
            by="k", window=hf.tumbling("60 s"), emit="changes", n=hf.count(), total=hf.sum("v"), name="windows"
        )
        sink = hf.write.postgres(dsn, table=target, mode="upsert", key=["k", "window_start"], name="table")
        return hf.Pipeline(name, windows | sink)

    pipeline("warm", warm_directory, warm_table).run(checkpoint=f"{scratch}/warm", trigger=hf.available_now())
    started = time.perf_counter()
    run = pipeline("bench", directory, table).start(checkpoint=f"{scratch}/bench", trigger=hf.available_now())
    seen: dict[int, dict[str, float]] = {}
    while run.is_active:
        last = run.status().last_epoch
        if last is not None:
            seen[last.epoch] = {"rows": last.rows, **{key: round(ms) for key, ms in last.duration_ms.items()}}
        time.sleep(0.02)
    run.wait()
    return {"seconds": time.perf_counter() - started, "epochs": len(seen), "epoch_ms": list(seen.values())}


def database_alone(options: argparse.Namespace, dsn: str) -> float:
    """Return the seconds that the same changes take, copied and merged with nothing else to do."""
    import psycopg
    import pyarrow.csv

    csv = pyarrow.csv.WriteOptions(include_header=False)
    seconds = 0.0
    with psycopg.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        _empty(connection)
        cursor.execute("CREATE TEMPORARY TABLE changed (LIKE windows)")
        for changed in epochs_of(options.rows, options.files):
            buffer = pa.BufferOutputStream()
            pyarrow.csv.write_csv(changed.to_arrow(), buffer, csv)
            started = time.perf_counter()
            with connection.transaction():
                cursor.execute("TRUNCATE changed")
                with cursor.copy("COPY changed FROM STDIN (FORMAT csv)") as sink:
                    sink.write(memoryview(buffer.getvalue()))
                cursor.execute(_MERGE.format("windows").encode())
            seconds += time.perf_counter() - started
    return seconds


def _empty(connection: Any) -> None:
    connection.execute("DROP TABLE IF EXISTS windows, warm, holdfast_ledger")
    for table in ("windows", "warm"):
        connection.execute(f"CREATE TABLE {table} {TABLE}".encode())
    connection.execute("CHECKPOINT")  # no side pays for the pages of the one before it


def _check(side: str, options: argparse.Namespace, connection: Any) -> None:
    """Compare the table with the windows of the rows."""
    import polars as pl

    rows = pl.concat([rows_of(options.rows, options.files, number) for number in range(options.files)])
    windows = rows.group_by("k", pl.col("at").dt.truncate("60s")).agg(n=pl.len(), total=pl.col("v").sum())
    weighted = windows.select(len=pl.len(), n=pl.col("n").sum(), total=(pl.col("total") * (pl.col("k") + 1)).sum())
    query = "SELECT count(*), sum(n)::bigint, sum(total * (k + 1))::bigint FROM windows"
    found = connection.execute(query).fetchone()
    if found != weighted.row(0):
        raise RuntimeError(f"{side} wrote {found} (windows, rows, weighted sum) instead of {weighted.row(0)}")


def main() -> int:
    """Measure and print ``RESULT``."""
    import psycopg

    parser = argparse.ArgumentParser(prog="python -m bench.upsert", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=SIDES, help="measure one side; prints no RESULT")
    options = parser.parse_args()
    source, warm = WORK / f"upsert-{options.rows}-{options.files}", WORK / "upsert-warm"
    write_input(source, options.rows, options.files)
    write_input(warm, WARM_ROWS, 8)
    sides = [options.only] if options.only else SIDES
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    database_s = []
    with postgres_dsn() as server, scratch_schema(server, "holdfast_bench") as dsn:
        for number in range(options.rounds):
            for side in sides:
                scratch = tempfile.mkdtemp(prefix="holdfast-bench-")
                with psycopg.connect(dsn, autocommit=True) as connection:
                    _empty(connection)
                    arguments = {"directory": str(source), "warm_directory": str(warm), "dsn": dsn}
                    arguments |= {"table": "windows", "warm_table": "warm", "scratch": scratch}
                    figures = run_side("bench.upsert", side, arguments)
                    shutil.rmtree(scratch, ignore_errors=True)
                    _check(side, options, connection)
                seconds[side].append(figures["seconds"])
                rate = options.rows / seconds[side][-1] / 1e6
                print(f"round {number + 1} {side}: {seconds[side][-1]:.2f} s, {rate:.3f} million rows/s", flush=True)
                for epoch in figures.get("epoch_ms", []):
                    print(f"  epoch: {epoch}", flush=True)
            database_s.append(database_alone(options, dsn))
            print(f"round {number + 1} database alone: {database_s[-1]:.2f} s", flush=True)
    if not options.only:
        rates = {side: options.rows / median(seconds[side]) for side in sides}
        print_result(
            {
                "bench": "upsert",
                "rows_per_s": round(rates["holdfast"]),
                "vs_spark": round(rates["holdfast"] / rates["raw_spark"], 3),
                "seconds": {side: [round(s, 2) for s in each] for side, each in seconds.items()},
                "database_s": round(median(database_s), 2),
                "rows": options.rows,
                "rounds": options.rounds,
            }
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
