"""What snapshots cost, and what a start with state takes: 1 million keys of ``hf.reduce``, count and sum of each.

- ``throughput_ratio``: rows per second with a snapshot each second, divided by the same without.  The first epochs
  bring every key once; then come epochs of ``--rows`` rows of random keys, timed from the second one to the last.
  One process, one session; the sides take turns, each beginning as often as the other; medians.
- ``restore_s``: a graph with one more stateful operator over the state that such a run has left: from ``start()`` to
  the end of the first epoch, which needs every bucket.  Beside it the same graph as before: nothing to restore.
- ``restart_ratio``: from SIGKILL to the first new row in SQLite, divided by the same for plain Spark: ``groupBy(k)``
  with count and sum in update mode, RocksDB with changelogs, ``foreachBatch``.  A new process and a new JVM each time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from bench.sides import WORK, median, print_result, run_side

LOADING = 4
"""Files that bring every key, an epoch each."""

WARM = 2
"""Epochs behind them that are not timed."""

LIVES = ("holdfast", "spark")


def write_file(directory: Path, number: int, keys: Any) -> None:
    """Write one input file, so that nobody sees a part of it."""
    table = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(np.asarray(keys) % 1000, pa.int64())})
    hidden = directory / f".{number:05}.tmp"
    pa.parquet.write_table(table, hidden)
    hidden.rename(directory / f"{number:05}.parquet")


def write_input(directory: Path, keys: int, epochs: int, rows: int) -> None:
    """Write the files that bring every key, then one for each epoch."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    chance = np.random.default_rng(keys)
    loading = np.array_split(chance.permutation(keys), LOADING)
    for number, k in enumerate([*loading, *(chance.integers(0, keys, rows) for _ in range(epochs))]):
        write_file(directory, number, k)


def checksum(changed: pa.RecordBatch) -> pa.RecordBatch:
    """Return how many keys an epoch changed, and what their counts are together."""
    return pa.RecordBatch.from_pydict({"keys": [changed.num_rows], "counted": [pc.sum(changed.column("n")).as_py()]})


def pipeline_of(inputs: Path, target: Path, *, has_more: bool = False) -> Any:
    """Return the pipeline; with one more stateful operator, the changed one."""
    import holdfast as hf

    schema = "k BIGINT, v BIGINT"
    rows = hf.read.files(str(inputs), format="parquet", schema=schema, max_files_per_epoch=1, name="rows")
    kept = rows | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="kept")
    sums = kept | hf.map_batches(checksum, "keys BIGINT, counted BIGINT", name="sums")
    sinks = [sums | hf.write.sqlite(target / "out.db", table="sums", name="sums_table")]
    if has_more:
        more = rows | hf.reduce(by="k", largest=hf.max("v"), name="more")
        few = more | hf.filter("largest = 0", name="few") | hf.select("k", name="keys_of_few")
        sinks.append(few | hf.write.sqlite(target / "out.db", table="few", name="few_table"))
    return hf.Pipeline("bench", *sinks)


# --- throughput -----------------------------------------------------------------------------------------------------


def side_throughput(inputs: str, out: str, rounds: int, epochs: int, rows: int) -> dict[str, Any]:
    """Measure both sides in turns."""
    from holdfast.spark.launch.session import create_session

    session = create_session("local[2]", "3g")
    found: dict[str, list[Any]] = {"off": [], "on": []}
    _throughput(session, Path(inputs), Path(out) / "warm", epochs, 1000)
    for number in range(rounds):
        for side in ("off", "on") if number % 2 == 0 else ("on", "off"):
            every_ms = 1000 if side == "on" else 0
            ran = _throughput(session, Path(inputs), Path(out) / f"{side}-{number}", epochs, every_ms)
            found[side].append({"rows_per_s": rows * (epochs - WARM) / ran["seconds"], **ran})
    return found


def _throughput(session: Any, inputs: Path, target: Path, epochs: int, every_ms: int) -> dict[str, Any]:
    import holdfast as hf

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    run = pipeline_of(inputs, target).start(
        checkpoint=str(target / "ckpt"), trigger=hf.available_now(), session=session, checkpoint_freq=every_ms
    )
    ends: dict[int, float] = {}
    made: dict[str, int] = {}
    last = LOADING + epochs
    while run.is_active and last not in ends:
        status = run.status()
        if status.last_epoch is not None and status.last_epoch.epoch not in ends:
            ends[status.last_epoch.epoch] = time.perf_counter()
            if status.checkpoints is not None:
                made = {"made": status.checkpoints.count, "dropped": status.checkpoints.dropped}
        time.sleep(0.002)
    run.wait()
    first = LOADING + WARM
    shutil.rmtree(target)
    return {"seconds": ends[last] - ends[first], **made}


# --- a changed graph ------------------------------------------------------------------------------------------------


