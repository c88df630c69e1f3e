"""A source that leaves the graph and comes back goes on where it was: no row twice, none lost (design/0011)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.errors import HoldfastError
from holdfast.starts.rewind import Rewinding
from holdfast.store.local import LocalStore
from tests.everyday import everyday
from tests.spark.counting import counting
from tests.spark.running import CARRIED, arrive, die_at, sqlite_rows

pytestmark = pytest.mark.spark

SETTINGS = CARRIED.model_copy(update={"checkpoint_freq": 86_400_000, "buckets": 1})


class Graph:
    """Two sources of which the second comes and goes; every file is an epoch's row of each."""

    def __init__(self, work: Path, spark: SparkSession, *, has_state: bool, columnar: bool = True) -> None:
        self.work, self.spark, self.has_state = work, spark, has_state
        self.settings = SETTINGS.model_copy(update={"columnar": columnar})
        self.table = "table"
        (work / "second").mkdir()

    def pipeline(self, *, with_second: bool) -> hf.Pipeline:
        first, second = (
            hf.read.files(self.work / name, schema="k STRING, v BIGINT", max_files_per_epoch=1, name=name)
            for name in ("first", "second")
        )
        rows = hf.union(first, second, name="rows") if with_second else first | hf.select("k", "v", name="rows")
        if self.has_state:
            rows = counting(rows, name="counts")
        table = hf.write.sqlite(self.work / f"{self.table}.db", table="t", name=self.table, rewindable=True)
        return hf.Pipeline("leaving", rows | table)

    def give(self, number: int, *names: str) -> None:
        for name in names:
            arrive(self.work / name, f"{number}.json", [{"k": f"{name}{number}", "v": 1}])

    def run(self, *, with_second: bool) -> None:
        self.pipeline(with_second=with_second).run(
            checkpoint=str(self.work / "checkpoint"),
            trigger=hf.available_now(),
            session=self.spark,
            settings=self.settings,
        )

    def rewind(self, to: str, *, with_second: bool) -> None:
        directory = self.work / "checkpoint"
        pipeline = self.pipeline(with_second=with_second)
        Rewinding(pipeline, LocalStore(str(directory)), directory, Settings()).do(to)

    def held(self) -> list[str]:
        return sorted(sqlite_rows(self.work / f"{self.table}.db", "SELECT k FROM t"))


WAYS = {
    "Arrow": {"has_state": False},
    "Spark's plan": {"has_state": False, "columnar": False},
    "state": {"has_state": True},
}


@pytest.mark.parametrize("way", everyday(WAYS, ["state"]))
def test_it_goes_on_where_it_was(spark: SparkSession, tmp_path: Path, way: str) -> None:
    graph = Graph(tmp_path, spark, **WAYS[way])
    graph.give(0, "first", "second")
    graph.run(with_second=True)
    # Killed in an epoch that has rows of both, which nobody has published: the one that leaves has not read its row.
    graph.give(1, "first", "second")
    die_at("after-stage", 2)
    with pytest.raises(HoldfastError):
        graph.run(with_second=True)
    faults.install(None)
    graph.run(with_second=False)
    assert graph.held() == ["first0", "first1", "second0"]
    graph.give(2, "first", "second")
    graph.run(with_second=False)
    graph.run(with_second=True)
    assert graph.held() == ["first0", "first1", "first2", "second0", "second1", "second2"]
    graph.run(with_second=True)
    assert len(graph.held()) == 6


def test_behind_a_rewind_it_goes_on_where_it_was_then(spark: SparkSession, tmp_path: Path) -> None:
    graph = Graph(tmp_path, spark, has_state=False)
    for number in range(2):
        graph.give(number, "first", "second")
        graph.run(with_second=True)
    graph.give(2, "first")
    graph.run(with_second=False)
    graph.rewind("1", with_second=False)
    assert graph.held() == ["first0", "second0"]
    graph.run(with_second=False)
    graph.run(with_second=True)
    assert graph.held() == ["first0", "first1", "first2", "second0", "second1"]


def test_it_is_remembered_where_sparks_directory_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    graph = Graph(tmp_path, spark, has_state=True)
    graph.give(0, "first", "second")
    graph.run(with_second=True)
    graph.give(1, "first", "second")
    graph.run(with_second=False)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    graph.run(with_second=False)
    graph.run(with_second=True)
    assert graph.held() == ["first0", "first1", "second0", "second1"]


def test_a_sink_that_begins_at_the_beginning_gets_every_row_of_sources_that_are_remembered(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = Graph(tmp_path, spark, has_state=False)
    graph.give(0, "first", "second")
    graph.run(with_second=True)
    graph.run(with_second=False)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    graph.table = "another"
    graph.give(1, "first", "second")
    graph.run(with_second=True)
    assert graph.held() == ["first0", "first1", "second0", "second1"]
