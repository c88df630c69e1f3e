"""A stand-in for the demo's pipeline: writes the same sinks, step by step, and takes up where it was killed.

``python demo_stand_in.py WORK MODE``: with MODE ``exact`` rows and progress are committed together; with ``idle``
nothing is written.  Starts a child in a session of its own, as PySpark does.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

STEP_COUNT, STEP_ROWS = 200, 10


def main(work: Path, mode: str) -> None:
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    helper = subprocess.Popen(child, start_new_session=True)
    (work / "children").open("a").write(f"{helper.pid}\n")
    connection = sqlite3.connect(work / "flights.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS flights (number)")
    connection.execute("CREATE TABLE IF NOT EXISTS progress (step)")
    done = connection.execute("SELECT count(*) FROM progress").fetchone()[0]
    for step in range(done, STEP_COUNT if mode == "exact" else 0):
        connection.execute("BEGIN")
        numbers = range(step * STEP_ROWS, (step + 1) * STEP_ROWS)
        connection.executemany("INSERT INTO flights VALUES (?)", [(number,) for number in numbers])
        time.sleep(0.01)
        connection.execute("INSERT INTO progress VALUES (?)", (step,))
        connection.execute("COMMIT")
    helper.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
