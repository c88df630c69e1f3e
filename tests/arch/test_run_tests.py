"""The tests are run with seeds that are reported, and the report says what was tried even when a group dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import everyday
from tools import run_tests
from tools.run_tests import Result, main

UNIT = Result("unit", 0, "=== 30 passed, 2 skipped, 5 deselected, 1 warning in 4.50s ===")
FAST = Result("fast", 1, "=== 1 failed, 2 errors, 9 passed in 61.25s (0:01:01) ===")
DEAD = Result("slow", 9, "no closing line: pytest ended with exit code 9")


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "new" / "report.json"


def with_results(monkeypatch: pytest.MonkeyPatch, *results: Result) -> list[int]:
    """Let groups end so; returns the seeds that they were run with."""
    of, seeds = {result.group: result for result in results}, []

    def run(groups: list[str], seed: int, files: list[str]) -> list[Result]:
        seeds.append(seed)
        return [of[group] for group in groups]

    monkeypatch.setattr(run_tests, "run", run)
    monkeypatch.setattr(run_tests, "commit", lambda: "1f2e")
    return seeds


def read(report: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_the_report_has_cases_and_seconds_of_every_group(monkeypatch: pytest.MonkeyPatch, report: Path) -> None:
    with_results(monkeypatch, UNIT, FAST)
    assert main(["--report", str(report), "unit+fast"]) == 1
    found = read(report)
    assert found["commit"] == "1f2e"
    assert found["cases"] == 44
    assert found["is_good"] is False
    assert found["groups"]["unit"] == {
        "cases": 32,
        "outcomes": {"passed": 30, "skipped": 2},
        "seconds": 4.5,
        "closing_line": "30 passed, 2 skipped, 5 deselected, 1 warning in 4.50s",
    }
    assert found["groups"]["fast"]["outcomes"] == {"failed": 1, "passed": 9, "error": 2}


def test_a_group_that_dies_without_a_word_is_in_the_report_and_is_not_good(
    monkeypatch: pytest.MonkeyPatch, report: Path
) -> None:
    with_results(monkeypatch, UNIT, DEAD)
    assert main(["--report", str(report), "unit", "slow"]) == 1
    found = read(report)
    assert found["is_good"] is False
    assert found["groups"]["slow"] == {
        "cases": 0,
        "outcomes": {},
        "seconds": None,
        "closing_line": DEAD.closing_line,
    }


def test_after_each_group_the_report_has_what_was_tried_so_far(monkeypatch: pytest.MonkeyPatch, report: Path) -> None:
    with_results(monkeypatch, UNIT)  # and no other: the next one ends the process
    with pytest.raises(KeyError):
        main(["--report", str(report), "unit", "fast"])
    assert [*read(report)["groups"]] == ["unit"]
    assert [path.name for path in report.parent.iterdir()] == ["report.json"]


def test_the_seed_that_was_asked_for_is_used_and_reported_with_the_extent(
    monkeypatch: pytest.MonkeyPatch, report: Path
) -> None:
    seeds = with_results(monkeypatch, UNIT, FAST)
    monkeypatch.setenv("HOLDFAST_FIRST_SEED", "70000")
    monkeypatch.setenv("HOLDFAST_JVM_KILLS", "30")
    main(["--report", str(report), "unit", "fast"])
    assert seeds == [70000, 70000]
    assert read(report)["seed_of_examples"] == 70000
    assert read(report)["extent"] == {"HOLDFAST_FIRST_SEED": "70000", "HOLDFAST_JVM_KILLS": "30"}


def test_without_one_each_run_draws_its_own_and_reports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = with_results(monkeypatch, UNIT)
    monkeypatch.delenv("HOLDFAST_FIRST_SEED", raising=False)
    reports = [tmp_path / "1", tmp_path / "2"]
    for report in reports:
        main(["--report", str(report), "unit"])
    assert [read(report)["seed_of_examples"] for report in reports] == seeds
    assert len({*seeds}) == 2


def test_what_may_hold_a_password_is_not_reported(monkeypatch: pytest.MonkeyPatch, report: Path) -> None:
    with_results(monkeypatch, UNIT)
    monkeypatch.setenv("HOLDFAST_POSTGRES", "postgresql://app:hunter2@db/trips")
    main(["--report", str(report), "unit"])
    assert "hunter2" not in report.read_text()


@pytest.mark.parametrize("arguments", [[], ["units"]])
def test_without_a_group_that_exists_nothing_is_run_or_reported(arguments: list[str], report: Path) -> None:
    assert main(["--report", str(report), *arguments]) == 2
    assert not report.exists()


def test_hypothesis_goes_by_the_seed_that_it_is_given_also_where_it_sees_ci() -> None:
    """What it inherits with CI in the environment would try the same examples every night."""
    assert settings.get_profile("holdfast").derandomize is False


def test_other_seeds_of_a_night_are_other_lives_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everyday, "FIRST_SEED", 70_000)
    monkeypatch.setattr(everyday, "SEEDS", 103)
    assert everyday.seeds(3) == range(70_000, 70_003)
    assert [seed for part in range(10) for seed in everyday.part_of_seeds(part, 10)] == [*range(70_000, 70_103)]


@pytest.mark.parametrize(
    ("replayed", "first", "expected"), [("5", 70_000, 5), ("0", 70_000, 0), (None, 70_000, 70_000), (None, 0, 1)]
)
def test_the_seed_of_kills_is_the_one_that_is_replayed_or_that_of_the_night_or_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, replayed: str | None, first: int, expected: int
) -> None:
    monkeypatch.setattr(everyday, "FIRST_SEED", first)
    monkeypatch.delenv("HOLDFAST_SEED", raising=False)
    if replayed is not None:
        monkeypatch.setenv("HOLDFAST_SEED", replayed)
    assert everyday.seed_of_kills(1) == expected
