"""Modules that are not even imported for a group of tests are those of which it has no test."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.everyday import is_left_out
from tools.run_tests import FAST, GROUPS, ROOT


@pytest.mark.parametrize(
    ("marks", "expression", "left_out"),
    [
        ("pytestmark = pytest.mark.slow\n", FAST, True),
        ("pytestmark = [pytest.mark.spark, pytest.mark.crash]\n", FAST, True),
        ("pytestmark = [\n    pytest.mark.filterwarnings('x'),\n    pytest.mark.nightly,\n]\n", FAST, True),
        ("pytestmark = pytest.mark.filterwarnings('x')\n", FAST, False),
        ("pytestmark = pytest.mark.filterwarnings('x')  # and not pytest.mark.slow\n", FAST, False),
        ("pytestmark = pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.slow), 2])\n", FAST, False),
        ("@pytest.mark.slow\ndef test_one():\n    pass\n", FAST, False),
        ("pytestmark = pytest.mark.slow\n", GROUPS["slow"][1], False),
        ("pytestmark = [pytest.mark.spark, pytest.mark.crash]\n", GROUPS["crash"][1], False),
        ("pytestmark = pytest.mark.slow\n", GROUPS["crash"][1], True),
        ("def test_one():\n    pass\n", GROUPS["slow"][1], True),
        ("@pytest.mark.slow\ndef test_one():\n    pass\n", GROUPS["slow"][1], False),
        ("@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.crash)])\n", GROUPS["crash"][1], False),
        ("from tests.contract.comparable_contract import ComparableContract\n", GROUPS["slow"][1], False),
        ("from tests.spark.earlier.left import left\n", GROUPS["postgres"][1], False),
        ("from tests.everyday import everyday\n", GROUPS["nightly"][1], False),
        ("pytestmark = pytest.mark.slow\n", "not (slow or spark)", False),
        ("pytestmark = pytest.mark.slow\n", "spark or not slow", False),
        ("pytestmark = pytest.mark.slow\n", "", False),
    ],
)
def test_a_module_is_left_out_if_it_cannot_have_a_test_that_is_selected(
    tmp_path: Path, marks: str, expression: str, left_out: bool
) -> None:
    module = tmp_path / "test_it.py"
    module.write_text(f"import pytest\n\n{marks}")
    assert is_left_out(module, expression) == left_out


@pytest.mark.nightly
@pytest.mark.parametrize("group", ["slow", "postgres", "spark", "crash", "nightly"])
def test_a_group_has_the_same_tests_as_if_every_module_were_imported(group: str) -> None:
    expression = GROUPS[group][1]
    assert collected(expression) == collected(f"({expression})")


def collected(expression: str) -> list[str]:
    """Return the tests that an expression selects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", expression]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tests = [line for line in found.splitlines() if "::" in line]
    assert tests
    return tests
