"""Shards: what one that fails costs the others, how soon it is back, and what four cost against one.

Isolation: four shards read small files as they arrive, into PostgreSQL.  Windows in which shard 1 is in trouble take
turns with quiet ones, within one run.  Each figure is the p99 of the time from the arrival of a file to the commit that
shows its rows, as the server tells it, of the *other* shards' rows, over that of the quiet windows around: 1.0 is no
difference; the median of the rounds.

- ``noise``: nothing is the matter with it: what the figure is worth on this machine.
- ``isolation``: it fails, comes back, and fails again a second later; ``recovery_s`` is from its failure to its next
  published epoch, the median.
- ``isolation_restless``: it fails again at its first epoch after each recovery.
- ``isolation_down``: it fails at each start, and waits longer and longer.
- ``isolation_sink``: its sink does not answer: a lock on its rows.
- ``isolation_poison``: a row kills each worker that sees it, until a search has isolated it.
- ``isolation_hang``: a function hangs on a row, up to the time limit of a task; then that is isolated.
- ``isolation_replay``: it keeps state, loses Spark's directory, and replays what it has read since its last snapshot.

``overhead``: processor time a row of four shards over that of one run, on the same files, less 1; ``overhead_s`` the
same by the clock.  ``epochs_per_s``, ``memory_mb``: 64 shards of a small source on two cores; ``_1`` of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.lives import cpu_s, memory_mb
from bench.sides import median, percentile, print_result, run_side
from holdfast import faults
from holdfast.testing.servers.postgres import postgres_server, scratch_schema

SHARDS = 4
TROUBLED = 1
"""The shard that fails."""
SCHEMA = "id BIGINT, shard INT, created_us BIGINT, kind STRING"
PLAIN, KILLS, HANGS = "plain", "kills", "hangs"
TROUBLES = ("none", "fails", "restless", "down", "sink", "poison", "hang", "replay")
FIGURES = {"none": "noise", "fails": "isolation", **{each: f"isolation_{each}" for each in TROUBLES[2:]}}
SERVER = {"track_commit_timestamp": "on", "max_connections": "300"}


# --- files that arrive ------------------------------------------------------------------------------------------------


@dataclass
class Arrivals:
    """Writes files that a given shard reads, each with one time of arrival.

    Parameters
    ----------
    directory : str
        Where they arrive.
    segments : mapping of str to int
        Segment of a file -> its shard.
    rows : int
        Of a file.
    """

    directory: str
    segments: Mapping[str, int]
    rows: int
    count: int = 0

    def name(self, shard: int) -> str:
        """Return a new name that is of a segment of the shard."""
        from holdfast.connectors.files.source.division import FileDivision

        division = FileDivision(parts=len(self.segments))
        while True:
            self.count += 1
            made = f"{os.getpid()}-{self.count:08}.json"
            if self.segments[division.segment_of(made)] == shard:
                return made

    def arrive(self, shard: int, kinds: Sequence[str] = ()) -> int:
        """Let a file arrive; return the number of its first row."""
        name = self.name(shard)
        first = (os.getpid() * 10_000_000 + self.count) * 1000
        hidden = Path(self.directory) / f".{name}"
        row = {"shard": shard, "created_us": time.time_ns() // 1000}
        kinds = kinds or (PLAIN,) * self.rows
        hidden.write_text(
            "".join(json.dumps({"id": first + n, "kind": kind, **row}) + "\n" for n, kind in enumerate(kinds))
        )
        hidden.rename(Path(self.directory) / name)
        return first


def generate(given: str) -> None:
    """Let a file arrive for each shard, again and again, until the standard input ends."""
    options = json.loads(given)
    arrivals = Arrivals(options["directory"], options["segments"], options["rows"])
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
    due_s = time.monotonic()
    while not told.is_set():
        for shard in range(SHARDS):
            arrivals.arrive(shard)
        due_s += options["every_s"]
        told.wait(max(0.0, due_s - time.monotonic()))


@contextmanager
def generating(arrivals: Arrivals, every_s: float) -> Iterator[None]:
    """Let files arrive in a process of its own."""
    options = {"directory": arrivals.directory, "segments": arrivals.segments, "rows": arrivals.rows}
    command = [sys.executable, "-c", "import sys; from bench.shards import generate; generate(sys.argv[1])"]
    process = subprocess.Popen([*command, json.dumps({**options, "every_s": every_s})], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=60)


# --- the pipelines ----------------------------------------------------------------------------------------------------


def meet(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Die, or hang, at a row that asks for it."""
    kinds = set(batch.column("kind").to_pylist())
    if KILLS in kinds:
        os._exit(1)
    if HANGS in kinds:
        threading.Event().wait()
    return batch


