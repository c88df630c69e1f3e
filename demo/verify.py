"""Was every row written once?  Computed from the raw files with Polars; nothing of Holdfast is used.

Also a command: ``python -m demo.verify demo/out [--postgres DSN]`` looks again at what the last demo left.
"""

from __future__ import annotations

import argparse
import math
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from demo.watch import KafkaRecords

FLIGHT: Mapping[str, pl.DataType] = {
    "carrier": pl.String(),
    "flight": pl.Int64(),
    "tailnum": pl.String(),
    "dest": pl.String(),
    "distance": pl.Int64(),
    "dep_delay": pl.Int64(),
    "arr_delay": pl.Int64(),
    "speed_mph": pl.Float64(),
    "is_late": pl.Boolean(),
    "is_cancelled": pl.Boolean(),
}
WEATHER: Mapping[str, pl.DataType] = {
    "temp_c": pl.Float64(),
    "humid": pl.Float64(),
    "wind_speed": pl.Float64(),
    "precip": pl.Float64(),
    "is_foggy": pl.Boolean(),
}
COLUMNS: Mapping[str, Mapping[str, pl.DataType]] = {
    "flights": {"time_hour": pl.Datetime("us"), "origin": pl.String(), **FLIGHT},
    "weather": {"time_hour": pl.Datetime("us"), "origin": pl.String(), **WEATHER},
    "sets": {
        "origin": pl.String(),
        "timestamp": pl.Datetime("us"),
        "flights": pl.List(pl.Struct(dict(FLIGHT))),
        "weather": pl.Struct(dict(WEATHER)),
    },
    "unobserved": {"origin": pl.String(), "timestamp": pl.Datetime("us")},
    "hourly": {
        "origin": pl.String(),
        "window_start": pl.Datetime("us"),
        "window_end": pl.Datetime("us"),
        "departures": pl.Int64(),
        "mean_delay": pl.Float64(),
    },
}
"""Sink -> its columns, with the types that both sides are brought to before they are compared."""

FILES = ("weather", "sets")
"""Sinks that are directories of Parquet; the others are tables."""


@dataclass(frozen=True)
class Sum:
    """Sum over one column, as computed and as held."""

    column: str
    expected: float
    held: float


@dataclass(frozen=True)
class Verdict:
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


def compare(stream: str, expected: pl.DataFrame, held: pl.DataFrame) -> Verdict:
    """Compare two tables as multisets of whole rows, and the sums of their numbers.

    Notes
    -----
    Sums are exact (``math.fsum``), so the order of the rows does not matter; floats are compared to the last bit.
    Lists are compared with their order; the sum over a column of lists is how much they hold.
    """
    wanted, found = normalised(stream, expected), normalised(stream, held)
    keys = list(COLUMNS[stream])
    counts = (
        wanted.group_by(keys)
        .len("wanted")
        .join(found.group_by(keys).len("found"), on=keys, how="full", nulls_equal=True, coalesce=True)
        .select(surplus=pl.col("found").fill_null(0).cast(pl.Int64) - pl.col("wanted").fill_null(0).cast(pl.Int64))
    )["surplus"]
    numbers = [name for name, kind in COLUMNS[stream].items() if kind.is_numeric() or isinstance(kind, pl.List)]
    return Verdict(
        stream=stream,
        expected=wanted.height,
        held=found.height,
        duplicates=int(counts.filter(counts > 0).sum()),
        lost=int(-counts.filter(counts < 0).sum()),
        sums=tuple(Sum(name, _sum(wanted[name]), _sum(found[name])) for name in numbers),
    )


