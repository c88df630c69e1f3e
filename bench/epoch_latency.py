"""How long a row waits: 1000 rows a second as small files, from a row's creation to its being visible in PostgreSQL.

A generator process stamps every row when it makes it, and hands over a small file every 50 ms by renaming it.  When a
row became visible is the server's own word: the commit timestamp of the transaction that wrote it
(``track_commit_timestamp``), the same for both sides and for every way of writing, and nobody polls.  Generator and
server share one clock.

- ``raw_spark``: native file source, ``foreachBatch``, COPY, default settings and trigger.  ``foreachPartition`` with
  ``write_row``, as tutorials have it, and Arrow with CSV take part as two variants; the quicker one is compared with.
- ``holdfast``: a pipeline through the public API.

``ratio`` = p50 holdfast / p50 raw Spark, ``p99_ratio`` likewise.  Rows made in the first seconds (``--warm-seconds``)
are left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.sides import figures_in, median, percentile, print_result, start_side
from holdfast.testing.servers.postgres import postgres_server

SCHEMA = "id BIGINT, created_us BIGINT, celsius DOUBLE"
COLUMNS = ("id", "created_us", "celsius", "celsius * 1.8 + 32 AS fahrenheit")
TABLE = "(id bigint, created_us bigint, celsius double precision, fahrenheit double precision)"
FILE_EVERY_S = 0.05


def side_raw_spark_arrow(**arguments: Any) -> dict[str, Any]:
    """Raw Spark, rows as Arrow and CSV."""
    from bench.raw_spark import copy_batch

    return _raw_spark(copy_batch(arguments["dsn"], "readings"), **arguments)


def side_raw_spark_rows(**arguments: Any) -> dict[str, Any]:
    """Raw Spark, row by row."""
    from bench.raw_spark import copy_batch_rows

    return _raw_spark(copy_batch_rows(arguments["dsn"], "readings"), **arguments)


def side_holdfast(directory: str, dsn: str, scratch: str) -> dict[str, Any]:
    """Holdfast, and where each epoch's milliseconds went."""
    import holdfast as hf

    os.environ.setdefault("HOLDFAST_MASTER", "local[2]")
    readings = hf.read.files(directory, format="json", schema=SCHEMA, name="readings")
    rows = readings | hf.select(*COLUMNS, name="converted")
    pipeline = hf.Pipeline("bench", rows | hf.write.postgres(dsn, table="readings", name="table"))
    run = pipeline.start(checkpoint=f"{scratch}/checkpoint", trigger=hf.every("0 s"))
    return watch_holdfast(run)


def _raw_spark(save: Any, directory: str, dsn: str, scratch: str) -> dict[str, Any]:
    from bench.raw_spark import default_session

    session = default_session()
    frame = session.readStream.schema(SCHEMA).json(directory).selectExpr(*COLUMNS)
    query = frame.writeStream.foreachBatch(save).option("checkpointLocation", f"{scratch}/checkpoint").start()
    return watch_spark(query)


def watch_holdfast(run: Any) -> dict[str, Any]:
    """Let a run go on until the parent says so; return what its epochs took."""
    seen: dict[int, dict[str, float]] = {}

    def look() -> None:
        epoch = run.status().last_epoch
        if epoch is not None:
            seen[epoch.epoch] = {"rows": epoch.rows, **epoch.duration_ms}

    until_told(look)
    run.stop()
    run.wait()
    return {"epochs": list(seen.values())}


def watch_spark(query: Any) -> dict[str, Any]:
    """Let a query go on until the parent says so; return what its batches took."""
    seen: dict[int, dict[str, float]] = {}

    def look() -> None:
        for progress in query.recentProgress:
            if progress.numInputRows:
                seen[progress.batchId] = {"rows": progress.numInputRows, **progress.durationMs}

    until_told(look)
    query.stop()
    return {"epochs": list(seen.values())}


def until_told(look: Callable[[], None]) -> None:
    """Say that the side is ready, and look until the parent closes our standard input.

    Seldom: a look takes milliseconds of the process that is measured.
    """
    import threading

    print("READY", flush=True)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
    while not told.wait(0.5):
        look()


def generate(directory: str, rows_per_s: int, seconds: float, file_every_s: float = FILE_EVERY_S) -> None:
    """Make rows at a steady pace; each is stamped when it is made, and its file is handed over at the next tick."""
    began = time.perf_counter()
    made = 0
    for tick in range(1, round(seconds / file_every_s) + 1):
        lines = []
        while made < round(tick * file_every_s * rows_per_s):
            pause = made / rows_per_s - (time.perf_counter() - began)
            if pause > 0:
                time.sleep(pause)
            created_us = time.time_ns() // 1000
            lines.append(json.dumps({"id": made, "created_us": created_us, "celsius": made % 4000 / 100}))
            made += 1
        hidden = Path(directory) / f".part-{tick:06}.tmp"
        hidden.write_text("\n".join(lines) + "\n")
        hidden.rename(Path(directory) / f"part-{tick:06}.json")


@dataclass(frozen=True)
class Case:
    """What one benchmark of latency measures.

    Parameters
    ----------
    module : str
        The benchmark's module, with its sides.
    tables : sequence of str
        Statements that create its empty tables.
    file_every_s : float
        How often a file is handed over.
    arrived : str
        Query: how many rows are visible, and how many of them each once; both must be the number of rows made.
    waits : str
        Query: milliseconds from creation to visibility, of each row whose id is at least the parameter.
    """

    module: str
    tables: Sequence[str]
    file_every_s: float
    arrived: str
    waits: str


