"""Which cases run with every ``make test``, and which wait for ``make nightly``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def everyday(cases: Iterable[str], chosen: Collection[str]) -> list[Any]:
    """Return cases as parameters of a test; those that were not chosen are for ``make nightly``."""
    names = list(cases)
    unknown = set(chosen) - set(names)
    assert not unknown, f"no such case: {unknown}"
    return [pytest.param(name, marks=[] if name in chosen else [pytest.mark.nightly]) for name in names]
