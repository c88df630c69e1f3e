"""What it costs to know where the time goes: the pipeline of ``exactly_once`` with its times measured and without.

- ``measured``: as users run it.
- ``silent``: a copy of the package in which no clock is looked at for it.
- ``counted``: as ``measured``, and each look is timed itself, in the processes that take it.
- ``scraped``: as ``measured``, and its metrics are scraped each second; Prometheus does it each 15 s by default.

Each side runs in a process of its own, in turns, warmed up by a small run.  ``overhead`` is the time of all looks of
``counted``, of tasks and driver, divided by the seconds of its run: rather too much, since a look that is timed takes
twice as long, and tasks work at the same time.  ``scrape_overhead`` is the time of all scrapes of ``scraped``, as who
scrapes sees it, divided by the seconds of its run, and ``scrape_ms`` that of one.  ``ratio`` = measured / silent in
seconds, the median of the rounds; two equal runs differ by more than the overhead.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench import exactly_once
from bench.exactly_once import TABLE, WARM_ROWS, write_input
from bench.sides import WORK, median, print_result, run_side
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

SIDES = ("measured", "silent", "counted", "scraped")
PACKAGE = Path(__file__).resolve().parents[1] / "src"

LAPS, BUSY, EPOCHS = "plan/laps.py", "commit/busy.py", "plan/epoch_times.py"

CHANGES = {
    "silent": {
        LAPS: """
Laps.to = lambda self, name: None
Laps.during = lambda self, name, items: iter(items)
Laps.take = lambda self: Spent()
""",
        BUSY: """
from contextlib import nullcontext
BusyTimes.at = lambda self, name: nullcontext()
BusyTimes.seconds = lambda self: Busy()
""",
        EPOCHS: """
EpochTimes.begin = EpochTimes.mark = EpochTimes.end = EpochTimes.note = lambda self, *given, **named: None
""",
    },
    "counted": {
        LAPS: """
_to = Laps.to


def _timed(self, name):
    began = time.perf_counter_ns()
    before = _to(self, name)
    self._spent["(looks)"] = self._spent.get("(looks)", 0) + time.perf_counter_ns() - began
    return before


Laps.to = _timed
""",
        EPOCHS: """
LOOKS = []


def _timed(call):
    def timed(*given, **named):
        began = time.perf_counter()
        found = call(*given, **named)
        LOOKS.append(time.perf_counter() - began)
        return found

    return timed


for _name in ("begin", "mark", "end"):
    setattr(EpochTimes, _name, _timed(getattr(EpochTimes, _name)))
_note = _timed(EpochTimes.note)


def _noted(self, waves, busy, **named):
    LOOKS.extend(spent.nodes.get("(looks)", 0) / 1e9 for spent in waves.values())
    _note(self, waves, busy, **named)


