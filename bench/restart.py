"""How long a start takes: from SIGKILL to the first new row, and from the start of a process to its first row.

- *stateless*: files, a filter and a derived column, into SQLite.
- *state*: count and sum of a million keys (``hf.reduce``), which an epoch of random keys changes.
- *loaded*: as *stateless*, beside two processes that never wait; Holdfast alone.  ``loaded_ratio`` is what that costs.
- *cold*: the stateless pipeline on a checkpoint that does not exist yet.
- *spare*: the stateless pipeline below ``holdfast run --supervise --spare``; Holdfast alone.

Java's archive of Spark's classes is made beforehand, as half a minute of an earlier run makes it; ``--without-archive``
measures what a first start on a machine takes.

The other side is plain Spark, as users write it: ``foreachBatch`` into SQLite, with state ``groupBy`` in update mode on
RocksDB with changelogs.  Every life is a new process with a new JVM; the sides take turns; medians.  ``vs_spark`` is
the worse of the two quotients Holdfast / Spark of the restarts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.checkpoint import LOADING, pipeline_of, write_file, write_input
from bench.lives import Life, life_of, make_archive, until
from bench.sides import WORK, median, print_result
from holdfast.spark.launch.java import require_java

SIDES = ("holdfast", "spark")
BUSY = 2
"""Processes beside a loaded start, as many as cores that the figures are of."""
EPOCHS = 12
ROWS = 200_000
"""Rows of a file; an epoch takes one."""


# --- what the lives run: until they are killed ----------------------------------------------------------------------


def side_state(side: str, inputs: str, out: str) -> dict[str, Any]:
    """Keep a count and a sum of every key."""
    if side == "holdfast":
        return _run(pipeline_of(Path(inputs), Path(out)), out)
    from pyspark.sql import functions as F

    from bench.sync import spark

    def take(batch: Any, batch_id: int) -> None:
        row = batch.agg(F.count(F.lit(1)), F.sum("n")).first()
        _insert(out, tuple(row))

    read = _read(spark(), inputs)
    counted = read.groupBy("k").agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("total"))
    return _await(counted.writeStream.foreachBatch(take).outputMode("update"), out)


def side_stateless(side: str, inputs: str, out: str) -> dict[str, Any]:
    """Keep one row of a thousand, with a column that is computed."""
    if side == "holdfast":
        import holdfast as hf

        schema = "k BIGINT, v BIGINT"
        rows = hf.read.files(inputs, format="parquet", schema=schema, max_files_per_epoch=1, name="rows")
        few = rows | hf.filter("v = 0", name="few") | hf.select("k", counted="k * 2", name="doubled")
        return _run(hf.Pipeline("bench", few | hf.write.sqlite(Path(out) / "out.db", table="sums", name="table")), out)
    from bench.raw_spark import default_session

    def take(batch: Any, batch_id: int) -> None:
        _insert(out, *(tuple(row) for row in batch.collect()))

    few = _read(default_session(), inputs).where("v = 0").selectExpr("k as keys", "k * 2 as counted")
    return _await(few.writeStream.foreachBatch(take), out)


PROGRAM = """
import holdfast as hf
rows = hf.read.files({inputs!r}, format="parquet", schema="k BIGINT, v BIGINT", max_files_per_epoch=1, name="rows")
few = rows | hf.filter("v = 0", name="few") | hf.select("k", counted="k * 2", name="doubled")
pipeline = hf.Pipeline("bench", few | hf.write.sqlite({table!r}, table="sums", name="table"))
"""
"""The stateless pipeline as a file."""


def _run(pipeline: Any, out: str) -> dict[str, Any]:
    import holdfast as hf

    pipeline.start(checkpoint=f"{out}/ckpt", trigger=hf.every("50 ms"), master="local[2]").wait()
    return {}


def _read(session: Any, inputs: str) -> Any:
    return session.readStream.schema("k BIGINT, v BIGINT").option("maxFilesPerTrigger", 1).parquet(inputs)


def _await(writer: Any, out: str) -> dict[str, Any]:
    query = writer.option("checkpointLocation", f"{out}/ckpt").trigger(processingTime="50 milliseconds").start()
    query.awaitTermination()
    return {}


def _insert(out: str, *rows: tuple[Any, ...]) -> None:
    with sqlite3.connect(f"{out}/out.db") as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS sums (keys BIGINT, counted BIGINT)")
        connection.executemany("INSERT INTO sums VALUES (?, ?)", rows)


# --- one life, and the next -----------------------------------------------------------------------------------------


def restarted(kind: str, side: str, keys: int) -> float:
    """Let a life read half of the files, kill it, start it again; return the seconds to the first new row."""
    inputs, out = _prepared(kind, side, keys)
    with _life(kind, side, inputs, out) as process:
        until(lambda: _epochs(out, side) >= LOADING + EPOCHS // 2, process)
    killed, held = time.perf_counter(), _rows(out)
    write_file(inputs, LOADING + EPOCHS, [*range(0, ROWS * 1000, 1000)])  # there is one it has not seen
    with _life(kind, side, inputs, out) as process:
        until(lambda: _rows(out) > held, process)
        return time.perf_counter() - killed


def restarted_beside_others(kind: str, side: str, keys: int) -> float:
    """Return what :func:`restarted` does, while other programs take all the cores that they can get."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        return restarted(kind, side, keys)
    finally:
        for each in others:
            each.kill()
            each.wait()


