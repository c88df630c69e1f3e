"""Positions that a shadow goes to: numbered, and only the last ones are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint import targets
from holdfast.checkpoint.targets import FILE_NAME, Target, add_targets, read_targets
from holdfast.store.paths import open_store


def at(number: int) -> dict[str, dict[str, int]]:
    return {"a": {"log": number}}


def test_targets_are_read_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    path, store = tmp_path / FILE_NAME, open_store(str(tmp_path))
    assert read_targets(path) == []
    add_targets(store, path, at(1))
    add_targets(store, path, at(2), at(3))
    assert read_targets(path) == [Target(1, at(1)), Target(2, at(2)), Target(3, at(3))]
    assert read_targets(path, after=2) == [Target(3, at(3))]
    assert read_targets(path, after=3) == []


def test_who_is_further_behind_than_is_kept_takes_a_larger_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "KEPT", 3)
    path, store = tmp_path / FILE_NAME, open_store(str(tmp_path))
    for number in range(1, 8):
        add_targets(store, path, at(number))
    assert [each.number for each in read_targets(path, after=1)] == [5, 6, 7]
