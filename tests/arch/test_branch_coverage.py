"""A room below its floor of branch coverage fails ``make coverage``, and so does one that nobody measured."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tools.branch_coverage import ROOT, SOURCE, floors, main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLOORS = floors(PROJECT)


def report(path: Path, **percents: float) -> str:
    """Write what ``coverage json`` would of rooms with two modules each, the second one without a branch taken."""
    files = {}
    for room, percent in percents.items():
        for name, taken in (("a", round(2000 * percent / 100)), ("b/c", 0)):
            files[f"{SOURCE}/{room}/{name}.py"] = {"summary": {"covered_branches": taken, "num_branches": 1000}}
    path.write_text(json.dumps({"files": files}))
    return str(path)


def test_rooms_at_their_floors_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([report(tmp_path / "r", **FLOORS)]) == 0
    shown = capsys.readouterr().out
    assert all(f"{room}/" in shown and f"at least {floor} %" in shown for room, floor in FLOORS.items())


@pytest.mark.parametrize("room", FLOORS)
def test_one_room_below_its_floor_fails(room: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([report(tmp_path / "r", **FLOORS | {room: FLOORS[room] - 0.1})]) == 1
    assert [line.split("/")[0].strip() for line in capsys.readouterr().out.splitlines() if "too few" in line] == [room]


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_that_was_not_measured_fails(room: str, tmp_path: Path) -> None:
    assert main([report(tmp_path / "r", **{name: 100 for name in FLOORS if name != room})]) == 1


def test_the_rooms_with_a_floor_are_those_that_are_measured_and_exist() -> None:
    measured = PROJECT["tool"]["coverage"]["run"]["source"]
    assert measured == [f"{SOURCE}/{room}" for room in FLOORS]
    assert all(any((ROOT / room).rglob("*.py")) for room in measured)
