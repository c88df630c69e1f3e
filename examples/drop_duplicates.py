"""An event that was delivered twice within an hour counts once: ``distinct``."""

import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "drop_duplicates"


def at(hour: int, minute: int = 0) -> datetime:
    """Return a time of one day."""
    return datetime(2026, 1, 5, hour, minute, tzinfo=UTC)


events = hf.read.rows(
    [
        [{"event": "a", "at": at(8)}, {"event": "b", "at": at(8, 1)}, {"event": "a", "at": at(8)}],
        [{"event": "b", "at": at(8, 30)}, {"event": "c", "at": at(8, 31)}],  # b again, in another epoch
        [{"event": "a", "at": at(10)}],  # beyond the horizon: a new one
    ],
    schema="event STRING, at TIMESTAMP",
    timestamp="at",
    name="events",
)
once = events | hf.distinct(by="event", horizon="1 h", name="once")

pipeline = hf.Pipeline("distinct", once | hf.write.sqlite(WORK / "drop_duplicates.db", table="once", name="once_table"))


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "drop_duplicates.db")) as connection:
        for row in connection.execute("SELECT event, substr(at, 12, 5) FROM once ORDER BY at, event"):
            print(row)


if __name__ == "__main__":
    main()
