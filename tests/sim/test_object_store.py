"""Crash loops whose checkpoint is in an object store: what is an object may be a place to die (design/0037)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.ports import Store
from holdfast.store.scratch import ScratchedStore, scratch_of
from holdfast.testing import Load, Setting, SimulatedStore, World, crash_loop, simulated_sink

_SHORT = Setting(load=Load(row_count=6))


def _checkpoint(new_path: Callable[[], Path]) -> Store:
    store = ScratchedStore(SimulatedStore(), scratch_of("s3://bucket/trips", str(new_path())))
    store.prepare()
    return store


@pytest.mark.slow
def test_two_sinks_survive_a_crash_at_every_write(new_path: Callable[[], Path]) -> None:
    crash_loop(
        lambda: World([simulated_sink("one"), simulated_sink("two")], setting=_SHORT, store=_checkpoint(new_path)),
        second_stride=23,
    )
