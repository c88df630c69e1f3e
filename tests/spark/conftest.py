"""What every test on Spark leaves as it was; and rows must add up in all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import faults


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOLDFAST_ON_AUDIT", "stop")  # but for settings that a module makes when it is imported
    yield
    faults.install(None)
