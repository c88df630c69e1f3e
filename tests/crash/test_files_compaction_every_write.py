"""A files sink that joins small files dies before each of its file operations, once and again during recovery.

Epochs and rounds of joining take turns; after each death a new sink goes on from what the log says, as after a start.
At the end each row is in one file, and nothing else is left but the log.  In between, who asks the log never sees a row
twice or misses one, and who lists the directory never misses one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

import holdfast as hf
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.store import entry_log
from tests.crash.operations import die_once, die_twice

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
PIPELINE = "numbers"
FIRST, LAST = 11, 12
"""Epochs that are published while it dies; those before were in a run that lived."""

# A process that dies leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_log, "KEPT", 2)


class Life:
    """What a run does with the sink, from its start to its end."""

    def __init__(self, directory: Path, format_name: str, partition_by: tuple[str, ...]) -> None:
        self.directory = directory
        self.spec = FilesSinkSpec(os.fspath(directory), format_name, partition_by, None, True)  # type: ignore[arg-type]
        self.generation = 0
        before = directory.parent / "before"
        if directory != before:
            if not before.exists():
                Life(before, format_name, partition_by).run(range(1, FIRST), is_joining=False)
            shutil.copytree(before, directory)
            self.generation = 1

    def run(self, epochs: range = range(FIRST, LAST + 1), *, is_joining: bool = True) -> None:
        """Start, recover, go on to the last epoch."""
        self.generation += 1
        sink = self.spec.connected("out", PIPELINE, SCHEMA, is_tended=False)
        held = sink.open(RunIdentity(PIPELINE, self.generation))
        sink.sweep(below_epoch=held.epoch + 1)
        assert sink.compaction is not None
        for epoch in range(max(held.epoch + 1, epochs[0]), epochs[-1] + 1):
            rows = pa.table({"id": [10 * epoch, 10 * epoch + 1], "word": ["a", "b"]}, schema=SCHEMA)
            record = EpochRecord(PIPELINE, epoch, self.generation, {"log": {"log": epoch}})
            sink.publish([Publication(record, (Carried(rows.slice(0, 1)), Carried(rows.slice(1))))], Held())
            while is_joining and sink.compaction.tend():
                pass
        if is_joining:
            # Of a run that died before its round there was nothing new to publish: the round is made up for.
            sink.compaction.begin(self.generation)
            while sink.compaction.tend():
                pass

    def look(self) -> None:
        """What readers see of a dead run."""
        asked = hf.files.open(self.directory).to_arrow()["id"].to_pylist()
        assert sorted(asked) in (self.rows(last) for last in range(FIRST - 1, LAST + 1))
        if len(asked) == len(self.rows(LAST)):
            return
        assert set(self.rows(FIRST - 1)) <= set(self.listed())

    def recover(self) -> None:
        self.look()
        self.run()

    def check(self) -> None:
        """Every row once, and nothing else left but the log."""
        assert sorted(self.listed()) == self.rows(LAST)
        own = self.directory / "_holdfast" / PIPELINE / "out"
        left = [path for path in own.rglob("*") if path.is_file() and path.parent != own / "log"]
        assert [str(path) for path in left if path.name != "renamed"] == []
        assert os.listdir(own / "joining") == os.listdir(own / "staging") == []
        files = [path for path in self.directory.rglob("part-*") if "_holdfast" not in path.parts]
        assert len(files) <= 8, "they were joined"

    def listed(self) -> list[int]:
        found = dataset.dataset(self.directory, format=self.spec.format, partitioning="hive", schema=SCHEMA)
        return found.to_table()["id"].to_pylist()

    def rows(self, last: int) -> list[int]:
        return [10 * epoch + n for epoch in range(1, last + 1) for n in (0, 1)]


NIGHTLY = [pytest.mark.nightly, pytest.mark.slow]
KINDS = [("parquet", ("word",)), ("parquet", ()), ("json", ())]
NAMES = ["partitioned", "flat", "lines"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_name", "partition_by"),
    [KINDS[0], *(pytest.param(*kind, marks=NIGHTLY) for kind in KINDS[1:])],
    ids=NAMES,
)
def test_a_death_before_any_file_operation_loses_and_doubles_nothing(
    tmp_path: Path, format_name: str, partition_by: tuple[str, ...]
) -> None:
    changes = die_once(lambda n: Life(tmp_path / str(n), format_name, partition_by))
    assert changes > 50, "the audit hook saw the work"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("format_name", "partition_by"), KINDS, ids=NAMES)
def test_a_second_death_during_recovery_loses_and_doubles_nothing(
    tmp_path: Path, format_name: str, partition_by: tuple[str, ...]
) -> None:
    assert die_twice(lambda name: Life(tmp_path / name, format_name, partition_by), 1, 5) > 50
