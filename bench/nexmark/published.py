"""The figures of Nexmark in ``build/nexmark.json``, and the tables of ``docs/nexmark.md`` rendered from them."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from bench.matrix.lives import ROOT
from bench.matrix.peers import PEERS
from bench.nexmark.flink_sql import QUERIES as FLINK_QUERIES
from bench.nexmark.sides import queries_of
from bench.nexmark.spark_sql import QUERIES as SPARK_QUERIES

MEASURED = ROOT / "build" / "nexmark.json"
COMMITTED = ROOT / "bench" / "nexmark.json"
PAGE = ROOT / "docs" / "nexmark.md"
BEGIN, END = "<!-- tables: make nexmark -->", "<!-- end of the tables -->"
NOT_YET = "not measured yet"
RECOVERY = "recovery"
QUERIES = [f"q{number}" for number in range(24)]
OTHERS: Mapping[str, Mapping[str, Any]] = {"flink": FLINK_QUERIES, "spark": SPARK_QUERIES}
STAND_INS = {"flink": frozenset({"q13"}), "spark": frozenset[str]()}
"""Queries for which a side has another query in their place: measured, and no part of the mean."""

WHERE = {"discard": "To a sink that discards", "postgres": "Into PostgreSQL", "files": "Into files"}


class Figures:
    """What was measured: of each sink, and of recovery, by query; in a file that each query is written into."""

    def __init__(self) -> None:
        self._all: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}

    def runs(self, sink: str, query: str, sides: Sequence[str], events: int) -> dict[str, list[dict[str, Any]]]:
        """Return the runs of a query that are measured: none where another number of events or set of sides ran, or of
        which the seconds alone are known.
        """
        before = self._all.get(sink, {}).get(query, {})
        if before.get("events") != events or {*OTHERS, "holdfast"} & before.keys() != {*sides}:
            return {}
        found = {side: before[side]["runs"] for side in sides}
        return found if all("cpu_s" in run for runs in found.values() for run in runs) else {}

    def note(self, what: str, query: str, figures: Mapping[str, Any]) -> None:
        """Note the figures of a query, with the day and the load."""
        load = round(os.getloadavg()[0], 1)
        today = datetime.now(UTC).date().isoformat()
        self._all.setdefault(what, {})[query] = {**figures, "date": today, "load": load}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        self._all["machine"] = {"cores": os.cpu_count(), "memory_gib": round(memory)}
        names = ("holdfast", "pyspark")
        self._all["versions"] = {name: version(name) for name in names} | {"python": platform.python_version()}
        MEASURED.parent.mkdir(parents=True, exist_ok=True)
        MEASURED.write_text(json.dumps(self._all, indent=1, sort_keys=True) + "\n")


def publish() -> None:
    """Make the committed figures, and the tables of the page, of what was measured."""
    shutil.copyfile(MEASURED, COMMITTED)
    PAGE.write_text(published(PAGE.read_text(), json.loads(COMMITTED.read_text())))


def published(page: str, figures: Mapping[str, Any]) -> str:
    """Return the page with the tables of these figures."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{rendered(figures)}\n{END}{after}"


