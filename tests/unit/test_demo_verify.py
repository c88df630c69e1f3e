"""The demo's verifier must find every kind of wrong: it is what the demo's last line rests on."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import polars as pl
import pytest

from demo import data, verify

FLIGHTS = [
    {"time_hour": "2013-01-01T10:00:00Z", "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR"}
    | {"dest": "IAH", "dep_time": 517, "dep_delay": 2, "arr_delay": 11, "air_time": 227, "distance": 1400},
    {"time_hour": "2013-01-01T11:00:00Z", "carrier": "AA", "flight": 1141, "tailnum": None, "origin": "JFK"}
    | {"dest": "MIA", "dep_time": 600, "dep_delay": 33, "arr_delay": None, "air_time": 160, "distance": 1089},
    {"time_hour": "2013-01-01T12:00:00Z", "carrier": "B6", "flight": 725, "tailnum": "N804JB", "origin": "JFK"}
    | {"dest": "BQN", "dep_time": None, "dep_delay": None, "arr_delay": None, "air_time": None, "distance": 1576},
]
WEATHER = [
    {"time_hour": "2013-01-01T06:00:00Z", "origin": "EWR", "temp": 39.02, "humid": 59.37, "wind_speed": 10.35702}
    | {"precip": 0.0, "visib": 10.0},
    {"time_hour": "2013-01-01T07:00:00Z", "origin": "EWR", "temp": None, "humid": None, "wind_speed": None}
    | {"precip": 0.1, "visib": 0.25},
]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A demo's directory whose sinks hold exactly what they should."""
    for stream, rows in (("flights", FLIGHTS), ("weather", WEATHER)):
        (tmp_path / "data" / stream).mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "data" / stream / "part-0000.json").write_text(lines)
    write_flights(tmp_path, verify.expected_flights(tmp_path / "data" / "flights"))
    (tmp_path / "weather").mkdir()
    weather = verify.expected_weather(tmp_path / "data" / "weather")
    verify.normalised("weather", weather).write_parquet(tmp_path / "weather" / "epoch-1.parquet")
    return tmp_path


def write_flights(work: Path, rows: pl.DataFrame) -> None:
    columns = list(verify.COLUMNS["flights"])
    with sqlite3.connect(work / "flights.db") as connection:
        connection.execute(f"CREATE TABLE flights ({', '.join(columns)})")
        connection.executemany(f"INSERT INTO flights VALUES ({', '.join('?' * len(columns))})", rows.rows())
    connection.close()


def change(work: Path, statement: str) -> None:
    with sqlite3.connect(work / "flights.db") as connection:
        connection.execute(statement)
    connection.close()


def test_untouched_sinks_are_exact(work: Path) -> None:
    flights, weather = verify.verify(work)
    assert flights.is_exact
    assert weather.is_exact
    assert (flights.held, weather.held) == (3, 2)


def test_a_row_held_twice_is_a_duplicate(work: Path) -> None:
    change(work, "INSERT INTO flights SELECT * FROM flights WHERE carrier = 'UA'")
    flights, _ = verify.verify(work)
    assert (flights.duplicates, flights.lost, flights.is_exact) == (1, 0, False)


def test_a_missing_row_is_lost(work: Path) -> None:
    change(work, "DELETE FROM flights WHERE carrier = 'B6'")
    flights, _ = verify.verify(work)
    assert (flights.duplicates, flights.lost, flights.is_exact) == (0, 1, False)


def test_one_row_twice_and_another_missing_do_not_cancel_out(work: Path) -> None:
    change(work, "DELETE FROM flights WHERE carrier = 'B6'")
    change(work, "INSERT INTO flights SELECT * FROM flights WHERE carrier = 'UA'")
    flights, _ = verify.verify(work)
    assert flights.held == flights.expected
    assert (flights.duplicates, flights.lost, flights.is_exact) == (1, 1, False)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE flights SET distance = distance + 1 WHERE carrier = 'UA'",
        "UPDATE flights SET speed_mph = speed_mph + 1e-9 WHERE carrier = 'UA'",
        "UPDATE flights SET dep_delay = 0 WHERE dep_delay IS NULL",
        "UPDATE flights SET time_hour = '2013-01-01T10:00:01Z' WHERE carrier = 'UA'",
        "UPDATE flights SET is_late = 1 - is_late WHERE carrier = 'UA'",
        "UPDATE flights SET tailnum = NULL WHERE carrier = 'AA'",
    ],
)
def test_a_changed_value_is_found(work: Path, statement: str) -> None:
    change(work, statement)
    flights, _ = verify.verify(work)
    assert (flights.duplicates, flights.lost, flights.is_exact) == (1, 1, False)


def test_instants_as_microseconds_equal_instants_as_text(work: Path) -> None:
    change(work, "UPDATE flights SET time_hour = CAST(strftime('%s', time_hour) AS INTEGER) * 1000000")
    assert verify.verify(work)[0].is_exact


def test_a_doubled_parquet_file_is_found(work: Path) -> None:
    (work / "weather" / "epoch-2.parquet").write_bytes((work / "weather" / "epoch-1.parquet").read_bytes())
    _, weather = verify.verify(work)
    assert (weather.duplicates, weather.lost, weather.is_exact) == (2, 0, False)


def test_hidden_parquet_files_are_not_rows(work: Path) -> None:
    staging = work / "weather" / "_holdfast" / "staging"
    staging.mkdir(parents=True)
    (staging / "epoch-2.parquet").write_bytes((work / "weather" / "epoch-1.parquet").read_bytes())
    assert verify.verify(work)[1].is_exact


def test_an_empty_sink_has_lost_everything(work: Path) -> None:
    (work / "weather" / "epoch-1.parquet").unlink()
    _, weather = verify.verify(work)
    assert (weather.held, weather.lost, weather.is_exact) == (0, 2, False)


def test_the_command_fails_for_a_tampered_sink(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["verify", str(work)])
    assert verify.main() == 0
    change(work, "DELETE FROM flights WHERE carrier = 'B6'")
    assert verify.main() == 1
    assert "flights: expected=3 held=2 duplicates=0 lost=1" in capsys.readouterr().out


def test_a_stream_is_cut_into_files_without_losing_a_row(tmp_path: Path) -> None:
    rows = pl.DataFrame({"number": range(101)})
    data.write_stream(rows, tmp_path, 7)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"part-{number:04}.json" for number in range(7)]
    assert pl.concat([pl.read_ndjson(file) for file in files])["number"].to_list() == list(range(101))
