"""A new project: a directory with a pipeline, a test that kills it, and what runs the test.

Nothing is ever overwritten.  All files are written beside their place and appear at once, so a kill leaves no half.
"""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from holdfast import __version__
from holdfast.errors import InvalidPipeline

FILES = {
    "pipeline.py": "pipeline.py.txt",
    "tests/test_rows.py": "test_rows.py.txt",
    "tests/test_kill.py": "test_kill.py.txt",
    "README.md": "README.md.txt",
    "Makefile": "Makefile.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "requirements.txt": "requirements.txt",
    ".gitignore": "gitignore.txt",
    ".github/workflows/ci.yml": "ci.yml.txt",
}
"""File of the project -> its template."""


def new_project(directory: Path) -> list[str]:
    """Write a project; return its files.

    Parameters
    ----------
    directory : Path
        Must not be there, or be empty.  Its last part is the name of the pipeline.

    Raises
    ------
    InvalidPipeline
        If the name is none, or something is there already.
    """
    name = directory.name
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InvalidPipeline(
            f"{name!r} is no name of a pipeline.",
            why="it names modules, tables and files: small letters, digits and '_', and no word of Python.",
            do="choose one like that: holdfast new my_pipeline",
        )
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise InvalidPipeline(
            f"{directory} is there already, and not an empty directory.",
            why="a new project overwrites nothing.",
            do="choose another name, or move it away.",
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=directory.parent))
    try:
        beside.chmod(0o755)
        for path, template in FILES.items():
            target = beside / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content(template, name), encoding="utf-8")
        beside.rename(directory)  # NB replaces an empty directory, and nothing else
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return list(FILES)


def content(template: str, name: str) -> str:
    """Return a file of the project."""
    text = (resources.files("holdfast.setup") / "templates" / template).read_text(encoding="utf-8")
    return text.replace("{{name}}", name).replace("{{version}}", __version__)
