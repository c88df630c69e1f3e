"""What the recipes show by a test is true; those that run a pipeline do it on Spark, in this process."""

import inspect
from typing import Any

import pytest

from tests.docs.pages import ROOT, Block, blocks

PAGES = sorted((ROOT / "docs/recipes").glob("*.md"))
SHOWN = [block for page in PAGES for block in blocks(page, "python") if "\ndef test_" in block.text]
ON_SPARK = [block for block in SHOWN if "trigger=" in block.text]
OTHERS = [block for block in SHOWN if block not in ON_SPARK]


def run_tests_of(block: Block, **fixtures: object) -> None:
    """Run a block's tests; what earlier blocks of its page import and define is there, as for readers."""
    names: dict[str, Any] = {}
    for before in blocks(block.page, "python"):
        if before.line < block.line:
            exec(compile(before.text, str(before), "exec"), names)
    names = {name: value for name, value in names.items() if not name.startswith("test_")}
    exec(compile(block.text, str(block), "exec"), names)
    for test in [value for name, value in names.items() if name.startswith("test_")]:
        wanted = inspect.signature(test).parameters
        test(**{name: value for name, value in fixtures.items() if name in wanted})


@pytest.mark.slow
@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_what_a_recipe_shows_is_true(block, tmp_path):
    run_tests_of(block, tmp_path=tmp_path)


@pytest.mark.spark
@pytest.mark.parametrize("block", ON_SPARK, ids=str)
def test_what_a_recipe_shows_is_true_on_spark(block, tmp_path, spark):
    run_tests_of(block, tmp_path=tmp_path)


def test_every_recipe_has_a_test_that_is_run():
    tested = {block.page for block in SHOWN}
    assert [page.name for page in PAGES if page not in tested] == ["README.md"]
