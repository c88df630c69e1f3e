"""The demo's pipeline, driven without Spark over a day's rows, gives what the verifier computes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.demo import verify
from holdfast.graph.nodes import Stream
from holdfast.testing import close, drive

PIPELINE = Path(verify.__file__).with_name("pipeline.py")
FLIGHTS = [("EWR", 10, 4), ("EWR", 10, None), ("JFK", 10, -3), ("JFK", 11, None), ("EWR", 12, 61), ("EWR", 12, 2)]
"""Origin, hour, delay of the departure; None: cancelled."""
WEATHER = [("EWR", 9), ("JFK", 10), ("EWR", 10), ("JFK", 11)]


def flight(origin: str, hour: int, delay: int | None) -> dict[str, Any]:
    row = {"time_hour": f"2013-01-01T{hour}:00:00Z", "carrier": "UA", "flight": hour, "tailnum": None, "origin": origin}
    delays = dict.fromkeys(("dep_time", "dep_delay", "arr_delay"), delay)
    return row | delays | {"dest": "IAH", "air_time": 227, "distance": 1400}


def weather(origin: str, hour: int) -> dict[str, Any]:
    row = {"time_hour": f"2013-01-01T{hour:02}:00:00Z", "origin": origin, "temp": 39.02, "humid": 59.37}
    return row | {"wind_speed": 10.35702, "precip": 0.0, "visib": 10.0}


def load() -> ModuleType:
    specification = importlib.util.spec_from_file_location("demo_pipeline", PIPELINE)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, list[verify.Row]]:
    """What the verifier computes from the rows as files."""
    rows = {"flights": [flight(*one) for one in FLIGHTS], "weather": [weather(*one) for one in WEATHER]}
    for stream, raw in rows.items():
        (tmp_path / stream).mkdir()
        (tmp_path / stream / "part-0000.json").write_text("".join(json.dumps(row) + "\n" for row in raw))
    return verify.expectation(tmp_path)


def given(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"time_hour": datetime.fromisoformat(row["time_hour"])} for row in rows]


def epochs(
    stream: Stream, weather_lag: int, reads: Sequence[str] = ("flights", "weather")
) -> list[list[dict[str, Any]]]:
    """Drive a stream with two flights in each epoch, and the weather so many epochs behind."""
    flights = given([flight(*one) for one in FLIGHTS])
    observed = given([weather(*one) for one in WEATHER])
    nothing: list[list[dict[str, Any]]] = [[]] * weather_lag
    sources = {
        "flights": [flights[:2], flights[2:4], [*flights[4:], close()]],
        "weather": [*nothing, observed[:2], [*observed[2:], close()]],
    }
    return drive(stream, {name: sources[name] for name in reads})


def table(stream: str, rows: list[dict[str, Any]]) -> list[verify.Row]:
    return verify.normal_rows(stream, [[row[name] for name in verify.COLUMNS[stream]] for row in rows])


@pytest.mark.slow
@pytest.mark.parametrize("weather_lag", [0, 1, 4])
def test_sets_are_those_of_the_verifier_however_far_the_weather_is_behind(
    expected: dict[str, list[verify.Row]], weather_lag: int
) -> None:
    module = load()
    sets = [row for epoch in epochs(module.aligned, weather_lag) for row in epoch]
    assert verify.compare("sets", expected["sets"], table("sets", sets)).is_exact
    assert len(sets) == 5
    gaps = [row for epoch in epochs(module.unobserved, weather_lag) for row in epoch]
    assert verify.compare("unobserved", expected["unobserved"], table("unobserved", gaps)).is_exact
    assert [(row["origin"], row["timestamp"].hour) for row in gaps] == [("EWR", 12)]
    assert not any(epochs(module.aligned.late, weather_lag)), "the files keep what timestamps= promises"


@pytest.mark.slow
def test_the_last_row_of_each_hour_is_that_of_the_verifier(expected: dict[str, list[verify.Row]]) -> None:
    changes = [row for epoch in epochs(load().hourly, 0, reads=["flights"]) for row in epoch]
    last = {(row["origin"], row["window_start"]): row for row in changes}
    assert verify.compare("hourly", expected["hourly"], table("hourly", [*last.values()])).is_exact
    assert [row["mean_delay"] for row in last.values()] == [4.0, -3.0, None, 31.5]
