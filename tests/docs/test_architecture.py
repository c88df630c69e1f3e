"""The walks of ``docs/architecture.md`` lead through what exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import holdfast

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(holdfast(?:\.\w+)+)`", TEXT)))
ROOMS = sorted(set(re.findall(r"`([a-z_]+)/`", TEXT.partition("## Walk 1")[0])))


def found(name: str) -> object:
    """Return what a dotted name means: a module as far as there is one, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(name)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_walk_names_exists(name: str) -> None:
    assert found(name) is not None


def test_there_are_three_walks() -> None:
    assert len(re.findall(r"^## Walk \d", TEXT, re.MULTILINE)) == 3
    assert len(NAMES) > 30


def test_every_room_is_on_the_page() -> None:
    source = Path(holdfast.__file__).parent
    rooms = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    assert rooms - set(ROOMS) == set()


def test_the_table_of_contributing_names_modules_that_exist() -> None:
    page = (PAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("### Where do I change")[2].partition("\n## ")[0]
    modules = re.findall(r"`([\w/]+\.py)`", table)
    assert len(modules) > 20
    source = Path(holdfast.__file__).parent
    assert [module for module in modules if not (source / module).is_file()] == []


def test_what_a_row_of_the_table_names_below_its_package_exists() -> None:
    source = Path(holdfast.__file__).parent
    rows = re.findall(r"^\| `(\w+)/` \| (.*) \|$", TEXT.partition("## Walk 1")[0], re.MULTILINE)
    assert len(rows) > 10
    named = [(package, name) for package, said in rows for name in re.findall(r"`(\w+(?:\.py|/))`", said)]
    lacking = [each for each in named if not (source / each[0] / each[1]).exists() and not (source / each[1]).exists()]
    assert lacking == []
