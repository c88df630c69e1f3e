"""Flights and weather: cleaned, brought together by origin and hour, and counted; into a database and Parquet files.

Everything lies below ``DEMO_WORK``.  With ``DEMO_KAFKA`` the flights are messages of a topic, and the tables topics.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import holdfast as hf

WORK = Path(os.environ.get("DEMO_WORK", "holdfast-demo"))

FLIGHTS = """
    time_hour TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    dep_time INT, dep_delay INT, arr_delay INT, air_time INT, distance INT
"""
WEATHER = """
    time_hour TIMESTAMP, origin STRING, temp DOUBLE, humid DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE
"""

if "DEMO_KAFKA" in os.environ:
    flights = hf.read.kafka(
        os.environ["DEMO_KAFKA"],
        "flights-in",
        schema=f"{FLIGHTS}, is_bound BOOLEAN",
        timestamp="time_hour",
        bounds="is_bound",  # behind the last flight of each origin
        max_rows_per_epoch=7_000,
        name="flights",
    )
else:
    flights = hf.read.files(
        str(WORK / "data" / "flights"),
        format="json",
        schema=FLIGHTS,
        timestamp="time_hour",
        max_files_per_epoch=1,
        bounded=True,  # the files are all there: behind the last one nobody is waited for
        name="flights",
    )
weather = hf.read.files(
    str(WORK / "data" / "weather"),
    format="json",
    schema=WEATHER,
    timestamp="time_hour",
    max_files_per_epoch=1,
    bounded=True,
    name="weather",
)

departures = (
    flights
    | hf.filter("distance > 0", name="real_flights")
    | hf.select(
        "time_hour",
        "carrier",
        "flight",
        "coalesce(tailnum, 'unknown') AS tailnum",
        "origin",
        "dest",
        "distance",
        "dep_delay",
        "arr_delay",
        "distance / air_time * 60 AS speed_mph",
        "coalesce(dep_delay > 15, false) AS is_late",
        "dep_time IS NULL AS is_cancelled",
        name="departures",
    )
)
conditions = weather | hf.select(
    "time_hour",
    "origin",
    "(temp - 32) * 5 / 9 AS temp_c",
    "humid",
    "wind_speed",
    "precip",
    "visib < 3 AS is_foggy",
    name="conditions",
)

# The weather of an hour comes long after its flights: they wait in state, for each origin by itself.
aligned = hf.sync(
    {"flights": departures, "weather": conditions},
    by="origin",
    policy=hf.policy.settled(),
    timestamps={"flights": "ascending", "weather": "strict"},
    name="aligned",
)
unobserved = aligned | hf.filter("weather IS NULL") | hf.select("origin", "timestamp", name="unobserved")

hourly = departures | hf.aggregate(
    by="origin",
    window=hf.tumbling("1 hour"),
    emit="changes",
    departures=hf.count("dep_delay"),
    mean_delay=hf.mean("dep_delay"),
    name="hourly",
)

if "DEMO_KAFKA" in os.environ:

    def table(table: str, **arguments: Any) -> Any:
        """Return a topic of the table's name."""
        return hf.write.kafka(os.environ["DEMO_KAFKA"], table, **arguments)

elif "DEMO_POSTGRES" in os.environ:
    table = partial(hf.write.postgres, os.environ["DEMO_POSTGRES"])
else:
    table = partial(hf.write.sqlite, str(WORK / "flights.db"))

pipeline = hf.Pipeline(
    "departures",
    departures | table(table="flights", name="flights_table"),
    conditions | hf.write.files(str(WORK / "weather"), format="parquet", name="weather_files"),
    aligned | hf.write.files(str(WORK / "sets"), format="parquet", name="sets_files"),
    unobserved | table(table="unobserved", name="unobserved_table"),
    hourly | table(table="hourly", mode="upsert", key=["origin", "window_start"], name="hourly_table"),
)
