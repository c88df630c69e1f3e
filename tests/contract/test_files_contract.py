"""The files sink keeps every promise of a sink, in both formats."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from holdfast.connectors.files.sink import sink as files_sink
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.ports import EpochRecord, Held, Publication, Sink
from holdfast.store import entry_log
from tests.contract import comparable_contract
from tests.contract.comparable_contract import ComparableContract
from tests.contract.explaining_contract import ExplainingContract, ReplacedRunContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reset_contract import ResetContract, ResetWithoutRowsContract
from tests.contract.rewind_contract import RewindContract, filled, opened, positions
from tests.contract.shard_contract import (
    ShardContract,
    ShardLedgerContract,
    ShardRewindContract,
    ShardsComparedContract,
)
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract

pytestmark = pytest.mark.slow

TestSinkContract = SinkContract
TestComparableContract = ComparableContract
TestExplainingContract = ExplainingContract
TestLedgerContract = LedgerContract
TestReplacedRunContract = ReplacedRunContract
TestResetContract = ResetContract
TestResetWithoutRowsContract = ResetWithoutRowsContract
TestRewindContract = RewindContract
TestShardContract = ShardContract
TestShardLedgerContract = ShardLedgerContract
TestShardsComparedContract = ShardsComparedContract
TestShardRewindContract = ShardRewindContract


def test_idle_epochs_do_not_use_up_the_history(target: FilesTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_log, "KEPT", 4)  # three epochs with rows, and the entry of the second run
    monkeypatch.setattr(files_sink, "IDLE_KEPT", 20)
    sink = filled(target, 3)
    for epoch in range(4, 15):
        sink.publish([Publication(EpochRecord(PIPELINE, epoch, 1, positions(epoch)), ())], Held())
    assert sink.withdrawal(positions(1)).epoch == 1  # type: ignore[attr-defined]
    sink.close()
    sink, _ = opened(target, 2)
    for epoch in range(15, 20):
        sink.publish([Publication(EpochRecord(PIPELINE, epoch, 2, positions(epoch)), ())], Held())
    asked = sink.withdrawal(positions(1))  # type: ignore[attr-defined]
    assert (asked.epoch, asked.obstacle) == (1, "")
    for epoch in range(20, 60):  # so many that the oldest ones go after all
        sink.publish([Publication(EpochRecord(PIPELINE, epoch, 2, positions(epoch)), ())], Held())
    assert sink.withdrawal(positions(1)).obstacle  # type: ignore[attr-defined]
    sink.close()


@dataclass(frozen=True)
class FilesTarget:
    directory: Path
    spec: FilesSinkSpec

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        return self.spec.connect(name, pipeline, schema)

    def is_there(self) -> bool:
        return self.directory.exists()

    def rows(self) -> list[Row]:
        """As a reader that knows nothing of Holdfast sees them."""
        found = dataset.dataset(self.directory, format=self.spec.format, partitioning="hive", schema=SCHEMA)
        return [(row["id"], row["word"]) for row in found.to_table().to_pylist()]

    def leftovers(self) -> list[str]:
        own = self.directory / "_holdfast"
        staged = list(own.glob("*/*/staging/*"))
        return [str(path) for path in [*staged, *own.glob("*/*/writing/*")]]

    def refuse(self, word: str) -> bool:
        return False


@pytest.fixture(params=["parquet", "json", "parquet by word"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> FilesTarget:
    directory = tmp_path / "out"
    format_name, _, partition_by = request.param.partition(" by ")
    spec = FilesSinkSpec(os.fspath(directory), format_name, (partition_by,) if partition_by else ())
    return FilesTarget(directory, spec)


@pytest.fixture
def rewindable(target: FilesTarget) -> FilesTarget:
    return target


@dataclass
class FilesDirectories(comparable_contract.Targets):
    """A new directory each time."""

    above: Path
    partition_by: tuple[str, ...]

    def fresh(self, schema: pa.Schema) -> Sink:
        directory = self.above / f"compared_{len(self.sinks)}"
        spec = FilesSinkSpec(os.fspath(directory), "parquet", self.partition_by, compact=not self.partition_by)
        return self.connected(partial(spec.connect, "target", comparable_contract.PIPELINE, schema))


@pytest.fixture(params=["", "word flag at price day"])
def comparable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FilesDirectories]:
    directories = FilesDirectories(tmp_path, tuple(request.param.split()))
    yield directories
    directories.close()
