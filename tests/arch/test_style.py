"""How the code reads, as far as a program can tell."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src/holdfast").rglob("*.py"))
FOLDERS = ("src", "tests", "docs", "design", "demo", "bench", "examples", "tools")
TEXTS = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".toml", ".sh", ".txt"} and "__pycache__" not in path.parts
)
VAGUE = {"manager", "handler", "helper", "helpers", "util", "utils"}
OPEN_ENDS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")


def shown(path):
    return str(path.relative_to(ROOT))


def words(name):
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_a_module_begins_with_its_definition(path):
    tree = ast.parse(path.read_text())
    docstring = ast.get_docstring(tree)
    assert docstring, "the first line of a module says what it is"
    assert tree.body[0].lineno == 1
    assert docstring.splitlines()[0].endswith((".", ":", "?")), docstring.splitlines()[0]


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_no_name_is_vague(path):
    names = [path.stem] + [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [name for name in names if words(name) & VAGUE or name.lstrip("_").startswith("process_")] == []


@pytest.mark.parametrize("path", TEXTS, ids=shown)
def test_open_ends_are_issues_and_not_comments(path):
    found = [line for line in path.read_text().splitlines() if OPEN_ENDS.search(line)]
    assert found == []
