"""The segments sink dies before each of its file operations, once and again during recovery.

Segments of three partitions seal at their own pace, in the thread that publishes, and are joined; the manifest is
compacted every few entries.  Then a new sink recovers, as the coordinator would, and n grows until a run survives.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from holdfast.connectors.kit.files import own_files
from holdfast.connectors.segments import manifest
from holdfast.connectors.segments.policies import Segment
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Part, Publication, RunIdentity, Task
from tests.contract.test_segments_contract import growing
from tests.crash.operations import die_once, die_twice

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
PIPELINE = "numbers"
EPOCHS = 3
EXPECTED = list(range(10, 10 * (EPOCHS + 1)))
"""Ten rows per epoch: 10 to 19 in epoch 1, and so on."""

# A process that dies leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def at_its_own_pace(segment: Segment) -> str | None:
    """One partition seals each epoch, one every second, and one grows on."""
    epochs = segment.last_epoch - segment.first_epoch + 1
    return {"word=w0": "each", "word=w1": "second" if epochs > 1 else None}.get(segment.partition)


class Driver:
    """What the coordinator does with one sink, and what survives a death: the decisions and the generation."""

    def __init__(self, directory: Path, *, is_decided: bool) -> None:
        self.directory = directory
        self.is_decided = is_decided
        self.spec = SegmentsSinkSpec(
            os.fspath(directory), partition_by=("word",), target_size="1 GB", seal=(at_its_own_pace,)
        )
        self.generation = 0
        self.decisions: dict[int, Publication] = {}

    def run(self) -> None:
        """Start, recover, go on to the last epoch, seal, sweep."""
        self.generation += 1
        sink = self.spec.connected("out", PIPELINE, SCHEMA, is_tended=False)
        held = sink.open(RunIdentity(PIPELINE, self.generation))
        for epoch, decided in sorted(self.decisions.items()):
            if sink.outcome(epoch) is not Outcome.PUBLISHED:
                sink.publish([decided], Held())
        self.decisions.clear()
        sink.sweep(below_epoch=1)
        sink.sealing.tend()
        for epoch in range(max(held.epoch, self._last_of(sink)) + 1, EPOCHS + 1):
            publication = self._evaluated(sink, epoch)
            if self.is_decided:
                self.decisions[epoch] = publication
            sink.publish([publication], Held())
            self.decisions.pop(epoch, None)
            sink.sealing.tend()
            sink.sweep(below_epoch=epoch + 1)

    def _last_of(self, sink: SegmentsSink) -> int:
        return max((epoch for epoch in range(1, EPOCHS + 1) if sink.outcome(epoch) is Outcome.PUBLISHED), default=0)

    def _evaluated(self, sink: SegmentsSink, epoch: int) -> Publication:
        """A task stages, one attempt of it is an orphan, and the driver carries some rows too."""
        for attempt in range(2):
            writer = sink.writer_factory()(Task(PIPELINE, self.generation, epoch, 0, attempt))
            writer.write(_table(range(10 * epoch, 10 * epoch + 6)).to_batches()[0])
            staged = writer.stage()
        parts: tuple[Part, ...] = (staged, Carried(_table(range(10 * epoch + 6, 10 * epoch + 10))))
        return Publication(EpochRecord(PIPELINE, epoch, self.generation, {"log": {"log": epoch}}), parts)

    def recover(self) -> None:
        self.run()

    def check(self) -> None:
        """Every row once; no file holds a part of an epoch of its partition; nothing else is left."""
        found = dataset.dataset(self.directory, format="parquet", schema=SCHEMA, partitioning="hive").to_table()
        own = self.directory / "_holdfast" / PIPELINE / "out"
        rest = [number for number, _ in growing(own)]
        assert sorted(found["id"].to_pylist() + rest) == EXPECTED
        holdings = manifest.SegmentsManifest(os.fspath(own / "manifest")).holdings()
        assert sorted(os.listdir(own / "journal")) == sorted(holdings.files)
        assert [*(own / "sealing").iterdir(), *(own / "writing").iterdir()] == []
        sealed = list(manifest.SegmentsManifest(os.fspath(own / "manifest")).sealed(holdings))
        assert sorted(str(path.relative_to(self.directory)) for path in self.directory.glob("word=*/*")) == sorted(
            segment.path for segment in sealed
        )
        for segment in sealed:
            ids = dataset.dataset(self.directory / segment.path).to_table()["id"].to_pylist()
            assert sorted(ids) == [
                number
                for number in EXPECTED
                if segment.first_epoch <= number // 10 <= segment.last_epoch and segment.partition == _partition(number)
            ]
            assert segment.start == ({"log": {"log": segment.first_epoch - 1}} if segment.first_epoch > 1 else {})
            assert segment.end == {"log": {"log": segment.last_epoch}}


def _partition(number: int) -> str:
    return f"word=w{number % 3}"


def _table(ids: range) -> pa.Table:
    return pa.table({"id": ids, "word": [f"w{number % 3}" for number in ids]}, schema=SCHEMA)


@pytest.fixture(autouse=True)
def often_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "ENTRIES_MAX", 3)
    monkeypatch.setattr(manifest, "CHUNK_SEGMENTS", 2)
    monkeypatch.setattr(own_files, "RUN", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_decided", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["decided", "fast path"]
)
def test_a_death_before_any_file_operation_loses_and_doubles_nothing(tmp_path: Path, is_decided: bool) -> None:
    changes = die_once(lambda n: Driver(tmp_path / str(n), is_decided=is_decided))
    assert changes > 60, "the audit hook saw the work"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_second_death_during_recovery_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Every third first death, each with every seventh second one; where these begin moves on with the first."""
    assert die_twice(lambda name: Driver(tmp_path / name, is_decided=False), 3, 7) > 60
