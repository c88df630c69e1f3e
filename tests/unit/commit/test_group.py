"""Commit grouping: when a group is due."""

from dataclasses import replace

import pyarrow as pa
import pytest

from holdfast.commit.group import CommitGroup, Underway
from holdfast.commit.ledger import Key
from holdfast.commit.records import Decided
from holdfast.errors import InternalError
from holdfast.ports import Carried, EpochRecord

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


class Counted(Decided):
    """Counts how often its size is asked for."""

    asked = 0

    @property
    def carried_bytes(self):
        Counted.asked += 1
        return super().carried_bytes


def epoch(number):
    record = EpochRecord("trips", number, 1, {}, 0)
    return Underway(Counted(record, {"table": (Carried(ROWS),)}), Key(number, 1))


def begun(carried_limit_bytes):
    group = CommitGroup(1, carried_limit_bytes)
    group.begin([0])
    return group


def test_a_group_is_due_when_the_driver_holds_enough_and_the_next_one_begins_with_nothing():
    group = begun(3 * ROWS.nbytes)
    sizes = [len(group.due(epoch(number))) for number in range(1, 8)]
    assert sizes == [0, 0, 3, 0, 0, 3, 0]
    assert len(group.take()) == 1
    assert [len(group.due(epoch(number))) for number in (8, 9, 10)] == [0, 0, 3]


def test_the_size_of_an_epoch_is_looked_at_once_however_long_it_waits():
    group, Counted.asked = begun(10**9), 0
    for number in range(1, 500):
        assert not group.due(epoch(number))
    assert Counted.asked == 499


def test_epochs_of_a_group_ascend_and_have_a_decision():
    group = begun(10 * ROWS.nbytes)
    assert group.due(epoch(2)) == []
    for number in (1, 2):
        with pytest.raises(InternalError, match=f"epoch {number} joins its group after epoch 2"):
            group.due(epoch(number))
    with pytest.raises(InternalError, match="without a decision"):
        group.due(replace(epoch(3), key=None))
    assert [each.record.epoch for each in group.take()] == [2]


def at(number, pts):
    return Underway(Counted(EpochRecord("trips", number, 1, {}, pts), {"table": (Carried(ROWS),)}), Key(number, 1))


def test_a_group_at_pts_is_due_when_pts_has_changed_and_not_while_it_is_unknown():
    """Design/0015, section 3: an epoch in which pts stands still has no rows, and no commit."""
    group = CommitGroup(None, 2**30, is_at_pts=True)
    group.begin([None])
    assert group.is_used
    due = [[each.record.epoch for each in group.due(at(number, pts))] for number, pts in enumerate((None, 5, 5, 6), 1)]
    assert due == [[], [1, 2], [], [3, 4]]


def test_with_commit_every_a_group_at_pts_is_due_when_pts_has_moved_by_so_much():
    group = CommitGroup(10, 2**30, is_at_pts=True)
    group.begin([0])
    due = [[each.record.epoch for each in group.due(at(number, pts))] for number, pts in enumerate((9, 10, 19, 25), 1)]
    assert due == [[], [1, 2], [], [3, 4]]
