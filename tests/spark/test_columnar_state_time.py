"""A silent input of ``sync`` on Spark: rows wait, the idle rule moves on, and the row that then comes is in ``late``.

Nothing here depends on how long something takes: the test pushes a row, and goes on when a sink holds what must come.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors import memory
from holdfast.operators.sync.spec import sync
from tests.spark.running import eventually, sqlite_rows

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, t BIGINT, v BIGINT"


def flat(batch: Any) -> Any:
    """Return sets as rows without structs.  Imports inside: workers cannot import the tests."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sides = [pc.struct_field(batch.column(side), "v") for side in ("flights", "weather")]
    columns = [batch.column("k"), batch.column("timestamp"), *sides]
    return pa.RecordBatch.from_arrays(columns, names=["k", "t", "flights", "weather"])


def test_a_silent_input_is_waited_for_then_left_behind_and_what_it_says_then_is_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    db = tmp_path / "out.db"
    feeds = {name: hf.read.CallbackFeed(tmp_path / name, schema=SCHEMA) for name in ("flights", "weather")}
    inputs = {name: hf.read.callback(feed, timestamp="t", name=name) for name, feed in feeds.items()}
    flat_schema = "k STRING, t BIGINT, flights BIGINT, weather BIGINT"
    impatient = sync(inputs, by="k", idle_after="100 ms", name="impatient")
    patient = sync(inputs, by="k", name="patient")

    def push(name: str, time: int, value: int) -> None:
        feeds[name].push([{"k": "JFK", "t": time, "v": value}])

    def sets(table: str) -> list[tuple[Any, ...]]:
        return [
            (t, a, b) for t, a, b in sqlite_rows(db, f"SELECT t, ifnull(flights, 0), ifnull(weather, 0) FROM {table}")
        ]

    def late(table: str) -> list[Any]:
        return sqlite_rows(db, f"SELECT timestamp, input, reason FROM {table}")

    sinks = []
    for name, aligned in (("impatient", impatient), ("patient", patient)):
        flattened = aligned | hf.map_batches(flat, schema=flat_schema, name=f"{name}_flat")
        told = aligned.late | hf.select("timestamp", "input", "reason", name=f"{name}_told")
        sinks += [
            flattened | hf.write.sqlite(db, table=name, name=f"{name}_table"),
            told | hf.write.sqlite(db, table=f"{name}_late", name=f"{name}_late_table"),
        ]
    pipeline = hf.Pipeline("silence", *sinks)
    running = pipeline.start(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.every("20 ms"), session=spark)
    try:

        def comes(table: str, wanted: list[tuple[Any, ...]]) -> None:
            eventually(lambda: sets(table) == wanted or running.wait(timeout_s=0), what=f"{table}: {sets(table)}")
            assert sets(table) == wanted

        push("flights", 10, 1)
        push("weather", 10, 2)
        comes("impatient", [(10, 1, 2)])
        comes("patient", [(10, 1, 2)])
        push("flights", 20, 3)  # and weather is silent
        comes("impatient", [(10, 1, 2), (20, 3, 0)])
        assert sets("patient") == [(10, 1, 2)], "without an idle rule the row waits"
        assert late("impatient_late") == []
        push("weather", 15, 4)
        eventually(lambda: late("impatient_late") or running.wait(timeout_s=0), what="the late row")
        ((time, of, reason),) = late("impatient_late")
        assert (time, of) == (15, "weather")
        assert "21" in reason, reason
        assert "15" in reason, reason
        comes("patient", [(10, 1, 2), (15, 0, 4)])
        push("weather", 30, 5)
        push("flights", 30, 6)
        comes("impatient", [(10, 1, 2), (20, 3, 0), (30, 6, 5)])
        comes("patient", [(10, 1, 2), (15, 0, 4), (20, 3, 0), (30, 6, 5)])
        assert late("patient_late") == []
        assert len(late("impatient_late")) == 1
    finally:
        running.stop()


def test_a_bound_of_one_key_finds_its_way_through_two_operators(spark: SparkSession, tmp_path: Path) -> None:
    def source(name: str, *epochs: tuple[str, int]) -> hf.Stream:
        rows = [[{"k": "JFK", "t": t, "v": t, "is_bound": what == "bound"}] for what, t in epochs]
        schema = f"{SCHEMA}, is_bound BOOLEAN"
        return hf.read.rows(rows, schema=schema, timestamp="t", bounds="is_bound", name=name)

    inputs = {
        "flights": source("flights", ("row", 1), ("bound", 10)),
        "weather": source("weather", ("row", 1), ("bound", 10)),
    }
    third = source("third", ("row", 5), ("row", 12))
    pairs = sync(inputs, by="k", name="pairs") | hf.filter("timestamp < 100", name="kept")
    triples = sync({"pair": pairs, "third": third}, by="k", name="triples")
    pipeline = hf.Pipeline("bounds", triples | hf.write.memory("bounds_triples"))
    pipeline.run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark)
    found = [
        (row["timestamp"], row["pair"] is not None, row["third"] is not None)
        for row in memory.rows("bounds_triples").to_pylist()
    ]
    # No pair stands at 5: that none will come, only the bounds of the first operator's inputs can say.
    assert found == [(1, True, False), (5, False, True)]


def test_rows_of_a_key_that_is_forgotten_are_late_though_nothing_arrives(spark: SparkSession, tmp_path: Path) -> None:
    db = tmp_path / "out.db"
    feeds = {name: hf.read.CallbackFeed(tmp_path / name, schema=SCHEMA) for name in ("flights", "weather")}
    inputs = {name: hf.read.callback(feed, timestamp="t", name=name) for name, feed in feeds.items()}
    aligned = sync(inputs, by="k", forget_after="2 s", name="aligned")
    told = aligned.late | hf.select("timestamp", "input", name="told")
    pipeline = hf.Pipeline("forgetful", told | hf.write.sqlite(db, table="late", name="late"))
    running = pipeline.start(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.every("20 ms"), session=spark)
    try:
        feeds["flights"].push([{"k": "JFK", "t": 10, "v": 1}])
        late = "SELECT timestamp, input FROM late"
        eventually(lambda: sqlite_rows(db, late) or running.wait(timeout_s=0), what="the late row")
        assert sqlite_rows(db, late) == [(10, "flights")]
    finally:
        running.stop()
