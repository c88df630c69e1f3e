"""What a start does before there is a run, as far as that needs no Spark."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.spark.quarantine.trials import COPY
from holdfast.starts.wiring import OwnedPipeline, Wiring
from holdfast.testing.store import SimulatedStore


def test_a_start_removes_what_a_killed_trial_has_left_whatever_on_poison_says_now(tmp_path: Path) -> None:
    """Its links would keep files of state on the disk that Spark has removed long ago."""
    state = tmp_path / "spark" / "1" / "state"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"old")
    (tmp_path / COPY).mkdir()
    os.link(state, tmp_path / COPY / "state")
    nothing: Any = None
    asked: Any = SimpleNamespace(isolates=False, pipeline=SimpleNamespace(sources=()))
    context: Any = SimpleNamespace(
        directory=tmp_path, spark=tmp_path / "spark" / "1", store=SimulatedStore(), stop_file=str(tmp_path / "stop")
    )
    coordinator: Any = SimpleNamespace(generation=1)
    own = OwnedPipeline(asked, context, nothing, {}, coordinator, nothing, ())
    assert Wiring(own, nothing, DirectoryHeader(1))._letters().masks() == {}
    assert not (tmp_path / COPY).exists()
    assert state.read_bytes() == b"old"
    assert state.stat().st_nlink == 1
