"""The weather that was known when each flight left: the latest row at or before its time: ``merge``."""

import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "as_of_merge"


def at(hour: int, minute: int = 0) -> datetime:
    """Return a time of one day."""
    return datetime(2026, 1, 5, hour, minute, tzinfo=UTC)


flights = hf.read.rows(
    [
        [{"origin": "EWR", "at": at(8, 20), "flight": "UA1"}, {"origin": "JFK", "at": at(8, 25), "flight": "B6"}],
        [{"origin": "EWR", "at": at(9, 5), "flight": "UA2"}, {"origin": "EWR", "at": at(13), "flight": "UA3"}],
    ],
    schema="origin STRING, at TIMESTAMP, flight STRING",
    timestamp="at",
    bounded=True,
    name="flights",
)
weather = hf.read.rows(
    [
        [{"origin": "EWR", "at": at(8), "wind": 17.5}, {"origin": "JFK", "at": at(8, 30), "wind": 9.0}],
        [{"origin": "EWR", "at": at(9), "wind": 20.0}],
    ],
    schema="origin STRING, at TIMESTAMP, wind DOUBLE",
    timestamp="at",
    bounded=True,
    name="weather",
)
seen = hf.merge(flights, {"weather": weather}, by="origin", tolerance="2 h", name="seen")  # older than that: none
flat = seen | hf.select("flight", wind="weather.wind", name="flat")

pipeline = hf.Pipeline("as_of", flat | hf.write.sqlite(WORK / "as_of_merge.db", table="flights", name="flights_table"))


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "as_of_merge.db")) as connection:
        for row in connection.execute("SELECT flight, wind FROM flights ORDER BY 1"):
            print(row)


if __name__ == "__main__":
    main()
