"""Synchronising streams: Holdfast's ``sync`` against three ways to write it in Spark.

Four streams of one row per key and timestamp, a tenth of them missing, as Parquet files; out come the sets, of which
each side only counts what was in them and takes a checksum.  Sides:

- ``holdfast``: ``hf.sync`` with settled input sets, state and all, exactly once into SQLite;
- ``native``: union, watermark, ``groupBy(key, ts)`` in append mode;
- ``joins``: a chain of stream-stream joins with watermarks;
- ``per_key``: ``transformWithStateInPandas``, called per key.

Each side has a process of its own with two cores, is warmed up with a small run, and runs as often as the others; the
median counts.  Timed are all epochs but the first, whose start-up (planning processes, first plan) belongs to a run and
not to its rows.  The slow sides get fewer rows, which favours them: their rates fall as their state grows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from bench.sides import WORK, median, print_result, run_side

STREAMS = 4
GAPS = 0.1
START_US = 1_767_225_600_000_000
STEP_US = 1_000_000


def write_input(directory: Path, rows: int, keys: int, epochs: int) -> int:
    """Write each stream as files of consecutive timestamps, two for each epoch; return the number of rows."""
    shutil.rmtree(directory, ignore_errors=True)
    times = rows // STREAMS // keys
    written = 0
    for stream in range(STREAMS):
        chance = np.random.default_rng(stream)
        (directory / f"s{stream}").mkdir(parents=True)
        for number, block in enumerate(np.array_split(np.arange(times), epochs * 2)):
            t = np.repeat(block, keys)
            k = np.tile(np.arange(keys), len(block))
            here = chance.random(len(t)) >= GAPS
            t, k = t[here], k[here]
            columns = {
                "k": pa.array(k, pa.int64()),
                "ts": pa.array(START_US + t * STEP_US, pa.timestamp("us", "UTC")),
                "v": pa.array(t * 1000 + k + stream, pa.int64()),
            }
            path = directory / f"s{stream}" / f"{number:04}.parquet"
            pa.parquet.write_table(pa.table(columns), path)
            written += len(t)
    return written


def side_holdfast(inputs: str, out: str, rounds: int) -> dict[str, Any]:
    """Measure Holdfast."""
    import holdfast as hf
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    def checksum(sets: pa.RecordBatch) -> pa.RecordBatch:
        values = [sets.column(f"s{number}") for number in range(STREAMS)]
        total, present = 0, 0
        for value in values:
            total += pc.sum(pc.struct_field(value, "v")).as_py() or 0
            present += len(value) - value.null_count
        return pa.RecordBatch.from_pydict({"sets": [sets.num_rows], "present": [present], "total": [total]})

    session = create_session("local[2]", "3g", rows=RowsInJvm.NONE)  # as a start of these pipelines chooses it

    def run(directory: Path, target: Path) -> Ran:
        streams = {
            f"s{number}": hf.read.files(
                str(directory / f"s{number}"),
                format="parquet",
                schema="k BIGINT, ts TIMESTAMP, v BIGINT",
                timestamp="ts",
                bounded=True,
                max_files_per_epoch=2,
                name=f"s{number}",
            )
            for number in range(STREAMS)
        }
        sets = hf.sync(streams, by="k", name="sets")
        sums = sets | hf.map_batches(checksum, "sets BIGINT, present BIGINT, total BIGINT", name="sums")
        return run_holdfast(session, sums, ("sets", "present", "total"), target)

    run(Path(inputs) / "warm", Path(out) / "warm")
    done = [run(Path(inputs) / "large", Path(out) / str(number)) for number in range(rounds)]
    return {"seconds": [ran.seconds for ran in done], "found": done[-1].found, "epochs": done[-1].epochs}


@dataclass(frozen=True)
class Ran:
    """A run of Holdfast: seconds behind the first epoch, the sums in its sink, and each epoch's milliseconds."""

    seconds: float
    found: list[int]
    epochs: list[dict[str, float]]


