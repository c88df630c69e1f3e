"""Named checkpoints of real runs: made of one that does not run, exported, imported, forked (design/0012)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.config import Settings
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.starts.rewind import Rewinding
from holdfast.store.local import LocalStore
from tests.spark.counting import counting
from tests.spark.running import arrive, sqlite_rows

pytestmark = pytest.mark.spark

LETTERS = ("aab", "bc", "abc", "c", "ab", "b")
SETTINGS = Settings(buckets=3, checkpoint_freq=86_400_000)


def give(work: Path, count: int) -> None:
    for number, text in enumerate(LETTERS[:count]):
        if not (work / "in" / f"{number}.json").exists():
            arrive(work / "in", f"{number}.json", [{"k": letter, "v": 1} for letter in text])


def pipeline_of(work: Path, name: str) -> hf.Pipeline:
    given = hf.read.files(str(work / "in"), schema="k STRING, v BIGINT", max_files_per_epoch=1, name="given")
    counts = counting(given, name="counts")
    return hf.Pipeline(name, counts | hf.write.sqlite(work / f"{name}.db", table="rows", name="table"))


def run(work: Path, spark: SparkSession, name: str, **options: Any) -> None:
    options = {"checkpoint": str(work / name), "trigger": hf.available_now(), "settings": SETTINGS, **options}
    pipeline_of(work, name).run(session=spark, **options)


def rows(work: Path, name: str) -> list[Any]:
    return sqlite_rows(work / f"{name}.db", "SELECT epoch, k, n FROM rows")


def holdfast(*arguments: object) -> dict[str, Any] | list[dict[str, Any]]:
    answer = CliRunner().invoke(app, ["checkpoint", *map(str, arguments), "--json"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_a_fork_goes_on_as_the_original_did(spark: SparkSession, tmp_path: Path) -> None:
    give(tmp_path, 3)
    run(tmp_path, spark, "trips", checkpoint_freq=0)  # no snapshot: the state is read from Spark's directory
    made = holdfast("create", "third", "--checkpoint", tmp_path / "trips", "--force")
    assert (made["epoch"], made["pipeline"], made["rows"]) == (3, "trips", 3)  # type: ignore[call-overload]
    give(tmp_path, 6)
    run(tmp_path, spark, "trips", keep=1)
    holdfast("create", "last", "--checkpoint", tmp_path / "trips", "--force")
    later = [row for row in rows(tmp_path, "trips") if row[0] > 3]
    assert later == [(4, "c", 3), (5, "a", 4), (5, "b", 4), (6, "b", 5)]

    holdfast("export", "third", tmp_path / "exported", "--checkpoint", tmp_path / "trips")
    holdfast("import", tmp_path / "exported", "--checkpoint", tmp_path / "imported")
    places = {"beside": str(tmp_path / "trips" / "third"), "imported": "third"}
    for name, where in places.items():
        run(tmp_path, spark, name, from_checkpoint=where)
        assert rows(tmp_path, name) == later, name
    # Restarts of the same program go on, also without Spark's directory; another beginning is refused.
    shutil.rmtree(tmp_path / "beside" / "spark")
    run(tmp_path, spark, "beside", from_checkpoint=places["beside"])
    assert rows(tmp_path, "beside") == later
    with pytest.raises(InvalidPipeline, match="it has begun already"):
        run(tmp_path, spark, "beside", from_checkpoint=str(tmp_path / "exported"))

    with pytest.raises(InvalidPipeline, match="sink 'table' holds epoch"):
        run(tmp_path, spark, "beside", checkpoint=str(tmp_path / "new"), from_checkpoint=places["beside"])
    names = [each["name"] for each in holdfast("list", "--checkpoint", tmp_path / "trips")]  # type: ignore[index]
    assert names == ["last", "third"]
    holdfast("delete", "last", "--checkpoint", tmp_path / "trips")
    third = holdfast("show", "third", "--checkpoint", tmp_path / "trips")
    assert third["positions"] == {"given": {"log": 3}}  # type: ignore[call-overload]

    (file, *_) = (tmp_path / "exported" / "snapshots" / "files").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Corrupt, match=file.name):
        run(tmp_path, spark, "damaged", from_checkpoint=str(tmp_path / "exported"))
    assert rows(tmp_path, "damaged") == []


@pytest.mark.nightly
def test_a_fork_goes_on_with_the_state_on_both_sides_of_what_spark_evaluates(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What stands between the two keeps nothing: a checkpoint, also a portable one, is theirs alone."""

    def run_both(name: str, **options: Any) -> list[Any]:
        given = hf.read.files(str(tmp_path / "in"), schema="k STRING, v BIGINT", max_files_per_epoch=1, name="given")
        between = counting(given, name="counts") | hf.sql("select upper(k) as k, n as v from input", name="between")
        sink = counting(between, name="again") | hf.write.sqlite(tmp_path / f"{name}.db", table="rows", name="table")
        options = {"checkpoint": str(tmp_path / name), "trigger": hf.available_now(), "settings": SETTINGS, **options}
        hf.Pipeline(name, sink).run(session=spark, **options)
        return rows(tmp_path, name)

    give(tmp_path, 2)
    run_both("trips", checkpoint_freq=0)
    made = holdfast("create", "second", "--checkpoint", tmp_path / "trips", "--force")
    assert made["rows"] == 6  # type: ignore[call-overload]
    holdfast("export", "second", tmp_path / "exported", "--checkpoint", tmp_path / "trips")
    give(tmp_path, 3)
    later = [(3, "A", 2), (3, "B", 3), (3, "C", 2)]
    assert run_both("fork", from_checkpoint=str(tmp_path / "exported")) == later
    assert [row for row in run_both("trips") if row[0] > 2] == later


