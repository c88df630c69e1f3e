"""A Spark expression between two operators with state: what its way through the JVM costs.

A running sum per key gives every row on; behind it windows count and sum.  Between them stands an expression.  Sides:

- ``arrow``: a ``select``, which is evaluated where the state is: rows stay in the Python worker;
- ``sql``: the same expression as ``sql``, as a user writes it;
- ``spark``: the same with a function that only Spark has and that changes nothing (``bround`` of whole numbers): what
  it is computed with goes into the JVM, row by row, and what is computed comes back.

All write the same sums, exactly once into SQLite, and have a process of their own with two cores, warmed up with a
small run; they take turns, and the medians count.  The JVM has the options that a start of the pipeline chooses.  Timed
are all epochs but the first.
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
from bench.sync import Ran, run_holdfast

START_US = 1_767_225_600_000_000
WINDOW = "60 s"

SIDES = ("arrow", "sql", "spark")
EXPRESSION, OF_SPARK = "v * 2 + total_so_far % 1000", "v * 2 + bround(total_so_far % 1000, 0)"


def write_input(directory: Path, rows: int, keys: int, epochs: int) -> None:
    """Write one file for each epoch: every key in turn, times ascending."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for number, block in enumerate(np.array_split(np.arange(rows), epochs)):
        columns = {
            "k": pa.array(block % keys, pa.int64()),
            "ts": pa.array(START_US + block // keys * 1_000_000, pa.timestamp("us", "UTC")),
            "v": pa.array(block, pa.int64()),
        }
        pa.parquet.write_table(pa.table(columns), directory / f"{number:04}.parquet")


def _side(inputs: str, out: str, side: str) -> dict[str, Any]:
    import holdfast as hf
    from holdfast.config import Settings
    from holdfast.spark.launch.early import rows_in_jvm
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    def checksum(windows: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: [pc.sum(windows.column(name)).as_py() or 0] for name in ("n", "total")}
        return pa.RecordBatch.from_pydict({"windows": [windows.num_rows], **columns})

    def graph(directory: Path) -> Any:
        given = hf.read.files(
            str(directory),
            format="parquet",
            schema="k BIGINT, ts TIMESTAMP, v BIGINT",
            timestamp="ts",
            bounded=True,
            max_files_per_epoch=1,
            name="given",
        )
        sums = given | hf.accumulate(by="k", total_so_far=hf.sum("v"), name="sums")
        if side == "sql":
            between = sums | hf.sql(f"select k, ts, {EXPRESSION} as v from input", name="between")
        else:
            expression = EXPRESSION if side == "arrow" else OF_SPARK
            between = sums | hf.select("k", "ts", v=expression, name="between")
        windows = between | hf.aggregate(
            by="k", window=hf.tumbling(WINDOW), n=hf.count(), total=hf.sum("v"), name="windows"
        )
        return windows | hf.map_batches(checksum, "windows BIGINT, n BIGINT, total BIGINT", name="found")

    asked = hf.Pipeline("asked", graph(Path(inputs) / "warm") | hf.write.console(name="asked_out"))
    rows = rows_in_jvm(asked, Settings())
    assert rows is RowsInJvm.NONE or side != "arrow", "the expression is not evaluated in Arrow"
    assert rows is not RowsInJvm.NONE or side != "spark", "the function that only Spark had is evaluated in Arrow"
    session = create_session("local[2]", "3g", rows=rows)

    def run(directory: Path, target: Path) -> Ran:
        return run_holdfast(session, graph(directory), ("windows", "n", "total"), target)

    run(Path(inputs) / "warm", Path(out) / "warm")
    done = run(Path(inputs) / "large", Path(out) / "large")
    return {"seconds": done.seconds, "found": done.found, "epochs": done.epochs}


def side_arrow(inputs: str, out: str) -> dict[str, Any]:
    """Measure the graph with the expression in Arrow."""
    return _side(inputs, out, "arrow")


def side_sql(inputs: str, out: str) -> dict[str, Any]:
    """Measure the graph with the expression as ``sql``."""
    return _side(inputs, out, "sql")


def side_spark(inputs: str, out: str) -> dict[str, Any]:
    """Measure the graph with the expression in Spark."""
    return _side(inputs, out, "spark")


def main() -> None:
    """Run the sides in turns, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.levels", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    work = WORK / f"levels-{os.getpid()}"
    inputs = work / "in"
    write_input(inputs / "warm", options.rows // 10, options.keys, 3)
    write_input(inputs / "large", options.rows, options.keys, options.epochs)
    timed_rows = options.rows - len(np.array_split(np.arange(options.rows), options.epochs)[0])
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    found = set()
    try:
        for number in range(options.rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                ran = run_side("bench.levels", side, {"inputs": str(inputs), "out": str(work / side)})
                seconds[side].append(ran["seconds"])
                found.add(tuple(ran["found"]))
                print(f"round {number + 1} {side}: {timed_rows / ran['seconds']:,.0f} rows/s", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    assert len(found) == 1, f"the sides found different sums: {found}"
    ((windows, counted, _),) = found
    assert counted == options.rows, f"{counted} rows of {options.rows} were counted"
    rates = {side: timed_rows / median(times) for side, times in seconds.items()}
    print_result(
        {
            "benchmark": "levels",
            "ratio": round(rates["spark"] / rates["arrow"], 3),
            "sql_ratio": round(rates["sql"] / rates["arrow"], 3),
            **{f"{side}_rows_per_s": round(rate) for side, rate in rates.items()},
            "rows": options.rows,
            "windows": windows,
        }
    )


if __name__ == "__main__":
    main()
