"""What a resumption promises itself: no header is written, and no epoch replayed, that a run could not go on from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.spark_log import begun_log
from holdfast.checkpoint.targets import FILE_NAME, add_targets
from holdfast.errors import InternalError
from holdfast.starts import backfill, rewind_target
from holdfast.starts.backfill import Backfill
from holdfast.store.local import LocalStore
from holdfast.testing.store import SimulatedStore


def at(number: int) -> Mapping[str, Mapping[str, int]]:
    return {"in": {"log": number}}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (DirectoryHeader(0), "begins at epoch 0"),
        (DirectoryHeader(7, (at(3), at(2))), "which do not ascend"),
        (DirectoryHeader(7, (at(2),), replayed=((5, 0),)), "replays 1 epochs, and has ends for 0"),
        (DirectoryHeader(7, (at(2), at(3), at(4)), replayed=((6, 0), (5, 0))), r"replays the epochs \[6, 5\]"),
        (DirectoryHeader(7, (at(2), at(3)), replayed=((7, 0),)), "replays epoch 7, and begins at 7"),
    ],
)
def test_a_header_says_where_a_directory_can_begin(header: DirectoryHeader, says: str) -> None:
    with pytest.raises(InternalError, match=says):
        header.to_json()


def test_epochs_that_fill_a_sink_end_in_ascending_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline: Any = SimpleNamespace(name="p")
    filling: Any = SimpleNamespace(pipeline=pipeline)
    monkeypatch.setattr(backfill, "_later", lambda one, other: -1)
    with pytest.raises(InternalError, match="are to end at positions without order"):
        Backfill._through(filling, [at(1), at(3), at(2), at(5)], {})


def test_rewinds_ascend() -> None:
    store = SimulatedStore()
    rewind_target.note_rewind(store, 5, at(1))
    rewind_target.note_rewind(store, 5, at(1))  # a rewind that was interrupted is noted again
    with pytest.raises(InternalError, match="a rewind is epoch 4, and the one before it is epoch 5"):
        rewind_target.note_rewind(store, 4, at(1))


def test_a_log_begins_with_one_finished_batch_and_at_most_one_that_is_planned() -> None:
    with pytest.raises(InternalError, match="begin with 3 batches"):
        begun_log([at(1), at(2), at(3)], 0)


def test_targets_ascend(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("[2, {}]\n[1, {}]\n")
    with pytest.raises(InternalError, match=r"do not ascend: \[2, 1\]"):
        add_targets(LocalStore(str(tmp_path)), tmp_path / FILE_NAME, at(3))