@pytest.mark.parametrize(
    "has_state",
    [
        pytest.param(True, id="with state, snapshots switched off"),
        pytest.param(False, id="without state", marks=pytest.mark.nightly),
    ],
)
def test_a_name_keeps_rows_of_a_feed_where_nothing_else_does(
    spark: SparkSession, tmp_path: Path, has_state: bool
) -> None:
    settings = Settings(buckets=1, checkpoint_freq=0)
    directory = tmp_path / "checkpoint"
    feed = hf.read.CallbackFeed(tmp_path / "feed", schema="k STRING, v BIGINT")
    fed = hf.read.callback(feed, max_rows_per_epoch=1, name="fed")
    table = hf.write.sqlite(tmp_path / "fed.db", table="rows", name="table", rewindable=True)
    counts = counting(fed, name="counts") if has_state else fed | hf.select("k", n="v", name="counts")
    pipeline = hf.Pipeline("fed", counts | table)

    def push_and_run(numbers: range) -> None:
        for number in numbers:
            feed.push([{"k": "a", "v": number}])
            pipeline.run(checkpoint=str(directory), trigger=hf.available_now(), session=spark, settings=settings)

    def entries() -> int:
        return len([*(tmp_path / "feed").glob("*.entry")])

    push_and_run(range(1, 4))
    assert entries() <= 2, "what is published goes"
    holdfast("create", "third", "--checkpoint", directory, "--force")
    push_and_run(range(4, 7))
    assert entries() >= 3
    assert Rewinding(pipeline, LocalStore(str(directory)), directory, settings).do("third").to == 3
    assert sqlite_rows(tmp_path / "fed.db", "SELECT n FROM rows") == [1, 2, 3]
    push_and_run(range(7, 8))
    assert sqlite_rows(tmp_path / "fed.db", "SELECT n FROM rows") == [1, 2, 3, 4, 5, 6, 7]
    holdfast("delete", "third", "--checkpoint", directory)
    push_and_run(range(8, 10))
    assert entries() <= 2
