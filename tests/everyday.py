"""Which cases run with every ``make test``, and which wait for ``make nightly``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def everyday(cases: Iterable[str], chosen: Collection[str]) -> list[Any]:
    """Return cases as parameters of a test; those that were not chosen are for ``make nightly``."""
    names = list(cases)
    unknown = set(chosen) - set(names)
    assert not unknown, f"no such case: {unknown}"
    return [pytest.param(name, marks=[] if name in chosen else [pytest.mark.nightly]) for name in names]


def examples(every_night: int) -> int:
    """Return how many examples a property is tried with: with ``HOLDFAST_EXAMPLES=all`` every one, else a fifth."""
    return every_night if os.environ.get("HOLDFAST_EXAMPLES") == "all" else max(5, every_night // 5)
