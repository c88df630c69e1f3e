"""What exactly-once costs: files of rows into PostgreSQL, by four sides that take turns.

- ``raw_spark``: Spark as users write it: native file source, ``foreachBatch``, COPY from the tasks; at-least-once.
- ``at_least_once``: the same COPY, but Holdfast's source, settings and columns: what is left is the promise's price.
- ``holdfast_plan``: a pipeline through the public API with ``HOLDFAST_COLUMNAR=false``; exactly-once.
- ``holdfast``: the same pipeline as users run it: its rows stay out of the JVM.

Each side runs in a process of its own, warmed up by a small query of the same kind; measured is the time from the
start of the query to its end, JVM start and warm-up not counted.  ``ratio`` = holdfast / at_least_once, ``ratio_plan``
= holdfast_plan / at_least_once (the same way of the rows, so what is left is the price of the promise), ``vs_spark`` =
holdfast / raw_spark, in rows read per second; medians over the rounds.

With ``--audit`` two other sides take turns, which run in many small epochs: ``audit_off`` and ``audit_stop``, the same
pipeline without and with the audit.  ``ratio`` = audit_stop / audit_off in seconds, the median over the rounds: less
than what two equal runs differ by.  So ``share`` says how much of the run the driver spends with the audit, by its own
clock; rows are counted in both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.sides import WORK, median, print_result, run_side
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

SCHEMA = "id BIGINT, device STRING, at TIMESTAMP, celsius DOUBLE"
KEEP = "id % 10 <> 0"
FAHRENHEIT = "celsius * 1.8 + 32 AS fahrenheit"
COLUMNS = ("id", "device", "at", "celsius", FAHRENHEIT)
TABLE = "(id bigint, device text, at timestamptz, celsius double precision, fahrenheit double precision)"
AUDIT_SIDES = ("audit_off", "audit_stop")
SIDES = ("raw_spark", "at_least_once", "holdfast_plan", "holdfast")
WARM_ROWS = 20_000


def write_input(directory: Path, format: str, row_count: int, file_count: int) -> None:
    """Write the rows once: a counter, a device, an instant, a temperature."""
    import polars as pl

    done = directory / "_complete"
    if done.exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for number in range(file_count):
        start, end = (row_count * n // file_count for n in (number, number + 1))
        ids = pl.int_range(start, end, dtype=pl.Int64, eager=True).alias("id")
        rows = ids.to_frame().select(
            "id",
            device=pl.format("device-{}", pl.col("id") * 7919 % 1000),
            at=pl.from_epoch(1_700_000_000_000_000 + pl.col("id") * 1_000, time_unit="us").dt.replace_time_zone("UTC"),
            celsius=(pl.col("id") * 31 % 4000) / 100,
        )
        hidden = directory / f".part-{number:04}.tmp"
        if format == "json":
            rows.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")).write_ndjson(hidden)
        else:
            rows.write_parquet(hidden)
        hidden.rename(directory / f"part-{number:04}.{format}")
    done.touch()


def side_raw_spark(**arguments: Any) -> dict[str, Any]:
    """Native file source, Spark's default settings."""
    from bench.raw_spark import default_session

    session = default_session()

    def open_stream(directory: str, _workspace: str) -> Any:
        return session.readStream.schema(SCHEMA).format(arguments["format"]).load(directory)

    return _measure_query(open_stream, **arguments)


def side_at_least_once(**arguments: Any) -> dict[str, Any]:
    """Holdfast's source and settings under the same at-least-once COPY."""
    import holdfast as hf
    from holdfast.config import Settings
    from holdfast.spark.launch.session import create_session, run_session
    from holdfast.spark.read import SourceReader

    settings = Settings()
    base = create_session("local[2]", f"{settings.driver_memory_mib}m")
    session = run_session(base, 2)

    def open_stream(directory: str, workspace: str) -> Any:
        stream = hf.read.files(directory, format=arguments["format"], schema=SCHEMA, name="readings")
        origin = Path(workspace) / "spark" / "origin.json"
        origin.parent.mkdir(parents=True)
        origin.write_text('{"base": 1, "seek": []}')
        stop_file = str(Path(workspace) / "stop")
        reader = SourceReader(session, Path(workspace), 2, settings.prefetch_max_bytes, stop_file, "spark")
        return reader.read(stream.node)

    return _measure_query(open_stream, **arguments)


def side_holdfast_plan(**arguments: Any) -> dict[str, Any]:
    """The same pipeline with its rows sent through Spark's plan, as at_least_once sends them."""
    os.environ["HOLDFAST_COLUMNAR"] = "false"
    return side_holdfast(**arguments)


def side_audit_off(**arguments: Any) -> dict[str, Any]:
    """The same pipeline in epochs of one file."""
    os.environ["HOLDFAST_ON_AUDIT"] = "off"
    return side_holdfast(**arguments, files_per_epoch=1)


def side_audit_stop(**arguments: Any) -> dict[str, Any]:
    """The same, held to the audit."""
    from holdfast.plan.audit import Auditor

    os.environ["HOLDFAST_ON_AUDIT"] = "stop"
    spent = [0.0]

    def timed(call: Any) -> Any:
        def measured(*given: Any) -> None:
            started = time.perf_counter()
            call(*given)
            spent[0] += time.perf_counter() - started

        return measured

    for name in ("look", "note"):
        setattr(Auditor, name, timed(getattr(Auditor, name)))
    return side_holdfast(**arguments, files_per_epoch=1) | {"audit_ms": spent[0] * 1e3}


