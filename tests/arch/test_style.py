"""How the code reads, as far as a program can tell."""

import ast
import re
from pathlib import Path

import pytest

from tests.arch.trees import MODULES, nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "docs", "design", "demo", "bench", "examples", "tools", "changes", ".ci", ".github")
PLAIN = {"Makefile", "LICENSE", ".gitignore", "run"}
TEXTS = sorted(
    path
    for place in ROOT.iterdir()
    for path in ([place] if place.is_file() else place.rglob("*") if place.name in FOLDERS else [])
    if path.suffix in {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".txt", ".properties"} or path.name in PLAIN
    if not {"__pycache__", "out"} & set(path.relative_to(ROOT).parts)
)
SOMEBODYS_PLACES = re.compile(r"(?<![\w.*}<])/(home|Users|root|work|workspace)/\w")
VAGUE = {"manager", "handler", "helper", "helpers", "util", "utils"}
OPEN_ENDS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")


def shown(path):
    return str(path.relative_to(ROOT))


def words(name):
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


def test_a_module_begins_with_its_definition():
    """The first line of a module says what it is."""
    wrong = []
    for path in MODULES:
        tree = tree_of(path)
        docstring = ast.get_docstring(tree)
        is_first = bool(docstring) and tree.body[0].lineno == 1
        if not is_first or not docstring.splitlines()[0].endswith((".", ":", "?")):
            wrong.append(f"{shown(path)}: {docstring}")
    assert wrong == []


def test_what_a_module_runs_as_a_program_is_its_last_statement():
    """A statement after it defines names that the program does not have yet."""
    wrong = [
        shown(path)
        for path in MODULES
        for node in tree_of(path).body[:-1]
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    ]
    assert wrong == []


def test_no_name_is_vague():
    named = [(path, path.stem) for path in MODULES] + [
        (path, node.name)
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    vague = [
        (shown(path), name) for path, name in named if words(name) & VAGUE or name.lstrip("_").startswith("process_")
    ]
    assert vague == []


def narrows_a_type(node):
    """Whether an assert is ``x is not None``, ``isinstance(x, T)`` or ``offers(x, P)``: for the type checker."""
    asks = isinstance(node.test, ast.Call) and ast.unparse(node.test.func) in ("isinstance", "offers")
    return node.msg is None and (asks or ast.unparse(node.test).endswith(" is not None"))


def test_what_holdfast_promises_itself_is_an_invariant_and_no_assert():
    """An assert is gone under ``python -O``, and says nothing to whom it stops."""
    wrong = [
        f"{shown(path)}:{node.lineno}"
        for path in MODULES
        if "testing" not in path.parts
        for node in nodes_of(path)
        if isinstance(node, ast.Assert) and not narrows_a_type(node)
    ]
    assert wrong == [], "write invariant(...) or present(...): holdfast/errors.py"


def test_steps_and_levels_unite_tables_by_names():
    """``pa.concat_tables`` compares schemas: the order of columns and what may be null decide whether it does."""
    wrong = [
        f"{shown(path)}:{node.lineno}"
        for path in MODULES
        if shown(path).startswith(
            tuple(f"src/holdfast/{package}/" for package in ("checkpoint", "operators", "state", "plan"))
        )
        if shown(path) != "src/holdfast/state/tables.py"
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == "concat_tables"
    ]
    assert wrong == [], "write tables.united(...): holdfast/state/tables.py"


READ_PICKLES = {"pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.loads", "private.unpickled"}
UNPICKLING = {"private", "reading", "catalyst", "evaluation", "jobs", "probe_process", "kept_worker", "process"}
"""Of ``spark``: from a pipe, plan or job of the same run; of ``models``: from the pipe of who starts the process."""


def test_no_pickle_is_read_from_what_is_kept():
    """Who could write to a checkpoint could run code (SECURITY.md): what is durable is JSON, Arrow and Parquet."""
    reading = {
        path
        for path in MODULES
        if "testing" not in path.parts
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if f"{node.value.id}.{node.attr}" in READ_PICKLES
    }
    assert {path.stem for path in reading} == UNPICKLING
    elsewhere = [shown(path) for path in reading if "spark" not in path.parts]
    assert elsewhere == ["src/holdfast/models/process.py"]


def lines_with(pattern):
    """Every line of every text in which a pattern occurs, with its place."""
    return [
        f"{shown(path)}:{number}: {line}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]


def test_open_ends_are_issues_and_not_comments():
    assert lines_with(OPEN_ENDS) == []


def test_no_text_knows_the_machine_it_was_written_on():
    assert lines_with(SOMEBODYS_PLACES) == []


INSTALLING = ["pyproject.toml", "constraints.txt", "tools/setup.sh", "tools/with_java.sh", "Makefile"]


@pytest.mark.parametrize("name", INSTALLING)
def test_what_is_installed_has_versions_and_no_addresses(name):
    """Where packages come from is for the machine to say that installs them."""
    text = re.sub(r"(?ms)^\[project\.urls\].*?\n\n", "", (ROOT / name).read_text())  # where readers go
    assert re.findall(r"--[a-z-]*(?:index|links|host)[a-z-]*|https?://\S+", text) == []