def expected_flights(directory: Path) -> pl.DataFrame:
    """Compute what the sink of the flights should hold."""
    raw = _read_raw(
        directory, {"dep_time": pl.Int64, "dep_delay": pl.Int64, "arr_delay": pl.Int64, "air_time": pl.Int64}
    )
    return raw.filter(pl.col("distance") > 0).select(
        "time_hour",
        "carrier",
        "flight",
        pl.col("tailnum").fill_null("unknown"),
        "origin",
        "dest",
        "distance",
        "dep_delay",
        "arr_delay",
        (pl.col("distance") / pl.col("air_time") * 60).alias("speed_mph"),
        (pl.col("dep_delay") > 15).fill_null(value=False).alias("is_late"),
        pl.col("dep_time").is_null().alias("is_cancelled"),
    )


def expected_weather(directory: Path) -> pl.DataFrame:
    """Compute what the sink of the weather should hold."""
    numbers = ("temp", "humid", "wind_speed", "precip", "visib")
    raw = _read_raw(directory, dict.fromkeys(numbers, pl.Float64))
    # NB NumPy, not Polars: Polars divides by a constant through its reciprocal, which is off by one bit now and then.
    temp_c = pl.Series((raw["temp"].to_numpy() - 32) * 5 / 9, dtype=pl.Float64).fill_nan(None)
    return raw.select(
        "time_hour",
        "origin",
        temp_c.alias("temp_c"),
        "humid",
        "wind_speed",
        "precip",
        (pl.col("visib") < 3).alias("is_foggy"),
    )


def expected_sets(flights: pl.DataFrame, weather: pl.DataFrame) -> pl.DataFrame:
    """Compute the sets of an origin and hour from what the sinks of flights and weather should hold."""
    key = ["origin", "timestamp"]
    departing = (
        normalised("flights", flights)
        .rename({"time_hour": "timestamp"})
        .group_by(key, maintain_order=True)
        .agg(flights=pl.struct(*FLIGHT))
    )
    observed = (
        normalised("weather", weather).rename({"time_hour": "timestamp"}).select(*key, weather=pl.struct(*WEATHER))
    )
    return departing.join(observed, on=key, how="full", coalesce=True)


def expected_unobserved(flights: pl.DataFrame, weather: pl.DataFrame) -> pl.DataFrame:
    """Compute the hours of flights without weather."""
    key = {"origin": "origin", "timestamp": "time_hour"}
    flown = normalised("flights", flights).select(**key).unique()
    observed = normalised("weather", weather).select(**key)
    return flown.join(observed, on=list(key), how="anti")


def expected_hourly(flights: pl.DataFrame) -> pl.DataFrame:
    """Compute departures and mean delay of each origin and hour that has flights, cancelled ones among them."""
    hour = pl.col("time_hour").dt.truncate("1h")
    return (
        normalised("flights", flights)
        .group_by("origin", window_start=hour)
        .agg(departures=pl.col("dep_delay").count(), total=pl.col("dep_delay").sum())
        .select(
            "origin",
            "window_start",
            (pl.col("window_start") + pl.duration(hours=1)).alias("window_end"),
            "departures",
            pl.when(pl.col("departures") > 0).then(pl.col("total") / pl.col("departures")).alias("mean_delay"),
        )
    )


def held_in_sqlite(database: Path, table: str) -> pl.DataFrame:
    """Read a table from SQLite."""
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return _table(table, connection.execute(_select(table)).fetchall())
    finally:
        connection.close()


def held_in_postgres(dsn: str, table: str) -> pl.DataFrame:
    """Read a table from PostgreSQL."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.execute("SET TIME ZONE 'UTC'")  # NB not by options=, which would replace the DSN's search path
        return _table(table, connection.execute(_select(table)).fetchall())


def held_in_kafka(bootstrap: str, topic: str, keyed: bool = False) -> pl.DataFrame:
    """Read a topic as any consumer with ``read_committed`` does; of each key the last record, where it has keys."""
    records = list(KafkaRecords(bootstrap, topic).new(5.0))
    values = [value for _, value in (dict(records).items() if keyed else records)]
    if not values:
        return pl.DataFrame(schema=dict(COLUMNS[topic]))
    rows = pl.read_ndjson(b"\n".join(value for value in values if value is not None), infer_schema_length=None)
    return rows.select(list(COLUMNS[topic]))


def held_in_files(directory: Path, stream: str) -> pl.DataFrame:
    """Read a directory as any reader of Parquet sees it: the files that are not hidden."""
    files = sorted(path for path in directory.glob("**/*.parquet") if not _is_hidden(path.relative_to(directory)))
    if not files:
        return pl.DataFrame(schema=dict(COLUMNS[stream]))
    return pl.concat([pl.read_parquet(file, columns=list(COLUMNS[stream])) for file in files])


def normalised(stream: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Bring columns to the types of ``COLUMNS``: systems differ in how wide a number is and how an instant is kept."""
    return rows.select(_normalised(rows[name], kind) for name, kind in COLUMNS[stream].items())


