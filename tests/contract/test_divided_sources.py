"""Every source that can be divided keeps the promises of one: files by group or hash, streams, partitions, a clock."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from dataclasses import field as of_each
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import read, segments
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.connectors.files.source.division import FileDivision
from holdfast.connectors.rate import RateSpec
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Sink
from tests.contract.division_contract import DivisionContract
from tests.contract.source_contract import Hands

pytestmark = pytest.mark.slow

TestDivisionContract = DivisionContract
FIRST = ("left", "right", "front", "back", "top")


@dataclass
class FilesField:
    directory: Path
    spec: Any
    workspace: str
    name: str = "words"
    is_fixed: bool = False
    numbers: Iterator[int] = of_each(default_factory=itertools.count)

    def grow(self) -> None:
        for group in (*FIRST, *FIRST):
            self._write(group)

    def add_segment(self) -> bool:
        if self.spec.division.parts:
            return False
        self._write("new")
        return True

    def _write(self, group: str) -> None:
        number = next(self.numbers)
        below = self.directory / group
        below.mkdir(exist_ok=True)
        aside = below / f"_{number}"
        aside.write_text("".join(json.dumps({"id": number * 10 + each, "word": group}) + "\n" for each in range(10)))
        os.rename(aside, below / f"{number:04d}.json")


@dataclass
class RateField:
    spec: RateSpec
    workspace: str
    name: str = "ticks"
    is_fixed: bool = False

    def grow(self) -> None:
        self.spec.clock.now += 10_000_000  # type: ignore[attr-defined]

    def add_segment(self) -> bool:
        return False


@dataclass
class StreamsField:
    sink: Sink
    spec: Any
    workspace: str
    name: str = "frames"
    is_fixed: bool = False
    epochs: Iterator[int] = of_each(default_factory=lambda: itertools.count(1))

    def grow(self) -> None:
        self._publish(FIRST)

    def add_segment(self) -> bool:
        self._publish(("new",))
        return True

    def _publish(self, cameras: tuple[str, ...]) -> None:
        epoch = next(self.epochs)
        at = range(epoch * 20, epoch * 20 + 20)
        columns = {
            "camera": [camera for camera in cameras for _ in at],
            "timestamp": pa.array([one * 1_000_001 for _ in cameras for one in at], pa.timestamp("us", tz="UTC")),
            "data": [f"{camera} {one}".encode() for camera in cameras for one in at],
        }
        record = EpochRecord("p", epoch, 1, {"given": {"log": epoch}})
        self.sink.publish([Publication(record, (Carried(pa.table(columns)),))], Held())


@dataclass
class SegmentsField:
    """Half of its partitions are sealed, and all have rows in the journal."""

    sink: Any
    path: str
    workspace: str
    name: str = "flights"
    is_fixed: bool = True
    epochs: Iterator[int] = of_each(default_factory=lambda: itertools.count(1))

    @property
    def spec(self) -> Any:
        return read.segments(self.path, name=self.name).node.spec

    def grow(self) -> None:
        epoch = next(self.epochs)
        ids = range(epoch * 100, epoch * 100 + 50)
        rows = pa.table({"id": pa.array(ids, pa.int64()), "place": [FIRST[one % len(FIRST)] for one in ids]})
        record = EpochRecord("p", epoch, 1, {"given": {"log": epoch}})
        self.sink.publish([Publication(record, (Carried(rows),))], Held())

    def add_segment(self) -> bool:
        return False


def files_field(tmp_path: Path, workspace: str, division: FileDivision, **arguments: Any) -> FilesField:
    directory = tmp_path / "in"
    directory.mkdir()
    spec: Any = read.files(
        f"{directory}/**/*.json", schema="id BIGINT, word STRING", name="words", **arguments
    ).node.spec
    return FilesField(directory, replace(spec, division=division), workspace)


def streams_field(path: Path, workspace: str) -> StreamsField:
    columns = MessageColumns("timestamp", "data", "camera")
    schema = pa.schema([("camera", pa.string()), ("timestamp", pa.timestamp("us", tz="UTC")), ("data", pa.binary())])
    sink = ByteStreamSinkSpec(os.fspath(path), columns, index_every=3, target_bytes=500).connect("out", "p", schema)
    sink.open(RunIdentity("p", 1))
    return StreamsField(sink, read.byte_stream(path, name="frames").node.spec, workspace)


def segments_field(path: Path, workspace: str) -> SegmentsField:
    schema = pa.schema([("id", pa.int64()), ("place", pa.string())])
    spec = SegmentsSinkSpec(os.fspath(path), partition_by=("place",))
    sink = spec.connected("out", "p", schema, is_tended=False)
    sink.open(RunIdentity("p", 1))
    made = SegmentsField(sink, os.fspath(path), workspace)
    made.grow()
    segments.flush(path, [f"place={each}" for each in FIRST[:3]], pipeline="p", sink="out")
    assert sink.sealing.tend() == 3
    made.grow()
    return made


FIELDS = ["files by directory", "files by pattern", "files by hash", "files, few an epoch", "rate", "byte stream"]
FIELDS += ["segments"]


@pytest.fixture(params=FIELDS)
def field(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    workspace = os.fspath(tmp_path / "workspace")
    made: Any
    match request.param:
        case "files by directory":
            made = files_field(tmp_path, workspace, FileDivision())
        case "files by pattern":
            made = files_field(tmp_path, workspace, FileDivision(pattern="^(.*)/"))
        case "files by hash":
            made = files_field(tmp_path, workspace, FileDivision(parts=5))
        case "files, few an epoch":
            made = files_field(tmp_path, workspace, FileDivision(), max_files_per_epoch=2)
        case "rate":
            made = RateField(RateSpec(13, None, clock=Hands()), workspace)
            made.spec.open(made.name, workspace).latest({}, bounded=False)
        case "byte stream":
            made = streams_field(tmp_path / "store", workspace)
        case _:
            return segments_field(tmp_path / "out", workspace)
    made.grow()
    return made
