"""Rows of one key are in one segment: two shards of a graph, however its epochs are evaluated (design/0048, 7)."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.connectors.files.source.division import FileDivision
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.reconciling import ShardsReconciling
from holdfast.errors import BadRow
from holdfast.graph.hooks import NONE, Lifecycle
from holdfast.pipeline import Pipeline
from holdfast.shards.keys import KEYS, KeyTable
from holdfast.shards.layout import ShardLayout
from holdfast.shards.naming import shard_checkpoint
from holdfast.spark.run import Run
from holdfast.starts.context import StartOptions
from holdfast.starts.shadows.reconciling import Reconciling
from holdfast.starts.starting import Starting
from tests.spark.running import CARRIED, STAGED, arrive, die_at, eventually, sqlite_rows

pytestmark = pytest.mark.spark

WAYS = {
    "program": ("", False, CARRIED),
    "program, staged": ("", False, STAGED),
    "program, in the kept worker": ("function", False, CARRIED),
    "Spark's plan": ("expression", False, CARRIED),
    "Spark's plan, staged": ("expression", False, STAGED),
    "state": ("", True, CARRIED),
    "state, staged": ("", True, STAGED),
    "state behind Spark's plan": ("expression", True, CARRIED),
    "state, in the kept worker": ("function", True, CARRIED),
}


@dataclass
class Fleet:
    """Files of devices, of which each file is in one segment; two shards between them and tables."""

    directory: Path
    between: str
    has_state: bool
    settings: Settings
    rejects: bool = True
    groups: dict[int, str] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def graphs(self) -> ShardGraphs:
        return ShardGraphs(self.pipeline(), self.checkpoint)

    def arrive(self, layout: ShardLayout, file: str, *devices: str) -> None:
        lines = []
        name = f"{file}-{len(self.devices):04}.json"
        segment = self.segment(layout, name)
        for device in devices:
            number = len(self.devices)
            self.devices[number], self.groups[number] = device, segment
            lines.append({"id": number, "device": device, "t": number})
        arrive(self.directory / "in", name, lines)

    def segment(self, layout: ShardLayout, name: str) -> str:
        return FileDivision(layout.parts["rides"]).segment_of(name).partition("/")[0]

    def pipeline(self) -> Pipeline:
        columns = "id BIGINT, device STRING, t BIGINT"
        rides = hf.read.files(
            str(self.directory / "in"),
            schema=columns,
            timestamp="t",
            name="rides",
            on_bad_row="reject" if self.rejects else "fail",
        )
        database = str(self.directory / "rides.db")
        rows = rides
        if self.between == "expression":  # one that Arrow does not have
            rows = rows | hf.select("*", sounds="soundex(device)", name="heard")
        if self.between == "function":
            rows = rows | hf.map_batches(lambda batch: batch, columns, name="same")
        if self.has_state:
            rows = rows | hf.accumulate(by="device", n=hf.count(), name="counts")
        sinks = [rows | hf.write.sqlite(database, table="rows", name="table")]
        if self.rejects:
            sinks.append(rides.rejects | hf.write.sqlite(str(self.directory / "bad.db"), table="rows", name="bad"))
        return hf.Pipeline("rides", *sinks, shard_by="device")

    def start(self, layout: ShardLayout, shard: int) -> Run:
        asked = StartOptions(
            self.graphs.of(layout, shard),
            shard_checkpoint(str(self.checkpoint), shard),
            hf.available_now(),
            commit_every_ticks=None,
            commit_thread=True,
            session=None,
            settings=self.settings,
        )
        return Starting(asked, Lifecycle(NONE, asked.pipeline.name)).run()

    def run(self, layout: ShardLayout) -> None:
        """Let all shards read what is there, side by side."""
        for each in [self.start(layout, shard) for shard in range(layout.shard_count)]:
            each.wait()

    def check(self) -> dict[str, str]:
        """Each row is in the table once, or rejected once; the rows of a device in the table are of one segment."""
        database = self.directory / "rides.db"
        kept = sqlite_rows(database)
        bad = sqlite_rows(self.directory / "bad.db", "SELECT raw, reason FROM rows")
        ids = {int(raw.split('"id": ')[1].split(",")[0]): reason for raw, reason in bad}
        assert Counter(kept) + Counter([*ids]) == Counter(dict.fromkeys(self.devices, 1))
        assert len(bad) == len(ids)
        found: dict[str, str] = {}
        for row in kept:
            assert found.setdefault(self.devices[row], self.groups[row]) == self.groups[row]
        for row, reason in ids.items():
            device = self.devices[row]
            assert f"{device!r} of 'device' is of segment {found[device]!r}" in reason
            assert f"came in segment {self.groups[row]!r}" in reason
        if self.has_state:
            counts: defaultdict[str, list[int]] = defaultdict(list)
            for device, count in sqlite_rows(database, "SELECT device, n FROM rows"):
                counts[device].append(count)
            assert all(sorted(each) == list(range(1, len(each) + 1)) for each in counts.values())
        return found


@pytest.fixture(params=WAYS)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as ending:
        found = Fleet(tmp_path, *WAYS[request.param])
        ending.callback(lambda: faults.install(None))
        yield found


def test_a_key_is_of_one_segment_and_rows_of_others_are_rejected_once(fleet: Fleet) -> None:
    chance = random.Random(7)
    (fleet.directory / "in").mkdir()
    layout = fleet.graphs.first(2, "device")
    devices = [f"d{number}" for number in range(12)]
    before: dict[str, str] = {}
    for _ in range(3):
        for file in "abcdef":
            fleet.arrive(layout, file, *chance.sample(devices, 4))
        fleet.run(layout)
        found = fleet.check()
        assert before.items() <= found.items(), "a key stays where it is"
        before = found
    assert len(set(fleet.groups.values())) > 4
    table = KeyTable(str(fleet.checkpoint / KEYS))
    assert table.count == len(devices)
    assert not (fleet.checkpoint / "shards/1/shards").exists(), "one table for all shards"


def test_an_epoch_that_is_repeated_has_the_verdict_of_the_first(fleet: Fleet) -> None:
    (fleet.directory / "in").mkdir()
    layout = fleet.graphs.first(2, "device")
    for file in "abcdef":
        fleet.arrive(layout, file, "x", f"own of {file}")
    die_at("after-stage", 1)
    for shard in range(2):
        with pytest.raises(hf.HoldfastError):
            fleet.start(layout, shard).wait()
    faults.install(None)
    claimed = KeyTable(str(fleet.checkpoint / KEYS))
    assert claimed.count == 7
    fleet.run(layout)
    found = fleet.check()
    assert found["x"] in claimed.units
    assert KeyTable(str(fleet.checkpoint / KEYS)).count == 7


def test_a_row_of_another_segment_ends_its_shard_alone_where_nobody_reads_rejects(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, *WAYS["state"], rejects=False)
    (fleet.directory / "in").mkdir()
    layout = fleet.graphs.first(2, "device")
    sets = [fleet.graphs.segments_of(layout, shard, "rides") for shard in range(2)]
    division = FileDivision(layout.parts["rides"])

    def file_of(shard: int) -> str:
        """Return a file of a segment of a shard: always the same segment."""
        segment = min(each for each in map(division.segment_of, "abcdefghijklmnop") if each in sets[shard])
        names = (f"{file}-{len(fleet.devices):04}.json" for file in range(10_000))
        return next(name.partition("-")[0] for name in names if division.segment_of(name) == segment)

    fleet.arrive(layout, file_of(0), "x")
    fleet.run(layout)
    fleet.arrive(layout, file_of(1), "x")
    other = fleet.start(layout, 1)
    with pytest.raises(BadRow, match="'x' of 'device' is of segment"):
        other.wait()
    fleet.arrive(layout, file_of(0), "x", "y")
    own = fleet.start(layout, 0)
    own.wait()
    eventually(lambda: sorted(sqlite_rows(tmp_path / "rides.db")) == [0, 2, 3])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("way", ["program", "state"])
def test_what_a_sink_should_hold_is_computed_with_the_same_verdicts(way: str, count: int, tmp_path: Path) -> None:
    """Though a shadow reads at once, and in another order, what came to the shards in two (design/0024)."""
    fleet = Fleet(tmp_path, *WAYS[way])
    (tmp_path / "in").mkdir()
    layout = fleet.graphs.first(count, "device")
    last = max("abcdefgh", key=lambda file: fleet.segment(layout, f"{file}-0000.json"))
    fleet.arrive(layout, last, "x")
    fleet.run(layout)
    first = min("abcdefgh", key=lambda file: fleet.segment(layout, f"{file}-0001.json"))
    fleet.arrive(layout, first, "x")
    fleet.run(layout)
    assert sqlite_rows(tmp_path / "rides.db") == [0]
    assert fleet.groups[1] < fleet.groups[0], "read at once, the second one would be the first"
    graphs = fleet.graphs
    places = [Path(shard_checkpoint(str(fleet.checkpoint), shard)) for shard in range(count)]
    for sink in graphs.pipeline.sinks:
        asked = Reconciling(graphs.pipeline, sink, fleet.checkpoint, tmp_path / f"shadow-{sink.name}", Settings())
        found = ShardsReconciling(graphs, layout, asked, places).look()
        assert (found.is_equal, found.actual_count) == (True, 1), sink.name