def expected(data: Path) -> dict[str, pl.DataFrame]:
    """Compute what every sink should hold, in the order of ``COLUMNS``."""
    flights, weather = expected_flights(data / "flights"), expected_weather(data / "weather")
    return {
        "flights": flights,
        "weather": weather,
        "sets": expected_sets(flights, weather),
        "unobserved": expected_unobserved(flights, weather),
        "hourly": expected_hourly(flights),
    }


def verify(work: Path, postgres: str | None = None, kafka: str | None = None) -> list[Verdict]:
    """Compare every sink of the demo with the raw files, in the order of ``COLUMNS``.

    Parameters
    ----------
    work : Path
        The demo's directory: ``data/`` and the sinks.
    postgres : str, optional
        DSN of the database that holds the tables; else they are in ``flights.db``.
    kafka : str, optional
        Address of the broker whose topics hold the rows.
    """

    def held(stream: str) -> pl.DataFrame:
        if stream in FILES:
            return held_in_files(work / stream, stream)
        if kafka:
            return held_in_kafka(kafka, stream, keyed=stream == "hourly")
        return held_in_postgres(postgres, stream) if postgres else held_in_sqlite(work / "flights.db", stream)

    return [compare(stream, rows, held(stream)) for stream, rows in expected(work / "data").items()]


def _read_raw(directory: Path, numbers: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    files = sorted(directory.glob("*.json"))
    return pl.concat([pl.read_ndjson(file, schema_overrides=numbers, infer_schema_length=None) for file in files])


def _select(table: str) -> str:
    return f"SELECT {', '.join(COLUMNS[table])} FROM {table}"


def _table(table: str, rows: Sequence[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=list(COLUMNS[table]), orient="row", infer_schema_length=None)


def _normalised(column: pl.Series, kind: pl.DataType) -> pl.Series:
    if not isinstance(kind, pl.Datetime):
        return column.cast(kind)
    if column.dtype == pl.String:
        return column.str.replace(" ", "T").str.to_datetime(time_unit="us", time_zone="UTC").dt.replace_time_zone(None)
    if column.dtype.is_integer():  # microseconds of Unix time
        return column.cast(pl.Int64).cast(kind)
    instants = column.dt.convert_time_zone("UTC") if getattr(column.dtype, "time_zone", None) else column
    return instants.dt.replace_time_zone(None).cast(kind)


def _sum(column: pl.Series) -> float:
    values = column.drop_nulls()
    return math.fsum(values.list.len() if isinstance(values.dtype, pl.List) else values)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def main() -> int:
    """Verify what a demo left behind, and say so."""
    parser = argparse.ArgumentParser(prog="python -m demo.verify", description=__doc__)
    parser.add_argument("work", type=Path, nargs="?", default=Path(__file__).parent / "out")
    parser.add_argument("--postgres", metavar="DSN")
    arguments = parser.parse_args()
    verdicts = verify(arguments.work, arguments.postgres)
    for verdict in verdicts:
        print(
            f"{verdict.stream}: expected={verdict.expected} held={verdict.held} "
            f"duplicates={verdict.duplicates} lost={verdict.lost}"
        )
    return 0 if all(verdict.is_exact for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