EpochTimes.note = _noted
""",
    },
}
"""Side -> module -> what stands at its end."""


def changed(side: str, below: Path) -> str:
    """Return the directory with the package of a side."""
    if side not in CHANGES:
        return str(PACKAGE)
    made = below / side
    if not made.exists():
        shutil.copytree(PACKAGE, made, ignore=shutil.ignore_patterns("__pycache__"))
        for module, text in CHANGES[side].items():
            with (made / "holdfast" / module).open("a") as file:
                file.write(text)
    return str(made)


def side_run(package: str, is_silent: bool, **arguments: Any) -> dict[str, Any]:
    """Run the pipeline; its processes have this package."""
    import holdfast
    from holdfast.plan import epoch_times

    if Path(holdfast.__file__).parents[1] != Path(package):
        raise RuntimeError(f"{holdfast.__file__} is not below {package}")
    figures = exactly_once.side_holdfast(**arguments)
    if figures.pop("has_times") is is_silent:
        raise RuntimeError("this side measures what it should not, or does not what it should")
    looks = getattr(epoch_times, "LOOKS", [])
    return {**figures, "looks_ms": sum(looks) * 1e3}


class Scraper:
    """Scrapes an address each second, once it answers."""

    def __init__(self) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{held.getsockname()[1]}"
        self.spent_s: list[float] = []
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._scrape, daemon=True)

    def __enter__(self) -> Scraper:
        os.environ["HOLDFAST_METRICS"] = self.address
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        del os.environ["HOLDFAST_METRICS"]
        self._told.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._told.wait(1):
            began = time.perf_counter()
            try:
                with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
                    text = answer.read()
            except OSError:  # the run has not begun, or has ended
                continue
            if b"holdfast_epoch_seconds_count" in text:
                self.spent_s.append(time.perf_counter() - began)


def measure(options: argparse.Namespace, dsn: str, below: Path) -> dict[str, Any]:
    """Let the sides take turns."""
    import psycopg

    source = WORK / f"readings-{options.format}-{options.rows}-{options.files}"
    warm = WORK / f"readings-{options.format}-warm"
    write_input(source, options.format, options.rows, options.files)
    write_input(warm, options.format, WARM_ROWS, 2)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    shares: list[float] = []
    scrape_shares: list[float] = []
    scrapes_s: list[float] = []
    for number in range(options.rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS readings, warm, holdfast_ledger")
                for table in ("readings", "warm"):
                    connection.execute(f"CREATE TABLE {table} {TABLE}".encode())
                connection.execute("CHECKPOINT")
            package = changed(side, below)
            os.environ["PYTHONPATH"] = package
            scratch = tempfile.mkdtemp(prefix="holdfast-bench-")
            arguments = {"directory": str(source), "warm_directory": str(warm), "format": options.format, "dsn": dsn}
            arguments |= {"table": "readings", "warm_table": "warm", "scratch": scratch}
            arguments |= {"files_per_epoch": options.files_per_epoch}
            given = {"package": package, "is_silent": side == "silent", **arguments}
            scraper = Scraper()
            with scraper if side == "scraped" else nullcontext():
                figures = run_side("bench.observing", "run", given)
            shutil.rmtree(scratch, ignore_errors=True)
            with psycopg.connect(dsn) as connection:
                row = connection.execute("SELECT count(*), count(DISTINCT id) FROM readings").fetchone()
            expected = options.rows - (options.rows + 9) // 10
            if row != (expected, expected):
                raise RuntimeError(f"{side} wrote {row} rows (distinct ids second) instead of {expected}")
            seconds[side].append(figures["seconds"])
            if side == "counted":
                shares.append(figures["looks_ms"] / 1e3 / figures["seconds"])
            if side == "scraped":
                if not scraper.spent_s:
                    raise RuntimeError("nothing was scraped: more rows make a longer run")
                scrapes_s += scraper.spent_s
                scrape_shares.append(sum(scraper.spent_s) / figures["seconds"])
            print(f"round {number + 1} {side}: {figures}", flush=True)
    ratios = [one / other for one, other in zip(seconds["measured"], seconds["silent"], strict=True)]
    return {
        "overhead": round(median(shares), 6),
        "scrape_overhead": round(median(scrape_shares), 6),
        "scrape_ms": round(median(scrapes_s) * 1e3, 2),
        "scrapes": len(scrapes_s),
        "ratio": round(median(ratios), 3),
        "ratios": [round(each, 3) for each in ratios],
        "seconds": {side: [round(s, 2) for s in each] for side, each in seconds.items()},
    }


def main() -> int:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.observing", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--files-per-epoch", type=int, help="how small epochs are; default: as large as they get")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--format", choices=("json", "parquet"), default="json")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as below,
        postgres_dsn() as server,
        scratch_schema(server, "holdfast_bench") as dsn,
    ):
        figures = measure(options, dsn, Path(below))
    head = {"bench": "observing", "rows": options.rows, "files": options.files, "rounds": options.rounds}
    print_result({**head, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
