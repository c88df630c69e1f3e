"""Which cases run with every ``make test``, and which wait for ``make nightly``."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

FIRST_SEED = int(os.environ.get("HOLDFAST_FIRST_SEED", "0"))
"""Where the seeds of this run begin: another number every night tries what no other night has tried."""

SEEDS = int(os.environ.get("HOLDFAST_SEEDS", "2500"))
"""How many seeds there are in a night: a night of two cores is over in the morning, and the next one has others."""

PAIRS = int(os.environ.get("HOLDFAST_PAIRS", "4"))
"""In how many nights each pair of crashes is tried; which ones in this night, ``FIRST_SEED`` says.  1: all of them."""

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
    """Tell whether a marker of a module is one that ``-m`` excludes: nothing in it has to be imported.

    Parameters
    ----------
    path : Path
        The module.
    expression : str
        As ``-m`` has it; understood where it is a chain of ``a and not b``.
    """
    excluded = _excluded(expression)
    found = _OF_MODULE.search(path.read_text()) if excluded and path.suffix == ".py" else None
    return found is not None and not excluded.isdisjoint(_markers(found[1]))


def _markers(text: str) -> set[str]:
    """Return the markers of a module, which are all that its statement says; none where it says it otherwise.

    Examples
    --------
    >>> _markers("pytest.mark.slow  # not pytest.mark.spark")
    {'slow'}
    >>> _markers("pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.nightly)])")
    {'parametrize'}
    """
    try:
        value = ast.parse(text, mode="eval").body
    except SyntaxError:
        return set()
    marks = [each.func if isinstance(each, ast.Call) else each for each in getattr(value, "elts", [value])]
    return {each.attr for each in marks if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "pytest.mark"}


def _excluded(expression: str) -> frozenset[str]:
    """Return the markers that an expression excludes.

    Examples
    --------
    >>> sorted(_excluded("slow and not spark and not crash"))
    ['crash', 'spark']
    >>> sorted(_excluded("not (spark or crash)") | _excluded("spark or not crash") | _excluded(""))
    []
    """
    parts = [part.split() for part in expression.split(" and ")]
    if any(len(part) > 2 or (len(part) == 2 and part[0] != "not") or "(" in "".join(part) for part in parts):
        return frozenset()
    return frozenset(part[1] for part in parts if len(part) == 2)
