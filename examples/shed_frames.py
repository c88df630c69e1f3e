"""At most two frames of each camera in flight; the others are dropped at the entry: ``limit_in_flight``."""

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "shed_frames"

frames = hf.read.rows(
    [
        [{"camera": "left", "ms": ms, "size": 10} for ms in (0, 33, 66, 100)],
        [{"camera": "left", "ms": ms, "size": 10} for ms in (133, 166)],
        [{"camera": "left", "ms": ms, "size": 10} for ms in (200, 233, 266)],
    ],
    schema="camera STRING, ms BIGINT, size INT",
    timestamp="ms",  # ticks of a unit of one's own: milliseconds here
    name="frames",
)
results = hf.read.rows(  # what the model has finished: in production a topic, a table, files
    [[], [{"camera": "left", "ms": 33}]],
    schema="camera STRING, ms BIGINT",
    timestamp="ms",
    name="results",
)
entry = frames | hf.limit_in_flight(2, by="camera", done=results, timeout=1000, name="entry")

pipeline = hf.Pipeline(
    "frames",
    entry | hf.write.sqlite(WORK / "shed_frames.db", table="admitted", name="admitted_table"),
    entry.shed | hf.write.sqlite(WORK / "shed_frames.db", table="shed", name="shed_table"),
)


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "shed_frames.db")) as connection:
        for table in ("admitted", "shed"):
            print(table, [ms for (ms,) in connection.execute(f"SELECT ms FROM {table} ORDER BY 1")])


if __name__ == "__main__":
    main()
