"""The demo's verifier must find every kind of wrong: it is what the demo's last line rests on."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demo.verify as of_clone
from demo import data
from holdfast.demo import data as generated
from holdfast.demo import verify
from holdfast.demo.watch import parquet_rows

pytestmark = pytest.mark.slow

FLIGHTS: list[dict[str, Any]] = [
    {"time_hour": "2013-01-01T10:00:00Z", "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR"}
    | {"dest": "IAH", "dep_time": 517, "dep_delay": 2, "arr_delay": 11, "air_time": 227, "distance": 1400},
    {"time_hour": "2013-01-01T11:00:00Z", "carrier": "AA", "flight": 1141, "tailnum": None, "origin": "JFK"}
    | {"dest": "MIA", "dep_time": 600, "dep_delay": 33, "arr_delay": None, "air_time": 160, "distance": 1089},
    {"time_hour": "2013-01-01T12:00:00Z", "carrier": "B6", "flight": 725, "tailnum": "N804JB", "origin": "JFK"}
    | {"dest": "BQN", "dep_time": None, "dep_delay": None, "arr_delay": None, "air_time": None, "distance": 1576},
]
WEATHER: list[dict[str, Any]] = [
    {"time_hour": "2013-01-01T06:00:00Z", "origin": "EWR", "temp": 39.02, "humid": 59.37, "wind_speed": 10.35702}
    | {"precip": 0.0, "visib": 10.0},
    {"time_hour": "2013-01-01T07:00:00Z", "origin": "EWR", "temp": None, "humid": None, "wind_speed": None}
    | {"precip": 0.1, "visib": 0.25},
    {"time_hour": "2013-01-01T10:00:00Z", "origin": "EWR", "temp": 39.02, "humid": 59.37, "wind_speed": 11.5}
    | {"precip": 0.0, "visib": 10.0},
]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A demo's directory whose sinks hold exactly what they should."""
    given = {"flights": FLIGHTS, "weather": WEATHER}
    for stream, lines_of in given.items():
        (tmp_path / "data" / stream).mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in lines_of)
        (tmp_path / "data" / stream / "part-0000.json").write_text(lines)
    for stream, rows in verify.expectation(tmp_path / "data").items():
        if stream in verify.FILES:
            (tmp_path / stream).mkdir()
            write_file(tmp_path / stream / "epoch-1.parquet", [shown(stream, row) for row in rows])
        else:
            write_table(tmp_path, stream, rows)
    return tmp_path


def shown(stream: str, row: verify.Row) -> dict[str, Any]:
    """Return a row as a sink holds it: with names, and instants that are none of ours."""

    def value(name: str, held: Any) -> Any:
        if name in verify.INSTANTS:
            return datetime.fromtimestamp(held / 1e6, UTC)
        if stream == "sets" and name == "flights" and held is not None:
            return [dict(zip(verify.FLIGHT, flight, strict=True)) for flight in held]
        if stream == "sets" and name == "weather" and held is not None:
            return dict(zip(verify.WEATHER, held, strict=True))
        return held

    return {name: value(name, held) for name, held in zip(verify.COLUMNS[stream], row, strict=True)}


