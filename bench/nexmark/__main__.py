"""Nexmark: each query with Holdfast, with Flink's SQL, and with Spark's streaming SQL where it can express it.

All sides read the same rows from Parquet files: Holdfast and Spark an epoch for each file, Flink two files at a time,
one in each of its two tasks.  Flink and Spark discard what they find (``blackhole``, ``noop``); Holdfast counts the
rows of each batch, exactly once into SQLite, or with ``--sink`` writes them exactly once into PostgreSQL or files.
The sides run in turns, each time in a process of its own with two cores, warmed up with a small run of the same query;
the medians count.  Timed is the whole query, from its start to its end.  CPU seconds are those of the process with all
its children, as the peak of memory is.  What Flink finds is compared first, with few events; a query that is wrong is
not measured.

``--kill`` measures recovery instead: :mod:`bench.nexmark.recovery`.  Figures go to ``build/nexmark.json``;
``--publish`` makes ``bench/nexmark.json`` of it, and with that the tables of ``docs/nexmark.md``.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.nexmark import flink, recovery
from bench.nexmark.events import SCHEMAS, Events
from bench.nexmark.files import write_events
from bench.nexmark.flink_sql import QUERIES as FLINK_QUERIES
from bench.nexmark.published import OTHERS, Figures, geomean, publish
from bench.nexmark.running import QUERIES
from bench.nexmark.sides import DISCARD, POSTGRES, SINKS, queries_of
from bench.sides import WORK, median, print_result, run_side
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

EVENTS_PER_FILE = 2_000_000
WARM_EVENTS = 60_000
RATE = 10_000_000
"""Events in a second of event time, as in the benchmark's heavy runs."""

_SLICE_EVENTS = 50_000
Run = dict[str, Any]
"""What a side found in one run: the names of ``RUN``, and how many rows there were."""

RUN = ("seconds", "cpu_s", "peak_mb")
MODULES = {"holdfast": "bench.nexmark.sides", "flink": "bench.nexmark.flink", "spark": "bench.nexmark.sides"}


def made_per_core_s(events: Events, count: int = 1_000_000) -> int:
    """Return how many events, with all columns of all tables, a core makes in a second, warmed up."""
    for number in (0, 1):
        started = time.process_time()
        for start in range(number * count, (number + 1) * count, _SLICE_EVENTS):
            for table in SCHEMAS:
                events.make(table, start, start + _SLICE_EVENTS)
    return round(count / (time.process_time() - started))


def right_in_flink(queries: Sequence[str]) -> list[str]:
    """Return those queries with which Flink finds what it should; say what is wrong with the others."""
    right = []
    for query, found in flink.differences(queries, WORK / "nexmark-flink-check"):
        if isinstance(found, flink.FlinkFailed):
            print(f"{query} flink: NOT MEASURED, it fails: {found}", flush=True)
        elif found.missing or found.surplus:
            print(f"{query} flink: NOT MEASURED, of {found.rows} rows {found.missing} are missing", flush=True)
            print(f"  and {found.surplus} surplus: {found.examples}", flush=True)
        else:
            right.append(query)
    return right


def measured(
    query: str, earlier: Mapping[str, list[Run]], inputs: Path, options: argparse.Namespace, dsn: str
) -> dict[str, Any]:
    """Measure a query with each side, in turns; return the medians of each, with those of the runs before."""
    found = {side: [*runs] for side, runs in earlier.items()}
    for _ in range(options.rounds):
        for side in found:
            out = WORK / f"nexmark-{side}"
            shutil.rmtree(out, ignore_errors=True)
            arguments = {"query": query, "inputs": str(inputs), "out": str(out)}
            with ExitStack() as stack:
                if side == "holdfast":
                    schema = stack.enter_context(scratch_schema(dsn, "holdfast_nexmark")) if dsn else ""
                    arguments |= {"sink": options.sink, "dsn": schema}
                found[side].append(run_side(MODULES[side], side, arguments))
    return {side: _medians(each, options.events) for side, each in found.items()}


