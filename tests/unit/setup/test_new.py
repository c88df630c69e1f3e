"""``holdfast new``: a project whose parts fit, and that overwrites nothing; its tests run, and kill it (nightly)."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import holdfast as hf
from holdfast.setup.new import FILES, new_project


def files_of(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_a_project_has_its_files_and_no_word_of_the_template(tmp_path: Path) -> None:
    project = tmp_path / "deep" / "my_pipeline"
    assert sorted(new_project(project)) == files_of(project) == sorted(FILES)
    assert list(project.parent.iterdir()) == [project], "nothing else is left"
    texts = {path: (project / path).read_text() for path in FILES}
    assert [path for path, text in texts.items() if "{{" in text] == []
    assert compileall.compile_dir(project, quiet=1)
    tomllib.loads(texts["pyproject.toml"])
    assert yaml.safe_load(texts[".github/workflows/ci.yml"])["jobs"]["test"]["steps"][-1] == {"run": "make test"}
    assert f"holdfast>={hf.__version__}" in texts["requirements.txt"]


def test_an_empty_directory_becomes_a_project(tmp_path: Path) -> None:
    (tmp_path / "rides").mkdir()
    new_project(tmp_path / "rides")
    assert files_of(tmp_path / "rides") == sorted(FILES)


@pytest.mark.parametrize("there", ["file", "directory"])
def test_nothing_is_overwritten(there: str, tmp_path: Path) -> None:
    project = tmp_path / "rides"
    kept = project if there == "file" else project / "pipeline.py"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    with pytest.raises(hf.InvalidPipeline, match="is there already"):
        new_project(project)
    assert kept.read_text() == "mine"
    assert len(list(tmp_path.rglob("*"))) == (1 if there == "file" else 2)


@pytest.mark.parametrize("name", ["my-pipeline", "2nd", "class", "Über", "a.b", "a b"])
def test_a_name_that_names_no_module_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(hf.InvalidPipeline, match="no name"):
        new_project(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "Makefile", "not-there.txt")
    with pytest.raises(FileNotFoundError):
        new_project(tmp_path / "rides")
    assert list(tmp_path.iterdir()) == []


def run(project: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_its_quick_test_passes_and_its_pipeline_is_sound(tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-m", "holdfast", "new", "rides")
    project = tmp_path / "rides"
    assert "1 passed" in run(project, sys.executable, "-m", "pytest", "-q", "tests/test_rows.py")
    assert "rides" in run(project, sys.executable, "-m", "holdfast", "explain", "pipeline.py")
    ruff = Path(sys.executable).with_name("ruff")
    run(project, str(ruff), "check", "--isolated", "--select", "E,F,W,B", "--line-length", "120", ".")
    run(project, str(ruff), "format", "--isolated", "--line-length", "120", "--check", ".")


@pytest.mark.nightly
def test_its_make_test_kills_it_and_counts(tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-m", "holdfast", "new", "rides")
    assert "4 passed" in run(tmp_path / "rides", "make", "test", f"PYTHON={sys.executable}")
    assert os.listdir(tmp_path) == ["rides"]
