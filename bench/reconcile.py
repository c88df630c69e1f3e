"""A PostgreSQL table of 10 million rows in which 300 were spoilt: what ``holdfast reconcile`` finds, and at what cost.

A pipeline writes the rows of Parquet files into a table; then, by SQL and at random, 100 rows are deleted, 100 changed
and 100 doubled.  Each round times ``select count(*), sum(hashtext(t::text)) from t`` (one scan that looks at every
value) and the command as users call it, in a process of its own, in turns.  The first round computes the expected
content from the sources; the others go on from a shadow that was kept (``--shadow``).

``time_ratio`` is a comparison with the kept shadow against that query; ``first_time_ratio`` the same with everything
computed.  ``pulled_fraction`` is the share of the rows that were fetched, ``peak_mb`` the highest memory of Python's
and Java's processes together.  At last ``--repair``, after which nothing may differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

SPOILT = 100
QUERY = "select count(*), sum(hashtext(t::text)) from t"
PROGRAM = """
import os
import holdfast as hf

rows = hf.read.files({given!r}, format="parquet", schema="id BIGINT, city STRING, value DOUBLE, at TIMESTAMP",
                     name="rows")
pipeline = hf.Pipeline("bench", rows | hf.row_id("id", name="identified")
                       | hf.write.postgres(os.environ["BENCH_DSN"], table="t", name="table"))
"""


def write_rows(directory: Path, count: int, files: int) -> None:
    """Write the rows that the pipeline reads."""
    directory.mkdir()
    cities = np.array(["Oslo", "Rome", "Kiel", "Bonn", "Porto", "Lviv"])
    for number, ids in enumerate(np.array_split(np.arange(count), files)):
        at = pa.array(1_700_000_000_000_000 + ids * 1000, pa.timestamp("us", "UTC"))
        rows = {"id": ids, "city": cities[ids % 6], "value": np.sqrt(ids), "at": at}
        pq.write_table(pa.table(rows), directory / f"{number:04}.parquet")


def spoil(dsn: str, count: int) -> int:
    """Delete, change and double rows at random; return how many."""
    chosen = random.Random(11).sample(range(count), 3 * SPOILT)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("delete from t where id = any(%s)", (chosen[:SPOILT],))
        connection.execute("update t set value = value + 1 where id = any(%s)", (chosen[SPOILT : 2 * SPOILT],))
        connection.execute("insert into t select * from t where id = any(%s)", (chosen[2 * SPOILT :],))
        connection.execute("vacuum analyze t")
    return 3 * SPOILT


def timed_query(dsn: str) -> float:
    """Return the seconds of the query."""
    with psycopg.connect(dsn) as connection:
        began = time.perf_counter()
        connection.execute(QUERY).fetchone()
        return time.perf_counter() - began


def command(program: Path, checkpoint: Path, *more: str, env: dict[str, str]) -> tuple[float, float, dict[str, Any]]:
    """Run ``holdfast reconcile``; return seconds, the highest memory in MB, and its answer."""
    words = ["-m", "holdfast", "reconcile", str(program), "--checkpoint", str(checkpoint), "--json", *more]
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, env=env, text=True)
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], resident_mb(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    answer, _ = process.communicate()
    ended.set()
    watcher.join()
    took = time.perf_counter() - began
    if process.returncode not in (0, 1):
        raise SystemExit(f"holdfast reconcile ended with {process.returncode}")
    return took, peak[0], json.loads(answer.splitlines()[-1])


def resident_mb(pid: int) -> float:
    """Return what a process and all below it have in memory that they share with nobody, MB."""
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    for each in processes:
        try:
            total += each.memory_full_info().uss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total / 1e6


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.reconcile", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch,
        postgres_dsn() as server,
        scratch_schema(server, "holdfast_bench") as dsn,
    ):
        print("RESULT " + json.dumps(measured(Path(scratch), dsn, asked.rows, asked.files, asked.rounds)), flush=True)


def measured(scratch: Path, dsn: str, rows: int, files: int, rounds: int) -> dict[str, Any]:
    """Run everything; return the figures."""
    write_rows(scratch / "in", rows, files)
    program, checkpoint = scratch / "program.py", scratch / "checkpoint"
    program.write_text(PROGRAM.format(given=str(scratch / "in")))
    env = {**os.environ, "BENCH_DSN": dsn}
    ran = [sys.executable, "-m", "holdfast", "run", str(program), "--checkpoint", str(checkpoint), "--available-now"]
    subprocess.run(ran, env=env, check=True, stdout=subprocess.DEVNULL)
    planted = spoil(dsn, rows)
    queries, times, peaks = [], [], []
    answer: dict[str, Any] = {}
    for number in range(1 + rounds):
        queries.append(timed_query(dsn))
        took, peak, answer = command(program, checkpoint, "--shadow", str(scratch / "shadow"), env=env)
        times.append(took)
        peaks.append(peak)
        print(f"round {number}: query {queries[-1]:.2f} s, reconcile {took:.2f} s, {peak:.0f} MB", flush=True)
    found = {name: answer[f"{name}_count"] for name in ("missing", "changed", "extra")}
    repair_s, _, _ = command(program, checkpoint, "--shadow", str(scratch / "shadow"), "--repair", env=env)
    _, _, after = command(program, checkpoint, "--shadow", str(scratch / "shadow"), env=env)
    query_s, later = statistics.median(queries[1:]), statistics.median(times[1:])
    return {
        "rows": rows,
        "planted": planted,
        "found": sum(found.values()),
        **found,
        "pulled_fraction": round(answer["fetched_count"] / rows, 6),
        "time_ratio": round(later / query_s, 2),
        "first_time_ratio": round(times[0] / queries[0], 2),
        "peak_mb": round(max(peaks)),
        "query_s": round(query_s, 2),
        "reconcile_s": round(later, 2),
        "first_s": round(times[0], 2),
        "repair_s": round(repair_s, 2),
        "is_equal_after_repair": after["is_equal"],
    }


if __name__ == "__main__":
    main()
