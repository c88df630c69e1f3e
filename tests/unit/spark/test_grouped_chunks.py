"""Chunks go to the tasks of a level in groups that can be pickled, however many are for one task."""

from __future__ import annotations

import pytest

from holdfast.plan import chunks
from holdfast.plan.chunks import ROWS, Chunk
from holdfast.spark.state import jobs


def chunk(bucket: int, seq: int, size: int) -> Chunk:
    return Chunk(0, bucket, ROWS, 0, seq, "", bytes(size))


def test_chunks_go_to_the_task_of_their_bucket() -> None:
    given = [chunk(bucket, seq, 1) for seq in range(2) for bucket in (0, 5, 4, 3)]
    found = dict(jobs.Grouping(4)(given))
    assert {task: [(each.bucket, each.seq) for each in group] for task, group in found.items()} == {
        0: [(0, 0), (4, 0), (0, 1), (4, 1)],
        1: [(5, 0), (5, 1)],
        3: [(3, 0), (3, 1)],
    }


def test_few_keys_do_not_gather_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """``RDD.partitionBy`` gathered chunks by their number: large ones of one task came to more than 2 GiB."""
    monkeypatch.setattr(chunks, "BATCH_BYTES", 100)
    given = [chunk(7, seq, 40) for seq in range(50)]
    groups = list(jobs.Grouping(1000)(given))
    assert [each for _, group in groups for each in group] == given
    assert max(sum(len(each.data) for each in group) for _, group in groups) <= 140
