"""Crash loops whose checkpoint is in an object store: what is an object may be a place to die (design/0037)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.ports import Store
from holdfast.store.scratch import ScratchedStore, scratch_of
from holdfast.testing import Load, Setting, SimulatedStore, World, crash_loop, simulated_sink

_SHORT = Setting(load=Load(row_count=6))


class LaggingStore(SimulatedStore):
    """Lists what was there some writes ago: no order between what is listed is promised.

    Parameters
    ----------
    lag : int
        How many writes a listing lacks; of each second key, to let what was written later be listed earlier.
    """

    def __init__(self, lag: int) -> None:
        super().__init__()
        self._lag = lag
        self._shown: list[frozenset[str]] = [frozenset()]

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self._shown.append(frozenset(self.objects))

    def delete(self, key: str) -> None:
        super().delete(key)
        self._shown.append(frozenset(self.objects))

    def keys(self, prefix: str) -> list[str]:
        old, new = self._shown[max(0, len(self._shown) - 1 - self._lag)], self._shown[-1]
        seen = {key for key in old | new if key in (new if sum(key.encode()) % 2 else old)}
        return sorted(key for key in seen if key.startswith(prefix))

    def settle(self) -> None:
        """Let listings show everything from now on."""
        self._lag = 0


def _checkpoint(objects: SimulatedStore, new_path: Callable[[], Path]) -> Store:
    store = ScratchedStore(objects, scratch_of("s3://bucket/trips", str(new_path())))
    store.prepare()
    return store


@pytest.mark.slow
def test_two_sinks_survive_a_crash_at_every_write(new_path: Callable[[], Path]) -> None:
    crash_loop(
        lambda: World(
            [simulated_sink("one"), simulated_sink("two")],
            setting=_SHORT,
            store=_checkpoint(SimulatedStore(), new_path),
        ),
        second_stride=23,
    )


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 4, 1000])
def test_two_sinks_survive_a_crash_at_every_write_where_listings_lag(lag: int, new_path: Callable[[], Path]) -> None:
    """A decision that a takeover does not see is presumed aborted, and the sinks have the last word (section 3)."""
    crash_loop(lambda: _LaggingWorld(LaggingStore(lag), new_path), second_stride=41)


class _LaggingWorld(World):
    """Two sinks, and listings that lag until everything is looked at from outside."""

    def __init__(self, objects: LaggingStore, new_path: Callable[[], Path]) -> None:
        sinks = [simulated_sink("one"), simulated_sink("two")]
        super().__init__(sinks, setting=_SHORT, store=_checkpoint(objects, new_path))
        self._objects = objects

    def finish(self) -> None:
        self._objects.settle()
        super().finish()

    def audit(self) -> list[str]:
        """As ever; but a decision that no takeover saw, of an epoch that every sink held, stays until it is pruned."""
        return [problem for problem in super().audit() if problem != "ledger: VOID"]
