"""``lookup`` in a run: the ways of evaluation agree with Spark's own join, and an epoch sees one version."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.spark.running import MODES, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, k STRING, n INT"
TABLE = pa.table({"k": ["a", "b", "b", None], "n": pa.array([1, 2, 2, 3], pa.int64()), "w": [10, 20, 21, 30]})


def given() -> list[list[dict[str, Any]]]:
    chosen = random.Random(4)
    rows = [{"id": i, "k": chosen.choice(["a", "b", None]), "n": chosen.choice([1, 2, 3, None])} for i in range(40)]
    return [rows[:15], rows[15:16], rows[16:]]


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        pytest.param(how, mode, marks=[] if (how, mode) == ("left", "staged") else pytest.mark.nightly)
        for how in ("left", "inner", "semi", "anti")
        for mode in MODES
    ],
)
def test_every_way_gives_the_rows_of_sparks_join(spark: SparkSession, tmp_path: Path, mode: str, how: str) -> None:
    """In Arrow, in Spark's plan alone and after a fan-out, upstream of state and behind it."""
    columns: dict[str, Any] = {"columns": ["w"]} if how in ("left", "inner") else {}
    table = spark.createDataFrame(TABLE)

    def looked_up(stream: hf.Stream, name: str) -> hf.Stream:
        return hf.lookup(stream, table, on=["k", "n"], how=how, duplicates="all", name=name, **columns)

    def run(name: str, *streams: hf.Stream) -> None:
        sinks = [
            stream | hf.write.sqlite(tmp_path / "out.db", table=f"{name}{at}", name=f"{name}{at}")
            for at, stream in enumerate(streams)
        ]
        pipeline = hf.Pipeline(name, *sinks)
        pipeline.run(checkpoint=str(tmp_path / name), trigger=hf.available_now(), session=spark, settings=MODES[mode])

    def read() -> hf.Stream:
        return hf.read.rows(given(), schema=SCHEMA, name="given", timestamp="id")

    run("arrow", looked_up(read(), "up"))
    mapped = read() | hf.map(lambda frame: frame.select("*"), name="mapped")
    run("plan", looked_up(mapped, "up"), mapped | hf.filter("id < 0"))
    run("alone", looked_up(read() | hf.map(lambda frame: frame.select("*"), name="mapped"), "up"))
    once = looked_up(read(), "before") | hf.distinct("id", 1000, name="once") if how in ("semi", "anti") else read()
    run("state", looked_up(once | hf.distinct("id", 1000, name="twice"), "up"))
    frame = spark.createDataFrame([tuple(row.values()) for rows in given() for row in rows], SCHEMA)
    joined = frame.join(table, ["k", "n"], how if how in ("left", "inner") else f"left{how}")
    wanted = sorted((tuple(row) for row in joined.select("id", "k", *columns.get("columns", [])).collect()), key=str)
    names = ", ".join(["id", "k", *columns.get("columns", [])])
    for name in ("arrow0", "plan0", "alone0", "state0"):
        found = sqlite_rows(tmp_path / "out.db", f"SELECT {names} FROM {name}")
        assert sorted(found, key=str) == wanted, name


class Growing:
    """A table whose price is how often it was loaded."""

    def __init__(self) -> None:
        self.loads = 0

    def described(self) -> dict[str, Any]:
        return {}

    def known_columns(self) -> tuple[str, ...]:
        return ("k", "price")

    def schema(self) -> pa.Schema:
        return pa.schema([("k", pa.string()), ("price", pa.int64())])

    def load(self, columns: list[str]) -> pa.Table:
        self.loads += 1
        return pa.table({"k": ["a"], "price": [self.loads]}).select(list(columns))


@pytest.mark.parametrize("mode", MODES)
def test_each_epoch_sees_one_version_and_a_refresh_gives_the_next(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    epochs = [[{"id": 100 * number + row, "k": "a", "n": 0} for row in range(50)] for number in range(3)]
    table = Growing()
    stream = hf.read.rows(epochs, schema=SCHEMA, name="given")
    first = hf.lookup(stream, table, on="k", columns="price", refresh="1 us", name="first")
    pipeline = hf.Pipeline("growing", first | hf.write.sqlite(tmp_path / "out.db", table="rows", name="out"))
    pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=MODES[mode])
    assert sqlite_rows(tmp_path / "out.db", "SELECT DISTINCT id / 100, price FROM rows ORDER BY id") == [
        (0, 1), (1, 2), (2, 3),
    ]  # fmt: skip
