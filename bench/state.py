"""Windows with many keys: Holdfast's ``aggregate`` against Spark's own aggregation and against Python state per key.

Count and sum of each key in tumbling windows of 60 s, with 10 000 and with 1 000 000 keys, from Parquet files that are
in order of time.  Out come the windows, of which each side only counts the rows in them and takes the sum.  Sides:

- ``holdfast``: ``hf.aggregate``, exactly once into SQLite;
- ``native``: watermark, ``groupBy(window, key)`` in append mode;
- ``per_key``: ``transformWithStateInPandas``, which keeps a key's open window and is called per key.

Timed are all epochs but the first, as in ``bench.sync``.  The side ``per_key`` gets fewer rows, which favours it: its
rate falls as its state grows.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from bench.sides import WORK, median, print_result, run_side
from bench.sync import START_US, Ran, run_holdfast, spark, timed

SPAN_S = {10_000: 480, 1_000_000: 180}
"""Event time that the rows of a case cover: with many keys few windows, or each would have a row or none."""

SHARES = {"holdfast": 1, "native": 1, "per_key": 160}
"""How many times fewer rows a side gets."""


def write_input(directory: Path, rows: int, keys: int, epochs: int) -> int:
    """Write rows in order of time, of keys at random, as two files for each epoch; return the number of rows."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    chance = np.random.default_rng(keys)
    step_us = SPAN_S.get(keys, 480) * 1_000_000 / rows
    for number, block in enumerate(np.array_split(np.arange(rows), epochs * 2)):
        columns = {
            "k": pa.array(chance.integers(0, keys, len(block)), pa.int64()),
            "ts": pa.array(START_US + (block * step_us).astype(np.int64), pa.timestamp("us", "UTC")),
            "v": pa.array(block % 1000, pa.int64()),
        }
        pa.parquet.write_table(pa.table(columns), directory / f"{number:04}.parquet")
    return rows


def side_holdfast(inputs: str, out: str, rounds: int, epochs: int) -> dict[str, Any]:
    """Measure Holdfast."""
    import holdfast as hf
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    def checksum(windows: pa.RecordBatch) -> pa.RecordBatch:
        counted, total = (pc.sum(windows.column(name)).as_py() or 0 for name in ("n", "total"))
        return pa.RecordBatch.from_pydict({"windows": [windows.num_rows], "counted": [counted], "total": [total]})

    session = create_session("local[2]", "3g", rows=RowsInJvm.NONE)  # as a start of these pipelines chooses it

    def run(directory: Path, target: Path) -> Ran:
        rows = hf.read.files(
            str(directory),
            format="parquet",
            schema="k BIGINT, ts TIMESTAMP, v BIGINT",
            timestamp="ts",
            bounded=True,
            max_files_per_epoch=2,
            name="rows",
        )
        counted = rows | hf.aggregate(
            by="k", window=hf.tumbling("60 s"), n=hf.count(), total=hf.sum("v"), name="counted"
        )
        sums = counted | hf.map_batches(checksum, "windows BIGINT, counted BIGINT, total BIGINT", name="sums")
        return run_holdfast(session, sums, ("windows", "counted", "total"), target)

    run(Path(inputs) / "warm", Path(out) / "warm")
    done = [run(Path(inputs) / "large", Path(out) / str(number)) for number in range(rounds)]
    return {"seconds": [ran.seconds for ran in done], "found": done[-1].found, "epochs": done[-1].epochs}


def _rows(session: Any, directory: Path) -> Any:
    reader = session.readStream.schema("k BIGINT, ts TIMESTAMP, v BIGINT").option("maxFilesPerTrigger", 2)
    return reader.parquet(str(directory))


def _sums() -> list[Any]:
    from pyspark.sql import functions as F

    return [F.count(F.lit(1)), F.coalesce(F.sum("n"), F.lit(0)), F.coalesce(F.sum("total"), F.lit(0))]


