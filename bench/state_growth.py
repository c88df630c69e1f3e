"""Does an epoch cost what arrives, or what is there?  Epochs of 1000 rows against 10^4, 10^5 and 10^6 keys of state.

``hf.reduce`` keeps count and sum of each key.  The first epochs bring every key once; then come epochs of 1000 rows
that touch 1000 keys each, at random.  ``growth`` is the median time of these epochs, end to end, with 10^6 keys divided
by that with 10^4.  Each size has a process of its own.
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

from bench.sides import WORK, median, percentile, print_result, run_side
from bench.sync import Ran, run_holdfast

SIZES = (10_000, 100_000, 1_000_000)
ROWS = 1000
WARM = 10
"""Epochs of 1000 rows that are not counted: the JVM compiles, and the last large deltas are merged."""


def write_input(directory: Path, keys: int, epochs: int) -> int:
    """Write the files: two with every key, then one of 1000 rows for each epoch; return the number of rows."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    chance = np.random.default_rng(keys)
    every = np.array_split(chance.permutation(keys), 2)
    some = [chance.choice(keys, ROWS, replace=False) for _ in range(epochs)]
    for number, k in enumerate([*every, *some]):
        table = pa.table({"k": pa.array(k, pa.int64()), "v": pa.array(k % 1000, pa.int64())})
        pa.parquet.write_table(table, directory / f"{number:04}.parquet")
    return keys + ROWS * epochs


def side_holdfast(inputs: str, out: str) -> dict[str, Any]:
    """Measure Holdfast."""
    import holdfast as hf
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    def checksum(changed: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {"keys": [changed.num_rows], "counted": [pc.sum(changed.column("n")).as_py()]}
        )

    session = create_session("local[2]", "3g", rows=RowsInJvm.NONE)  # as a start of these pipelines chooses it

    def run(directory: Path, target: Path) -> Ran:
        rows = hf.read.files(
            str(directory),
            format="parquet",
            schema="k BIGINT, v BIGINT",
            bounded=True,
            max_files_per_epoch=1,
            name="rows",
        )
        kept = rows | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="kept")
        sums = kept | hf.map_batches(checksum, "keys BIGINT, counted BIGINT", name="sums")
        return run_holdfast(session, sums, ("keys", "counted"), target)

    run(Path(inputs) / "warm", Path(out) / "warm")
    ran = run(Path(inputs) / "large", Path(out) / "large")
    return {"found": ran.found, "epochs": ran.epochs}


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.state_growth", description=__doc__)
    parser.add_argument("--epochs", type=int, default=40, help="epochs of 1000 rows that are counted")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    options = parser.parse_args()
    medians: dict[int, float] = {}
    for keys in options.sizes:
        inputs, out = WORK / "growth", WORK / "growth-out"
        count = write_input(inputs / "large", keys, WARM + options.epochs)
        write_input(inputs / "warm", ROWS, 5)
        figures = run_side("bench.state_growth", "holdfast", {"inputs": str(inputs), "out": str(out)})
        changed, _ = figures["found"]
        if changed != count:
            raise RuntimeError(
                f"{count} rows went in, each of another key in its epoch, and {changed} changes came out"
            )
        counted = figures["epochs"][2 + WARM : 2 + WARM + options.epochs]
        walls = [epoch["wall"] for epoch in counted]
        medians[keys] = median(walls)
        inner = median([epoch["evaluate"] for epoch in counted])
        print(
            f"{keys} keys: {medians[keys]:.0f} ms an epoch (p99 {percentile(walls, 0.99):.0f}), of which the"
            f" job {inner:.0f}; first epochs {[epoch['wall'] for epoch in figures['epochs'][:2]]},"
            f" load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        shutil.rmtree(inputs)
        shutil.rmtree(out, ignore_errors=True)
    least, most = min(medians), max(medians)
    result = {"growth": round(medians[most] / medians[least], 2)}
    print_result({**result, **{f"ms_{keys}": round(value) for keys, value in medians.items()}})


if __name__ == "__main__":
    main()