def side_restore(inputs: str, out: str, keys: int, rows: int) -> dict[str, Any]:
    """Measure a start over state: of the same graph, then of a changed one."""
    import holdfast as hf
    from holdfast.spark.launch.session import create_session

    session = create_session("local[2]", "3g")
    source, target = Path(out) / "inputs", Path(out) / "work"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(inputs, source)
    target.mkdir()
    chance = np.random.default_rng(1)
    number = len(list(source.glob("*.parquet")))

    def started(has_more: bool) -> float:
        began = time.perf_counter()
        run = pipeline_of(source, target, has_more=has_more).start(
            checkpoint=str(target / "ckpt"), trigger=hf.available_now(), session=session
        )
        epoch = run.status().epoch
        while run.is_active and run.status().epoch <= epoch:
            time.sleep(0.002)
        ended = time.perf_counter()
        run.wait()
        return ended - began

    started(False)
    found = {}
    for name, has_more in (("same_s", False), ("restore_s", True)):
        write_file(source, number, chance.integers(0, keys, rows))
        number += 1
        found[name] = started(has_more)
    shutil.rmtree(out)
    return found


# --- from SIGKILL to the first new row ------------------------------------------------------------------------------


def side_life(side: str, inputs: str, out: str) -> dict[str, Any]:
    """Run until killed."""
    if side == "holdfast":
        import holdfast as hf

        trigger = hf.every("50 ms")
        pipeline_of(Path(inputs), Path(out)).start(checkpoint=f"{out}/ckpt", trigger=trigger, master="local[2]").wait()
        return {}
    from pyspark.sql import functions as F

    from bench.sync import spark

    target = Path(out) / "out.db"

    def take(batch: Any, batch_id: int) -> None:
        row = batch.agg(F.count(F.lit(1)), F.sum("n")).first()
        with sqlite3.connect(target) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS sums (keys BIGINT, counted BIGINT)")
            connection.execute("INSERT INTO sums VALUES (?, ?)", tuple(row))

    reader = spark().readStream.schema("k BIGINT, v BIGINT").option("maxFilesPerTrigger", 1)
    counted = reader.parquet(inputs).groupBy("k").agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("total"))
    query = counted.writeStream.foreachBatch(take).option("checkpointLocation", f"{out}/ckpt").outputMode("update")
    query.trigger(processingTime="50 milliseconds").start().awaitTermination()
    return {}


def restarted(side: str, keys: int, rows: int, epochs: int) -> float:
    """Load the state, kill the process in an epoch, start it again; return the seconds to the first new row."""
    inputs, out = WORK / f"checkpoint-{side}-in", WORK / f"checkpoint-{side}"
    write_input(inputs, keys, epochs, rows)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    process = _life(side, inputs, out)
    try:
        _until(lambda: _rows(out) >= LOADING + epochs // 2, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    killed = time.perf_counter()
    held = _rows(out)
    again = _life(side, inputs, out)
    try:
        _until(lambda: _rows(out) > held, again)
        return time.perf_counter() - killed
    finally:
        os.killpg(again.pid, signal.SIGKILL)
        again.wait()


def _life(side: str, inputs: Path, out: Path) -> subprocess.Popen[bytes]:
    arguments = f'{{"side": "{side}", "inputs": "{inputs}", "out": "{out}"}}'
    command = [sys.executable, "-m", "bench.sides", "bench.checkpoint", "life", arguments]
    with (out / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=WORK.parent.parent
        )


def _rows(out: Path) -> int:
    try:
        with sqlite3.connect(f"file:{out}/out.db?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM sums").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def _until(holds: Any, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while not holds():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the process {process.args!r} ended, or took too long: see its log")
        time.sleep(0.005)


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of an epoch")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of so many rows")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=("throughput", "restore", "restart"))
    options = parser.parse_args()
    inputs, out = WORK / "checkpoint-in", WORK / "checkpoint"
    write_input(inputs, options.keys, options.epochs, options.rows)
    result: dict[str, float] = {}
    if options.only in (None, "throughput"):
        arguments = {"inputs": str(inputs), "out": str(out), "rounds": options.rounds}
        arguments |= {"epochs": options.epochs, "rows": options.rows}
        found = run_side("bench.checkpoint", "throughput", arguments)
        for side, several in found.items():
            for ran in several:
                print(f"{side}: {ran}", flush=True)
        on, off = (median([ran["rows_per_s"] for ran in found[side]]) for side in ("on", "off"))
        result["throughput_ratio"] = round(on / off, 3)
    if options.only in (None, "restore"):
        arguments = {"inputs": str(inputs), "out": str(out), "keys": options.keys, "rows": options.rows}
        found = run_side("bench.checkpoint", "restore", arguments)
        print(f"start: {found}, load {os.getloadavg()[0]:.1f}", flush=True)
        result["restore_s"] = round(found["restore_s"], 2)
    if options.only in (None, "restart"):
        seconds: dict[str, list[float]] = {side: [] for side in LIVES}
        for number in range(options.rounds):
            for side in LIVES if number % 2 == 0 else LIVES[::-1]:
                seconds[side].append(restarted(side, options.keys, options.rows, min(options.epochs, 12)))
                print(f"restart of {side}: {seconds[side][-1]:.2f} s", flush=True)
        result["restart_ratio"] = round(median(seconds["holdfast"]) / median(seconds["spark"]), 2)
    shutil.rmtree(inputs)
    shutil.rmtree(out, ignore_errors=True)
    print_result(result)


if __name__ == "__main__":
    main()
