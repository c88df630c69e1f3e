"""Which cases run with every ``make test``, and which wait for ``make nightly``."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FIRST_SEED = int(os.environ.get("HOLDFAST_FIRST_SEED", "0"))
"""Where the seeds of this run begin: another number every night tries what no other night has tried."""

SEEDS = int(os.environ.get("HOLDFAST_SEEDS", "2500"))
"""How many seeds there are in a night: a night of two cores is over in the morning, and the next one has others."""

PAIRS = int(os.environ.get("HOLDFAST_PAIRS", "4"))
"""In how many nights each pair of crashes is tried; which ones in this night, ``FIRST_SEED`` says.  1: all of them."""

_TESTS = Path(__file__).parent
_WORD = re.compile(r"\w+")
_IMPORT = re.compile(r"^[ \t]*(?:from|import)\b(?:[^(\n]*\([^)]*\)|[^\n]*)", re.MULTILINE)
_OF_MODULE = re.compile(r"^pytestmark = (\[[^\]]*\]|.+)", re.MULTILINE)


def everyday(cases: Iterable[str], chosen: Collection[str]) -> list[Any]:
    """Return cases as parameters of a test; those that were not chosen are for ``make nightly``."""
    names = list(cases)
    unknown = set(chosen) - set(names)
    assert not unknown, f"no such case: {unknown}"
    return [pytest.param(name, marks=[] if name in chosen else [pytest.mark.nightly]) for name in names]


def examples(every_night: int) -> int:
    """Return how many examples a property is tried with: with ``HOLDFAST_EXAMPLES=all`` every one, else a fifth."""
    return every_night if os.environ.get("HOLDFAST_EXAMPLES") == "all" else max(5, every_night // 5)


def seeds(count: int) -> range:
    """Return the seeds of a simulation.  One of them is replayed alone with ``HOLDFAST_SEED=<seed>``."""
    return range(FIRST_SEED, FIRST_SEED + count)


def part_of_seeds(part: int, parts: int) -> range:
    """Return one of the parts into which the seeds of a night are divided.

    Examples
    --------
    >>> sum(len(part_of_seeds(part, 7)) for part in range(7)) == SEEDS
    True
    """
    return seeds(SEEDS)[part * SEEDS // parts : (part + 1) * SEEDS // parts]


def seed_of_kills(usual: int) -> int:
    """Return the seed of random kills: ``HOLDFAST_SEED``, or that of the night, or the usual one."""
    return int(os.environ.get("HOLDFAST_SEED") or FIRST_SEED or usual)


def is_left_out(path: Path, expression: str) -> bool:
    """Tell whether no test of a module is among those that ``-m`` selects: nothing in it has to be imported.

    Parameters
    ----------
    path : Path
        The module.
    expression : str
        As ``-m`` has it; understood where it is a chain of ``a and not b``.
    """
    required, excluded = _terms(expression)
    if path.suffix != ".py" or not (required or excluded):
        return False
    text = path.read_text()
    found = _OF_MODULE.search(text)
    if found is not None and not excluded.isdisjoint(_markers(found[1])):
        return True
    return path.name.startswith("test_") and not all(_may_have(text, marker) for marker in required)


def _may_have(text: str, marker: str) -> bool:
    """Return whether a module names a marker, or a module of ours by which its tests can come to have it."""
    return f"mark.{marker}" in text or not _bringing(marker).isdisjoint(_imported(text))


def _imported(text: str) -> set[str]:
    """Return the words of a module's imports.

    Examples
    --------
    >>> sorted(_imported("from tests import (\\n    left,\\n)\\nright = left"))
    ['from', 'import', 'left', 'tests']
    """
    return set(_WORD.findall(" ".join(_IMPORT.findall(text))))


@cache
def _bringing(marker: str) -> frozenset[str]:
    """Return the names of modules of tests, themselves without tests, that name a marker, or one that brings it."""
    texts = {path.stem: path.read_text() for path in _TESTS.rglob("*.py") if not path.name.startswith("test_")}
    found = {name for name, text in texts.items() if f"mark.{marker}" in text}
    while more := {name for name, text in texts.items() if not found.isdisjoint(_imported(text))} - found:
        found |= more
    return frozenset(found)


def _markers(text: str) -> set[str]:
    """Return the markers of a module, which are all that its statement says; none where it says it otherwise.

    Examples
    --------
    >>> _markers("pytest.mark.skip  # not pytest.mark.usefixtures")
    {'skip'}
    >>> _markers("pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.nightly)])")
    {'parametrize'}
    """
    try:
        value = ast.parse(text, mode="eval").body
    except SyntaxError:
        return set()
    marks = [each.func if isinstance(each, ast.Call) else each for each in getattr(value, "elts", [value])]
    return {each.attr for each in marks if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "pytest.mark"}


def _terms(expression: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the markers that an expression requires, and those that it excludes.

    Examples
    --------
    >>> _terms("slow and not spark")
    (frozenset({'slow'}), frozenset({'spark'}))
    >>> _terms("not (spark or crash)") == _terms("spark or not crash") == _terms("")
    True
    """
    parts = [part.split() for part in expression.split(" and ")]
    if any(len(part) not in (1, 2) or (len(part) == 2 and part[0] != "not") or "(" in "".join(part) for part in parts):
        return frozenset(), frozenset()
    return (
        frozenset(part[0] for part in parts if len(part) == 1),
        frozenset(part[1] for part in parts if len(part) == 2),
    )
