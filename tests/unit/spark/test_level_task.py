"""What a worker keeps of the journal of state belongs to one run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.plan.levels.journal import BucketChange, JournalReader, StateJournal
from holdfast.spark.state.host import LevelTask
from holdfast.testing.store import SimulatedStore


def test_a_worker_does_not_take_the_journal_of_another_run_for_its_own(tmp_path: Path) -> None:
    """A checkpoint was removed, or restored from a copy: its entries have the names of those that a worker has read."""
    found = []
    for run in ("first", "second"):
        store, routing = SimulatedStore(), SimpleNamespace()
        entry = StateJournal(store, "spark/1", 1).write(0, [BucketChange((run, 0), "record", {})]).key
        level: Any = SimpleNamespace(token=run)
        nothing: Any = routing
        task = LevelTask(level, 1, nothing, str(tmp_path), "spark/1")
        found.append(list(task._before(JournalReader(store, "spark/1"), entry).buckets))
    assert found == [[("first", 0)], [("second", 0)]]