def side_holdfast(
    directory: str,
    warm_directory: str,
    format: Any,
    dsn: str,
    table: str,
    warm_table: str,
    scratch: str,
    files_per_epoch: int | None = None,
) -> dict[str, Any]:
    """The pipeline that a user of Holdfast writes."""
    import holdfast as hf

    os.environ.setdefault("HOLDFAST_MASTER", "local[2]")

    def pipeline(name: str, source: str, target: str) -> Any:
        limit: dict[str, Any] = {} if files_per_epoch is None else {"max_files_per_epoch": files_per_epoch}
        readings = hf.read.files(source, format=format, schema=SCHEMA, name="readings", **limit)
        kept = readings | hf.filter(KEEP, name="kept") | hf.select(*COLUMNS, name="converted")
        return hf.Pipeline(name, kept | hf.write.postgres(dsn, table=target, name="table"))

    pipeline("warm", warm_directory, warm_table).run(checkpoint=f"{scratch}/warm", trigger=hf.available_now())
    bench = pipeline("bench", directory, table)
    started = time.perf_counter()
    run = bench.run(checkpoint=f"{scratch}/bench", trigger=hf.available_now())
    seconds = time.perf_counter() - started
    status = run.status()
    staging = status.sinks[0].staging
    return {"seconds": seconds, "epochs": status.epoch, "staging": staging, "has_times": status.time is not None}


def _measure_query(
    open_stream: Any,
    directory: str,
    warm_directory: str,
    format: Any,
    dsn: str,
    table: str,
    warm_table: str,
    scratch: str,
) -> dict[str, Any]:
    from bench.raw_spark import copy_batch

    def run(name: str, source: str, target: str) -> tuple[float, int]:
        workspace = Path(scratch) / name
        started = time.perf_counter()
        frame = open_stream(source, str(workspace / "holdfast")).where(KEEP).selectExpr(*COLUMNS)
        writer = frame.writeStream.foreachBatch(copy_batch(dsn, target))
        query = writer.option("checkpointLocation", str(workspace / "query")).trigger(availableNow=True).start()
        query.awaitTermination()
        return time.perf_counter() - started, query.lastProgress.batchId + 1

    run("warm", warm_directory, warm_table)
    seconds, epochs = run("bench", directory, table)
    return {"seconds": seconds, "epochs": epochs}


def measure(format: str, options: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """Let the sides take turns over one format and return their figures."""
    import psycopg

    source = WORK / f"readings-{format}-{options.rows}-{options.files}"
    warm = WORK / f"readings-{format}-warm"
    write_input(source, format, options.rows, options.files)
    write_input(warm, format, WARM_ROWS, 2)
    kept_expected = options.rows - (options.rows + 9) // 10
    sides = AUDIT_SIDES if options.audit else SIDES
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    details: dict[str, Any] = {}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            scratch = tempfile.mkdtemp(prefix="holdfast-bench-")
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS readings, warm, holdfast_ledger")
                for table in ("readings", "warm"):
                    connection.execute(f"CREATE TABLE {table} {TABLE}".encode())
                connection.execute("CHECKPOINT")  # no side pays for the pages of the one before it
            arguments = {"directory": str(source), "warm_directory": str(warm), "format": format, "dsn": dsn}
            arguments |= {"table": "readings", "warm_table": "warm", "scratch": scratch}
            figures = run_side("bench.exactly_once", side, arguments)
            shutil.rmtree(scratch, ignore_errors=True)
            with psycopg.connect(dsn) as connection:
                row = connection.execute("SELECT count(*), count(DISTINCT id) FROM readings").fetchone()
            if row != (kept_expected, kept_expected):
                raise RuntimeError(f"{side} wrote {row} rows (distinct ids second) instead of {kept_expected}")
            seconds[side].append(figures.pop("seconds"))
            details[side] = figures
            rate = options.rows / seconds[side][-1] / 1e6
            print(
                f"{format} round {number + 1} {side}: {seconds[side][-1]:.2f} s, {rate:.3f} million rows/s {figures}",
                flush=True,
            )
    rates = {side: options.rows / median(seconds[side]) for side in sides}
    compared: dict[str, Any] = {
        "rows_per_s": {side: round(rate) for side, rate in rates.items()},
        "seconds": {side: [round(s, 2) for s in all_seconds] for side, all_seconds in seconds.items()},
        "details": details,
    }
    if options.audit:
        ratios = [stop / off for off, stop in zip(seconds["audit_off"], seconds["audit_stop"], strict=True)]
        share = details["audit_stop"]["audit_ms"] / 1e3 / seconds["audit_stop"][-1]  # with the warm-up: rather too much
        return {"ratio": round(median(ratios), 3), "share": round(share, 5)} | compared
    return {
        "ratio": round(rates["holdfast"] / rates["at_least_once"], 3),
        "ratio_plan": round(rates["holdfast_plan"] / rates["at_least_once"], 3),
        "vs_spark": round(rates["holdfast"] / rates["raw_spark"], 3),
    } | compared


def main() -> int:
    """Measure and print ``RESULT``; its top level is the JSON format's."""
    parser = argparse.ArgumentParser(prog="python -m bench.exactly_once", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", choices=("json", "parquet", "both"), default="both")
    parser.add_argument("--audit", action="store_true", help="what the audit costs")
    options = parser.parse_args()
    formats = ("json", "parquet") if options.format == "both" else (options.format,)
    with postgres_dsn() as server, scratch_schema(server, "holdfast_bench") as dsn:
        measured = {format: measure(format, options, dsn) for format in formats}
    first = measured[formats[0]]
    head = {
        "bench": "exactly_once, audit" if options.audit else "exactly_once",
        "rows": options.rows,
        "files": options.files,
        "rounds": options.rounds,
    }
    print_result(head | {name: first[name] for name in ("ratio", "share", "vs_spark") if name in first} | measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