def write_file(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_table(work: Path, table: str, rows: list[verify.Row]) -> None:
    columns = verify.COLUMNS[table]
    texts = [
        [value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value for value in each.values()]
        for each in (shown(table, row) for row in rows)
    ]
    with sqlite3.connect(work / "flights.db") as connection:
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", texts)
    connection.close()


def verdict(work: Path, stream: str) -> verify.SinkVerdict:
    return next(verdict for verdict in verify.verify(work) if verdict.stream == stream)


def change(work: Path, statement: str) -> None:
    with sqlite3.connect(work / "flights.db") as connection:
        connection.execute(statement)
    connection.close()


def test_untouched_sinks_are_exact(work: Path) -> None:
    verdicts = verify.verify(work)
    assert all(verdict.is_exact for verdict in verdicts)
    held = {verdict.stream: verdict.held for verdict in verdicts}
    assert held == {"flights": 3, "weather": 3, "sets": 5, "unobserved": 2, "hourly": 3}


def test_a_row_held_twice_is_a_duplicate(work: Path) -> None:
    change(work, "INSERT INTO flights SELECT * FROM flights WHERE carrier = 'UA'")
    flights = verdict(work, "flights")
    assert (flights.duplicates, flights.lost, flights.is_exact) == (1, 0, False)


def test_a_missing_row_is_lost(work: Path) -> None:
    change(work, "DELETE FROM flights WHERE carrier = 'B6'")
    flights = verdict(work, "flights")
    assert (flights.duplicates, flights.lost, flights.is_exact) == (0, 1, False)


def test_one_row_twice_and_another_missing_do_not_cancel_out(work: Path) -> None:
    change(work, "DELETE FROM flights WHERE carrier = 'B6'")
    change(work, "INSERT INTO flights SELECT * FROM flights WHERE carrier = 'UA'")
    flights = verdict(work, "flights")
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
    flights = verdict(work, "flights")
    assert (flights.duplicates, flights.lost, flights.is_exact) == (1, 1, False)


def test_instants_as_microseconds_equal_instants_as_text(work: Path) -> None:
    change(work, "UPDATE flights SET time_hour = CAST(strftime('%s', time_hour) AS INTEGER) * 1000000")
    assert verdict(work, "flights").is_exact


def test_a_doubled_parquet_file_is_found(work: Path) -> None:
    (work / "weather" / "epoch-2.parquet").write_bytes((work / "weather" / "epoch-1.parquet").read_bytes())
    weather = verdict(work, "weather")
    assert (weather.duplicates, weather.lost, weather.is_exact) == (3, 0, False)


def test_hidden_parquet_files_are_not_rows(work: Path) -> None:
    staging = work / "weather" / "_holdfast" / "staging"
    staging.mkdir(parents=True)
    (staging / "epoch-2.parquet").write_bytes((work / "weather" / "epoch-1.parquet").read_bytes())
    assert verdict(work, "weather").is_exact


def test_an_empty_sink_has_lost_everything(work: Path) -> None:
    (work / "weather" / "epoch-1.parquet").unlink()
    weather = verdict(work, "weather")
    assert (weather.held, weather.lost, weather.is_exact) == (0, 3, False)


def tamper(work: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> verify.SinkVerdict:
    file = work / "sets" / "epoch-1.parquet"
    rows = pq.read_table(file).to_pylist()
    write_file(file, [row | change(row) for row in rows])
    return verdict(work, "sets")


def test_flights_in_sets_are_counted_and_hidden_files_are_not(work: Path) -> None:
    hidden = work / "sets" / "_holdfast" / "epoch-2.parquet"
    hidden.parent.mkdir()
    hidden.write_bytes((work / "sets" / "epoch-1.parquet").read_bytes())
    assert (parquet_rows(work / "sets")(), parquet_rows(work / "sets", in_lists_of="flights")()) == (5, 3)
    assert parquet_rows(work / "nothing", in_lists_of="flights")() == 0


def test_counting_bears_hidden_directories_that_come_and_go(work: Path) -> None:
    """A staging directory is removed when its epoch is published, also while somebody lists it."""
    staging = work / "sets" / "_holdfast" / "staging"
    ends = threading.Event()

    def stage() -> None:
        while not ends.is_set():
            for number in range(20):
                (staging / str(number) / "deep").mkdir(parents=True, exist_ok=True)
            shutil.rmtree(staging)

    stager = threading.Thread(target=stage)
    stager.start()
    try:
        count = parquet_rows(work / "sets")
        assert {count() for _ in range(300)} == {5}
    finally:
        ends.set()
        stager.join()


def test_sets_hold_what_was_known_of_the_hour(work: Path) -> None:
    sets = verify.expectation(work / "data")["sets"]
    rows = [shown("sets", row) for row in sets]
    found = {(row["origin"], row["timestamp"].hour): row for row in rows}
    assert found["EWR", 6]["flights"] is None
    assert found["JFK", 11]["weather"] is None
    assert [flight["carrier"] for flight in found["EWR", 10]["flights"]] == ["UA"]
    assert found["EWR", 10]["weather"]["wind_speed"] == 11.5


def test_one_flight_of_a_set_that_is_gone_is_found(work: Path) -> None:
    changed = tamper(work, lambda row: {"flights": row["flights"] and row["flights"][1:]})
    assert (changed.held, changed.duplicates, changed.lost) == (5, 3, 3)
    assert [(each.column, each.expected, each.held) for each in changed.sums] == [("flights", 3, 0)]


def test_a_set_without_its_weather_is_found(work: Path) -> None:
    changed = tamper(work, lambda row: {"weather": row["weather"] if row["flights"] is None else None})
    assert (changed.duplicates, changed.lost, changed.is_exact) == (1, 1, False)


def test_no_weather_is_not_the_same_as_weather_of_which_nothing_is_known(work: Path) -> None:
    nothing = dict.fromkeys(verify.WEATHER)
    changed = tamper(work, lambda row: {"weather": row["weather"] or nothing})
    assert (changed.duplicates, changed.lost, changed.is_exact) == (2, 2, False)


def test_flights_of_a_set_in_another_order_are_found(work: Path) -> None:
    flights = verify.expected_flights(work / "data" / "flights")
    flights += [(*flight[:2], "AA", *flight[3:]) for flight in flights if flight[2] == "UA"]
    weather = verify.expected_weather(work / "data" / "weather")
    expected = verify.expected_sets(flights, weather)
    held = [(*key, flown and flown[::-1], known) for *key, flown, known in expected]
    assert verify.compare("sets", expected, expected).is_exact
    assert not verify.compare("sets", expected, held).is_exact


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE hourly SET departures = departures + 1 WHERE origin = 'EWR'",
        "UPDATE hourly SET mean_delay = mean_delay + 1e-9 WHERE origin = 'EWR'",
        "UPDATE hourly SET mean_delay = 0 WHERE mean_delay IS NULL",
        "UPDATE hourly SET window_end = window_start WHERE origin = 'EWR'",
    ],
)
def test_a_changed_hour_is_found(work: Path, statement: str) -> None:
    change(work, statement)
    hourly = verdict(work, "hourly")
    assert (hourly.duplicates, hourly.lost, hourly.is_exact) == (1, 1, False)


