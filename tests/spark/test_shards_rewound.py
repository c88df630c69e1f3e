"""Shards go back, all of them or one: a rewind of all is recorded first, and carried through after a crash."""

from __future__ import annotations

import datetime as dt
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.config import Settings
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.layouts.moving import StandingShard
from holdfast.controller.layouts.rearranging import Rearranging
from holdfast.controller.rewinding import REWINDS, ShardsRewinding
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.graph.hooks import NONE, Lifecycle
from holdfast.shards.layout import newest_layout, record_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.starts.context import StartOptions
from holdfast.starts.rewind import Rewinding
from holdfast.starts.starting import Starting
from holdfast.store.paths import open_store
from tests.spark.running import arrive, parquet_rows, sqlite_rows

pytestmark = pytest.mark.spark

FLOW = """
    import holdfast as hf
    rides = hf.read.files("in", schema="id BIGINT", max_files_per_epoch=2, name="rides")
    pipeline = hf.Pipeline(
        "rides",
        rides | hf.write.sqlite("rides.db", table="rows", rewindable=True, name="table"),
        rides | hf.write.files("out", name="files"),
    )
"""


@dataclass
class Place:
    """A pipeline of two shards."""

    session: SparkSession
    ids: list[int] = field(default_factory=list)

    def graphs(self) -> ShardGraphs:
        rides = hf.read.files("in", schema="id BIGINT", max_files_per_epoch=2, name="rides")
        table = rides | hf.write.sqlite("rides.db", table="rows", rewindable=True, name="table")
        return ShardGraphs(
            hf.Pipeline("rides", table, rides | hf.write.files("out", name="files")), Path("checkpoint").absolute()
        )

    def graph(self, shard: int) -> Any:
        store, graphs = open_store("checkpoint"), self.graphs()
        store.prepare()
        layout = newest_layout(store) or record_layout(store, graphs.first(2, ""))
        assert layout is not None
        return graphs.of(layout, shard)

    def run(self, files: int) -> None:
        for _ in range(files):
            self.ids.append(len(self.ids))
            arrive(Path("in"), f"{self.ids[-1]:03}.json", [{"id": self.ids[-1]}])
        for shard in (0, 1):
            asked = StartOptions(
                self.graph(shard),
                shard_checkpoint("checkpoint", shard),
                hf.available_now(),
                commit_every_ticks=None,
                commit_thread=True,
                session=self.session,
                settings=Settings(),
            )
            Starting(asked, Lifecycle(NONE, asked.pipeline.name)).run().wait()

    def rewinding(self) -> ShardsRewinding:
        shards = {}
        for shard in (0, 1):
            place = Path(shard_checkpoint("checkpoint", shard)).absolute()
            shards[shard] = Rewinding(self.graph(shard), open_store(str(place)), place, Settings(), self.session)
        return ShardsRewinding("rides", open_store("checkpoint"), shards)

    def rows(self) -> list[int]:
        assert parquet_rows(Path("out"), "id") == sqlite_rows(Path("rides.db"))
        return sqlite_rows(Path("rides.db"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Place:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text("\n".join(line[4:] for line in FLOW.splitlines()))
    return Place(spark)


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()


def test_all_shards_go_back_to_a_time_and_on(place: Place) -> None:
    place.run(12)
    before, at = place.rows(), now()
    place.run(8)
    assert len(place.rows()) == 20
    rewinding = place.rewinding()
    planned = rewinding.plan(at)
    assert sum(of.sinks["table"].row_count or 0 for of in planned.values()) == 8
    with pytest.raises(InvalidPipeline, match="its shards are 0, 1"):
        rewinding.plan("2")
    done = rewinding.do(at)
    assert {shard: of.to for shard, of in done.items()} == {shard: of.to for shard, of in planned.items()}
    assert place.rows() == before
    assert not rewinding.is_unfinished
    assert rewinding.carry_through() == {}
    place.run(2)
    assert place.rows() == place.ids


class Dies(BaseException):
    """Stands for the death of the process."""


@pytest.mark.parametrize("rewound_count", [0, 1])
@pytest.mark.parametrize("dies_before", [True, False])
def test_a_rewind_that_dies_is_carried_through(
    place: Place, monkeypatch: pytest.MonkeyPatch, rewound_count: int, dies_before: bool
) -> None:
    """After the record, or after a shard that is noted; and after one that has gone back and is not noted."""
    place.run(12)
    before, at = place.rows(), now()
    place.run(8)
    do, rewound = Rewinding.do, list[Rewinding]()

    def dying(self: Rewinding, to: str, left_out: Any = ()) -> Any:
        is_last = len(rewound) == rewound_count
        if is_last and dies_before:
            raise Dies
        rewound.append(self)
        found = do(self, to, left_out)
        if is_last:
            raise Dies
        return found

    monkeypatch.setattr(Rewinding, "do", dying)
    with pytest.raises(Dies):
        place.rewinding().do(at)
    monkeypatch.setattr(Rewinding, "do", do)
    again = place.rewinding()
    assert again.is_unfinished
    assert sorted(again.carry_through()) == [0, 1][rewound_count:]
    assert place.rows() == before
    assert not again.is_unfinished
    place.run(0)
    assert place.rows() == place.ids


def test_a_start_carries_a_rewind_through_before_any_shard_runs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run(12)
    before, at = len(place.rows()), now()
    place.run(8)
    do, rewound = Rewinding.do, list[int]()

    def dying(self: Rewinding, to: str, left_out: Any = ()) -> Any:
        if rewound:
            raise Dies
        rewound.append(1)
        return do(self, to, left_out)

    monkeypatch.setattr(Rewinding, "do", dying)
    with pytest.raises(Dies):
        place.rewinding().do(at)
    assert before < len(place.rows()) < len(place.ids)

    rows: list[int] = []

    def noting(self: Rewinding, to: str, left_out: Any = ()) -> Any:
        found = do(self, to, left_out)
        rows.append(len(place.rows()))
        return found

    monkeypatch.setattr(Rewinding, "do", noting)
    pipeline = place.graphs().pipeline
    assert isinstance(pipeline, hf.Pipeline)
    with pytest.raises(InvalidPipeline, match="was interrupted"):
        pipeline.start(checkpoint="checkpoint", only_shard=0, session=place.session)
    assert rows == []
    pipeline.run(checkpoint="checkpoint", trigger=hf.available_now(), session=place.session)
    assert rows == [before]
    assert not place.rewinding().is_unfinished
    assert place.rows() == place.ids


def test_one_shard_goes_back_alone_and_by_the_command_line(place: Place) -> None:
    place.run(12)
    at = now()
    place.run(8)
    whole = place.rows()
    asked = ["rewind", "flow.py:pipeline", "--checkpoint", "checkpoint", "--force", "--json"]
    alone = json.loads(CliRunner().invoke(app, [*asked, "--to", "1", "--shard", "1"]).stdout)
    assert alone["to"] == 1
    withdrawn = alone["sinks"]["table"]["row_count"]
    assert withdrawn
    assert len(place.rows()) == len(whole) - withdrawn
    place.run(0)
    assert place.rows() == whole
    refused = CliRunner().invoke(app, [*asked, "--to", "1"])
    assert refused.exit_code == 2
    assert "--shard K --to 1" in refused.stdout
    planned = json.loads(CliRunner().invoke(app, [*asked, "--to", at, "--dry-run"]).stdout)
    assert (planned["dry_run"], sorted(planned["shards"])) == (True, ["0", "1"])
    assert place.rows() == whole
    done = CliRunner().invoke(app, [*asked[:-1], "--to", at])
    assert done.exit_code == 0, done.output
    assert "shard 1  rides-1 is back at the end of epoch " in done.stdout
    assert len(place.rows()) < len(whole)


def test_a_damaged_record_is_an_error(place: Place) -> None:
    place.run(2)
    open_store("checkpoint").put(f"{REWINDS}00000001.json", b"{}")
    with pytest.raises(Corrupt, match="00000001"):
        place.rewinding().carry_through()


@pytest.mark.parametrize("after", [3, 1])
def test_no_shard_goes_back_while_segments_move(place: Place, after: int) -> None:
    """It would stand where no layout says: neither the change nor the rewind could be carried through."""
    place.run(12)
    at = now()
    place.run(4)
    pipeline: Any = place.graphs().pipeline
    directory = Path("checkpoint").absolute()
    rearranging = Rearranging(pipeline, directory, Settings())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandingShard, "move", lambda *told, gives: sys.exit())
        with pytest.raises(SystemExit):
            rearranging.change(after)
    for asked in (["--force"], ["--force", "--shard", "0"], ["--dry-run"]):
        done = CliRunner().invoke(app, ["rewind", "flow.py", "--to", at, "--checkpoint", "checkpoint", *asked])
        assert "were moving between its shards" in done.output
    rearranging.arrange(0)
    pipeline.run(checkpoint=directory, trigger=hf.available_now())
    assert place.rows() == place.ids
