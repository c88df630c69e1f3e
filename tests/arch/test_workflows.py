"""The workflows name what exists: targets, versions, groups of tests, reports; and the templates ask what is needed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.run_tests import GROUPS, REPORT

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
EVERY_WORKFLOW = pytest.mark.parametrize("name", WORKFLOWS)
JAVAS = ["17", "21"]


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = WORKFLOWS[name]["jobs"]
    return found


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in jobs(name).values():
        yield from job["steps"]


def pythons() -> list[str]:
    """Return the versions that the package says it is for."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text) for text in PROJECT["classifiers"]]
    return [version[1] for version in found if version]


@EVERY_WORKFLOW
def test_every_target_of_make_exists(name: str) -> None:
    named = [target for step in steps(name) for target in re.findall(r"\bmake ([a-z]+)", step.get("run", ""))]
    assert named
    assert set(named) <= TARGETS


def test_the_quick_tests_run_with_every_python_that_the_package_is_for_and_each_java() -> None:
    matrix = jobs("ci")["check"]["strategy"]["matrix"]
    assert matrix == {"python": pythons(), "java": JAVAS}
    assert PROJECT["requires-python"] == f">={pythons()[0]}"


def test_all_tests_run_with_the_oldest_and_the_newest_of_both() -> None:
    chosen = [(one["python"], one["java"]) for one in jobs("ci")["test"]["strategy"]["matrix"]["include"]]
    assert {(pythons()[0], JAVAS[0]), (pythons()[-1], JAVAS[-1])} <= set(chosen)
    assert all(python in pythons() and java in JAVAS for python, java in chosen)


def test_contributing_says_what_is_tested_where() -> None:
    rows = dict(re.findall(r"^\| push, pull request \| `make ([a-z]+)` \| (.*) \|$", CONTRIBUTING, re.MULTILINE))
    assert [*rows] == [*jobs("ci")]
    assert re.findall(r"[\d.]+", rows["check"]) == [*pythons(), *JAVAS]
    named = re.findall(r"Python ([\d.]+)(?: and ([\d.]+))? with Java (\d+)", rows["test"])
    chosen = {(one["python"], one["java"]) for one in jobs("ci")["test"]["strategy"]["matrix"]["include"]}
    assert {(python, java) for *of, java in named for python in of if python} == chosen


@pytest.mark.parametrize("job", ["check", "test"])
def test_where_a_server_has_no_wheel_it_comes_from_the_system(job: str) -> None:
    """Most tests of Redis would be skipped there, and nobody would miss them."""
    assert any("install --yes redis-server" in step.get("run", "") for step in jobs("ci")[job]["steps"])


@EVERY_WORKFLOW
def test_an_action_has_one_exact_version(name: str) -> None:
    used = {step["uses"] for of in WORKFLOWS for step in steps(of) if "uses" in step}
    assert [action for action in used if not re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", action)] == []
    assert len({action.split("@")[0] for action in used}) == len(used), "one action, one version"


@EVERY_WORKFLOW
def test_a_workflow_may_only_read(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in jobs(name).values())


@EVERY_WORKFLOW
def test_what_somebody_typed_is_no_part_of_a_command(name: str) -> None:
    """It comes by the environment: a name of a branch, or an input, could be a command."""
    assert [step["run"] for step in steps(name) if "${{" in step.get("run", "")] == []


def uploads(name: str, job: str) -> list[str]:
    found = [step for step in jobs(name)[job]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert all(step["if"] == "always()" for step in found), "a report of a failure is wanted most"
    return [step["with"]["path"] for step in found]


@pytest.mark.parametrize("job", ["check", "test"])
def test_the_report_of_the_tests_is_kept(job: str) -> None:
    assert uploads("ci", job) == [REPORT.relative_to(ROOT).as_posix()]


def test_the_report_of_a_night_is_kept() -> None:
    (path,) = uploads("nightly", "nightly")
    assert f"--report {path} " in MAKEFILE


def test_the_jobs_of_a_night_are_all_groups_of_make_nightly() -> None:
    parts = [one["groups"] for one in jobs("nightly")["nightly"]["strategy"]["matrix"]["include"]]
    (whole,) = re.findall(r"^TESTS \?= (.*)$", MAKEFILE, re.MULTILINE)
    assert " ".join(parts) == whole
    assert {group for part in parts for group in re.split(r"[ +]", part)} <= set(GROUPS)


def test_a_night_has_a_schedule_and_a_seed_and_passes_it_on() -> None:
    begun_by = WORKFLOWS["nightly"][True]  # "on", which YAML reads so
    assert begun_by["schedule"][0]["cron"]
    assert "seed" in begun_by["workflow_dispatch"]["inputs"]
    (run,) = [step for step in steps("nightly") if "make nightly" in step.get("run", "")]
    assert "inputs.seed" in run["env"]["ASKED"]
    assert 'SEED="${ASKED:-' in run["run"]
    assert "HOLDFAST_FIRST_SEED=$(SEED)" in MAKEFILE


# --- what is asked of those who report ------------------------------------------------------------------------------

TEMPLATES = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
KINDS = {"markdown", "input", "textarea", "dropdown", "checkboxes"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_is_a_form(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    assert {field["type"] for field in form["body"]} <= KINDS
    asked = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(asked) == len({*asked}) > 0


def test_a_bug_is_reported_with_version_inspection_and_how_it_died() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())
    fields = {field["id"]: field for field in form["body"] if "id" in field}
    required = {name for name, field in fields.items() if field.get("validations", {}).get("required")}
    assert {"version", "inspect", "killed"} <= required
    assert "holdfast --version" in fields["version"]["attributes"]["description"]
    assert "holdfast inspect" in fields["inspect"]["attributes"]["label"]
    assert len(fields["killed"]["attributes"]["options"]) > 5


def test_a_pull_request_says_the_same() -> None:
    text = (ROOT / ".github/pull_request_template.md").read_text()
    assert "holdfast --version" in text
    assert "holdfast inspect" in text
    assert "killed" in text
