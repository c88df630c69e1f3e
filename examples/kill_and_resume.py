"""Kill a process between the two sinks of its pipeline, start it again, and count: every row is in both sinks once."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pyarrow.dataset

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "kill_and_resume"
FILES, ROWS_PER_FILE = 5, 1000

rides = hf.read.files(str(WORK / "in"), schema="ride BIGINT", max_files_per_epoch=1, name="rides")  # five epochs
trips = rides | hf.select("ride", km="ride % 40 + 1", name="trips")

pipeline = hf.Pipeline(
    "trips",
    trips | hf.write.sqlite(WORK / "trips.db", table="trips", name="trips_table"),
    trips | hf.write.files(WORK / "archive", name="archive"),
)


def write_input() -> None:
    """Write the files once: a file that was read must not change."""
    (WORK / "in").mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        file = WORK / "in" / f"{number}.json"
        if not file.exists():
            first = number * ROWS_PER_FILE
            lines = [f'{{"ride": {ride}}}\n' for ride in range(first, first + ROWS_PER_FILE)]
            file.with_suffix(".tmp").write_text("".join(lines))  # not read while it has this name
            file.with_suffix(".tmp").rename(file)


def run(**environment: str) -> int:
    """Run the pipeline in a process of its own; return how it ended, negative for a signal."""
    command = [sys.executable, "-m", "holdfast", "run", f"{__file__}:pipeline"]
    options = ["--checkpoint", str(WORK / "checkpoint"), "--available-now"]
    return subprocess.run([*command, *options], env=os.environ | environment, check=False).returncode


def count() -> str:
    """Count what readers of the two sinks see: rows, and different rows."""
    with closing(sqlite3.connect(WORK / "trips.db")) as database:
        in_table, different = database.execute("SELECT count(*), count(DISTINCT ride) FROM trips").fetchone()
    archive = pyarrow.dataset.dataset(WORK / "archive").to_table()["ride"]
    return f"table {in_table} ({different} different), archive {len(archive)} ({len(archive.unique())} different)"


def main() -> None:
    """Crash on purpose, look, resume, look again."""
    write_input()
    ended = run(HOLDFAST_FAULT="after-publish:3")  # SIGKILL in epoch 3: one sink has published, the other has not
    print(f"first run:  exit code {ended}; {count()}")
    ended = run()
    print(f"second run: exit code {ended}; {count()}")


if __name__ == "__main__":
    main()
