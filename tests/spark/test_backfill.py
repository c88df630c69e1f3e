"""Ranges of the past beside a live run: every row once, state of its own, an end of its own (design/0056)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.backfills import noted_backfills
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline
from holdfast.store.paths import open_store
from tests.spark.running import STAGED, arrive, eventually, numbered, reach, sqlite_rows

pytestmark = pytest.mark.spark

NOW = "2026-01-01T00:00:20Z"
"""Where live runs begin."""


WAYS = ["arrow", pytest.param("spark", marks=pytest.mark.nightly)]


def way_of(name: str) -> Settings:
    return Settings(columnar=name != "spark")


def rides(place: Path) -> hf.Stream:
    return hf.read.files(str(place / "in"), schema="id BIGINT, at TIMESTAMP", timestamp="at", name="rides")


def appending(place: Path) -> hf.Pipeline:
    return hf.Pipeline("appending", rides(place) | hf.write.sqlite(place / "t.db", table="rows", name="table"))


def ids(place: Path) -> list[Any]:
    return sorted(sqlite_rows(place / "t.db", "SELECT id FROM rows"))


@pytest.mark.parametrize("way", WAYS)
def test_a_backfill_runs_beside_a_live_run_that_goes_on_and_every_row_is_there_once(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    pipeline, checkpoint = appending(tmp_path), str(tmp_path / "ckpt")
    arrive(tmp_path / "in", "0.json", [*numbered(0, 12), *numbered(20, 22)])
    arrive(tmp_path / "in", "1.json", numbered(8, 20))
    live = pipeline.start(checkpoint=checkpoint, trigger=hf.every("20 ms"), session=spark, at=NOW)
    try:
        past: dict[str, Any] = {"at": "2026-01-01T00:00:05Z", "until": NOW, "session": spark, "settings": way_of(way)}
        run = pipeline.backfill(checkpoint=checkpoint, rate=1000, **past)
        arrive(tmp_path / "in", "2.json", numbered(22, 24))
        assert run.wait(60)
        assert run.time_reached() is not None
        wanted = [*range(5, 12), *range(8, 20), *range(20, 24)]
        while ids(tmp_path) != sorted(wanted):
            assert not live.wait(0.05), "the live run goes on"
        arrive(tmp_path / "in", "3.json", numbered(10, 12))
        assert pipeline.backfill(checkpoint=checkpoint, **past).wait(60), "again: it is done"
        assert ids(tmp_path) == sorted(wanted)
        [note] = noted_backfills(open_store(checkpoint))
        assert note.ended_us is not None
        assert note.adds == ("table",)
        with pytest.raises(InvalidPipeline, match="rows that may be there"):
            pipeline.backfill(checkpoint=checkpoint, **past | {"at": "2026-01-01T00:00:15Z"})
    finally:
        live.stop()
    assert live.wait(60)


@pytest.mark.postgres
def test_rows_that_replace_themselves_come_again_beside_the_run_that_gave_them(
    spark: SparkSession, tmp_path: Path, postgres_prepared: str
) -> None:
    table = hf.write.postgres(postgres_prepared, table="rows", mode="upsert", key=["id", "at"], name="table")
    pipeline = hf.Pipeline("upserting", rides(tmp_path) | table)
    checkpoint = str(tmp_path / "ckpt")
    arrive(tmp_path / "in", "0.json", numbered(0, 24))
    live = pipeline.start(checkpoint=checkpoint, trigger=hf.every("20 ms"), session=spark, settings=STAGED)

    def rows() -> list[int]:
        with psycopg.connect(postgres_prepared) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM rows ORDER BY id").fetchall()]

    try:
        reach(live, 1)
        with psycopg.connect(postgres_prepared, autocommit=True) as connection:
            connection.execute("DELETE FROM rows WHERE id BETWEEN 4 AND 11")  # somebody has
        past: dict[str, Any] = {"at": "2026-01-01T00:00:05Z", "until": NOW, "session": spark, "settings": STAGED}
        assert pipeline.backfill(checkpoint=checkpoint, **past).wait(120)
        assert rows() == [*range(4), *range(5, 24)]
        assert noted_backfills(open_store(checkpoint))[0].adds == ()
        arrive(tmp_path / "in", "1.json", numbered(24, 26))
        eventually(lambda: rows()[-1] == 25, what="the live run goes on")
    finally:
        live.stop()
    assert live.wait(60)


def test_what_the_live_run_has_asked_for_is_not_asked_again(spark: SparkSession, tmp_path: Path) -> None:
    asked = tmp_path / "asked"

    async def twice(row: dict[str, Any]) -> dict[str, Any]:
        with asked.open("a") as file:
            file.write(f"{row['id']}\n")
        return {"twice": 2 * row["id"]}

    called = rides(tmp_path) | hf.call(
        twice, "twice BIGINT", key="id", answers=tmp_path / "answers.sqlite", name="called"
    )
    table = hf.write.sqlite(tmp_path / "t.db", table="rows", mode="upsert", key=["id", "at"], name="table")
    pipeline, checkpoint = hf.Pipeline("calling", called | table), str(tmp_path / "ckpt")
    arrive(tmp_path / "in", "0.json", numbered(10, 24))
    pipeline.run(checkpoint=checkpoint, trigger=hf.available_now(), session=spark, at=NOW)
    past: dict[str, Any] = {"until": NOW, "session": spark}
    assert pipeline.backfill(checkpoint=checkpoint, at="2026-01-01T00:00:12Z", **past).wait(60)
    arrive(tmp_path / "in", "1.json", numbered(20, 26))
    assert pipeline.backfill(
        checkpoint=checkpoint, at="2026-01-01T00:00:10Z", until="2026-01-01T00:00:23Z", session=spark, again=True
    ).wait(60)
    assert sorted(sqlite_rows(tmp_path / "t.db", "SELECT twice FROM rows")) == [2 * id for id in range(10, 24)]
    assert sorted(map(int, asked.read_text().split())) == list(range(10, 24)), "each once, by three runs"


@pytest.mark.parametrize("way", WAYS)
def test_at_the_end_of_the_range_windows_close_and_the_state_of_the_live_run_is_not_touched(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    counts = rides(tmp_path) | hf.aggregate(window=hf.tumbling("10 s"), n=hf.count(), name="counts")
    pipeline = hf.Pipeline("counting", counts | hf.write.sqlite(tmp_path / "t.db", table="rows", name="table"))
    checkpoint = str(tmp_path / "ckpt")
    arrive(tmp_path / "in", "0.json", numbered(0, 25))
    start: dict[str, Any] = {"checkpoint": checkpoint, "session": spark, "settings": way_of(way)}
    assert pipeline.start(trigger=hf.available_now(), at=NOW, **start).wait(60)
    past = {**start, "at": "2026-01-01T00:00:00Z", "until": NOW}
    with pytest.raises(InvalidPipeline, match="begins without state"):
        pipeline.backfill(**past)
    assert pipeline.backfill(empty_state=True, **past).wait(60)
    assert sorted(sqlite_rows(tmp_path / "t.db", "SELECT n FROM rows")) == [10, 10]
    arrive(tmp_path / "in", "1.json", numbered(25, 45))
    assert pipeline.start(trigger=hf.available_now(), at=NOW, **start).wait(60)
    rows = sqlite_rows(tmp_path / "t.db", "SELECT n FROM rows ORDER BY window_start")
    assert rows == [10, 10, 10, 10]
