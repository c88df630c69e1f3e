"""The demo's input, generated: flights and the weather at three airports, as JSON-lines files in time order.

The same seed gives the same files.  They have what makes real ones hard: flights that were cancelled or have no tail
number, hours without weather, values that are missing.  Of an origin and hour there are many flights and at most one
row of weather.

Files are written under a temporary name and renamed, as a source of files needs it: a file that can be seen is
complete.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

FILE_COUNTS = {"flights": 48, "weather": 60}
"""Files of each stream; the pipeline takes one of each per epoch, so that the weather falls behind, by weeks."""

FIRST_HOUR = datetime(2013, 1, 1, 5, tzinfo=UTC)
DAYS = 120
SEED = 2013
ORIGINS = ("EWR", "JFK", "LGA")
CARRIERS = ("AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")
DISTANCES = {"ATL": 760, "BOS": 190, "CLT": 535, "FLL": 1070, "IAH": 1410, "LAX": 2470, "MIA": 1090, "ORD": 730}
FLIGHTS_MAX = 15
"""Of an origin, in an hour of its day."""
FLYING_HOURS = 18

JsonRow = dict[str, object]


def generate(directory: Path, file_counts: Mapping[str, int] = FILE_COUNTS, *, days: int = DAYS) -> None:
    """Write both streams below a directory, unless they are there already.

    Parameters
    ----------
    directory : Path
        Gets ``flights/`` and ``weather/``.
    file_counts : mapping of str to int
        Files of ``flights`` and of ``weather``.
    days : int
        How long it is watched.
    """
    luck = random.Random(SEED)
    write_streams(
        directory, file_counts, lambda: {"flights": [*_flights(luck, days)], "weather": [*_weather(luck, days)]}
    )


def write_streams(
    directory: Path, file_counts: Mapping[str, int], make: Callable[[], Mapping[str, Sequence[JsonRow]]]
) -> None:
    """Write the rows of streams below a directory, unless they are there already in as many files.

    Parameters
    ----------
    directory : Path
        Gets a directory for each of them.
    file_counts : mapping of str to int
        How many files each has.
    make : callable
        Returns the rows.
    """
    if any(len([*(directory / name).glob("*.json")]) != count for name, count in file_counts.items()):
        shutil.rmtree(directory, ignore_errors=True)  # files of another cut
        for name, rows in make().items():
            write_stream(rows, directory / name, file_counts[name])


def write_stream(rows: Sequence[JsonRow], directory: Path, file_count: int) -> None:
    """Cut rows into files of equal length, in order."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(file_count):
        start, end = (len(rows) * n // file_count for n in (number, number + 1))
        hidden = directory / f".part-{number:04}.json.tmp"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows[start:end]), encoding="utf-8")
        hidden.rename(directory / f"part-{number:04}.json")


def _hours(days: int) -> Iterator[tuple[int, str]]:
    for hour in range(24 * days):
        yield hour % 24, (FIRST_HOUR + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _flights(luck: random.Random, days: int) -> Iterator[JsonRow]:
    for hour, time_hour in _hours(days):
        for origin in ORIGINS if hour < FLYING_HOURS else ():
            for _ in range(luck.randrange(FLIGHTS_MAX + 1)):
                yield _flight(luck, origin, time_hour)


def _flight(luck: random.Random, origin: str, time_hour: str) -> JsonRow:
    dest = luck.choice(list(DISTANCES))
    is_cancelled = luck.random() < 0.03
    delay = None if is_cancelled else int(luck.expovariate(1 / 20)) - 8
    air_time = None if is_cancelled else DISTANCES[dest] // 8 + luck.randrange(20, 45)
    return {
        "time_hour": time_hour,
        "carrier": luck.choice(CARRIERS),
        "flight": luck.randrange(1, 6000),
        "tailnum": None if luck.random() < 0.01 else f"N{luck.randrange(10_000, 99_999)}",
        "origin": origin,
        "dest": dest,
        "dep_time": None if is_cancelled else luck.randrange(2400),
        "dep_delay": delay,
        "arr_delay": None if delay is None else delay + luck.randrange(-20, 30),
        "air_time": air_time,
        "distance": DISTANCES[dest],
    }


def _weather(luck: random.Random, days: int) -> Iterator[JsonRow]:
    for hour, time_hour in _hours(days):
        for origin in ORIGINS:
            if luck.random() < 0.005:
                continue
            yield {
                "time_hour": time_hour,
                "origin": origin,
                "temp": None if luck.random() < 0.002 else round(40 + luck.gauss(hour / 2, 12), 2),
                "humid": round(luck.uniform(20, 100), 2),
                "wind_speed": round(luck.expovariate(1 / 10), 5),
                "precip": max(0.0, round(luck.gauss(-0.05, 0.05), 2)),
                "visib": luck.choice((0.25, 1.5, 4.0, 10.0, 10.0, 10.0)),
            }
