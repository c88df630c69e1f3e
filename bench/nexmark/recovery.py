"""Recovery: a query is killed in the middle, started again, and watched until its sink shows what it did not before.

A run writes files, or of a result that changes a table of SQLite (:mod:`bench.nexmark.running`).  It dies by SIGKILL
with everything it started when Spark has committed half of its epochs.  ``recovery_s`` is the time from the start of
the next process, Spark's included, until a reader of the sink sees rows that it did not see before; at the end of the
run the result is compared with what DuckDB finds.  The events take a minute of event time, so that windows end all
along.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset

from bench.lives import life_of, until
from bench.nexmark.compared import compare, read_result
from bench.nexmark.events import Events
from bench.nexmark.expected import database
from bench.nexmark.files import FileTables, write_events
from bench.nexmark.published import RECOVERY, Figures
from bench.nexmark.running import pipeline_of, run
from bench.sides import WORK

SPAN_S = 60
PAUSE_S = 0.05
"""Between two looks at a sink: the resolution of the seconds."""


def side_life(query: str, inputs: str, out: str) -> dict[str, Any]:
    """Run a query to its end, or go on with it."""
    from holdfast.config import Settings
    from holdfast.spark.launch.early import rows_in_jvm
    from holdfast.spark.launch.session import create_session

    tables, directory = FileTables(Path(inputs)), Path(out)
    rows = rows_in_jvm(pipeline_of(query, tables, directory / "result"), Settings())
    run(query, tables, directory, create_session("local[2]", "3g", rows=rows))
    return {}


def measure(queries: Sequence[str], events: int, events_per_file: int, figures: Figures) -> dict[str, Any]:
    """Kill each query once; return its seconds and whether the result is right as keys of ``RESULT``."""
    inputs, sequence = WORK / "nexmark-kill", Events(rate=max(1, events // SPAN_S))
    write_events(inputs, sequence, events, events_per_file)
    result: dict[str, Any] = {}
    all_s = []
    with database(sequence, events) as expected:
        for query in queries:
            seconds, out = _killed(query, inputs, math.ceil(events / events_per_file) // 2)
            found = compare(query, read_result(out), expected)
            is_right = not found.missing and not found.surplus
            figures.note(RECOVERY, query, {"seconds": seconds, "is_right": is_right, "events": events})
            said = "the result is right" if is_right else f"WRONG: {found}"
            print(f"{query}: {'nothing before the end' if seconds is None else f'{seconds} s'}; {said}", flush=True)
            result[f"{query}_is_right"] = is_right
            if seconds is not None:
                result[f"{query}_recovery_s"] = seconds
                all_s.append(seconds)
    shutil.rmtree(inputs, ignore_errors=True)
    return {**result, **({"recovery_max_s": max(all_s)} if all_s else {})}


def _killed(query: str, inputs: Path, epochs: int) -> tuple[float | None, Path]:
    """Kill a run after so many epochs, and let it go on; return the seconds, and where the result is."""
    work = WORK / "nexmark-killed"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    out = work / "result"
    arguments = {"query": query, "inputs": str(inputs), "out": str(work)}
    with life_of("bench.nexmark.recovery", "life", arguments, work) as process:
        until(lambda: _committed(work) >= epochs, process)
    before, started, seconds = _seen(out), time.perf_counter(), None
    with life_of("bench.nexmark.recovery", "life", arguments, work) as process:
        while process.poll() is None:
            if seconds is None and _seen(out) != before:
                seconds = round(time.perf_counter() - started, 2)
            time.sleep(PAUSE_S)
        if process.returncode:
            raise RuntimeError(f"{query} ended with {process.returncode}:\n{(work / 'log').read_text()[-3000:]}")
    return seconds, out


def _committed(work: Path) -> int:
    return sum(path.name.isdigit() for path in work.glob("checkpoint/spark/1/commits/*"))


def _seen(out: Path) -> Any:
    """Return what tells the rows that a reader finds now from those of another moment."""
    with suppress(OSError, sqlite3.Error, pyarrow.ArrowInvalid):  # nothing there yet, or just being written
        if out.is_dir():
            return pyarrow.dataset.dataset(out, format="parquet").count_rows()
        if out.exists():
            with sqlite3.connect(f"file:{out}?mode=ro", uri=True) as connection:
                columns = [row[1] for row in connection.execute("PRAGMA table_info(result)")]
                sums = ", ".join(f'total("{column}")' for column in columns)
                return connection.execute(f"SELECT count(*), {sums} FROM result").fetchone()
    return None
