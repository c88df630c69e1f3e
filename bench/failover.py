"""What a failover takes: 5,000 rows/s into PostgreSQL, the main dies or is frozen, and its replica takes over.

Two processes of ``holdfast run``, one with the lease and one that watches it, each with a checkpoint of its own.  In
turns the one that holds the lease is killed (SIGKILL, with everything it started, and started again as a replica) or
frozen (SIGSTOP, with everything it started, and continued after the takeover: it finds itself fenced, and becomes the
replica).  Measured: seconds from the signal to the first new row in the table.  ``duplicates`` and ``lost`` are counted
in the table at the end: the rows are the numbers from 0 on, each once.

``overhead`` is the share of the main's CPU that its lease costs: the CPU seconds of a beat, measured alone, by the
beats of a lease of 1 s in the time that the main took for a backlog of rows, divided by its CPU seconds meanwhile.  A
beat costs so little that the whole does not show it: ``paired_cpu`` is the quotient of the CPU seconds with a lease
that another process watches and without, minus one; ``paired_elapsed`` that of the elapsed seconds, with what the lease
costs the server.  Medians of the turns, which differ by a tenth on a machine that others use.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg

from bench.lives import make_archive
from bench.sides import WORK, median, print_result
from holdfast.cli.target import load_target
from holdfast.replica.keeper import BEATS, lease_of
from holdfast.replica.tenure import Holder, take
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

OUT = WORK / "failover"
ROWS_PER_S = 5_000
PROGRAM = """
import holdfast as hf
rows = hf.read.rate(rows_per_second={rows_per_s}, {more}name="rows")
twice = rows | hf.select("value", twice="value * 2", name="twice")
pipeline = hf.Pipeline({name!r}, twice | hf.write.postgres({dsn!r}, table={name!r}, name="table"))
"""
BEATS_WARM, BEATS_TIMED = 50, 1000
_READY = "replica: "
_POLL_S = 0.005
_SETTLE_S = 0.05
"""A commit that was under way at the signal is done, or never."""


class Table:
    """The table that is written, seen through a connection of its own."""

    def __init__(self, dsn: str, name: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.name = name

    def one(self, what: str) -> Any:
        """Return one value; None while there is no table."""
        try:
            row = self.connection.execute(f"SELECT {what} FROM {self.name}").fetchone()
        except psycopg.errors.UndefinedTable:
            return None
        return None if row is None else row[0]

    def newest(self) -> int:
        """Return the highest number; -1 for none."""
        found = self.one("max(value)")
        return -1 if found is None else int(found)


class Life:
    """A process of ``holdfast run``, in a group of its own.

    Parameters
    ----------
    place : Path
        Its directory, for log and checkpoint.
    program : Path
        The pipeline's file.
    arguments : sequence of str
        More arguments.
    """

    def __init__(self, place: Path, program: Path, *arguments: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.log = place / "log"
        self.log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "holdfast", "run", str(program), "--checkpoint", str(place / "ckpt")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--master", "local[2]", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=WORK.parent.parent,
                env={**os.environ, "HOLDFAST_PROGRESS_INTERVAL": "200 ms"},
            )

    def signal(self, number: int) -> None:
        """Send a signal to it and to everything it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def cpu_s(self) -> float:
        """Return the CPU seconds of it and of everything it has started and that is alive."""
        run = psutil.Process(self.process.pid)
        return sum(sum(each.cpu_times()[:2]) for each in (run, *run.children(recursive=True)))

    def end(self) -> None:
        """Kill it."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        end = time.monotonic() + 180
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{what}: the process ended, or took too long:\n{self.said()[-4000:]}")
            time.sleep(_POLL_S)

    def said(self) -> str:
        """Return what it has said."""
        return self.log.read_text(errors="replace")


# --- failovers --------------------------------------------------------------------------------------------------------


def failovers(dsn: str, times: int) -> dict[str, Any]:
    """Kill and freeze the main, ``times`` each; return seconds, duplicates, lost."""
    program = OUT / "program.py"
    program.write_text(PROGRAM.format(rows_per_s=ROWS_PER_S, more="", name="failover", dsn=dsn))
    seen = Table(dsn, "failover")
    arguments = ("--every", "100ms", "--lease", "1s")
    lives = [Life(OUT / "a", program, *arguments)]
    seconds: dict[str, list[float]] = {"killed": [], "frozen": []}
    try:
        lives[0].until(lambda: seen.newest() > 0, "the first rows")
        lives.append(Life(OUT / "b", program, *arguments, "--replica"))
        for number in range(2 * times):
            main, replica = lives
            how = ("killed", "frozen")[number % 2]
            replica.until(lambda replica=replica: _READY in replica.said(), "a replica that is ready")
            time.sleep(1)  # the JVM has the machine to itself after that
            main.signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            at = time.perf_counter()
            time.sleep(_SETTLE_S)
            before = seen.newest()
            replica.until(lambda before=before: seen.newest() > before, "the first new row")
            seconds[how].append(time.perf_counter() - at)
            print(f"{how}: {seconds[how][-1]:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
            if how == "killed":
                main.process.wait()
                main = Life(main.log.parent, program, *arguments, "--replica")
            else:
                main.log.write_text("")
                main.signal(signal.SIGCONT)
            lives = [replica, main]
        lives[1].until(lambda: _READY in lives[1].said(), "the last replica")
    finally:
        for life in lives:
            life.end()
    rows, distinct, newest = seen.one("count(*)"), seen.one("count(DISTINCT value)"), seen.newest()
    every = seconds["killed"] + seconds["frozen"]
    result = {"p50_s": round(median(every), 2), "max_s": round(max(every), 2)}
    for how, those in seconds.items():
        result |= {f"{how}_p50_s": round(median(those), 2), f"{how}_max_s": round(max(those), 2)}
    return {**result, "times": times, "duplicates": rows - distinct, "lost": newest + 1 - distinct}


# --- what a lease costs -----------------------------------------------------------------------------------------------


def overhead(dsn: str, rows: int, rounds: int) -> dict[str, Any]:
    """Write a backlog with a lease and without, in turns.

    The two of a turn meet the same load of the machine, which may change from turn to turn.
    """
    measured: dict[str, list[tuple[float, float]]] = {"lease": [], "alone": []}
    for number in range(rounds):
        for side in ("lease", "alone") if number % 2 == 0 else ("alone", "lease"):
            name = f"cost_{side}_{number}"
            measured[side].append(_backlog(dsn, name, rows, ("--lease", "1s") if side == "lease" else ()))
            seconds, cpu_s = measured[side][-1]
            print(f"{side}: {seconds:.2f} s, {cpu_s:.2f} s of CPU, load {os.getloadavg()[0]:.1f}", flush=True)
    pairs = list(zip(measured["lease"], measured["alone"], strict=True))
    paired = [median([lease[kind] / alone[kind] for lease, alone in pairs]) - 1 for kind in (0, 1)]
    busy = median([cpu_s / seconds for seconds, cpu_s in measured["alone"]])
    beat_s = _beat_cpu_s(OUT / "backlog.py")
    return {
        "overhead": round(BEATS * beat_s / busy, 4),
        "beat_cpu_ms": round(beat_s * 1e3, 3),
        "paired_cpu": round(paired[1], 3),
        "paired_elapsed": round(paired[0], 3),
        "rounds": rounds,
    }


def _beat_cpu_s(program: Path) -> float:
    """Return the CPU seconds of this process for a beat on the lease of a program's pipeline."""
    place = lease_of(load_target(str(program)))
    tenure = take(place, place.read(), Holder("bench"), 1_000_000)
    assert tenure is not None
    for _ in range(BEATS_WARM):
        tenure.renew()
    began = time.process_time()
    for _ in range(BEATS_TIMED):
        assert tenure.renew()
    taken = time.process_time() - began
    tenure.give_back()
    return taken / BEATS_TIMED