def _medians(runs: Sequence[Run], events: int) -> dict[str, Any]:
    seconds, cpu_s, peak_mb = (median([each[name] for each in runs]) for name in RUN)
    return {
        "events_per_s": round(events / seconds),
        "events_per_core_s": round(events / cpu_s),
        "peak_mb": round(peak_mb),
        "runs": [{name: round(each[name], 2) for name in RUN} for each in runs],
        **({"rows": runs[-1]["rows"]} if "rows" in runs[-1] else {}),
    }


def result_of(by_query: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of queries as keys of ``RESULT``, with ours divided by each other side's."""
    result: dict[str, Any] = {}
    for query, sides in by_query.items():
        for side, figures in sides.items():
            result |= {f"{query}_{side}_{name}": figures[name] for name in FIGURES}
        if "holdfast" in sides:
            for other in OTHERS.keys() & sides.keys():
                ours, theirs = (sides[side]["events_per_s"] for side in ("holdfast", other))
                result[f"{query}_vs_{other}"] = round(ours / theirs, 2)
    for other in OTHERS:
        if (mean := geomean(by_query, other)) is not None:
            result[f"geomean_vs_{other}"] = round(mean, 2)
    return result


FIGURES = ("events_per_s", "events_per_core_s", "peak_mb")


def measure(options: argparse.Namespace, figures: Figures) -> dict[str, Any]:
    """Measure what is asked for, and return the keys of ``RESULT``."""
    queries, sides = options.queries.split(","), options.sides.split(",")
    able = {"holdfast": queries_of(options.sink), **{side: list(of) for side, of in OTHERS.items()}}
    if "flink" in sides:
        able["flink"] = right_in_flink([query for query in queries if query in FLINK_QUERIES])
    inputs, events = WORK / "nexmark", Events(rate=RATE)
    write_events(inputs / "large", events, options.events, options.events_per_file or EVENTS_PER_FILE)
    write_events(inputs / "warm", events, WARM_EVENTS, WARM_EVENTS // 2)
    if "flink" in sides:
        flink.write_inputs(inputs, events, options.events, WARM_EVENTS)
    made = made_per_core_s(events)
    print(f"events are made at {made:,} a core and second", flush=True)
    by_query = {}
    with ExitStack() as stack:
        dsn = stack.enter_context(postgres_dsn()) if options.sink == POSTGRES else ""
        for query in queries:
            own = [side for side in sides if query in able[side]]
            if not own:
                print(f"{query}: none of {', '.join(sides)} can", flush=True)
                continue
            before = figures.runs(options.sink, query, own, options.events) if options.more else {}
            earlier = {side: before.get(side, []) for side in own}
            by_query[query] = measured(query, earlier, inputs, options, dsn)
            for side, found in by_query[query].items():
                print(
                    f"{query} {side}: {found['events_per_s']:,} events/s, {found['events_per_core_s']:,} a core and "
                    f"second, {found['peak_mb']} MB, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            rounds = options.rounds + max(map(len, earlier.values()))
            figures.note(options.sink, query, {**by_query[query], "events": options.events, "rounds": rounds})
    shutil.rmtree(inputs, ignore_errors=True)
    return {"made_events_per_core_s": made, "sink": options.sink, **result_of(by_query)}


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--events-per-file", type=int, help=f"{EVENTS_PER_FILE:,}; with --kill a tenth of all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--more", action="store_true", help="beside the runs that are measured, in place of none")
    parser.add_argument("--queries", default=",".join(QUERIES), help="for instance q0,q5")
    parser.add_argument("--sides", default=",".join(MODULES), help="by comma")
    parser.add_argument("--sink", default=DISCARD, choices=SINKS, help="of Holdfast; the others discard")
    parser.add_argument("--kill", action="store_true", help="measure recovery instead, of Holdfast")
    parser.add_argument("--publish", action="store_true", help="write bench/nexmark.json and the tables of the page")
    options = parser.parse_args()
    figures = Figures()
    if options.kill:
        events_per_file = options.events_per_file or math.ceil(options.events / 10)
        result = recovery.measure(options.queries.split(","), options.events, events_per_file, figures)
    else:
        result = measure(options, figures)
    if options.publish:
        publish()
    print_result({"bench": "nexmark", "events": options.events, **result})


if __name__ == "__main__":
    main()