def pipeline_of(trouble: str, directory: str, dsn: str) -> Any:
    """Return the pipeline that has this trouble."""
    import holdfast as hf

    rows = hf.read.files(directory, format="json", schema=SCHEMA, name="arrivals")
    if trouble in ("poison", "hang"):
        rows = rows | hf.map_batches(meet, SCHEMA, name="met")
    if trouble == "replay":
        rows = rows | hf.accumulate(by=["id", "shard", "created_us"], times=hf.count(), name="counts")
    kept = rows | hf.select("id", "shard", "created_us", name="kept")
    return hf.Pipeline("bench", kept | hf.write.postgres(dsn, table="arrivals", name="table"), shards="independent")


@dataclass
class Failures:
    """Lets a shard fail, and again a while after each recovery; notes how long these take."""

    pause_s: float
    is_down: bool = False
    also: Callable[[], object] = lambda: None
    recoveries: list[float] = field(default_factory=list)
    is_over: bool = False
    _failed_s: float = 0.0
    _due_s: float = 0.0

    def __call__(self, point: str, epoch: int) -> None:
        now_s = time.monotonic()
        if point == "after-publish" and self._failed_s and not self.is_down:
            self.recoveries.append(now_s - self._failed_s)
            self._failed_s, self._due_s = 0.0, now_s + self.pause_s
        elif (
            point == "before-stage"
            and not self.is_over
            and now_s >= self._due_s
            and (self.is_down or not self._failed_s)
        ):
            self._failed_s = self._failed_s or now_s
            self.also()
            raise RuntimeError(f"shard {TROUBLED} fails in epoch {epoch}")


