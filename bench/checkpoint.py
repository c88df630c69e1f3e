"""What snapshots cost, and what a start with state takes: 1 million keys of ``hf.reduce``, count and sum of each.

- ``throughput_ratio``: rows per second with a snapshot each second, divided by the same without.  The first epochs
  bring every key once; then come epochs of ``--rows`` rows of random keys, timed from the second one to the last.
  One process, one session; the sides take turns, each beginning as often as the other; medians.
- ``restore_s``: a graph with one more stateful operator over the state that such a run has left: from ``start()`` to
  the end of the first epoch, which needs every bucket.  Beside it the same graph as before: nothing to restore.
"""

from __future__ import annotations

import argparse
import os
import shutil
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
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    session = create_session("local[2]", "3g", rows=RowsInJvm.NONE)  # as a start of these pipelines chooses it
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
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    session = create_session("local[2]", "3g", rows=RowsInJvm.NONE)  # as a start of these pipelines chooses it
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


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of an epoch")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of so many rows")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=("throughput", "restore"))
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
    shutil.rmtree(inputs)
    shutil.rmtree(out, ignore_errors=True)
    print_result(result)


if __name__ == "__main__":
    main()
