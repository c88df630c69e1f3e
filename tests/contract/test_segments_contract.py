"""The segments sink keeps every promise of a sink, while its rows grow and when they are sealed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from holdfast.connectors.segments.journal import PiecesReader
from holdfast.connectors.segments.manifest import SegmentsManifest
from holdfast.connectors.segments.policies import Segment, shutdown
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Sink
from tests.contract import comparable_contract
from tests.contract.comparable_contract import ComparableContract
from tests.contract.explaining_contract import ExplainingContract, ReplacedRunContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reset_contract import ResetContract, RowsInLedgerContract
from tests.contract.shard_contract import ShardContract, ShardLedgerContract, ShardsComparedContract
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract

pytestmark = pytest.mark.slow

TestSinkContract = SinkContract
TestComparableContract = ComparableContract
TestExplainingContract = ExplainingContract
TestLedgerContract = LedgerContract
TestReplacedRunContract = ReplacedRunContract
TestResetContract = ResetContract
TestRowsInLedgerContract = RowsInLedgerContract
TestShardContract = ShardContract
TestShardLedgerContract = ShardLedgerContract
TestShardsComparedContract = ShardsComparedContract


def always(segment: Segment) -> str:
    return "always"


def even(segment: Segment) -> str:
    return "" if segment.last_epoch % 2 else "even"


class Sealer(SegmentsSink):
    """A sink that seals everything in the call that publishes it: what its thread does, without one."""

    def publish(self, publications: list[Publication], expected: Held) -> None:  # type: ignore[override]
        super().publish(publications, expected)
        self.sealing.tend()


@dataclass(frozen=True)
class SegmentsTarget:
    directory: Path
    spec: SegmentsSinkSpec
    is_sealed: bool

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        sink = self.spec.connected(name, pipeline, schema, is_tended=False)
        if self.is_sealed:
            sink.__class__ = Sealer
        return sink

    def is_there(self) -> bool:
        return self.directory.exists()

    def rows(self) -> list[Row]:
        """As readers see them that know nothing of Holdfast, and what grows."""
        found = dataset.dataset(self.directory, format="parquet", partitioning="hive", schema=SCHEMA)
        rows = [(row["id"], row["word"]) for row in found.to_table().to_pylist()]
        for own in self.directory.glob("_holdfast/*/*"):
            rows += growing(own)
        return rows

    def leftovers(self) -> list[str]:
        found: list[Path] = []
        for own in self.directory.glob("_holdfast/*/*"):
            files = SegmentsManifest(os.fspath(own / "manifest")).holdings().files
            found += [path for path in own.glob("journal/*") if path.name not in files]
            found += [*own.glob("writing/*"), *own.glob("sealing/*")]
        return [str(path) for path in found]

    def refuse(self, word: str) -> bool:
        return False


def growing(own: Path) -> list[Row]:
    holdings = SegmentsManifest(os.fspath(own / "manifest")).holdings()
    rows: list[Row] = []
    for file in holdings.files.values():
        for partition, piece in PiecesReader(os.fspath(own / "journal" / file.name)).pieces():
            if partition in holdings.growing and file.epoch >= holdings.growing[partition].epoch:
                words = piece["word"].to_pylist() if not partition else [partition.removeprefix("word=")] * len(piece)
                rows += zip(piece["id"].to_pylist(), words, strict=True)
    return rows


@pytest.fixture(params=["growing", "growing by word", "sealed", "sealed by word", "sealed at the end by word"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> SegmentsTarget:
    directory = tmp_path / "out"
    way, _, partition_by = request.param.partition(" by ")
    seal = {"growing": (), "sealed": (always,), "sealed at the end": (shutdown(),)}[way]
    spec = SegmentsSinkSpec(
        os.fspath(directory), partition_by=(partition_by,) if partition_by else (), sort_by=("id",), seal=seal
    )
    return SegmentsTarget(directory, spec, way == "sealed")


def test_rows_are_in_files_once_they_are_sealed(tmp_path: Path) -> None:
    target = SegmentsTarget(tmp_path, SegmentsSinkSpec(os.fspath(tmp_path), seal=(always,)), True)
    sink = target.connect()
    sink.open(RunIdentity(PIPELINE, 1))
    rows = pa.table({"id": [1, 2], "word": ["one", "two"]}, schema=SCHEMA)
    sink.publish([Publication(EpochRecord(PIPELINE, 1, 1, {}), (Carried(rows),))], Held())
    assert growing(tmp_path / "_holdfast" / PIPELINE / "target") == []
    assert dataset.dataset(tmp_path).to_table().to_pydict() == {"id": [1, 2], "word": ["one", "two"]}
    assert pa.types.is_int64(dataset.dataset(tmp_path).schema.field("id").type)
    sink.close()


@dataclass
class SegmentsDirectories(comparable_contract.Targets):
    """A new directory each time."""

    above: Path
    partition_by: tuple[str, ...]
    seal: tuple[Callable[[Segment], str], ...]

    def fresh(self, schema: pa.Schema) -> Sink:
        directory = self.above / f"compared_{len(self.sinks)}"
        spec = SegmentsSinkSpec(os.fspath(directory), partition_by=self.partition_by, seal=self.seal)
        connect = partial(spec.connected, "target", comparable_contract.PIPELINE, schema, is_tended=False)
        return self.connected(partial(sealing, connect) if self.seal else connect)


def sealing(connect: Callable[[], SegmentsSink]) -> Sink:
    sink = connect()
    sink.__class__ = Sealer
    return sink


@pytest.fixture(params=["growing", "sealed by word flag", "growing by price day", "every other by flag"])
def comparable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SegmentsDirectories]:
    way, _, partition_by = request.param.partition(" by ")
    seal = {"growing": (), "sealed": (always,), "every other": (even,)}[way]
    directories = SegmentsDirectories(tmp_path, tuple(partition_by.split()), seal)
    yield directories
    directories.close()