CASE = Case(
    module="bench.epoch_latency",
    tables=("DROP TABLE IF EXISTS readings, holdfast_ledger", f"CREATE TABLE readings {TABLE}"),
    file_every_s=FILE_EVERY_S,
    arrived="SELECT count(*), count(DISTINCT id) FROM readings",
    waits="""
        SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1e3 - created_us / 1e3
        FROM readings WHERE id >= %s
    """,
)


def measure(case: Case, side: str, options: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """Run one side under load and return its latencies in milliseconds."""
    import psycopg

    scratch = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    source = scratch / "readings"
    source.mkdir()
    connection = psycopg.connect(dsn, autocommit=True)
    for statement in case.tables:
        connection.execute(statement.encode())
    seconds = options.warm_seconds + options.seconds
    rows_expected = round(options.rows_per_s * seconds)
    arguments = {"directory": str(source), "dsn": dsn, "scratch": str(scratch)}
    process = start_side(case.module, side, arguments)
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("READY"):
                break
        else:
            figures_in(said, process.wait(), side)  # raises with what it said
        load = [sys.executable, "-c", "import sys; from bench.epoch_latency import generate; "]
        load[-1] += f"generate(sys.argv[1], {options.rows_per_s}, {seconds}, {case.file_every_s})"
        subprocess.run([*load, str(source)], check=True)
        deadline = time.monotonic() + 60
        arrived: tuple[int, int] | None = None
        while time.monotonic() < deadline and (arrived is None or arrived[0] < rows_expected):
            time.sleep(0.2)
            arrived = connection.execute(case.arrived.encode()).fetchone()
        output, _ = process.communicate(timeout=120)  # closes its input: the sign to stop
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        shutil.rmtree(scratch, ignore_errors=True)
    figures = figures_in(said + output, process.returncode, side)
    arrived = connection.execute(case.arrived.encode()).fetchone()
    first = round(options.rows_per_s * options.warm_seconds)
    waits_ms = [float(wait) for (wait,) in connection.execute(case.waits.encode(), (first,)).fetchall()]
    connection.close()
    if arrived != (rows_expected, rows_expected) or len(waits_ms) != rows_expected - first:
        raise RuntimeError(f"{side} wrote {arrived} rows (each once second) instead of {rows_expected}")
    epochs = figures["epochs"]
    return {
        "p50_ms": round(percentile(waits_ms, 0.50), 1),
        "p99_ms": round(percentile(waits_ms, 0.99), 1),
        "max_ms": round(max(waits_ms), 1),
        "epoch_count": len(epochs),
        "epoch_ms": _stage_medians(epochs),
    }


def _stage_medians(epochs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median milliseconds of each stage that epochs named, and of the rows of one."""
    stages = {stage for epoch in epochs for stage in epoch}
    return {stage: round(median([epoch.get(stage, 0.0) for epoch in epochs]), 1) for stage in sorted(stages)}


def print_stages(side: str, figures: dict[str, Any]) -> None:
    """Print where an epoch's milliseconds go."""
    print(f"{side}: p50 {figures['p50_ms']} ms, p99 {figures['p99_ms']} ms, {figures['epoch_count']} epochs; medians:")
    for stage, value in figures["epoch_ms"].items():
        print(f"    {stage:24}{value:>10.1f}{'' if stage == 'rows' else ' ms'}")


def compare(name: str, case: Case, raw_sides: Sequence[str]) -> int:
    """Let the sides of a case take turns; print ``RESULT``."""
    parser = argparse.ArgumentParser(prog=f"python -m {case.module}")
    parser.add_argument("--rows-per-s", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm-seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=[*raw_sides, "holdfast"], help="measure one side; prints no RESULT")
    options = parser.parse_args()
    sides = [options.only] if options.only else [*raw_sides, "holdfast"]
    rounds: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    # A server of our own even where one is given: commit timestamps must be on.
    with postgres_server({"track_commit_timestamp": "on"}) as server:
        for _ in range(options.rounds):
            for side in sides:
                rounds[side].append(measure(case, side, options, server.dsn))
                print_stages(side, rounds[side][-1])
    if options.only:
        return 0
    p50 = {side: median([figures["p50_ms"] for figures in all_figures]) for side, all_figures in rounds.items()}
    p99 = {side: median([figures["p99_ms"] for figures in all_figures]) for side, all_figures in rounds.items()}
    raw = min(raw_sides, key=lambda side: p50[side])
    print_result(
        {
            "bench": name,
            "ratio": round(p50["holdfast"] / p50[raw], 3),
            "p99_ratio": round(p99["holdfast"] / p99[raw], 3),
            "p50_ms": p50,
            "p99_ms": p99,
            "compared_with": raw,
            "rounds": options.rounds,
            "rows_per_s": options.rows_per_s,
            "seconds": options.seconds,
            "epoch_ms": {side: all_figures[-1]["epoch_ms"] for side, all_figures in rounds.items()},
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(compare("epoch_latency", CASE, ("raw_spark_arrow", "raw_spark_rows")))
