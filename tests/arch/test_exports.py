"""Every public name has one home, is loaded from there, and is documented."""

import ast
import inspect
import tomllib
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import read, write

ROOT = Path(__file__).resolve().parents[2]
NEED_SPARK = {"Run", "start_all"}
OPERATORS = ["clip", "filter", "map", "map_batches", "select", "split", "sql", "union"]
MODULES = [hf, read, write]


def imported_for_types(module):
    """The names that a type checker sees in a module."""
    tree = ast.parse(Path(module.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname or alias.name for statement in block.body for alias in statement.names}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_what_is_exported_is_what_a_type_checker_sees(module):
    assert set(module.__all__) == imported_for_types(module)
    assert sorted(module.__all__) == module.__all__
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_exported_name_is_there_and_says_what_it_is(module):
    for name in module.__all__:
        if name not in NEED_SPARK:
            value = getattr(module, name)
            assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


def test_no_name_is_exported_twice():
    homes = {}
    for module in MODULES:
        for name in module.__all__:
            if name not in NEED_SPARK:
                homes.setdefault(id(getattr(module, name)), []).append(f"{module.__name__}.{name}")
    assert [names for names in homes.values() if len(names) > 1] == []


def test_a_name_that_does_not_exist_is_an_attribute_error_that_lists_those_that_do():
    with pytest.raises(AttributeError, match="sqlite"):
        _ = hf.write.mysql


def test_the_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert hf.__version__ == project["version"]


def test_the_package_is_typed():
    assert (ROOT / "src/holdfast/py.typed").exists()


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_a_page(operator):
    page = ROOT / f"docs/operators/{operator}.md"
    assert page.exists()
    assert f"hf.{operator}(" in page.read_text()


@pytest.mark.parametrize(("module", "room"), [(read, "sources"), (write, "sinks")], ids=["read", "write"])
def test_every_source_and_sink_has_a_page_and_a_row_in_its_index(module, room):
    index = (ROOT / f"docs/{room}/README.md").read_text()
    for name in [name for name in module.__all__ if name.islower()]:
        page = ROOT / f"docs/{room}/{name}.md"
        assert page.exists()
        assert f".{name}(" in page.read_text()
        assert f"({name}.md)" in index


def test_every_operator_is_in_the_index_of_operators():
    index = (ROOT / "docs/operators/README.md").read_text()
    assert [operator for operator in OPERATORS if f"({operator}.md)" not in index] == []


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_parameter_of_an_operator_is_documented(operator):
    function = getattr(hf, operator)
    documented = inspect.getdoc(function)
    for parameter in inspect.signature(function).parameters:
        assert parameter in documented or parameter == "misplaced", f"{operator}({parameter}=)"