def run_holdfast(session: Any, sums: Any, columns: Sequence[str], target: Path) -> Ran:
    """Run a stream of sums into SQLite, to the end of its sources."""
    import sqlite3

    import holdfast as hf

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    pipeline = hf.Pipeline("bench", sums | hf.write.sqlite(target / "out.db", table="sums", name="sums_table"))
    # No snapshots of state: the other sides make none.
    where = str(target / "ckpt")
    run = pipeline.start(checkpoint=where, trigger=hf.available_now(), session=session, checkpoint_freq=0)
    epochs: list[dict[str, float]] = []
    started = before = time.perf_counter()
    seen = 0
    while run.is_active:
        last = run.status().last_epoch
        if last is not None and last.epoch > seen:
            now = time.perf_counter()
            started = now if seen == 0 else started
            epochs.append({"wall": round((now - before) * 1e3), **{k: round(v) for k, v in last.duration_ms.items()}})
            seen, before = last.epoch, now
        time.sleep(0.01)
    run.wait()
    seconds = time.perf_counter() - started
    with sqlite3.connect(target / "out.db") as connection:
        summed = ", ".join(f"sum({column})" for column in columns)
        found = connection.execute(f"SELECT {summed} FROM sums").fetchone()
    return Ran(seconds, list(found), epochs)


def spark() -> Any:
    """Return a session as a careful user of Spark sets it up for state: RocksDB with changelogs, a task per core."""
    from bench.raw_spark import default_session

    session = default_session({"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g"})
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    session.conf.set("spark.sql.streaming.stateStore.providerClass", rocks)
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    return session


def _streams(session: Any, directory: Path) -> list[Any]:
    reader = session.readStream.schema("k BIGINT, ts TIMESTAMP, v BIGINT").option("maxFilesPerTrigger", 2)
    return [reader.parquet(str(directory / f"s{number}")) for number in range(STREAMS)]


def timed(frame: Any, sums: Sequence[Any], directory: Path) -> tuple[float, list[int]]:
    """Run a query to its end; return the seconds behind its first epoch, and the sums over all that came out."""
    found = [0] * len(sums)
    ends: list[float] = []

    def take(batch: Any, batch_id: int) -> None:
        row = batch.agg(*sums).first()
        found[:] = [have + more for have, more in zip(found, row, strict=True)]
        ends.append(time.perf_counter())

    shutil.rmtree(directory, ignore_errors=True)
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(directory)).outputMode("append")
    query.trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - ends[0], found


def _sums() -> list[Any]:
    """Return the columns that count sets and values, and add these up."""
    from pyspark.sql import functions as F

    values = [F.col(f"v{number}") for number in range(STREAMS)]
    present = sum((F.count(value) for value in values[1:]), F.count(values[0]))
    total = sum((F.coalesce(F.sum(value), F.lit(0)) for value in values[1:]), F.coalesce(F.sum(values[0]), F.lit(0)))
    return [F.count(F.lit(1)), present, total]


def _measured(frame_of: Any, session: Any, inputs: str, out: str, rounds: int) -> dict[str, Any]:
    timed(frame_of(session, Path(inputs) / "warm"), _sums(), Path(out) / "warm")
    large = Path(inputs) / "large"
    done = [timed(frame_of(session, large), _sums(), Path(out) / str(number)) for number in range(rounds)]
    return {"seconds": [seconds for seconds, _ in done], "found": done[-1][1]}


def _native(session: Any, directory: Path) -> Any:
    from pyspark.sql import functions as F

    tagged = [frame.withColumn("s", F.lit(number)) for number, frame in enumerate(_streams(session, directory))]
    united = tagged[0]
    for frame in tagged[1:]:
        united = united.union(frame)
    values = [F.max(F.when(F.col("s") == number, F.col("v"))).alias(f"v{number}") for number in range(STREAMS)]
    return united.withWatermark("ts", "0 seconds").groupBy("k", "ts").agg(*values)


def side_native(inputs: str, out: str, rounds: int) -> dict[str, Any]:
    """Measure union and groupBy."""
    return _measured(_native, spark(), inputs, out, rounds)


