"""Departures and delays of each hour, once when the hour is over, and as they grow: ``aggregate``."""

import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("EXAMPLE_WORK") or Path(tempfile.gettempdir(), "holdfast-examples")) / "hourly_delays"


def at(hour: int, minute: int = 0) -> datetime:
    """Return a time of one day."""
    return datetime(2026, 1, 5, hour, minute, tzinfo=UTC)


flights = hf.read.rows(
    [
        [{"origin": "EWR", "at": at(8, 5), "delay": 10}, {"origin": "EWR", "at": at(8, 50), "delay": 30}],
        [{"origin": "EWR", "at": at(8, 45), "delay": 5}, {"origin": "EWR", "at": at(9, 10), "delay": 0}],
        [{"origin": "EWR", "at": at(9, 40), "delay": 7}],
    ],
    schema="origin STRING, at TIMESTAMP, delay INT",
    timestamp="at",
    bounded=True,
    name="flights",
)
hourly = flights | hf.aggregate(
    by="origin",
    window=hf.tumbling("1 h"),
    disorder="10 min",  # a flight is reported up to ten minutes after a later one
    departures=hf.count(),
    delay=hf.mean("delay"),
    worst=hf.quantile("delay", 0.9),
    name="hourly",
)
growing = flights | hf.aggregate(
    by="origin", window=hf.tumbling("1 h"), disorder="10 min", emit="changes", departures=hf.count(), name="growing"
)

pipeline = hf.Pipeline(
    "hourly",
    hourly | hf.write.sqlite(WORK / "hourly_delays.db", table="hourly", name="hourly_table"),
    growing
    | hf.write.sqlite(
        WORK / "hourly_delays.db", table="live", mode="upsert", key=["origin", "window_start"], name="live_table"
    ),
)


def main() -> None:
    """Run to the end of the input, and show what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    pipeline.run(checkpoint=str(WORK / "checkpoint"), trigger=hf.available_now())
    with closing(sqlite3.connect(WORK / "hourly_delays.db")) as connection:
        query = "SELECT origin, substr(window_start, 12, 5), departures, delay FROM hourly ORDER BY 1, 2"
        for row in connection.execute(query):
            print("final:", row)
        for row in connection.execute("SELECT origin, substr(window_start, 12, 5), departures FROM live ORDER BY 1, 2"):
            print("live: ", row)


if __name__ == "__main__":
    main()
