"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
WITHOUT_JVM = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in (SOURCE / "holdfast").rglob("*.py")
    if ">>>" in path.read_text() and "spark" not in path.relative_to(SOURCE).parts
)
TOOLS = sorted(f"tools.{path.stem}" for path in (ROOT / "tools").glob("*.py") if ">>>" in path.read_text())


@pytest.mark.parametrize("module", [*WITHOUT_JVM, *TOOLS, "tests.everyday"])
def test_the_examples_of_a_module_are_true(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
