"""What a worker writes of snapshots beside its epochs: the newest of each bucket, whatever the disk does."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from holdfast.checkpoint.snapshot import Bucket
from holdfast.plan.levels import parts as state_parts
from holdfast.plan.levels.parts import BackgroundParts
from holdfast.ports import Store


def bucket(number: int, version: int) -> Bucket:
    return Bucket("counts", number, version, "digest", {}, {})


def test_on_a_slow_disk_the_newest_offer_of_each_bucket_waits_and_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design/0011, section 3."""
    written: list[tuple[str, int, int]] = []
    has_begun, may_go_on = threading.Event(), threading.Event()

    def slow(store: Store, of: Bucket, run: str) -> None:
        has_begun.set()
        assert may_go_on.wait(30)
        written.append((run, of.number, of.version))

    monkeypatch.setattr(state_parts, "write_part", slow)
    parts, other = BackgroundParts(str(tmp_path), "one"), BackgroundParts(str(tmp_path), "other")
    parts.offer(bucket(0, 1))
    assert has_begun.wait(30)
    other.offer(bucket(0, 7))  # of another run, which the worker serves too
    for version in range(2, 100):
        for number in (0, 1):
            parts.offer(bucket(number, version))
    may_go_on.set()
    until = time.monotonic() + 30
    while len(written) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert written == [("one", 0, 1), ("other", 0, 7), ("one", 0, 99), ("one", 1, 99)]
