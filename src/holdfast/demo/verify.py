"""Was every row written once?  Computed from the raw files in plain Python; nothing of Holdfast is used."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Row = tuple[Any, ...]
"""The values of a row, in the order of ``COLUMNS``; instants are microseconds of Unix time."""

FLIGHT = (
    "carrier", "flight", "tailnum", "dest", "distance", "dep_delay", "arr_delay", "speed_mph", "is_late",
    "is_cancelled",
)  # fmt: skip
WEATHER = ("temp_c", "humid", "wind_speed", "precip", "is_foggy")
COLUMNS: Mapping[str, Sequence[str]] = {
    "flights": ("time_hour", "origin", *FLIGHT),
    "weather": ("time_hour", "origin", *WEATHER),
    "sets": ("origin", "timestamp", "flights", "weather"),
    "unobserved": ("origin", "timestamp"),
    "hourly": ("origin", "window_start", "window_end", "departures", "mean_delay"),
}
"""Sink -> its columns."""

FILES = ("weather", "sets")
"""Sinks that are directories of Parquet; the others are tables."""

NESTED = {"flights": FLIGHT, "weather": WEATHER}
"""Columns of ``sets`` whose values have names."""

INSTANTS = ("time_hour", "timestamp", "window_start", "window_end")
NOT_SUMMED = {*INSTANTS, "origin", "carrier", "tailnum", "dest", "is_late", "is_cancelled", "is_foggy", "weather"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class Sum:
    """Sum over one column, as computed and as held."""

    column: str
    expected: float
    held: float


@dataclass(frozen=True)
class SinkVerdict:
    """What one sink holds against what it should hold.

    A row that was changed on its way counts in both: the original is lost, the changed one is surplus.
    """

    stream: str
    expected: int
    held: int
    duplicates: int
    """Rows held more often than they should be."""
    lost: int
    """Rows held less often than they should be."""
    sums: tuple[Sum, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every row is there once and every sum is equal."""
        counts_agree = self.expected == self.held and self.duplicates == 0 and self.lost == 0
        return counts_agree and all(s.expected == s.held for s in self.sums)


def compare(stream: str, expected: Sequence[Row], held: Sequence[Row]) -> SinkVerdict:
    """Compare two tables as multisets of whole rows, and the sums of their numbers.

    Notes
    -----
    Sums are exact (``math.fsum``), so the order of the rows does not matter; floats are compared to the last bit.
    Lists are compared with their order; the sum over a column of lists is how much they hold.
    """
    wanted, found = Counter(expected), Counter(held)
    summed = [(place, name) for place, name in enumerate(COLUMNS[stream]) if name not in NOT_SUMMED]
    return SinkVerdict(
        stream=stream,
        expected=len(expected),
        held=len(held),
        duplicates=(found - wanted).total(),
        lost=(wanted - found).total(),
        sums=tuple(Sum(name, _sum(expected, place), _sum(held, place)) for place, name in summed),
    )


def expected_flights(directory: Path) -> list[Row]:
    """Compute what the sink of the flights should hold."""
    return [
        (
            instant(raw["time_hour"]),
            raw["origin"],
            raw["carrier"],
            raw["flight"],
            "unknown" if raw["tailnum"] is None else raw["tailnum"],
            raw["dest"],
            raw["distance"],
            raw["dep_delay"],
            raw["arr_delay"],
            None if raw["air_time"] is None else raw["distance"] / raw["air_time"] * 60,
            raw["dep_delay"] is not None and raw["dep_delay"] > 15,
            raw["dep_time"] is None,
        )
        for raw in _raw(directory)
        if raw["distance"] is not None and raw["distance"] > 0
    ]


def expected_weather(directory: Path) -> list[Row]:
    """Compute what the sink of the weather should hold."""
    return [
        (
            instant(raw["time_hour"]),
            raw["origin"],
            None if raw["temp"] is None else (raw["temp"] - 32) * 5 / 9,
            raw["humid"],
            raw["wind_speed"],
            raw["precip"],
            None if raw["visib"] is None else raw["visib"] < 3,
        )
        for raw in _raw(directory)
    ]


def expected_sets(flights: Iterable[Row], weather: Iterable[Row]) -> list[Row]:
    """Compute the sets of an origin and hour from what the sinks of flights and weather should hold."""
    departing = _by_hour(flights)
    observed = {(origin, hour): known for hour, origin, *known in weather}
    return [
        (*key, tuple(departing[key]) if key in departing else None, tuple(observed[key]) if key in observed else None)
        for key in dict.fromkeys([*departing, *observed])
    ]


