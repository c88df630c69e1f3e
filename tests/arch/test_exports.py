"""Every public name has one home, is loaded from there, and is documented."""

import ast
import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import files, lookup_table, read, segments, write
from holdfast.starts.start import start

ROOT = Path(__file__).resolve().parents[2]
NEED_SPARK = {"Run"}
STATEFUL = ["accumulate", "aggregate", "apply", "distinct", "join", "limit_in_flight", "merge", "reduce", "stateful"]
STATEFUL += ["combine", "latest", "over", "sync", "table", "top"]
OPERATORS = ["call", "clip", "filter", "lookup", "map", "map_batches", "select", "split", "sql", "union", *STATEFUL]
PAGES = {"combine": "latest", "reduce": "aggregate"}
WINDOWS = ["count_window", "session", "sliding", "timer", "total", "tumbling"]
AGGREGATES = ["collect", "count", "distinct_count", "first", "last", "max", "mean", "min", "quantile", "quantiles"]
AGGREGATES += ["approx_count_distinct", "max_by", "min_by", "sum", "variance"]
POLICIES = [
    "barrier",
    "custom",
    "early_close",
    "fixed_size",
    "immediate",
    "mux",
    "settled",
    "sync_sets",
    "timestamp_align",
    "within",
]
MODULES = [hf, files, lookup_table, read, segments, write]
PATHS = {"path", "directory", "checkpoint", "from_checkpoint", "spark_checkpoint"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_what_is_exported_is_what_a_type_checker_sees(module):
    tree = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text())
    listed = [alias for statement in tree.body if isinstance(statement, ast.ImportFrom) for alias in statement.names]
    assert all(alias.asname == alias.name for alias in listed)
    assert sorted(alias.name for alias in listed) == module.__all__
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_exported_name_is_there_and_says_what_it_is(module):
    for name in module.__all__:
        if name not in NEED_SPARK:
            value = getattr(module, name)
            assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


def test_every_parameter_that_is_a_path_takes_path_objects():
    exported = [getattr(module, name) for module in MODULES for name in module.__all__ if name not in NEED_SPARK]
    functions: list[Any] = [each for each in exported if inspect.isfunction(each)]
    functions += [hf.read.CallbackFeed, hf.Pipeline.start, hf.Pipeline.run, start]
    found = [
        (function.__name__, parameter)
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name in PATHS
    ]
    assert len(found) > 15
    assert [f"{name}({each})" for name, each in found if "os.PathLike[str]" not in str(each.annotation)] == []


def test_no_name_is_exported_twice():
    homes = {}
    for module in MODULES:
        for name in module.__all__:
            if name not in NEED_SPARK:
                homes.setdefault(id(getattr(module, name)), []).append(f"{module.__name__}.{name}")
    assert [names for names in homes.values() if len(names) > 1] == []


def test_a_name_that_does_not_exist_is_an_attribute_error_that_lists_those_that_do():
    nowhere: Any = write
    with pytest.raises(AttributeError, match="sqlite"):
        _ = nowhere.db2


def test_the_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert hf.__version__ == project["version"]


def test_the_package_is_typed():
    assert (ROOT / "src/holdfast/py.typed").exists()


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_a_page(operator):
    page = ROOT / f"docs/operators/{PAGES.get(operator, operator)}.md"
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
    assert [operator for operator in OPERATORS if f"({PAGES.get(operator, operator)}.md)" not in index] == []


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_parameter_of_an_operator_is_documented(operator):
    function = getattr(hf, operator)
    documented = inspect.getdoc(function)
    for parameter in inspect.signature(function).parameters:
        assert parameter in documented or parameter == "misplaced", f"{operator}({parameter}=)"


@pytest.mark.parametrize("name", [*WINDOWS, *AGGREGATES])
def test_every_window_and_aggregate_is_on_the_page_of_aggregation(name):
    assert inspect.getdoc(getattr(hf, name))
    assert f"hf.{name}(" in (ROOT / "docs/operators/aggregate.md").read_text()


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_on_the_page_of_sync(name):
    assert inspect.getdoc(getattr(hf.policy, name))
    assert f"`{name}(" in (ROOT / "docs/operators/sync.md").read_text()


def test_what_a_stateful_operator_is_written_with_is_exported():
    for name in ("Change", "KeyState", "StateTable", "StepTime"):
        assert inspect.getdoc(getattr(hf, name))


def test_the_kit_drives_graphs_and_holds_steps_to_their_contract():
    assert callable(hf.testing.drive)
    assert callable(hf.testing.bound)
    assert callable(hf.testing.close)
    assert hf.testing.step_contract.CHECKS
