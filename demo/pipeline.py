"""Flights and weather, cleaned: two streams of files into a database and a directory of Parquet, exactly once."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

WORK = Path(os.environ.get("DEMO_WORK", Path(__file__).parent / "out"))

FLIGHTS = """
    time_hour TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    dep_time INT, dep_delay INT, arr_delay INT, air_time INT, distance INT
"""
WEATHER = """
    time_hour TIMESTAMP, origin STRING, temp DOUBLE, humid DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE
"""

flights = hf.read.files(
    str(WORK / "data" / "flights"),
    format="json",
    schema=FLIGHTS,
    timestamp="time_hour",
    max_files_per_epoch=1,
    name="flights",
)
weather = hf.read.files(
    str(WORK / "data" / "weather"),
    format="json",
    schema=WEATHER,
    timestamp="time_hour",
    max_files_per_epoch=1,
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
        "distance * 60 / air_time AS speed_mph",
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

if "DEMO_POSTGRES" in os.environ:
    flights_table = hf.write.postgres(os.environ["DEMO_POSTGRES"], table="flights", name="flights_table")
else:
    flights_table = hf.write.sqlite(str(WORK / "flights.db"), table="flights", name="flights_table")

pipeline = hf.Pipeline(
    "departures",
    departures | flights_table,
    conditions | hf.write.files(str(WORK / "weather"), format="parquet", name="weather_files"),
)
