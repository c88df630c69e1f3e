"""Main and replica: each integer times two.  The main is killed; the replica takes over, and asks the table."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "times_two"

numbers = hf.read.files(str(WORK / "in"), schema="n BIGINT", name="numbers")
doubled = numbers | hf.select("n", twice="n * 2", name="doubled")

pipeline = hf.Pipeline("times_two", doubled | hf.write.sqlite(WORK / "out.db", table="doubled", name="table"))


def give(*integers: int) -> None:
    """Write integers as one file of the source."""
    (WORK / "in").mkdir(parents=True, exist_ok=True)
    file = WORK / "in" / f"{integers[0]}.json"
    file.with_suffix(".tmp").write_text("".join(f'{{"n": {n}}}\n' for n in integers))  # not read while it has this name
    file.with_suffix(".tmp").rename(file)


def start(name: str, *options: str) -> subprocess.Popen[bytes]:
    """Run the pipeline in a process of its own, with a checkpoint of its own."""
    command = [sys.executable, "-m", "holdfast", "run", f"{__file__}:pipeline", "--checkpoint", str(WORK / name)]
    with (WORK / f"{name}.out").open("w") as output:
        return subprocess.Popen([*command, *options], stdout=output, stderr=output, start_new_session=True)


def table() -> list[tuple[int, int]]:
    """Return what a reader of the table sees."""
    with closing(sqlite3.connect(WORK / "out.db")) as database:
        try:
            return database.execute("SELECT n, twice FROM doubled ORDER BY n").fetchall()
        except sqlite3.OperationalError:  # there is none yet
            return []


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait, at most two minutes."""
    end = time.monotonic() + 120
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"see {WORK}/*.out")
        time.sleep(0.02)


def main() -> None:
    """Double some integers, kill the main, give more; the replica doubles them, and none twice."""
    shutil.rmtree(WORK, ignore_errors=True)
    give(1, 2, 3)
    started = [start("main", "--lease", "1s")]
    try:
        wait_until(lambda: len(table()) == 3)
        print("main:   ", table())
        started.append(start("replica", "--replica"))
        wait_until(lambda: "holds term 1" in (WORK / "replica.out").read_text())
        os.killpg(started[0].pid, signal.SIGKILL)
        give(4, 5, 6)
        wait_until(lambda: len(table()) >= 6)
        print("replica:", table())
        started[1].terminate()
        print("stopped with code", started[1].wait())
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


if __name__ == "__main__":
    main()