def expected_unobserved(flights: Iterable[Row], weather: Iterable[Row]) -> list[Row]:
    """Compute the hours of flights without weather."""
    observed = {(origin, hour) for hour, origin, *_ in weather}
    return [key for key in _by_hour(flights) if key not in observed]


def expected_hourly(flights: Iterable[Row]) -> list[Row]:
    """Compute departures and mean delay of each origin and hour that has flights, cancelled ones among them."""
    place = FLIGHT.index("dep_delay")
    hours: dict[Row, list[int]] = {}
    for (origin, moment), flown in _by_hour(flights).items():
        delays = hours.setdefault((origin, moment // HOUR_US * HOUR_US), [])
        delays += [flight[place] for flight in flown if flight[place] is not None]
    return [
        (origin, start, start + HOUR_US, len(delays), sum(delays) / len(delays) if delays else None)
        for (origin, start), delays in hours.items()
    ]


def held_in_sqlite(database: Path, table: str) -> list[Row]:
    """Read a table from SQLite."""
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return normal_rows(table, connection.execute(f"SELECT {', '.join(COLUMNS[table])} FROM {table}"))
    finally:
        connection.close()


def held_in_files(directory: Path, stream: str) -> list[Row]:
    """Read a directory as any reader of Parquet sees it: the files that are not hidden."""
    held: list[Row] = []
    for path in sorted(directory.glob("**/*.parquet")):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts):
            columns = pq.ParquetFile(path).read(list(COLUMNS[stream]))
            held += normal_rows(stream, zip(*(columns[name].to_pylist() for name in COLUMNS[stream]), strict=True))
    return held


def normal_rows(stream: str, rows: Iterable[Sequence[object]]) -> list[Row]:
    """Bring values to one form: systems differ in how an instant is kept, and how a value that has names."""
    of_column: list[Callable[[Any], object] | None] = [
        instant if name in INSTANTS else None for name in COLUMNS[stream]
    ]
    if stream == "sets":
        of_column[2:] = [_values_of("flights"), _values_of("weather")]
    return [
        tuple(
            value if value is None or form is None else form(value) for value, form in zip(row, of_column, strict=True)
        )
        for row in rows
    ]


def expectation(data: Path) -> dict[str, list[Row]]:
    """Compute what every sink should hold, in the order of ``COLUMNS``."""
    flights, weather = expected_flights(data / "flights"), expected_weather(data / "weather")
    return {
        "flights": flights,
        "weather": weather,
        "sets": expected_sets(flights, weather),
        "unobserved": expected_unobserved(flights, weather),
        "hourly": expected_hourly(flights),
    }


def verify(work: Path, held_in_table: Callable[[str], list[Row]] | None = None) -> list[SinkVerdict]:
    """Compare every sink of the demo with the raw files, in the order of ``COLUMNS``.

    Parameters
    ----------
    work : Path
        The demo's directory: ``data/`` and the sinks.
    held_in_table : callable, optional
        Returns the rows of a table, where the tables are not in ``flights.db``.
    """

    def rows_of(stream: str) -> list[Row]:
        if stream in FILES:
            return held_in_files(work / stream, stream)
        return held_in_table(stream) if held_in_table else held_in_sqlite(work / "flights.db", stream)

    return [compare(stream, rows, rows_of(stream)) for stream, rows in expectation(work / "data").items()]


@cache
def instant(value: object) -> int:
    """Return an instant as microseconds of Unix time: of a text in ISO 8601, a datetime, or such a number.

    Without a time zone it is in Universal Time.
    """
    if isinstance(value, int):
        return value
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def _raw(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("*.json")):
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _by_hour(flights: Iterable[Row]) -> dict[Row, list[Row]]:
    """Return the flights of each origin and hour, without these two, in their order."""
    found: dict[Row, list[Row]] = {}
    for hour, origin, *flight in flights:
        found.setdefault((origin, hour), []).append(tuple(flight))
    return found


def _values_of(column: str) -> Callable[[Any], Row]:
    names = NESTED[column]

    def values(value: Mapping[str, object]) -> Row:
        return tuple(value[name] for name in names)

    return values if column == "weather" else lambda flights: tuple(map(values, flights))


def _sum(rows: Sequence[Row], place: int) -> float:
    values = (row[place] for row in rows)
    return math.fsum(len(value) if isinstance(value, tuple) else value for value in values if value is not None)
