"""Every source keeps the promises of a source; files in each format, cut and uncut."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from holdfast import read
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.connectors.rate import RateSpec
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Sink, Source
from holdfast.video import EncodedPacket
from holdfast.video.payloads import payload_of
from tests.contract.source_contract import Hands, SourceContract

pytestmark = pytest.mark.slow

TestSourceContract = SourceContract

SCHEMA = "id BIGINT, word STRING, at TIMESTAMP"
FORMATS: dict[str, dict[str, Any]] = {
    "json": {"format": "json"},
    "json, small blocks": {"format": "json", "block_size": "300 B"},
    "json, few rows an epoch": {"format": "json", "max_rows_per_epoch": 7},
    "json, two files an epoch": {"format": "json", "max_files_per_epoch": 2},
    "csv": {"format": "csv"},
    "csv, small blocks": {"format": "csv", "block_size": "200 B"},
    "csv, few rows an epoch": {"format": "csv", "max_rows_per_epoch": 7},
    "parquet": {"format": "parquet"},
    "parquet, few rows an epoch": {"format": "parquet", "max_rows_per_epoch": 7},
}


@dataclass
class FilesOrigin:
    directory: Path
    spec: Any
    workspace: str
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def open(self) -> Source:
        source: Source = self.spec.open("words", self.workspace)
        return source

    def grow(self) -> None:
        for _ in range(3):
            write(self.directory, next(self.numbers), self.spec.layout.format)


def write(directory: Path, number: int, format_name: str) -> None:
    ids = range(number * 20, number * 20 + 20)
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "word": [f'wörd "{one}", and\nmore' if one % 3 else None for one in ids],
            "at": pa.array([one * 1_000_001 for one in ids], pa.timestamp("us", tz="UTC")),
        }
    )
    aside = directory / f"_{number}"
    if format_name == "parquet":
        pq.write_table(table, aside, row_group_size=8)
    elif format_name == "csv":
        arrow_csv.write_csv(table, aside)
    else:
        rows = [{**row, "at": row["at"].isoformat()} for row in table.to_pylist()]
        aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.rename(aside, directory / f"{number:04d}.{format_name}")


@dataclass
class ClockOrigin:
    spec: RateSpec
    workspace: str

    def open(self) -> Source:
        return self.spec.open("ticks", self.workspace)

    def grow(self) -> None:
        self.spec.clock.now += 10_000_000  # type: ignore[attr-defined]


@dataclass
class FeedOrigin:
    feed: read.CallbackFeed
    spec: Any
    workspace: str
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def open(self) -> Source:
        source: Source = self.spec.open("pushed", self.workspace)
        return source

    def grow(self) -> None:
        for _ in range(3):
            number = next(self.numbers)
            self.feed.push([{"id": number, "word": "x"}, {"id": -number - 1, "word": None}])


@dataclass
class ByteStreamOrigin:
    sink: Sink
    spec: Any
    workspace: str
    epochs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def open(self) -> Source:
        source: Source = self.spec.open("frames", self.workspace)
        return source

    def grow(self) -> None:
        epoch = next(self.epochs)
        ids = range(epoch * 20, epoch * 20 + 20)
        columns = {
            "camera": ["left"] * len(ids),
            "timestamp": pa.array([one * 1_000_001 for one in ids], pa.timestamp("us", tz="UTC")),
            "data": [b"x" * (one % 30) for one in ids],
        }
        record = EpochRecord("p", epoch, 1, {"given": {"log": epoch}})
        self.sink.publish([Publication(record, (Carried(pa.table(columns)),))], Held())


def byte_stream_origin(path: Path, workspace: str, limit: int | None) -> ByteStreamOrigin:
    columns = MessageColumns("timestamp", "data", "camera")
    schema = pa.schema([("camera", pa.string()), ("timestamp", pa.timestamp("us", tz="UTC")), ("data", pa.binary())])
    spec = ByteStreamSinkSpec(os.fspath(path), columns, index_every=3, target_bytes=500)
    sink = spec.connect("out", "p", schema)
    sink.open(RunIdentity("p", 1))
    stream = read.byte_stream(path, max_rows_per_epoch=limit, name="frames")
    return ByteStreamOrigin(sink, stream.node.spec, workspace)


@dataclass
class CameraOrigin:
    """A camera that is off: the journal grows by what a receiver writes into it."""

    spec: Any
    workspace: str
    sources: list[Any] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def open(self) -> Source:
        self.sources.append(self.spec.open("front", self.workspace))
        source: Source = self.sources[-1]
        return source

    def grow(self) -> None:
        for _ in range(3):
            number = next(self.numbers)
            packets = [EncodedPacket(b"x", at, is_key=at % 2 == 0) for at in (2 * number, 2 * number + 1)]
            rows = [{"stream": "front", "timestamp": packet.pts, **payload_of(packet)} for packet in packets]
            self.spec.of.feed.push(rows)

    def close(self) -> None:
        for source in self.sources:
            if source._receiver is not None:
                source.receiver.stop()


OTHERS = ["rate", "rate, few rows an epoch", "callback", "callback, few rows an epoch"]
OTHERS += ["camera", "camera, few rows an epoch", "byte stream", "byte stream, few rows an epoch"]


@pytest.fixture(params=[*FORMATS, *OTHERS])
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    workspace = os.fspath(tmp_path / "workspace")
    limit = 7 if "few" in request.param else None
    made: Any
    if request.param.startswith("rate"):
        made = ClockOrigin(RateSpec(13, None, limit, clock=Hands()), workspace)
        made.open().latest({"rows": 0}, bounded=False)
    elif request.param.startswith("byte stream"):
        made = byte_stream_origin(tmp_path / "store", workspace, limit)
    elif request.param.startswith("callback"):
        feed = read.CallbackFeed(tmp_path / "feed", schema="id BIGINT, word STRING")
        stream = read.callback(feed, max_rows_per_epoch=limit, name="pushed")
        made = FeedOrigin(feed, stream.node.spec, workspace)
    elif request.param.startswith("camera"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        stream = read.camera(address, journal=tmp_path / "journal", max_rows_per_epoch=limit, name="front")
        made = CameraOrigin(stream.node.spec, workspace)
    else:
        directory = tmp_path / "in"
        directory.mkdir()
        stream = read.files(os.fspath(directory), schema=SCHEMA, name="words", **FORMATS[request.param])
        made = FilesOrigin(directory, stream.node.spec, workspace)
    made.grow()
    yield made
    if isinstance(made, CameraOrigin):
        made.close()
