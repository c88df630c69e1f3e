"""Modules that are not even imported for a group of tests are those of which it has no test."""

from pathlib import Path

import pytest

from tests.everyday import is_left_out
from tools.run_tests import FAST, GROUPS


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
        ("pytestmark = pytest.mark.slow\n", "not (slow or spark)", False),
        ("pytestmark = pytest.mark.slow\n", "spark or not slow", False),
        ("pytestmark = pytest.mark.slow\n", "", False),
    ],
)
def test_a_module_is_left_out_by_its_own_markers_alone(
    tmp_path: Path, marks: str, expression: str, left_out: bool
) -> None:
    module = tmp_path / "test_it.py"
    module.write_text(f"import pytest\n\n{marks}")
    assert is_left_out(module, expression) == left_out
