"""Whether a spare waits, as the run's status says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.replica.spare_note import SUPERVISED, note_spare, spare_beside


def test_a_run_knows_whether_its_supervisor_has_a_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spare_beside() == ""
    monkeypatch.setenv(SUPERVISED, str(tmp_path / "ended.json"))
    assert spare_beside() == "", "a supervisor without spares notes nothing"
    note_spare(tmp_path, is_ready=False)
    assert spare_beside() == "away"
    note_spare(tmp_path, is_ready=True)
    assert spare_beside() == "ready"
    (tmp_path / "spare").write_text("what a later version notes")
    assert spare_beside() == ""
