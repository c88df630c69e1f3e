"""Shards as runs: two of one graph in one process, each with a checkpoint and ledgers of its own (design/0048)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import segments
from holdfast.config import Settings
from holdfast.connectors.segments.policies import rows
from holdfast.controller.graph import ShardGraphs
from holdfast.graph.hooks import NONE, Lifecycle
from holdfast.graph.trigger import every
from holdfast.pipeline import Pipeline
from holdfast.shards.layout import ShardLayout
from holdfast.shards.naming import shard_checkpoint
from holdfast.spark.run import Run
from holdfast.starts.context import StartOptions
from holdfast.starts.starting import Starting
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark

DIRECTORIES = "abcdefgh"


@dataclass
class Place:
    """Files that arrive, a table and a segments store; shards of a pipeline between them."""

    directory: Path
    runs: dict[int, Run] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def arrive(self, *names: str) -> None:
        for name in names:
            number = len(self.ids)
            arrive(self.directory / "in", f"{name}-{number:04}.json", [{"id": number}])
            self.ids.append(number)

    def pipeline(self) -> Pipeline:
        rides = hf.read.files(str(self.directory / "in"), schema="id BIGINT", name="rides")
        table = rides | hf.write.sqlite(str(self.directory / "rides.db"), table="rows", name="table")
        store = rides | hf.write.segments(str(self.directory / "store"), seal=[rows(4)], name="store")
        return hf.Pipeline("rides", table, store)

    def graphs(self) -> ShardGraphs:
        return ShardGraphs(self.pipeline(), self.checkpoint)

    def start(self, layout: ShardLayout, shard: int) -> Run:
        asked = StartOptions(
            self.graphs().of(layout, shard),
            shard_checkpoint(str(self.checkpoint), shard),
            every("50 ms"),
            commit_every_ticks=None,
            commit_thread=True,
            session=None,
            settings=Settings(),
        )
        self.runs[shard] = Starting(asked, Lifecycle(NONE, asked.pipeline.name)).run()
        return self.runs[shard]

    def table(self) -> list[int]:
        return sqlite_rows(self.directory / "rides.db") if (self.directory / "rides.db").exists() else []

    def store(self) -> list[int]:
        return sorted(segments.open(self.directory / "store").to_arrow()["id"].to_pylist())

    def ledgers(self) -> list[str]:
        return sqlite_rows(self.directory / "rides.db", "SELECT pipeline FROM holdfast_ledger")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as ending:
        found = Place(tmp_path)
        ending.callback(lambda: [run.stop() for run in found.runs.values()])
        yield found


def test_one_shard_goes_on_while_the_other_is_stopped(place: Place) -> None:
    """Invariant 1 and the first goal: every row once, and a shard that is down leaves the other alone."""
    place.arrive(*DIRECTORIES)
    layout = place.graphs().first(2, "")
    for shard in range(2):
        place.start(layout, shard)
    eventually(lambda: place.table() == place.ids, what="rows of both shards")
    assert set(place.ledgers()) == {"rides", "rides-1"}
    place.runs[1].stop()
    seen = len(place.table())
    place.arrive(*DIRECTORIES)
    own = place.runs[0]
    eventually(lambda: len(place.table()) > seen, what="rows of shard 0, while shard 1 is stopped")
    assert own.is_active
    place.start(layout, 1)
    eventually(lambda: place.table() == place.ids, what="the rows that waited for shard 1")
    for run in place.runs.values():
        run.stop()
        run.wait()
    assert place.store() == place.ids == place.table()


def test_shards_share_what_their_sources_keep_and_nothing_else(place: Place) -> None:
    """Design/0048, section 2: one workspace of a source, put-if-absent; checkpoints of their own beside it."""
    place.arrive(*DIRECTORIES)
    layout = place.graphs().first(2, "")
    for shard in range(2):
        place.start(layout, shard)
    eventually(lambda: place.table() == place.ids)
    below = place.checkpoint / "shards/1"
    assert (place.checkpoint / "sources/rides/log").is_dir()
    assert not (below / "sources").exists()
    assert {"generations", "ledger", "spark", "identity.json"} <= {each.name for each in below.iterdir()}


def test_a_checkpoint_without_shards_goes_on_as_shard_0(place: Place) -> None:
    """Goal: a checkpoint and ledgers of a run without shards are shard 0, unchanged."""
    place.arrive("a", "b", "c")
    place.pipeline().run(checkpoint=place.checkpoint, trigger=hf.available_now())
    assert place.table() == place.ids
    before = {each.name for each in (place.checkpoint / "generations").iterdir()}
    layout = place.graphs().first(1, "")
    place.start(layout, 0)
    place.arrive("d", "e")
    eventually(lambda: place.table() == place.ids, what="rows after the ones that it had")
    place.runs[0].stop()
    assert place.store() == place.ids
    assert before < {each.name for each in (place.checkpoint / "generations").iterdir()}
    assert place.ledgers() == ["rides"]