def _backlog(dsn: str, name: str, rows: int, arguments: tuple[str, ...]) -> tuple[float, float]:
    """Return the seconds from the first row in the table to the last one, and the main's CPU seconds meanwhile."""
    began = datetime.now(UTC) - timedelta(seconds=10)
    more = f"start={began.isoformat(timespec='seconds')!r}, max_rows_per_epoch=50_000, "
    program = OUT / "backlog.py"
    program.write_text(PROGRAM.format(rows_per_s=rows // 10, more=more, name=name, dsn=dsn))
    place = OUT / "cost"
    shutil.rmtree(place, ignore_errors=True)
    seen = Table(dsn, name)
    life = Life(place, program, "--every", "1ms", *arguments)
    try:
        with _watched(program) if arguments else nullcontext():
            life.until(lambda: seen.newest() >= 0, "the first row")
            started_s, cpu_s = time.perf_counter(), life.cpu_s()
            life.until(lambda: seen.newest() >= rows - 1, "the last row")
            return time.perf_counter() - started_s, life.cpu_s() - cpu_s
    finally:
        life.end()


_LOOKS = """
import sys, time
from holdfast.replica.keeper import lease_of
from holdfast.cli.target import load_target
from holdfast.replica.tenure import Watch
watch = Watch(lease_of(load_target(sys.argv[1])))
while True:
    watch.is_free()
    time.sleep(0.05)
"""


@contextmanager
def _watched(program: Path) -> Iterator[None]:
    """Look at the lease as often as a replica does; a replica's JVM would be on another machine."""
    process = subprocess.Popen([sys.executable, "-c", _LOOKS, str(program)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="of each kind")
    parser.add_argument("--rows", type=int, default=4_000_000, help="of a backlog")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("failover", "overhead"))
    options = parser.parse_args()
    make_archive(WORK / "failover-cache")
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    result: dict[str, Any] = {}
    with postgres_dsn() as given, scratch_schema(given, "failover") as dsn:
        if options.only != "overhead":
            result |= failovers(dsn, options.times)
        if options.only != "failover":
            result |= overhead(dsn, options.rows, options.rounds)
    shutil.rmtree(OUT, ignore_errors=True)
    print_result({"bench": "failover", "cores": psutil.cpu_count(), **result})


if __name__ == "__main__":
    main()
