"""Nexmark: each query with Holdfast, and with Spark's own streaming SQL where it can express it.

Every side reads the same Parquet files, an epoch for each file, to a sink that discards rows: Spark's ``noop``; of
Holdfast a count of the rows of each batch, exactly once into SQLite.  The sides run in turns, each time in a process of
its own with two cores, warmed up with a small run of the same query; the medians count.  Timed is the whole query, from
its start to its end.  CPU seconds are those of the process with all its children, as the peak of memory is.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from bench.nexmark.events import SCHEMAS, Events
from bench.nexmark.expected import side_table
from bench.nexmark.files import FileTables, ddl, write_events
from bench.nexmark.running import QUERIES
from bench.nexmark.spark_sql import QUERIES as SPARK_QUERIES
from bench.sides import WORK, median, print_result, run_side

WARM_EVENTS = 60_000
_SLICE_EVENTS = 50_000


class Watch:
    """Processor time and the peak of memory of this process with all its children, from start to end."""

    def __enter__(self) -> Watch:
        self._this = psutil.Process()
        self._peak, self._ends = 0, threading.Event()
        self._before = self._cpu_s()
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.cpu_s = self._cpu_s() - self._before
        self._ends.set()
        self._thread.join()
        self.peak_mib = self._peak / 2**20

    def _look(self) -> None:
        while not self._ends.wait(0.2):
            self._peak = max(self._peak, sum(self._each(lambda process: process.memory_info().rss)))

    def _cpu_s(self) -> float:
        return sum(self._each(lambda process: sum(process.cpu_times()[:4])))

    def _each(self, of: Callable[[psutil.Process], Any]) -> list[Any]:
        found = []
        for process in [self._this, *self._this.children(recursive=True)]:
            try:
                found.append(of(process))
            except psutil.Error:  # it has ended meanwhile
                continue
        return found


def side_holdfast(query: str, inputs: str, out: str) -> dict[str, Any]:
    """Measure Holdfast."""
    import sqlite3

    import holdfast as hf
    from holdfast.spark.launch.session import create_session

    session = create_session("local[2]", "3g")

    def count(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"counted": [rows.num_rows]})

    def run(directory: Path, target: Path) -> int:
        target.mkdir(parents=True)
        rows = importlib.import_module(f"bench.nexmark.queries.{query}").result(FileTables(directory))
        counted = rows | hf.map_batches(count, "counted BIGINT", name="counted_rows")
        sink = counted | hf.write.sqlite(target / "out.db", table="counts", name="counts")
        where = str(target / "checkpoint")
        hf.Pipeline(query, sink).start(
            checkpoint=where, trigger=hf.available_now(), session=session, checkpoint_freq=0
        ).wait()
        with sqlite3.connect(target / "out.db") as connection:
            return int(connection.execute("SELECT coalesce(sum(counted), 0) FROM counts").fetchone()[0])

    run(Path(inputs) / "warm", Path(out) / "warm")
    with Watch() as watch:
        found = run(Path(inputs) / "large", Path(out) / "large")
    return {"seconds": watch.seconds, "cpu_s": watch.cpu_s, "peak_mib": watch.peak_mib, "rows": found}


def side_spark(query: str, inputs: str, out: str) -> dict[str, Any]:
    """Measure Spark."""
    from bench.sync import spark

    session = spark()
    session.createDataFrame(side_table().to_pandas()).createOrReplaceTempView("side")
    sql, mode = SPARK_QUERIES[query]

    def run(directory: Path, checkpoint: Path) -> None:
        for table in SCHEMAS:
            reader = session.readStream.schema(ddl(table)).option("maxFilesPerTrigger", 1)
            rows = reader.parquet(str(directory / table)).withWatermark("dateTime", "0 seconds")
            rows.createOrReplaceTempView(table)
        writer = session.sql(sql).writeStream.outputMode(mode).format("noop")
        stream = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        stream.awaitTermination()

    run(Path(inputs) / "warm", Path(out) / "warm")
    with Watch() as watch:
        run(Path(inputs) / "large", Path(out) / "large")
    return {"seconds": watch.seconds, "cpu_s": watch.cpu_s, "peak_mib": watch.peak_mib}


def made_per_core_s(events: Events, count: int = 1_000_000) -> int:
    """Return how many events, with all columns of all tables, a core makes in a second, warmed up."""
    for number in (0, 1):
        started = time.process_time()
        for start in range(number * count, (number + 1) * count, _SLICE_EVENTS):
            for table in SCHEMAS:
                events.make(table, start, start + _SLICE_EVENTS)
    return round(count / (time.process_time() - started))


SIDES = {"holdfast": QUERIES, "spark": list(SPARK_QUERIES)}


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--events-per-file", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", default=",".join(QUERIES), help="for instance q0,q5")
    parser.add_argument("--sides", default=",".join(SIDES))
    options = parser.parse_args()
    queries, sides = options.queries.split(","), options.sides.split(",")
    inputs = WORK / "nexmark"
    events = Events(rate=10_000_000)
    write_events(inputs / "large", events, options.events, options.events_per_file)
    write_events(inputs / "warm", events, WARM_EVENTS, WARM_EVENTS // 2)
    result: dict[str, Any] = {"made_events_per_core_s": made_per_core_s(events)}
    print(f"events are made at {result['made_events_per_core_s']:,} a core and second", flush=True)
    ratios: dict[str, list[float]] = {side: [] for side in sides if side != "holdfast"}
    for query in queries:
        figures: dict[str, list[dict[str, Any]]] = {side: [] for side in sides if query in SIDES[side]}
        for _ in range(options.rounds):
            for side, found in figures.items():
                out = WORK / f"nexmark-{side}"
                shutil.rmtree(out, ignore_errors=True)
                found.append(run_side("bench.nexmark.__main__", side, _arguments(query, inputs, out)))
        for side, found in figures.items():
            seconds, cpu_s = median([each["seconds"] for each in found]), median([each["cpu_s"] for each in found])
            result[f"{query}_{side}_events_per_s"] = round(options.events / seconds)
            result[f"{query}_{side}_events_per_core_s"] = round(options.events / cpu_s)
            result[f"{query}_{side}_peak_mib"] = round(median([each["peak_mib"] for each in found]))
            print(
                f"{query} {side}: {options.events / seconds:,.0f} events/s, {options.events / cpu_s:,.0f} a core and "
                f"second, {result[f'{query}_{side}_peak_mib']} MiB, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        for side, of_queries in ratios.items():
            if {side, "holdfast"} <= figures.keys():
                ours, theirs = (result[f"{query}_{each}_events_per_s"] for each in ("holdfast", side))
                of_queries.append(ours / theirs)
                result[f"{query}_vs_{side}"] = round(ours / theirs, 2)
    for side, of_queries in ratios.items():
        if of_queries:
            result[f"geomean_vs_{side}"] = round(math.exp(sum(map(math.log, of_queries)) / len(of_queries)), 2)
    shutil.rmtree(inputs, ignore_errors=True)
    print_result({"bench": "nexmark", "events": options.events, **result})


def _arguments(query: str, inputs: Path, out: Path) -> dict[str, Any]:
    return {"query": query, "inputs": str(inputs), "out": str(out)}


if __name__ == "__main__":
    main()
