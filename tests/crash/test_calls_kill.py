"""A pipeline that asks a service is killed: each row has its answer once, and no recorded answer is asked for again.

The service runs in the process of the test and counts what it is asked (design/0051).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.asked_service import AskedService
from tests.crash.lives import MODES, Lives
from tests.spark.running import sqlite_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FILES, ROWS_PER_FILE = 4, 100
ROWS = FILES * ROWS_PER_FILE
IN_FLIGHT = 8


def write_numbers(work: Path) -> None:
    (work / "in").mkdir()
    for file in range(FILES):
        lines = [json.dumps({"n": file * ROWS_PER_FILE + row}) for row in range(ROWS_PER_FILE)]
        (work / "in" / f"{file}.json").write_text("\n".join(lines) + "\n")


def lives_of(work: Path, service: AskedService, mode: str) -> Lives:
    write_numbers(work)
    variables = {**MODES[mode], "CRASH_SERVICE": str(service.port), "CRASH_CONCURRENCY": str(IN_FLIGHT)}
    return Lives(work, "calls_pipeline", variables)


def check(lives: Lives) -> None:
    assert lives.end() == 0, lives.said()
    rows = sqlite_rows(lives.work / "out.db", "SELECT n, twice FROM rows ORDER BY n")
    assert rows == [(number, 2 * number) for number in range(ROWS)]


def test_a_replay_of_an_epoch_whose_answers_are_recorded_asks_nothing(tmp_path: Path) -> None:
    with AskedService() as service:
        lives = lives_of(tmp_path, service, "carried")
        lives.die("after-stage:2")
        lives.wait_for_survivors()
        assert sum(service.asked.values()) == ROWS
        check(lives)
    assert service.asked == dict.fromkeys(range(ROWS), 1)


@pytest.mark.parametrize(
    ("mode", "processes", "deaths"),
    [
        pytest.param("carried", 1, (130,), id="carried"),
        pytest.param("carried", 1, (30, 180, 290), id="carried-thrice", marks=pytest.mark.nightly),
        pytest.param("staged", 2, (30, 180, 290), id="staged-thrice", marks=pytest.mark.nightly),
    ],
)
def test_only_calls_in_flight_at_a_death_are_made_twice(
    tmp_path: Path, mode: str, processes: int, deaths: tuple[int, ...]
) -> None:
    with AskedService(0.02) as service:
        lives = lives_of(tmp_path, service, mode)
        for goal in deaths:
            lives.die_when(lambda goal=goal: len(service.asked) >= goal, f"call {goal}")
            lives.wait_for_survivors()
        check(lives)
    assert lives.missed == []
    assert set(service.asked) == set(range(ROWS))
    over = sum(service.asked.values()) - ROWS
    assert over <= len(deaths) * processes * IN_FLIGHT
    assert service.in_flight_max <= processes * IN_FLIGHT
