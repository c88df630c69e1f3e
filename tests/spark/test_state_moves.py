"""Another number of shards for a pipeline that keeps state: each key's state goes with its rows (design/0048, 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.connectors.files.source.division import FileDivision
from holdfast.controller.graph import PARTS
from holdfast.graph.trigger import available_now
from holdfast.pipeline import Pipeline
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.store.local import LocalStore
from tests.spark.running import arrive, sqlite_rows
from tests.spark.test_rearranging import Movable

pytestmark = pytest.mark.spark

DEVICES = [f"device{number}" for number in range(9)]
TABLES = ("counts", "windows", "once", "pairs")


@dataclass
class Keyed(Movable):
    """Files of devices, each device in one segment, and operators that keep state of each."""

    sources: Path | None = None
    rounds: int = 0
    file_count: int = 0
    segments: dict[str, str] = field(default_factory=dict)

    @property
    def input(self) -> Path:
        return self.sources or self.directory / "in"

    def pipeline(self) -> Pipeline:
        return keyed_pipeline(self.directory, self.input)

    def arrive_rows(self) -> None:
        """Let files of all devices come, one of each device and source; what is paired comes a round later."""
        for device in DEVICES:
            at = 10 * self.rounds
            rides = [{"device": device, "t": at + each, "v": each % 3} for each in range(4)]
            fixes = [{"device": device, "t": at - 9, "v": self.rounds}]
            for source, rows in (("rides", rides), ("fixes", fixes)):
                arrive(self.input / source, self.name_for(device), rows)
        self.rounds += 1

    def name_for(self, device: str) -> str:
        """Return the name of a file that is of the device's segment."""
        division = FileDivision(PARTS)
        while True:
            self.file_count += 1
            name = f"{self.file_count:07}.json"
            if self.segments.setdefault(device, division.segment_of(name)) == division.segment_of(name):
                return name

    def begin(self, count: int) -> ShardLayout:
        self.arrive_rows()
        layout = record_layout(LocalStore(str(self.checkpoint)), self.graphs().first(count, "device"))
        assert layout is not None
        self.run(layout)
        return layout

    def tables(self) -> dict[str, list[tuple[object, ...]]]:
        return {name: sorted(sqlite_rows(self.directory / "out.db", f"SELECT * FROM {name}")) for name in TABLES}

    def check(self, directory: Path) -> None:
        """Compare with one run without shards over the same files."""
        alone = Keyed(directory, sources=self.input)
        alone.pipeline().run(checkpoint=alone.checkpoint, trigger=available_now())
        found, expected = self.tables(), alone.tables()
        for name in TABLES:
            assert found[name] == expected[name], name
            assert found[name], name


def keyed_pipeline(directory: Path, sources: Path) -> Pipeline:
    """Return files of rides and fixes, in tables by way of operators that keep state by device."""

    def read(name: str) -> hf.Stream:
        return hf.read.files(str(sources / name), schema="device STRING, t BIGINT, v BIGINT", timestamp="t", name=name)

    rides, fixes = read("rides"), read("fixes")
    counts = rides | hf.accumulate(by="device", n=hf.count(), total=hf.sum("v"), name="count")
    windows = rides | hf.aggregate(by="device", window=hf.tumbling(20), total=hf.sum("v"), n=hf.count(), name="window")
    once = rides | hf.distinct(by=["device", "v"], horizon=30, name="distinct")
    pairs = hf.join(rides, fixes, on="device", within=(-2, 2), disorder=5, name="join")
    tables = {"counts": counts, "windows": windows, "once": once, "pairs": pairs}
    database = str(directory / "out.db")
    sinks = [stream | hf.write.sqlite(database, table=name, name=name) for name, stream in tables.items()]
    return hf.Pipeline("rides", *sinks, shard_by="device")


@pytest.fixture
def place(tmp_path: Path) -> Keyed:
    for name in ("rides", "fixes"):
        (tmp_path / "work" / "in" / name).mkdir(parents=True)
    return Keyed(tmp_path / "work")


def test_state_goes_with_its_keys_to_more_shards_and_back(place: Keyed, tmp_path: Path) -> None:
    place.begin(1)
    for count in (3, 2):
        place.arrive_rows()
        layout = place.rearranging.change(count, "device")
        assert layout.shard_count == count
        place.run(layout)
    place.check(tmp_path / "alone")
