"""Flights and weather of one place and hour, in sets; who comes too late is kept, with the reason: ``sync``."""

import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "align_streams"


def at(hour: int, minute: int = 0) -> datetime:
    """Return a time of one day."""
    return datetime(2026, 1, 5, hour, minute, tzinfo=UTC)


flights = hf.read.rows(
    [
        [{"origin": "EWR", "hour": at(8), "delay": 12}, {"origin": "JFK", "hour": at(8), "delay": 3}],  # one epoch
        [{"origin": "EWR", "hour": at(10), "delay": -4}],
        [{"origin": "EWR", "hour": at(9), "delay": 55}],  # EWR's flights had promised not to go back
    ],
    schema="origin STRING, hour TIMESTAMP, delay INT",
    timestamp="hour",
    bounded=True,  # these are all: at the end nobody is waited for
    name="flights",
)
weather = hf.read.rows(
    [
        [{"origin": "EWR", "hour": at(8), "wind": 17.5}],
        [{"origin": "EWR", "hour": at(9), "wind": 20.0}, {"origin": "EWR", "hour": at(10), "wind": 21.5}],
    ],
    schema="origin STRING, hour TIMESTAMP, wind DOUBLE",
    timestamp="hour",
    bounded=True,
    name="weather",
)
aligned = hf.sync({"flight": flights, "weather": weather}, by="origin", name="aligned")
flat = aligned | hf.select("origin", "timestamp", delay="flight.delay", wind="weather.wind", name="flat")

pipeline = hf.Pipeline(
    "align",
    flat | hf.write.sqlite(WORK / "align_streams.db", table="sets", name="sets_table"),
    aligned.late | hf.write.sqlite(WORK / "align_streams.db", table="late", name="late_table"),
)


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "align_streams.db")) as connection:
        for row in connection.execute("SELECT origin, substr(timestamp, 12, 5), delay, wind FROM sets ORDER BY 1, 2"):
            print("set: ", row)
        for row in connection.execute("SELECT origin, input, json_extract(flight, '$.delay') FROM late"):
            print("late:", row)


if __name__ == "__main__":
    main()
