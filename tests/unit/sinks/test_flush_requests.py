"""Requests to seal segments: whoever wrote them, they are obeyed once and gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.connectors.segments import control


@pytest.mark.parametrize("text", ["", "{", "7", '"origin=JFK"', '{"a": 1}', "[1]", "null"])
def test_a_request_that_cannot_be_read_is_one_for_everything_and_does_not_stay(tmp_path: Path, text: str) -> None:
    (tmp_path / "flush").mkdir()
    (tmp_path / "flush" / "by_hand.json").write_text(text)
    found = control.pending(str(tmp_path))
    assert control.wanted(found) is None
    control.obeyed(found)
    assert control.pending(str(tmp_path)) == []


def test_requests_for_partitions_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "writing").mkdir()
    for names in (["day=1"], ["day=2", "day=1"]):
        control.ask(str(tmp_path), names)
    assert control.wanted(control.pending(str(tmp_path))) == {"day=1", "day=2"}