def _joins(session: Any, directory: Path) -> Any:
    frames = [
        frame.withWatermark("ts", "0 seconds").withColumnRenamed("v", f"v{number}")
        for number, frame in enumerate(_streams(session, directory))
    ]
    joined = frames[0]
    for frame in frames[1:]:
        joined = joined.join(frame, ["k", "ts"])
    return joined


def side_joins(inputs: str, out: str, rounds: int) -> dict[str, Any]:
    """Measure stream-stream joins (inner: a set with a gap is lost, which is less work than is asked for)."""
    return _measured(_joins, spark(), inputs, out, rounds)


def _per_key(session: Any, directory: Path) -> Any:
    import pandas as pd
    from pyspark.sql import functions as F
    from pyspark.sql.streaming import StatefulProcessor

    class Align(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.waiting = handle.getListState("waiting", "s int, t long, v long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:
            held = pd.DataFrame(list(self.waiting.get()), columns=["s", "t", "v"])
            new = pd.concat([held, *rows])[["s", "t", "v"]]
            last = new.groupby("s")["t"].max()
            settled = last.min() if len(last) == STREAMS else -1
            ready, rest = new[new["t"] <= settled], new[new["t"] > settled]
            if len(rest):
                self.waiting.put([tuple(row) for row in rest.itertuples(index=False)])
            else:
                self.waiting.clear()
            sets = ready.pivot_table(index="t", columns="s", values="v").reindex(columns=range(STREAMS))
            yield pd.DataFrame({"k": key[0], "t": sets.index, **{f"v{s}": sets[s].to_numpy() for s in range(STREAMS)}})

        def close(self) -> None:
            return None

    columns = ["k", F.unix_micros("ts").alias("t"), "v"]
    frames = [
        frame.select(*columns, F.lit(number).alias("s")) for number, frame in enumerate(_streams(session, directory))
    ]
    united = frames[0]
    for frame in frames[1:]:
        united = united.union(frame)
    values = ", ".join(f"v{number} double" for number in range(STREAMS))
    grouped = united.groupBy("k")
    return grouped.transformWithStateInPandas(Align(), f"k long, t long, {values}", "Append", "None")


def side_per_key(inputs: str, out: str, rounds: int) -> dict[str, Any]:
    """Measure Python state per key."""
    return _measured(_per_key, spark(), inputs, out, rounds)


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.sync", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["holdfast", "native", "joins", "per_key"])
    options = parser.parse_args()
    shares = {"holdfast": 1, "native": 1, "joins": 8, "per_key": 8}
    rates: dict[str, float] = {}
    for side, share in shares.items():
        if options.only and side != options.only:
            continue
        inputs, out = WORK / f"sync-{side}", WORK / f"sync-{side}-out"
        count = write_input(inputs / "large", options.rows // share, options.keys, options.epochs)
        write_input(inputs / "warm", max(options.keys, 40) * STREAMS * 8, options.keys, 2)
        arguments = {"inputs": str(inputs), "out": str(out), "rounds": options.rounds}
        figures = run_side("bench.sync", f"{side}", arguments)
        rates[side] = count * (options.epochs - 1) / options.epochs / median(figures["seconds"])
        sets, present, _ = figures["found"]
        print(
            f"{side}: {count} rows, {rates[side]:,.0f} rows/s, {sets} sets with {present} values,"
            f" load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        for epoch in figures.get("epochs", []):
            print(f"  epoch: {epoch}", flush=True)
        if side == "holdfast" and present != count:
            raise RuntimeError(f"{count} rows went in, {present} came out")
        shutil.rmtree(inputs)
        shutil.rmtree(out, ignore_errors=True)
    if not options.only:
        ours = rates["holdfast"]
        print_result(
            {
                "rows_per_s": round(ours),
                "vs_native": round(ours / rates["native"], 2),
                "vs_joins": round(ours / rates["joins"], 2),
                "vs_per_key": round(ours / rates["per_key"], 2),
            }
        )


if __name__ == "__main__":
    main()
