"""What every test on Spark leaves as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import faults


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    faults.install(None)