def cold(kind: str, side: str, keys: int) -> float:
    """Return the seconds from the start of a process to the first row, on a new checkpoint."""
    inputs, out = _prepared(kind, side, keys)
    began = time.perf_counter()
    with _life(kind, side, inputs, out) as process:
        until(lambda: _rows(out) > 0, process)
        return time.perf_counter() - began


def taken_over(kind: str, side: str, keys: int) -> float:
    """Let a supervised run read half of the files, wait for its spare, kill it; return the seconds to a new row."""
    inputs, out = _prepared(kind, side, keys)
    program = out / "program.py"
    program.write_text(PROGRAM.format(inputs=str(inputs), table=str(out / "out.db")))
    command = [sys.executable, "-m", "holdfast", "run", str(program), "--checkpoint", str(out / "ckpt")]
    with Life([*command, "--every", "50ms", "--master", "local[2]", "--supervise", "--spare"], out) as supervisor:
        until(lambda: _epochs(out, side) >= LOADING + EPOCHS // 2 and _spare_of(supervisor) is not None, supervisor)
        held = _rows(out)
        spare = _spare_of(supervisor)
        run = next(child for child in psutil.Process(supervisor.pid).children() if child != spare)
        os.killpg(run.pid, signal.SIGKILL)
        killed = time.perf_counter()
        write_file(inputs, LOADING + EPOCHS, [*range(0, ROWS * 1000, 1000)])
        until(lambda: _rows(out) > held, supervisor)
        seconds = time.perf_counter() - killed
        supervisor.terminate()
        supervisor.wait()
    return seconds


def _spare_of(supervisor: subprocess.Popen[bytes]) -> psutil.Process | None:
    """Return the spare, once it is ready."""
    for child in psutil.Process(supervisor.pid).children():
        with suppress(psutil.Error):
            ready = child.environ().get("HOLDFAST_SPARE")
            if ready is not None and Path(ready).exists() and child.create_time() > time.time() - 3600:
                return child
    return None


def _prepared(kind: str, side: str, keys: int) -> tuple[Path, Path]:
    inputs, out = WORK / f"restart-{kind}-{side}-in", WORK / f"restart-{kind}-{side}"
    write_input(inputs, keys, EPOCHS, ROWS)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return inputs, out


def _life(kind: str, side: str, inputs: Path, out: Path) -> Life:
    return life_of("bench.restart", kind, {"side": side, "inputs": str(inputs), "out": str(out)}, out)


def _epochs(out: Path, side: str) -> int:
    """Return how many epochs Spark's commit log has, which both sides write."""
    directory = out / "ckpt/spark/1/commits" if side == "holdfast" else out / "ckpt/commits"
    return sum(1 for path in directory.glob("[0-9]*"))


def _rows(out: Path) -> int:
    try:
        with sqlite3.connect(f"file:{out}/out.db?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM sums").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("stateless", "loaded", "state", "cold", "spare"))
    parser.add_argument("--without-archive", action="store_true", help="as the first start on a machine")
    options = parser.parse_args()
    if options.without_archive:
        require_java()
        os.environ["HOLDFAST_CLASS_ARCHIVE"] = "off"
    else:
        make_archive(WORK / "restart-cache")
    measured: dict[str, tuple[str, Callable[[str, str, int], float]]] = {
        "stateless": ("stateless", restarted),
        "loaded": ("stateless", restarted_beside_others),
        "state": ("state", restarted),
        "cold": ("stateless", cold),
        "spare": ("stateless", taken_over),
    }
    result: dict[str, Any] = {}
    quotients = []
    for name, (kind, measure) in measured.items():
        if options.only not in (None, name):
            continue
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        sides = SIDES if name not in ("loaded", "spare") else SIDES[:1]
        for number in range(options.rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                seconds[side].append(measure(kind, side, options.keys if kind == "state" else ROWS))
                print(f"{name} {side}: {seconds[side][-1]:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        ours = median(seconds["holdfast"])
        result[f"{name}_s"] = round(ours, 2)
        if len(sides) > 1:
            theirs = median(seconds["spark"])
            result[f"spark_{name}_s"] = round(theirs, 2)
        if measure is restarted:
            quotients.append(ours / theirs)
    if "loaded_s" in result and "stateless_s" in result:
        result["loaded_ratio"] = round(result["loaded_s"] / result["stateless_s"], 2)
    if quotients:
        result["vs_spark"] = round(max(quotients), 2)
    for path in WORK.glob("restart-*"):
        shutil.rmtree(path, ignore_errors=True)
    print_result({"bench": "restart", **result})


if __name__ == "__main__":
    main()
