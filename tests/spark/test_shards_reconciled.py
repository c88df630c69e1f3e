"""A sink that shards write is compared with what all of them should hold, and repaired under all their ledgers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.directory_header import newest_directory
from holdfast.cli.reconcile import lines
from holdfast.config import Settings
from holdfast.connectors.segments.policies import rows
from holdfast.controller.layouts.found_shards import known_layout
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.reconciling import ShardsReconciling
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.graph.hooks import NONE, Lifecycle
from holdfast.reconcile.report import Reconciled
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, newest_layout, record_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.starts.context import StartOptions
from holdfast.starts.shadows.reconciling import Reconciling
from holdfast.starts.starting import Starting
from holdfast.store.paths import open_store
from tests.spark.running import arrive, parquet_rows, sqlite_rows

pytestmark = pytest.mark.spark


@dataclass
class Place:
    """Files that arrive, and a pipeline of two shards that writes them to a table and a directory."""

    directory: Path
    session: SparkSession
    dsn: str = ""
    ids: list[int] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def pipeline(self) -> hf.Pipeline:
        given = hf.read.files(str(self.directory / "in"), schema="id BIGINT, v DOUBLE", name="rides")
        kept = given | hf.filter("id % 10 <> 3", name="kept") | hf.row_id("id", name="identified")
        return hf.Pipeline(
            "rides",
            kept | self.table(),
            kept | hf.write.segments(str(self.directory / "store"), seal=[rows(4)], name="store"),
            kept | hf.write.files(str(self.directory / "files"), name="files"),
        )

    def table(self) -> Any:
        if self.dsn:
            return hf.write.postgres(self.dsn, table="rows", rewindable=True, name="table")
        return hf.write.sqlite(str(self.directory / "rides.db"), table="rows", rewindable=True, name="table")

    def graphs(self) -> ShardGraphs:
        return ShardGraphs(self.pipeline(), self.checkpoint)

    def layout(self) -> ShardLayout:
        store = open_store(str(self.checkpoint))
        store.prepare()
        found = newest_layout(store) or record_layout(store, self.graphs().first(2, ""))
        assert found is not None
        return found

    def run(self, files: int, shards: Sequence[int] = (0, 1)) -> None:
        for _ in range(files):
            number = len(self.ids) // 10
            ids = range(10 * number, 10 * number + 10)
            arrive(self.directory / "in", f"{number:04}.json", [{"id": id, "v": float(id)} for id in ids])
            self.ids += ids
        for shard in shards:
            asked = StartOptions(
                self.graphs().of(self.layout(), shard),
                shard_checkpoint(str(self.checkpoint), shard),
                hf.available_now(),
                commit_every_ticks=None,
                commit_thread=True,
                session=self.session,
                settings=Settings(),
            )
            Starting(asked, Lifecycle(NONE, asked.pipeline.name)).run().wait()

    def asked(self, sink: str, *, digests_only: bool = False) -> ShardsReconciling:
        pipeline = self.pipeline()
        layout = known_layout(pipeline, self.checkpoint)
        assert layout is not None
        (node,) = (each for each in pipeline.sinks if each.name == sink)
        where = self.directory / f"shadow-{sink}{digests_only}"
        asked = Reconciling(
            pipeline, node, self.checkpoint, where, Settings(), session=self.session, digests_only=digests_only
        )
        places = [Path(shard_checkpoint(str(self.checkpoint), shard)) for shard in range(layout.shard_count)]
        return ShardsReconciling(ShardGraphs(pipeline, self.checkpoint), layout, asked, places)

    def change(self, *statements: str) -> None:
        for statement in statements:
            if self.dsn:
                with psycopg.connect(self.dsn, autocommit=True) as connection:
                    connection.execute(statement)
            else:
                sqlite_rows(self.directory / "rides.db", statement)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Place:
    dsn = request.getfixturevalue("postgres_plain") if request.param == "postgres" else ""
    return Place(tmp_path, spark, dsn)


def counts(found: Reconciled) -> tuple[int, int, int]:
    return found.missing_count, found.changed_count, found.extra_count


SPOILING = (
    "DELETE FROM rows WHERE id IN (7, 18, 40)",
    "UPDATE rows SET v = v + 1 WHERE id IN (12, 55)",
    "INSERT INTO rows SELECT * FROM rows WHERE id = 44",
)


@pytest.mark.parametrize("digests_only", [False, True])
def test_a_table_of_two_shards_is_compared_with_the_rows_of_both_and_repaired(place: Place, digests_only: bool) -> None:
    place.run(6)
    place.run(2, shards=[1])
    asked = place.asked("table", digests_only=digests_only)
    found = asked.look()
    assert (found.is_equal, found.shard_count, found.fetched_count) == (True, 2, 0)
    assert found.actual_count >= 54
    place.change(*SPOILING)
    found = asked.look()
    assert counts(found) == (3, 2, 1)
    assert next(lines(found)).startswith("table  2 shards: ")
    assert asked.repair().repaired_count == 2 * 2 + 3 + 1
    assert asked.look().is_equal
    place.run(3)
    found = asked.look()
    assert (found.is_equal, found.actual_count) == (True, 99), "what shard 0 was behind came too"
    assert set(found.positions) == {"rides"}


def test_a_start_of_all_shards_compares_and_mends_before_they_run(tmp_path: Path, spark: SparkSession) -> None:
    """`compare_on_start=`: the table with the rows of all, files and segments shard by shard; then new rows come."""
    place = Place(tmp_path, spark)
    start = {"checkpoint": place.checkpoint, "trigger": hf.available_now(), "session": spark}
    place.run(6)
    place.change(*SPOILING)
    min((tmp_path / "files").glob("*.parquet")).unlink()
    place.run(2, shards=[])
    run = place.pipeline().run(**start, compare_on_start=True)
    found = {each.sink: each for each in run.status().compared}
    assert {name: each.why_not for name, each in found.items()} == {"table": "", "store": "", "files": ""}
    table = found["table"]
    assert (table.missing, table.changed, table.extra, table.repaired) == (3, 2, 1, 8)
    assert found["files"].missing == found["files"].repaired > 0
    assert found["store"].is_equal
    kept = [id for id in place.ids if id % 10 != 3]
    assert sqlite_rows(tmp_path / "rides.db") == parquet_rows(tmp_path / "files") == kept
    with pytest.raises(InvalidPipeline, match="has no sink 'other'"):
        place.pipeline().run(**start, compare_on_start=["other"])
    with pytest.raises(InvalidPipeline, match="of one alone"):
        place.pipeline().run(**start, compare_on_start=True, only_shard=1)


def test_the_checkpoint_of_all_is_not_needed(tmp_path: Path, spark: SparkSession) -> None:
    place = Place(tmp_path, spark)
    place.run(6)
    shutil.rmtree(place.checkpoint)
    place.change(*SPOILING)
    asked = place.asked("table")
    assert counts(asked.look()) == (3, 2, 1)
    assert asked.repair().repaired_count == 8
    assert asked.look().is_equal


@pytest.mark.parametrize("sink", ["store", "files"])
def test_where_rows_say_whose_they_are_each_shard_is_compared_by_itself(
    tmp_path: Path, spark: SparkSession, sink: str
) -> None:
    place = Place(tmp_path, spark)
    place.run(8)
    asked = place.asked(sink)
    found = asked.look()
    assert (found.is_equal, found.shard_count, found.actual_count) == (True, 2, 72)
    paths = sorted((tmp_path / sink).glob("*.parquet"))
    for path in (paths[0], paths[-1]):
        kept = pq.ParquetFile(path).read()
        pq.write_table(pa.concat_tables([kept.slice(1), kept.slice(1, 1)]), path)
    found = asked.look()
    assert counts(found) == (2, 0, 2)
    assert asked.repair().repaired_count == 4
    assert asked.look().is_equal
    place.run(2)
    found = asked.look()
    assert (found.is_equal, found.actual_count) == (True, 90)


def test_one_shard_alone_is_not_compared_with_a_table_of_several(tmp_path: Path, spark: SparkSession) -> None:
    """It would take away the rows of the others."""
    place = Place(tmp_path, spark)
    place.run(4)
    whole = place.asked("table")
    part = whole._all["rides-1"]
    for act in (part.look, part.repair):
        with pytest.raises(InvalidPipeline, match="rows of 2 shards"):
            act()
    assert whole.look().is_equal


def test_nothing_is_compared_while_segments_are_between_two_shards(tmp_path: Path, spark: SparkSession) -> None:
    """A layout that no start has carried through: a shard holds rows of segments that are another's by now."""
    place = Place(tmp_path, spark)
    place.run(4)
    layout, store = place.layout(), open_store(str(place.checkpoint))
    turned = {unit: 1 - shard for unit, shard in layout.assignment.shards.items()}
    assert record_layout(store, ShardLayout(Assignment(2, turned), layout.parts, number=layout.number)) is not None
    for sink in ("table", "store"):
        for act in (place.asked(sink).look, place.asked(sink).repair):
            with pytest.raises(Unavailable, match="is between two shards"):
                act()


def test_a_table_that_was_emptied_is_filled_again_shard_by_shard(tmp_path: Path, spark: SparkSession) -> None:
    place = Place(tmp_path, spark)
    place.run(6)
    place.change("DELETE FROM rows", "DELETE FROM holdfast_ledger", "DELETE FROM holdfast_epochs")
    found = place.asked("table").rebuild()
    assert (found.repaired_count, found.shard_count) == (54, 2)
    assert place.asked("table").look().is_equal
    place.run(2)
    assert sqlite_rows(tmp_path / "rides.db") == [id for id in place.ids if id % 10 != 3]
    assert newest_directory(open_store(shard_checkpoint(str(place.checkpoint), 1)))