def side_native(inputs: str, out: str, rounds: int, epochs: int) -> dict[str, Any]:
    """Measure watermark and groupBy."""
    from pyspark.sql import functions as F

    session = spark()

    def frame(directory: Path) -> Any:
        windows = _rows(session, directory).withWatermark("ts", "0 seconds").groupBy(F.window("ts", "60 seconds"), "k")
        return windows.agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("total"))

    return _measured(frame, inputs, out, rounds)


def side_per_key(inputs: str, out: str, rounds: int, epochs: int) -> dict[str, Any]:
    """Measure Python state per key."""
    import pandas as pd
    from pyspark.sql import functions as F
    from pyspark.sql.streaming import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.open = handle.getValueState("open", "w long, n long, total long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:
            new = pd.concat(list(rows))
            sums = new.groupby("w")["v"].agg(["size", "sum"])
            found = [(int(w), int(n), int(total)) for w, n, total in sums.itertuples()]
            held = self.open.get()
            if held is not None:
                if held[0] == found[0][0]:
                    found[0] = (held[0], held[1] + found[0][1], held[2] + found[0][2])
                else:
                    found.insert(0, tuple(held))
            self.open.update(found[-1])
            yield pd.DataFrame([(key[0], *each) for each in found[:-1]], columns=["k", "w", "n", "total"])

        def close(self) -> None:
            return None

    session = spark()
    window = F.expr("unix_micros(ts) DIV 60000000").alias("w")

    def frame(directory: Path) -> Any:
        grouped = _rows(session, directory).select("k", window, "v").groupBy("k")
        return grouped.transformWithStateInPandas(Count(), "k long, w long, n long, total long", "Append", "None")

    return _measured(frame, inputs, out, rounds)


def _measured(frame: Any, inputs: str, out: str, rounds: int) -> dict[str, Any]:
    timed(frame(Path(inputs) / "warm"), _sums(), Path(out) / "warm")
    done = [timed(frame(Path(inputs) / "large"), _sums(), Path(out) / str(number)) for number in range(rounds)]
    return {"seconds": [seconds for seconds, _ in done], "found": done[-1][1]}


def measured(side: str, rows: int, keys: int, epochs: int, rounds: int) -> float:
    """Measure one side; return its rows per second."""
    inputs, out = WORK / f"state-{side}", WORK / f"state-{side}-out"
    count = write_input(inputs / "large", rows // SHARES[side], keys, epochs)
    write_input(inputs / "warm", 10_000, 1000, 2)
    arguments = {"inputs": str(inputs), "out": str(out), "rounds": rounds, "epochs": epochs}
    figures = run_side("bench.state", side, arguments)
    rate = count * (epochs - 1) / epochs / median(figures["seconds"])
    windows, counted, _ = figures["found"]
    print(
        f"{keys} keys, {side}: {count} rows, {rate:,.0f} rows/s, {windows} windows with {counted} rows,"
        f" load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    for epoch in figures.get("epochs", []):
        print(f"  epoch: {epoch}", flush=True)
    if side == "holdfast" and counted != count:
        raise RuntimeError(f"{count} rows went in, {counted} came out")
    shutil.rmtree(inputs)
    shutil.rmtree(out, ignore_errors=True)
    return rate


def main() -> None:
    """Measure and print ``RESULT`` for each case."""
    parser = argparse.ArgumentParser(prog="python -m bench.state", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, action="append")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(SHARES))
    options = parser.parse_args()
    for keys in options.keys or list(SPAN_S):
        sides = [options.only] if options.only else list(SHARES)
        rates = {side: measured(side, options.rows, keys, options.epochs, options.rounds) for side in sides}
        if not options.only:
            ours = rates["holdfast"]
            print_result(
                {
                    "keys": keys,
                    "rows_per_s": round(ours),
                    "vs_native": round(ours / rates["native"], 2),
                    "vs_per_key": round(ours / rates["per_key"], 2),
                }
            )


if __name__ == "__main__":
    main()
