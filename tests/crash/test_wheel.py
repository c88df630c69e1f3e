"""The first five minutes of a user: an environment with the wheel alone, and no clone (design/0050, section 8)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from tests import extras

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

USER = """
from typing import assert_type
import holdfast as hf
from holdfast.testing import kill_run

rides = hf.read.files("in", schema="ride BIGINT", name="rides")
long_rides = rides | hf.filter("ride > 1", name="long_rides")
assert_type(rides, hf.Stream)
assert_type(long_rides, hf.Stream)
pipeline = hf.Pipeline("trips", long_rides | hf.write.sqlite("trips.db", table="trips"))
assert_type(pipeline, hf.Pipeline)
kill_run("pipeline.py", checkpoint="ckpt", at="after-stage")
"""
WRONG = 'import holdfast as hf\n\nhf.read.files(7, schema="ride BIGINT", name="rides")\n'


class Environment:
    """A virtual environment, in a directory that no clone is near."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.work = home / "work"
        self.work.mkdir()
        self.seconds: dict[str, float] = {}

    def variables(self) -> dict[str, str]:
        """Return a user's environment: the path of this one first, nothing of Holdfast's or of the clone."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PY", "SPARK"))}
        bin_ = self.home / "venv/bin"
        return kept | {"PATH": f"{bin_}:{os.environ['PATH']}", "VIRTUAL_ENV": str(self.home / "venv")}

    def run(self, *command: str | Path, fails: bool = False, cwd: Path | None = None) -> str:
        """Run a command and note its seconds; return what it says."""
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=cwd or self.work,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1200,
            check=False,
        )
        self.seconds[" ".join(Path(part).name for part in command[:2])] = round(time.monotonic() - began, 1)
        assert (done.returncode != 0) is fails, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with the built wheel, installed as a user does."""
    home = tmp_path_factory.mktemp("user")
    subprocess.run([sys.executable, "-m", "tools.dist", str(home / "dist")], cwd=ROOT, check=True, capture_output=True)
    environment = Environment(home)
    environment.run(UV, "venv", "--seed", "--python", sys.executable, home / "venv")
    (wheel,) = (home / "dist").glob("*.whl")
    environment.run("pip", "install", "--quiet", wheel)
    yield environment
    shutil.rmtree(home, ignore_errors=True)


def test_it_says_its_version_and_comes_from_nowhere_else(clean: Environment) -> None:
    assert clean.run("holdfast", "--version").strip() == f"holdfast {hf.__version__}"
    assert str(clean.home) in clean.run("python", "-c", "import holdfast; print(holdfast.__file__)")


def test_the_doctor_finds_it_well(clean: Environment) -> None:
    told = clean.run("holdfast", "doctor")
    assert not re.search(r"^fail", told, re.MULTILINE), told
    assert re.search(r"^ok +clients .*not installed: .*postgres", told, re.MULTILINE), told


def test_each_extra_that_is_missing_says_how_to_install_it(clean: Environment) -> None:
    said = json.loads(clean.run("python", ROOT / "tests/extras.py"))
    silent = {extra: text for extra, texts in said.items() for text in texts if extras.command(extra) not in text}
    assert {extra: text for extra, text in silent.items() if text != "nothing"} == {}
    assert set(silent) <= {"http", "object-store"}, "what another library brings anyway"


def test_the_demo_loses_nothing(clean: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    told = clean.run("holdfast", "demo", "--seed", "7")
    assert re.search(r"^demo: rows=72324 duplicates=0 lost=0 kills=5 sets=8626 hours=6069$", told, re.MULTILINE), told
    assert "Every row exactly once." in (clean.work / "holdfast-demo/report.html").read_text()
    assert clean.seconds["holdfast demo"] < 900  # two minutes on a machine that does nothing else
    with capsys.disabled():
        sys.stdout.write(f"\nseconds: {json.dumps(clean.seconds)}\n")


def test_a_demo_removes_nothing_that_is_not_its_own(clean: Environment) -> None:
    (clean.work / "mine").mkdir()
    (clean.work / "mine/thesis.txt").write_text("years")
    assert "is not an earlier demo's" in clean.run("holdfast", "demo", "--directory", "mine", fails=True)
    assert (clean.work / "mine/thesis.txt").read_text() == "years"


def test_a_new_project_passes_its_tests(clean: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    clean.run("holdfast", "new", "x")
    assert "4 passed" in clean.run("make", "test", cwd=clean.work / "x")
    with capsys.disabled():
        sys.stdout.write(f"\nseconds: {json.dumps(clean.seconds)}\n")


def test_type_checkers_read_its_types(clean: Environment) -> None:
    """As a user's project: mypy, and pyright in a build that brings its own Node."""
    clean.run("pip", "install", "--quiet", "mypy", "basedpyright")
    project = clean.work / "typed"
    project.mkdir()
    (project / "user.py").write_text(USER)
    (project / "wrong.py").write_text(WRONG)
    (project / "pyproject.toml").write_text('[tool.basedpyright]\ntypeCheckingMode = "standard"\n')
    for checker in (["mypy", "--strict"], ["basedpyright"]):
        clean.run(*checker, "user.py", cwd=project)
        assert "wrong.py:3" in clean.run(*checker, "wrong.py", cwd=project, fails=True)
