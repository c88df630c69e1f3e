"""What an epoch does before it is decided; without a JVM."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.explained import Explanations
from holdfast.commit.busy import Busy
from holdfast.commit.claims import Claim
from holdfast.plan.counts import EpochReport
from holdfast.spark.epoch_loop import EpochLimits, EpochLoop
from holdfast.spark.evaluation import Evaluated
from holdfast.spark.sampling import Sampling

OFFSET = 'v2\n{"batchTimestampMs":1}\nrows:{"positions": {"log": 7}, "size_bytes": 10, "row_count": 1}'


def test_positions_of_an_epoch_are_synced_before_the_epoch_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes no positions of an epoch that a sink holds; Spark does not sync them (design/0001)."""
    entry = tmp_path / "offsets" / "0"
    entry.parent.mkdir()
    entry.write_text(OFFSET)
    calls: list[object] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    coordinator = SimpleNamespace(
        generation=1,
        check_before_epoch=lambda: None,
        missing=lambda epoch, end, start: Claim(epoch, frozenset({"table"}), 1, 1),
        retry=lambda call, doing: call(),
        commit=lambda claim, record, parts: calls.append("commit"),
        busy=Busy(),
    )
    evaluated = Evaluated({"table": ()}, EpochReport())
    evaluation = SimpleNamespace(here=None, carry=lambda *asked: evaluated, sampling=Sampling())
    nothing: Any = None
    loop = EpochLoop(
        pipeline="trips",
        header=DirectoryHeader(1),
        spark_checkpoint=tmp_path,
        evaluation=cast("Any", evaluation),
        sinks={},
        coordinator=cast("Any", coordinator),
        limits=EpochLimits(1000),
        due_file="",
        explanations=Explanations({}, {}),
        timed_sources=(),
        pts=None,
        reports=cast("Any", SimpleNamespace(note=lambda *report: None)),
    )
    loop(nothing, 0)
    assert calls == [entry, entry.parent, "commit"]