def geomean(by_query: Mapping[str, Mapping[str, Any]], other: str) -> float | None:
    """Return the geometric mean of our rate divided by another side's, over the queries that both have."""
    compared = [sides for query, sides in by_query.items() if query not in STAND_INS[other]]
    both = [sides for sides in compared if {"holdfast", other} <= sides.keys()]
    ratios = [sides["holdfast"]["events_per_s"] / sides[other]["events_per_s"] for sides in both]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def with_others(by_query: Mapping[str, Any], discarded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a sink with those of the other sides, which discard, where they ran the same events."""
    every = {}
    for query, sides in by_query.items():
        beside = discarded.get(query, {})
        others = OTHERS.keys() & beside.keys() if beside.get("events") == sides["events"] else ()
        every[query] = {**{other: beside[other] for other in others}, **sides}
    return every


def rendered(figures: Mapping[str, Any]) -> str:
    """Return the tables as Markdown."""
    lines = [*_measured_when(figures), ""]
    lines += _rates("discard", figures.get("discard", {}))
    lines += _costs(figures.get("discard", {}))
    for sink in ("postgres", "files"):
        lines += _rates(sink, with_others(figures.get(sink, {}), figures.get("discard", {})))
    lines += _recovery(figures.get(RECOVERY, {}))
    return "\n".join(lines)


def _measured_when(figures: Mapping[str, Any]) -> Iterator[str]:
    parts = [figures.get(part, {}) for part in (*WHERE, RECOVERY)]
    noted = [each for part in parts for each in part.values()]
    if not noted:
        yield "Nothing has been measured yet."
        return
    machine, versions = figures["machine"], figures["versions"]
    dates = sorted({each["date"] for each in noted})
    flink = PEERS["Flink"].needs[0].replace("==", " ")
    yield (
        f"Measured on {' and '.join(dates)}, on a machine with {machine['cores']} cores and {machine['memory_gib']} "
        f"GiB of memory, at a load of at most {max(each['load'] for each in noted)} (two cores are busy at 2); Python "
        f"{versions['python']}, Holdfast {versions['holdfast']} on Spark {versions['pyspark']}, {flink}."
    )


def _rates(sink: str, by_query: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {WHERE[sink]}", "")
    if not by_query:
        yield from (f"{NOT_YET.capitalize()}: `make nexmark SINK={sink}`.", "")
        return
    yield "Thousand events a second, and ours divided by theirs."
    yield ""
    yield _row("query", "Holdfast", "Flink", "Spark", "/ Flink", "/ Spark")
    yield _rule(6)
    for query in QUERIES:
        sides = by_query.get(query, {})
        rates = [_cell(query, side, sides, "events_per_s", 1000) for side in ("holdfast", "flink", "spark")]
        if query not in queries_of(sink):
            rates[0] = "cannot"
        yield _row(query[1:], *rates, *(_ratio(query, sides, other) for other in OTHERS))
    means = [geomean(by_query, other) for other in OTHERS]
    yield _row("geometric mean", "", "", "", *("" if mean is None else f"**{mean:.2f}**" for mean in means))
    yield ""
    yield _how_often(by_query)
    yield ""


def _how_often(by_query: Mapping[str, Any]) -> str:
    of_runs: dict[tuple[int, int], list[str]] = {}
    for query in sorted(by_query, key=QUERIES.index):
        of_runs.setdefault((by_query[query]["events"], by_query[query]["rounds"]), []).append(query[1:])
    said = []
    for (events, rounds), queries in sorted(of_runs.items(), key=lambda runs: -len(runs[1])):
        what = f"{events:,} events, {'one run each' if rounds == 1 else f'medians of {rounds} runs'}"
        said.append(f"{what} (queries {', '.join(queries)})" if said else what)
    return "; ".join(said) + "."


def _costs(by_query: Mapping[str, Any]) -> Iterator[str]:
    if not by_query:
        return
    yield from ("## Work and memory", "")
    yield "To a sink that discards: thousand events for each second of a core, and the peak of memory in MB."
    yield ""
    yield _row("query", *(f"{side}, {what}" for what in ("per core", "MB") for side in ("Holdfast", "Flink", "Spark")))
    yield _rule(7)
    for query in QUERIES:
        sides, names = by_query.get(query, {}), ("holdfast", "flink", "spark")
        work = [_cell(query, side, sides, "events_per_core_s", 1000) for side in names]
        yield _row(query[1:], *work, *(_cell(query, side, sides, "peak_mb", 1) for side in names))
    yield ""


def _recovery(by_query: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Recovery", "")
    if not by_query:
        yield from (f"{NOT_YET.capitalize()}: `make nexmark KILL=1`.", "")
        return
    yield _row("query", "seconds until something new is in the sink", "result at the end", "events")
    yield _rule(4)
    for query in QUERIES:
        found = by_query.get(query)
        if found is None:
            yield _row(query[1:], NOT_YET, "", "")
            continue
        seconds = "its rows come at the end" if found["seconds"] is None else f"{found['seconds']} s"
        yield _row(query[1:], seconds, "right" if found["is_right"] else "**wrong**", f"{found['events']:,}")
    yield ""


def _cell(query: str, side: str, sides: Mapping[str, Any], name: str, unit: int) -> str:
    if side in OTHERS and query not in OTHERS[side]:
        return "cannot"
    return f"{sides[side][name] / unit:,.0f}" if side in sides else NOT_YET


def _ratio(query: str, sides: Mapping[str, Any], other: str) -> str:
    if not {"holdfast", other} <= sides.keys():
        return ""
    ratio = f"{sides['holdfast']['events_per_s'] / sides[other]['events_per_s']:.2f}"
    return f"({ratio})" if query in STAND_INS[other] else ratio


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return "|---" * columns + "|"
