"""Positions that a shadow goes to: lines of a file, of which a crash leaves whole ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.reconcile.targets import FILE_NAME, add_targets, read_targets


def test_lines_are_read_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint" / FILE_NAME
    assert read_targets(path) == []
    add_targets(path, {"a": {"log": 1}})
    add_targets(path, {"a": {"log": 2}}, {"a": {"log": 3}, "b": {"0": 7}})
    assert read_targets(path) == [{"a": {"log": 1}}, {"a": {"log": 2}}, {"a": {"log": 3}, "b": {"0": 7}}]


@pytest.mark.parametrize("left", [1, 5, 13])
def test_a_line_that_a_crash_cut_is_none_and_does_not_stay(tmp_path: Path, left: int) -> None:
    path = tmp_path / FILE_NAME
    add_targets(path, {"a": {"log": 1}})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"a": {"log": 2}}\n'[:left])
    assert read_targets(path) == [{"a": {"log": 1}}]
    add_targets(path, {"a": {"log": 3}})
    assert path.read_bytes() == whole + b'{"a": {"log": 3}}\n'
