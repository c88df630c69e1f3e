"""Bounds of the partitions of a topic, in runs: what settles without a row of every key (design/0038, section 6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_topics import Topics
from tests.spark.running import MODES, eventually, sqlite_rows

pytestmark = pytest.mark.spark


@pytest.fixture
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


def given(**times: int) -> list[bytes]:
    return [json.dumps({"k": k, "t": t}).encode() for k, t in times.items()]


@pytest.mark.parametrize("mode", ["carried", pytest.param("staged", marks=pytest.mark.nightly)])
def test_the_slowest_partition_decides_what_is_settled_and_how_far_pts_is(
    spark: SparkSession, topics: Topics, new_topic: Callable[[], str], tmp_path: Path, mode: str
) -> None:
    """Each key has rows in one of two topics only; the second run goes on from the bounds of the first."""
    names = {side: f"bounds-{side}-{new_topic()}" for side in ("left", "right")}
    topics.create(names["left"], 2)
    topics.create(names["right"], 1)
    left, right = (
        hf.read.kafka(topics.bootstrap, topic, schema="k STRING, t BIGINT", timestamp="t", disorder=1, name=side)
        for side, topic in names.items()
    )
    joined = hf.sync({"left": left, "right": right}, by="k", timestamps="ascending", name="both")
    times = joined | hf.select("k", "timestamp AS t", name="times")

    def run(commit_at: Any, where: str) -> None:
        db = tmp_path / f"{where}.db"
        pipeline = hf.Pipeline(
            where,
            times | hf.write.sqlite(db, table="sets", name="sets_out"),
            left | hf.write.sqlite(db, table="rows", name="rows_out"),
            **({} if commit_at is None else {"commit_at": commit_at}),
        )
        pipeline.run(checkpoint=str(tmp_path / where), trigger=hf.available_now(), session=spark, settings=MODES[mode])

    def seen(where: str) -> tuple[list[Any], list[Any]]:
        db = tmp_path / f"{where}.db"
        return sqlite_rows(db, "SELECT t FROM sets"), sqlite_rows(db, "SELECT t FROM rows")

    topics.produce(names["left"], {0: given(a=1, b=5, c=12), 1: given(d=3, e=9)})  # left is settled below 8
    topics.produce(names["right"], {0: given(x=2, y=7)})  # and right below 6
    for where, commit_at in (("plain", None), ("pts", "pts")):
        run(commit_at, where)
    assert seen("plain") == ([1, 2, 3, 5], [1, 3, 5, 9, 12])
    assert seen("pts") == ([1, 2, 3, 5], [1, 3, 5])
    topics.produce(names["left"], {0: given(a=21), 1: given(f=31)})  # 20
    topics.produce(names["right"], {0: given(z=41)})
    for where, commit_at in (("plain", None), ("pts", "pts")):
        run(commit_at, where)
    assert seen("plain") == ([1, 2, 3, 5, 7, 9, 12], [1, 3, 5, 9, 12, 21, 31])
    assert seen("pts") == ([1, 2, 3, 5, 7, 9, 12], [1, 3, 5, 9, 12])


def test_no_order_of_a_catch_up_is_late_though_a_courier_has_orders_in_every_partition(
    spark: SparkSession, topics: Topics, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """A topic keyed by order, merged by courier: each partition is read a piece at a time, one after the other."""
    topic = f"orders-{new_topic()}"
    topics.create(topic, 3)
    held: dict[int, list[bytes]] = {part: [] for part in range(3)}
    for order in sorted(range(72), key=lambda at: at + at * 7 % 25):  # up to 25 s out of order
        held[order * 5 % 3].append(json.dumps({"id": order, "courier": f"c{order % 4}", "t": order}).encode())
    topics.produce(topic, held)
    orders = hf.read.kafka(
        topics.bootstrap,
        topic,
        schema="id BIGINT, courier STRING, t BIGINT",
        timestamp="t",
        disorder=25,
        max_rows_per_epoch=12,
        name="orders",
    )
    where = [[{"courier": f"c{of}", "t": t, "place": t} for of in range(4) for t in range(0, 72, 6)]]
    places = hf.read.rows(
        where, schema="courier STRING, t BIGINT, place BIGINT", timestamp="t", bounded=True, name="at"
    )
    seen = hf.merge(orders, {"where": places}, by="courier", name="seen")
    db = tmp_path / "out.db"
    flat = seen | hf.select("id", "where.place AS place", name="flat")
    late = seen.late | hf.select("timestamp AS t", name="late_rows")
    pipeline = hf.Pipeline(
        "couriers",
        flat | hf.write.sqlite(db, table="orders", name="out"),
        late | hf.write.sqlite(db, table="late", name="late_out"),
    )
    pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark)
    assert sqlite_rows(db, "SELECT t FROM late") == []
    found = sqlite_rows(db, "SELECT id, place FROM orders")
    assert len(found) > 40, "all but the last 25 s of the slowest partition"
    assert found == [(order, order - order % 6) for order in range(len(found))]


def test_a_partition_that_says_nothing_holds_windows_back_until_it_is_idle(
    spark: SparkSession, topics: Topics, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """Times are the broker's own; the keys of two windows come once, and never again."""
    topic = f"bounds-{new_topic()}"
    topics.create(topic, 3, message_timestamp_type="LogAppendTime")
    rows = hf.read.kafka(
        topics.bootstrap, topic, schema="k STRING", timestamp="message", idle_after="500 ms", name="rows"
    )
    counted = rows | hf.aggregate(by="k", window=hf.tumbling("1 ms"), n=hf.count(), name="counted")
    db = tmp_path / "out.db"
    flat = counted | hf.select("k", "n", name="flat")
    pipeline = hf.Pipeline("idle", flat | hf.write.sqlite(db, table="counts", name="out"))
    running = pipeline.start(checkpoint=str(tmp_path / "ckpt"), trigger=hf.every("50 ms"), session=spark)

    def closed() -> list[str]:
        """Return the keys whose windows are closed, after one more row: partition 1 is never idle."""
        topics.produce(topic, {1: [b'{"k": "more"}']})
        return [k for k in sqlite_rows(db, "SELECT k FROM counts") if k != "more"]

    try:
        topics.produce(topic, {0: [b'{"k": "a"}']})
        eventually(lambda: closed() == ["a"])  # partition 0 and the one that never had a row are idle
        topics.produce(topic, {2: [b'{"k": "b"}']})
        eventually(lambda: closed() == ["a", "b"])
        assert {each.name: each.late for each in running.status().operators} == {"counted": 0}
    finally:
        running.stop()
