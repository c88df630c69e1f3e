"""What the checkpoint promises itself: where it does not hold, nothing is written that a later start would trust."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.checkpoint import progress
from holdfast.checkpoint.barriers import Barriers
from holdfast.checkpoint.manifest import EpochEnd, Manifest, OperatorState
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.snapshot import commit, write_bucket
from holdfast.errors import InternalError
from holdfast.state.bucket_report import BucketReport, KeptVersion
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.snapshots import KEEPS, bucket, ended
from tests.unit.checkpoint.test_checkpointer import Bench


def test_barriers_are_of_the_epoch_that_runs() -> None:
    barriers = Barriers()
    barriers.begin(5)
    barriers.begin(5)  # repeated
    with pytest.raises(InternalError, match="epoch 4 begins after epoch 5"):
        barriers.begin(4)
    with pytest.raises(InternalError, match="epoch 6 ends, and epoch 5 has begun"):
        barriers.end(6)


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (BucketReport(), "bucket counted/0 has not reported its version"),
        (BucketReport(kept=KeptVersion(6, "d")), "bucket counted/0 reports version 6 in epoch 5"),
    ],
)
def test_a_bucket_reports_the_version_that_it_has(report: BucketReport, says: str) -> None:
    barriers = Barriers()
    barriers.begin(5)
    with pytest.raises(InternalError, match=says):
        barriers.take({"counted/0": report})


def test_epochs_end_in_ascending_order() -> None:
    bench = Bench()
    for epoch in (1, 2, 2):
        bench.checkpointer.note(ended(epoch - 1).positions, ended(epoch))
    with pytest.raises(InternalError, match=r"epoch 1 of pipeline .* ends after epoch 2"):
        bench.checkpointer.note(ended(0).positions, ended(1))


def test_a_progress_record_holds_ends_in_order() -> None:
    spans = [EpochSpan({}, EpochEnd(epoch, epoch, {}, 0)) for epoch in (2, 1)]
    with pytest.raises(InternalError, match=r"the ends of the epochs \[2, 1\]"):
        progress.write(SimulatedStore(), spans, 1)


@pytest.mark.parametrize(
    ("number", "version", "changes", "says"),
    [
        (2, 5, {}, "name bucket 2 of 2 of operator 'counted'"),
        (1, 6, {}, "name version 6 of bucket 1"),
        (1, 0, {}, "rows under version 0 in bucket 1"),
        (1, 5, {"schema": replace(KEEPS, tables={})}, r"a file of the state tables \['counts'"),
    ],
)
def test_a_snapshot_names_what_its_epoch_can_hold(number: int, version: int, changes: Any, says: str) -> None:
    store = SimulatedStore()
    state = OperatorState(KEEPS, {number: write_bucket(store, bucket(number, version))})
    wrong = Manifest("counts", 1, 0, "0123", ended(5), 2, {"counted": replace(state, **changes)})
    with pytest.raises(InternalError, match=says):
        commit(store, wrong)
    assert store.get(wrong.key.path) is None, "the snapshot does not count"


def test_a_sink_takes_part_in_an_epoch_that_was_decided() -> None:
    store = SimulatedStore()
    with pytest.raises(InternalError, match="are to have taken part in epoch 0"):
        Participation("counts", store, ["table"]).note(["table"], 0)
    assert not list(store.keys("sinks/"))
