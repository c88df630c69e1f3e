"""What every test on Spark leaves as it was; and rows must add up in all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast import faults

os.environ.setdefault("HOLDFAST_ON_AUDIT", "stop")  # here: tests make settings when they are imported


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    faults.install(None)
