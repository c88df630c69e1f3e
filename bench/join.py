"""Joining two streams by a key that occurs once: Holdfast's ``join`` against Spark's stream-stream join.

Orders and payments, as many of each, as Parquet files in the order of time; a payment follows its order within an hour,
and an order is paid within two.  Out come the pairs, of which each side only counts rows and adds up two columns.
Sides:

- ``holdfast``: ``hf.join(..., within=("0 s", "2 h"))``, state and all, exactly once into SQLite;
- ``spark``: an inner join with watermarks on both sides and a condition on time, RocksDB with changelogs.

The sides run in turns, each time in a process of its own with two cores, warmed up with a small run; the medians count.
Timed are all epochs but the first.  Spark gets fewer rows, which favours it: its rate falls as its state grows.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from bench.sides import WORK, median, print_result, run_side
from bench.sync import run_holdfast, spark, timed

START_US = 1_767_225_600_000_000
HOUR_US = 3_600_000_000
SHARES = {"holdfast": 1, "spark": 8}


def write_input(directory: Path, rows: int, epochs: int) -> None:
    """Write both streams as one file for each epoch: so many rows of each, over two days, and a time without rows."""
    shutil.rmtree(directory, ignore_errors=True)
    chance = np.random.default_rng(7)
    ordered = np.sort(chance.integers(0, 48 * HOUR_US, rows))
    ids = chance.permutation(rows)
    paid = ordered + chance.integers(0, HOUR_US, rows)
    by_time = np.argsort(paid)
    columns = {
        "orders": {"id": ids, "ts": ordered, "v": ids % 1000},
        "payments": {"id": ids[by_time], "paid_ts": paid[by_time], "w": ids[by_time] % 7},
    }
    for name, of in columns.items():
        (directory / name).mkdir(parents=True)
        times = next(values for column, values in of.items() if column.endswith("ts"))
        # Both streams are cut at the same times, as they would arrive.
        cuts = np.searchsorted(times, np.linspace(0, 49 * HOUR_US, epochs + 1)[1:-1])
        for number, part in enumerate(np.split(np.arange(rows), cuts)):
            table = {
                column: pa.array(START_US + values[part], pa.timestamp("us", "UTC"))
                if column.endswith("ts")
                else pa.array(values[part], pa.int64())
                for column, values in of.items()
            }
            pa.parquet.write_table(pa.table(table), directory / name / f"{number:04}.parquet")


def side_holdfast(inputs: str, out: str) -> dict[str, Any]:
    """Measure Holdfast."""
    import holdfast as hf
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    def checksum(pairs: pa.RecordBatch) -> pa.RecordBatch:
        sums = [[pc.sum(pairs.column(name)).as_py() or 0] for name in ("v", "w")]
        return pa.RecordBatch.from_pydict({"pairs": [pairs.num_rows], "v": sums[0], "w": sums[1]})

    session = create_session("local[2]", "3g", rows=RowsInJvm.NONE)  # as a start of these pipelines chooses it

    def read(directory: Path, name: str, schema: str, timestamp: str) -> Any:
        options: dict[str, Any] = {"bounded": True, "max_files_per_epoch": 1, "name": name}
        return hf.read.files(str(directory / name), format="parquet", schema=schema, timestamp=timestamp, **options)

    def run(directory: Path, target: Path) -> Any:
        orders = read(directory, "orders", "id BIGINT, ts TIMESTAMP, v BIGINT", "ts")
        payments = read(directory, "payments", "id BIGINT, paid_ts TIMESTAMP, w BIGINT", "paid_ts")
        paid = hf.join(orders, payments, on="id", within=("0 s", "2 h"), name="paid")
        sums = paid | hf.map_batches(checksum, "pairs BIGINT, v BIGINT, w BIGINT", name="sums")
        return run_holdfast(session, sums, ("pairs", "v", "w"), target)

    run(Path(inputs) / "warm", Path(out) / "warm")
    ran = run(Path(inputs) / "large", Path(out) / "large")
    return {"seconds": ran.seconds, "found": ran.found, "epochs": ran.epochs}


def side_spark(inputs: str, out: str) -> dict[str, Any]:
    """Measure Spark's stream-stream join."""
    from pyspark.sql import functions as F

    session = spark()

    def joined(directory: Path) -> Any:
        def read(name: str, schema: str, timestamp: str) -> Any:
            reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            return reader.parquet(str(directory / name)).withWatermark(timestamp, "0 seconds").alias(name)

        orders = read("orders", "id BIGINT, ts TIMESTAMP, v BIGINT", "ts")
        payments = read("payments", "id BIGINT, paid_ts TIMESTAMP, w BIGINT", "paid_ts")
        within = "orders.id = payments.id AND paid_ts >= ts AND paid_ts <= ts + INTERVAL 2 HOURS"
        return orders.join(payments, F.expr(within))

    sums = [F.count(F.lit(1)), F.coalesce(F.sum("v"), F.lit(0)), F.coalesce(F.sum("w"), F.lit(0))]
    timed(joined(Path(inputs) / "warm"), sums, Path(out) / "warm")
    seconds, found = timed(joined(Path(inputs) / "large"), sums, Path(out) / "large")
    return {"seconds": seconds, "found": found}


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.join", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of each stream")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(SHARES))
    options = parser.parse_args()
    sides = [side for side in SHARES if options.only in (None, side)]
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for side in sides:
        write_input(WORK / f"join-{side}" / "large", options.rows // SHARES[side], options.epochs)
        write_input(WORK / f"join-{side}" / "warm", 2000, 2)
    for _ in range(options.rounds):
        for side in sides:
            inputs, out = WORK / f"join-{side}", WORK / f"join-{side}-out"
            shutil.rmtree(out, ignore_errors=True)
            figures = run_side("bench.join", side, {"inputs": str(inputs), "out": str(out)})
            rows = options.rows // SHARES[side]
            rates[side].append(2 * rows * (options.epochs - 1) / options.epochs / figures["seconds"])
            pairs = figures["found"][0]
            load = os.getloadavg()[0]
            print(
                f"{side}: {rows} rows of each, {rates[side][-1]:,.0f} rows/s, {pairs} pairs, load {load:.1f}",
                flush=True,
            )
            for epoch in figures.get("epochs", []):
                print(f"  epoch: {epoch}", flush=True)
            if pairs != rows:
                raise RuntimeError(f"{side}: {rows} orders were paid, {pairs} pairs were found")
    for side in sides:
        shutil.rmtree(WORK / f"join-{side}")
        shutil.rmtree(WORK / f"join-{side}-out", ignore_errors=True)
    if not options.only:
        ours, theirs = (median(rates[side]) for side in SHARES)
        print_result({"rows_per_s": round(ours), "vs_spark": round(ours / theirs, 2)})


if __name__ == "__main__":
    main()