def test_an_hour_of_cancelled_flights_alone_has_no_departures_and_no_mean(work: Path) -> None:
    hourly = sorted(verify.expectation(work / "data")["hourly"], key=lambda row: row[1])
    assert [(origin, departures, mean) for origin, _, _, departures, mean in hourly] == [
        ("EWR", 1, 2.0),
        ("JFK", 1, 33.0),
        ("JFK", 0, None),
    ]


def test_the_command_fails_for_a_tampered_sink(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["verify", str(work)])
    assert of_clone.main() == 0
    change(work, "DELETE FROM flights WHERE carrier = 'B6'")
    assert of_clone.main() == 1
    assert "flights: expected=3 held=2 duplicates=0 lost=1" in capsys.readouterr().out


def test_the_package_of_the_flights_is_read_as_it_is_installed() -> None:
    weather = data.table("weather.csv")
    assert len(weather) == 26_115
    assert {"time_hour", "carrier", *data.WHOLE_NUMBERS} <= set(data.table("flights.csv.zip").columns)
    assert None in [row["wind_gust"] for row in data.rows(weather)], "what is missing is null, and not NaN"


def test_files_of_another_cut_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"carrier": ["UA"], "flight": [1], "origin": ["EWR"]} | {name: [None] for name in data.WHOLE_NUMBERS}
    table = pandas.DataFrame({"time_hour": ["2013-01-01T10:00:00Z"], **given})
    monkeypatch.setattr(data, "table", lambda name: table)
    for count in (3, 2):
        for stream in data.prepare(tmp_path / "data", {"flights": count, "weather": 1}):
            assert len(list(stream.iterdir())) == (count if stream.name == "flights" else 1)


def test_a_stream_is_cut_into_files_without_losing_a_row(tmp_path: Path) -> None:
    generated.write_stream([{"number": number} for number in range(101)], tmp_path, 7)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"part-{number:04}.json" for number in range(7)]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [line["number"] for line in lines] == list(range(101))


def test_generated_rows_are_the_same_each_time_and_have_what_is_hard(tmp_path: Path) -> None:
    counts = {"flights": 3, "weather": 2}
    for place in ("one", "other"):
        generated.generate(tmp_path / place, counts, days=40)
    texts = [[file.read_text() for file in sorted((tmp_path / place).rglob("*.json"))] for place in ("one", "other")]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 5
    rows = verify.expectation(tmp_path / "one")
    assert all(rows.values()), "each sink gets rows"
    assert len({row[:2] for row in rows["weather"]}) == len(rows["weather"]), "one row of weather an hour"
    assert any(row[-1] for row in rows["flights"]), "flights were cancelled"
    assert any(row[4] == "unknown" for row in rows["flights"])
    for stream in ("flights", "weather"):
        assert rows[stream] == sorted(rows[stream], key=lambda row: row[0]), "in time order"


def test_the_generated_files_of_an_earlier_demo_are_kept(tmp_path: Path) -> None:
    generated.generate(tmp_path, {"flights": 1, "weather": 1}, days=1)
    (file,) = (tmp_path / "flights").iterdir()
    file.write_text("kept")
    generated.generate(tmp_path, {"flights": 1, "weather": 1}, days=1)
    assert file.read_text() == "kept"
