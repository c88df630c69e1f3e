"""The files sink dies before each of its file operations, once and again during recovery.

Finer than the named crash points (:mod:`tests.crash.operations`).  After each death a new sink recovers, as the
coordinator would, and n grows until a run survives.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from holdfast.connectors.files.sink.sink import FilesSink
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.ports import Carried, EpochRecord, Explanation, Held, Outcome, Part, Publication, RunIdentity, Task
from tests.crash.operations import die_once, die_twice

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
PIPELINE = "numbers"
EPOCHS = 2
EXPECTED = list(range(10, 10 * (EPOCHS + 1)))
"""Ten rows per epoch: 10 to 19 in epoch 1, and so on."""

# A process that dies leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Driver:
    """What the coordinator does with one sink, and what survives a death: the decisions and the generation."""

    def __init__(self, directory: Path, *, is_decided: bool, partition_by: tuple[str, ...]) -> None:
        self.directory = directory
        self.is_decided = is_decided
        self.spec = FilesSinkSpec(os.fspath(directory), partition_by=partition_by)
        self.generation = 0
        self.decisions: dict[int, Publication] = {}

    def run(self) -> None:
        """Start, recover, go on to the last epoch, sweep."""
        self.generation += 1
        sink = self.spec.connect("out", PIPELINE, SCHEMA)
        held = sink.open(RunIdentity(PIPELINE, self.generation))
        for epoch, decided in sorted(self.decisions.items()):
            if sink.outcome(epoch) is not Outcome.PUBLISHED:
                sink.publish([decided], Held())
        self.decisions.clear()
        sink.sweep(below_epoch=1)
        for epoch in range(max(held.epoch, self._last_of(sink)) + 1, EPOCHS + 1):
            publication = self._evaluated(sink, epoch)
            if self.is_decided:
                self.decisions[epoch] = publication
            sink.publish([publication], Held())
            self.decisions.pop(epoch, None)
            sink.sweep(below_epoch=epoch + 1)

    def _last_of(self, sink: FilesSink) -> int:
        return max((epoch for epoch in range(1, EPOCHS + 1) if sink.outcome(epoch) is Outcome.PUBLISHED), default=0)

    def _evaluated(self, sink: FilesSink, epoch: int) -> Publication:
        """Two tasks stage, and in every second epoch the driver carries some rows too; one attempt is an orphan."""
        parts: list[Part] = []
        for task, ids in enumerate((range(10 * epoch, 10 * epoch + 4), range(10 * epoch + 4, 10 * epoch + 8))):
            for attempt in range(2 if task else 1):
                writer = sink.writer_factory()(Task(PIPELINE, self.generation, epoch, task, attempt))
                writer.write(_table(ids).to_batches()[0])
                staged = writer.stage()
            parts.append(staged)
        rest = range(10 * epoch + 8, 10 * epoch + 10)
        if epoch % 2:
            parts.append(Carried(_table(rest)))
        else:
            writer = sink.writer_factory()(Task(PIPELINE, self.generation, epoch, 2, 0))
            writer.write(_table(rest).to_batches()[0])
            parts.append(writer.stage())
        # What its positions mean, all of it: as to a sink whose numbers a dead process never told.
        told = tuple(Explanation("log", number, f'{{"first": {number}}}') for number in range(1, epoch + 1))
        record = EpochRecord(PIPELINE, epoch, self.generation, {"log": {"log": epoch}}, explanations=told)
        return Publication(record, tuple(parts))

    def recover(self) -> None:
        self.run()

    def check(self) -> None:
        """Every row once, and nothing else left but the log."""
        found = dataset.dataset(self.directory, format="parquet", schema=SCHEMA, partitioning="hive").to_table()
        assert sorted(found["id"].to_pylist()) == EXPECTED
        own = self.directory / "_holdfast" / PIPELINE / "out"
        kept = self.spec.connect("out", PIPELINE, SCHEMA).explanations()
        assert [(each.number, each.text) for each in kept] == [(n, f'{{"first": {n}}}') for n in range(1, EPOCHS + 1)]
        logs = {own / "log", own / "positions" / "log"}
        assert [str(p) for p in own.rglob("*") if p.is_file() and p.parent not in logs and p.name != "renamed"] == []
        assert os.listdir(self.directory / "_holdfast" / PIPELINE / "out" / "staging") == []


def _table(ids: range) -> pa.Table:
    return pa.table({"id": ids, "word": [f"w{number % 2}" for number in ids]}, schema=SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("is_decided", [True, False], ids=["decided", "fast path"])
@pytest.mark.parametrize(
    "partition_by", [pytest.param((), marks=pytest.mark.nightly), ("word",)], ids=["flat", "partitioned"]
)
def test_a_death_before_any_file_operation_loses_and_doubles_nothing(
    tmp_path: Path, is_decided: bool, partition_by: tuple[str, ...]
) -> None:
    changes = die_once(lambda n: Driver(tmp_path / str(n), is_decided=is_decided, partition_by=partition_by))
    assert changes > 50, "the audit hook saw the work"


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_decided",
    [
        pytest.param(True, id="decided", marks=pytest.mark.nightly),
        pytest.param(False, id="fast path", marks=pytest.mark.nightly),
    ],
)
def test_a_second_death_during_recovery_loses_and_doubles_nothing(tmp_path: Path, is_decided: bool) -> None:
    """Every first death, each with every fifth second one; where these begin moves on with the first."""
    assert die_twice(lambda name: Driver(tmp_path / name, is_decided=is_decided, partition_by=()), 1, 5) > 50