@dataclass
class Bench:
    """A run of shards under load, and what is measured of it."""

    trouble: str
    run: Any
    dsn: str
    checkpoint: Path
    arrivals: Arrivals
    seconds: float
    recoveries: list[float] = field(default_factory=list)
    lasted: list[float] = field(default_factory=list)
    """How long the trouble lasted, in seconds: up to a row that came after it."""

    def quiet(self) -> tuple[float, float]:
        """Wait for a quiet window; return it."""
        time.sleep(1)
        begin = time.time()
        time.sleep(self.seconds)
        return begin, time.time()

    def troubled(self) -> tuple[float, float]:
        """Let the shard be in trouble; return the window."""
        begin = time.time()
        ways = {"none": self._waited, "sink": self._locked, "poison": self._met, "hang": self._met}
        ways.get(self.trouble, self._failing)()
        self.until_visible(self.arrivals.arrive(TROUBLED), TROUBLED)
        self.lasted.append(time.time() - begin)
        return begin, time.time()

    def _waited(self) -> None:
        time.sleep(self.seconds)

    def _failing(self) -> None:
        pause_s = {"fails": 1.0, "replay": 10.0}.get(self.trouble, 0.0)
        also = self._lose_directory if self.trouble == "replay" else (lambda: None)
        failures = Failures(pause_s, self.trouble == "down", also)
        faults.install(failures, shard=TROUBLED)
        time.sleep(self.seconds)
        failures.is_over, failures.is_down = True, False
        if self.trouble != "down":
            self.recoveries += failures.recoveries

    def _lose_directory(self) -> None:
        shutil.rmtree(self.checkpoint / "shards" / str(TROUBLED) / "spark")

    def _locked(self) -> None:
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            question = "SELECT 1 FROM holdfast_ledger WHERE pipeline = %s FOR UPDATE"
            assert connection.execute(question, (f"bench-{TROUBLED}",)).fetchall()
            time.sleep(self.seconds)

    def _met(self) -> None:
        """Give it a row that kills or hangs, as often as fits: each is isolated."""
        end = time.monotonic() + self.seconds
        while True:
            kind = KILLS if self.trouble == "poison" else HANGS
            self.arrivals.arrive(TROUBLED, [PLAIN] * 5 + [kind] + [PLAIN] * 5)
            self.until_visible(self.arrivals.arrive(TROUBLED), TROUBLED)
            if time.monotonic() > end:
                return

    def until_visible(self, row: int, shard: int) -> None:
        """Wait until a row is visible."""
        import psycopg

        deadline = time.monotonic() + 300
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not connection.execute("SELECT 1 FROM arrivals WHERE id = %s", (row,)).fetchall():
                found = self.run.status().shards[shard]
                if found.state == "failed":
                    raise RuntimeError(f"shard {shard} stays down: {found.error}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"row {row} of shard {shard} is not visible after 300 s")
                time.sleep(0.05)

    def ratio(self, troubled: tuple[float, float], around: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
        """Return the p99 of the healthy shards in a window over that of the windows around, and both, in ms."""
        there = percentile(self._waits([troubled]), 0.99)
        before = percentile(self._waits(around), 0.99)
        return there / before, there, before

    def _waits(self, windows: Sequence[tuple[float, float]]) -> list[float]:
        import psycopg

        question = """
            SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1e3 - created_us / 1e3 FROM arrivals
            WHERE shard <> %s AND created_us BETWEEN %s AND %s AND id %% 1000 = 0
        """
        found: list[float] = []
        with psycopg.connect(self.dsn) as connection:
            for begin, end in windows:
                asked = (TROUBLED, begin * 1e6, end * 1e6)
                found += [float(wait) for (wait,) in connection.execute(question, asked)]
        return found


def side_isolation(trouble: str, dsn: str, scratch: str, seconds: float, rounds: int, every: str) -> dict[str, Any]:
    """Measure how much longer rows of the healthy shards wait while one is in trouble."""
    import holdfast as hf
    from holdfast.config import Settings

    directory, checkpoint = Path(scratch) / "in", Path(scratch) / "checkpoint"
    directory.mkdir()
    is_isolated = trouble in ("poison", "hang")
    settings = Settings(
        master="local[2]",
        on_poison="isolate" if is_isolated else "stop",
        poison_attempts=1,
        poison_timeout="2 s",
        retry_attempts=2 if is_isolated else 100,
        checkpoint_freq=86_400_000,
        max_restarts=1_000_000,
    )
    pipeline = pipeline_of(trouble, str(directory), dsn)
    run = pipeline.start(checkpoint=checkpoint, trigger=hf.every(every), shards=SHARDS, settings=settings)
    arrivals = Arrivals(str(directory), segments_of(checkpoint), rows=25)
    bench = Bench(trouble, run, dsn, checkpoint, arrivals, seconds)
    windows = []
    with generating(arrivals, 0.1):
        time.sleep(4)
        for shard in range(SHARDS):
            bench.until_visible(arrivals.arrive(shard), shard)
        if trouble == "replay":
            run.checkpoint_now()
        windows.append(bench.quiet())
        for _ in range(rounds):
            windows += [bench.troubled(), bench.quiet()]
    for shard in range(SHARDS):
        bench.until_visible(arrivals.arrive(shard), shard)
    restarts = [each.restarts for each in run.status().shards]
    faults.install(None)
    run.stop()
    run.wait()
    found = [bench.ratio(windows[n], (windows[n - 1], windows[n + 1])) for n in range(1, len(windows), 2)]
    return {
        "ratios": [round(each[0], 2) for each in found],
        "p99_ms": [round(each[1]) for each in found],
        "p99_before_ms": [round(each[2]) for each in found],
        "lasted_s": [round(each, 1) for each in bench.lasted],
        "recoveries_s": [round(each, 2) for each in bench.recoveries],
        "restarts": restarts,
        "load": round(os.getloadavg()[0], 1),
        **held_by(dsn, directory, trouble),
    }


def segments_of(checkpoint: Path) -> dict[str, int]:
    """Return segment -> shard, of the only source."""
    from holdfast.shards.layout import newest_layout
    from holdfast.store.local import LocalStore

    layout = newest_layout(LocalStore(str(checkpoint)))
    assert layout is not None
    return {unit.partition(":")[2]: shard for unit, shard in layout.assignment.shards.items()}


def held_by(dsn: str, directory: Path, trouble: str) -> dict[str, int]:
    """Check that each row is there once; return how many were isolated."""
    import psycopg

    kinds = [json.loads(line)["kind"] for path in directory.glob("*.json") for line in path.open()]
    isolated = sum(1 for each in kinds if each != PLAIN)
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*), count(DISTINCT id) FROM arrivals").fetchone()
    if row != (len(kinds) - isolated, len(kinds) - isolated):
        raise RuntimeError(f"{trouble}: {row} rows (distinct ids second) of {len(kinds)}, {isolated} of them isolated")
    return {"isolated": isolated} if isolated else {}


# --- four against one, and sixty-four ---------------------------------------------------------------------------------


def side_load(shards: int, dsn: str, scratch: str, rows: int, files: int) -> dict[str, Any]:
    """Measure one run, or several shards, on files that are all there at once."""
    import psycopg

    import holdfast as hf

    directory, aside = Path(scratch) / "in", Path(scratch) / "aside"
    directory.mkdir()
    aside.mkdir()
    names = write_load(aside, rows, files)
    arrivals = hf.read.files(str(directory), format="json", schema=SCHEMA, name="arrivals")
    computed = arrivals | hf.select("id", "shard", created_us="created_us + id", name="computed")
    pipeline = hf.Pipeline("bench", computed | hf.write.postgres(dsn, table="arrivals", name="table"))
    trigger, checkpoint = hf.every("100 ms"), f"{scratch}/checkpoint"
    run = pipeline.start(checkpoint=checkpoint, trigger=trigger, shards=shards, master="local[2]")
    spent: dict[str, list[float]] = {}

    def epochs() -> int:
        status = run.status()
        return sum(each.epoch for each in status.shards) or status.epoch

    with psycopg.connect(dsn, autocommit=True) as connection:
        for part, some in (("warm", names[: files // 4]), ("measured", names[files // 4 :])):
            before = rows_in(connection)
            begin, cpu, done = time.perf_counter(), cpu_s(os.getpid()), epochs()
            for name in some:
                (aside / name).rename(directory / name)
            while rows_in(connection) < before + rows // files * len(some):
                time.sleep(0.1)
            spent[part] = [time.perf_counter() - begin, cpu_s(os.getpid()) - cpu, epochs() - done]
    run.stop()
    run.wait()
    count = rows // files * (files - files // 4)
    seconds, cpu, made = spent["measured"]
    return {
        "cpu_us": cpu / count * 1e6,
        "us": seconds / count * 1e6,
        "epochs": made,
        "load": round(os.getloadavg()[0], 1),
    }


def write_load(directory: Path, rows: int, files: int) -> list[str]:
    """Write files of rows; return their names."""
    names = []
    for number in range(files):
        each = range(number * (rows // files), (number + 1) * (rows // files))
        names.append(f"{number:04}.json")
        lines = (f'{{"id": {n}, "shard": 0, "created_us": {n * 7}, "kind": "plain"}}\n' for n in each)
        (directory / names[-1]).write_text("".join(lines))
    return names


def rows_in(connection: Any) -> int:
    """Return how many rows are visible; before the first one there is no table."""
    if connection.execute("SELECT to_regclass('arrivals')").fetchone()[0] is None:
        return 0
    return int(connection.execute("SELECT count(*) FROM arrivals").fetchone()[0])


def side_many(shards: int, dsn: str, scratch: str, seconds: float) -> dict[str, Any]:
    """Measure many shards of a source that always has some rows."""
    import psutil

    import holdfast as hf

    ticks = hf.read.rate(rows_per_second=shards * 10, name="ticks")
    pipeline = hf.Pipeline("bench", ticks | hf.write.postgres(dsn, table="ticks", name="table"))
    begin = time.perf_counter()
    run = pipeline.start(checkpoint=f"{scratch}/checkpoint", trigger=hf.every("0 s"), shards=shards, master="local[2]")
    started_s = time.perf_counter() - begin
    time.sleep(seconds / 2)
    process = psutil.Process()

    def epochs() -> list[int]:
        status = run.status()
        return [each.epoch for each in status.shards] or [status.epoch]

    before, cpu, begin = epochs(), cpu_s(os.getpid()), time.perf_counter()
    time.sleep(seconds)
    after, took, cpu = epochs(), time.perf_counter() - begin, cpu_s(os.getpid()) - cpu
    made = [one - other for one, other in zip(after, before, strict=True)]
    memory = memory_mb(process.pid)
    begin = time.perf_counter()
    run.stop()
    run.wait()
    return {
        "epochs_per_s": sum(made) / took,
        "fewest_of_a_shard": min(made),
        "cpu_ms_an_epoch": cpu / max(1, sum(made)) * 1e3,
        "memory_mb": memory,
        "start_s": started_s,
        "stop_s": time.perf_counter() - begin,
        "threads": process.num_threads(),
        "load": os.getloadavg()[0],
    }


# --- turns ------------------------------------------------------------------------------------------------------------


def measured(side: str, dsn: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run a side in a schema and a directory of its own; return its figures."""
    scratch = tempfile.mkdtemp(prefix="holdfast-bench-")
    try:
        with scratch_schema(dsn, "holdfast_bench") as own:
            if side == "isolation":
                create_table(own)
            found = run_side("bench.shards", side, {"dsn": own, "scratch": scratch, **arguments})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{side} {arguments}: {json.dumps(found)}", flush=True)
    return found


def create_table(dsn: str) -> None:
    """Create the table with an index that the bench asks by."""
    import psycopg

    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        connection.execute("CREATE TABLE arrivals (id bigint, shard int, created_us bigint)")
        connection.execute("CREATE INDEX ON arrivals (id)")


def isolation(options: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """Return the figures of the troubles."""
    found: dict[str, Any] = {}
    for trouble in options.troubles:
        arguments = {"seconds": options.seconds, "rounds": options.rounds, "every": options.every}
        figures = measured("isolation", dsn, {"trouble": trouble, **arguments})
        found[FIGURES[trouble]] = round(median(figures["ratios"]), 2)
        found.setdefault("details", {})[trouble] = figures
        if trouble == "fails" and figures["recoveries_s"]:
            found["recovery_s"] = round(median(figures["recoveries_s"]), 2)
    return found


def overhead(options: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """Return what four shards cost against one run."""
    spent: dict[int, list[dict[str, float]]] = {1: [], SHARDS: []}
    for number in range(options.rounds):
        for shards in (1, SHARDS) if number % 2 == 0 else (SHARDS, 1):
            spent[shards].append(
                measured("load", dsn, {"shards": shards, "rows": options.rows, "files": options.files})
            )
    found: dict[str, Any] = {}
    for name, figure in (("overhead", "cpu_us"), ("overhead_s", "us")):
        ratios = [four[figure] / one[figure] - 1 for one, four in zip(spent[1], spent[SHARDS], strict=True)]
        found[name], found[f"{name}_rounds"] = round(median(ratios), 3), [round(each, 3) for each in ratios]
    return found


def many(options: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """Return the figures of many small shards."""
    one = measured("many", dsn, {"shards": 1, "seconds": options.seconds})
    all_ = measured("many", dsn, {"shards": options.many, "seconds": options.seconds})
    return {
        "epochs_per_s": round(all_["epochs_per_s"], 1),
        "epochs_per_s_1": round(one["epochs_per_s"], 1),
        "memory_mb": round(all_["memory_mb"]),
        "memory_mb_1": round(one["memory_mb"]),
        "many": {name: round(value, 1) for name, value in all_.items()},
    }


def main() -> int:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.shards", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15, help="of a window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", default="100 ms", help="trigger")
    parser.add_argument("--rows", type=int, default=24_000_000, help="of the load for `overhead`")
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--many", type=int, default=64, help="how many small shards")
    parser.add_argument("--only", choices=("isolation", "overhead", "many"))
    parser.add_argument("--troubles", nargs="+", choices=TROUBLES, default=TROUBLES)
    options = parser.parse_args()
    result: dict[str, Any] = {"bench": "shards", "load": round(os.getloadavg()[0], 1)}
    # A server of our own even where one is given: commit timestamps must be on.
    with postgres_server(SERVER) as server:
        for name, measure in (("isolation", isolation), ("overhead", overhead), ("many", many)):
            if options.only in (None, name):
                result |= measure(options, server.dsn)
    print_result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
