"""Runs between topics: Avro on both sides, orphans that come late, and what ``inspect`` says of all that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.config import Settings
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_servers import KafkaTopic, open_transactions
from tests.kafka_topics import Topics
from tests.schema_registry import schema_registry
from tests.spark.running import MODES, eventually, sqlite_rows

pytestmark = pytest.mark.spark

PIPELINE = """
import holdfast as hf
rows = hf.read.kafka("{broker}", "{source}", schema="id BIGINT", name="rows")
pipeline = hf.Pipeline(
    "{name}",
    rows | hf.write.kafka("{broker}", "{target}", progress="{target}-progress", name="out"),
    rows | hf.write.sqlite("{db}", table="rows", name="table"),
)
"""


@pytest.fixture
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


class Late:
    """An attempt of a task that nobody waits for: it has written a row, and its transaction is open."""

    def __init__(self, topics: Topics, pipeline: str, target: str, generation: int = 0, epoch: int = 1) -> None:
        self.name = f"holdfast/{pipeline}/out/staged/{generation}.{epoch}.0.0.cafe"
        self.producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": self.name, "log_level": 0})
        self.producer.init_transactions(30)
        self.producer.begin_transaction()
        self.producer.produce(target, b'{"id": -1}')
        assert self.producer.flush(30) == 0


@pytest.fixture
def flow(topics: Topics, new_topic: Callable[[], str], tmp_path: Path) -> dict[str, str]:
    """Return a pipeline from a topic to another one and a table, as the text of a module says it."""
    source, target = f"in-{new_topic()}", f"out-{new_topic()}"
    for name in (source, target):
        topics.create(name)
    said = {"broker": topics.bootstrap, "source": source, "target": target, "name": f"flow_{target.replace('-', '_')}"}
    said["db"] = str(tmp_path / "rows.db")
    (tmp_path / "flow.py").write_text(PIPELINE.format(**said))
    return said


def pipeline_of(flow: dict[str, str]) -> hf.Pipeline:
    found: dict[str, Any] = {}
    exec(PIPELINE.format(**flow), found)
    pipeline: hf.Pipeline = found["pipeline"]
    return pipeline


@pytest.mark.parametrize("generation", [0, 1], ids=["of a dead driver", "of the newest epoch"])
def test_an_orphan_that_comes_late_stops_readers_only_until_the_run_looks_again(
    spark: SparkSession, topics: Topics, flow: dict[str, str], tmp_path: Path, generation: int
) -> None:
    """No row arrives meanwhile, so no epoch ends that could look."""
    target = KafkaTopic(topics.bootstrap, flow["target"])
    topics.produce(flow["source"], {0: [b'{"id": 1}']})
    run = pipeline_of(flow).start(
        checkpoint=str(tmp_path / "ckpt"),
        trigger=hf.every("50 ms"),
        session=spark,
        settings=Settings(sweep_interval="1 s"),
    )
    try:
        eventually(lambda: target.values() == [b'{"id":1}'])
        eventually(lambda: run.status().epoch > 0)
        epoch = run.status().epoch
        late = Late(topics, flow["name"], flow["target"], generation, epoch)
        topics.produce(flow["target"], {0: [b"of somebody else"]})
        eventually(lambda: late.name not in open_transactions(topics.bootstrap), within_s=20)
        assert run.status().epoch == epoch, "an epoch came, and may have looked"
        eventually(lambda: target.values() == [b'{"id":1}', b"of somebody else"])
        topics.produce(flow["source"], {0: [b'{"id": 2}']})
        eventually(lambda: target.values()[-1] == b'{"id":2}')
    finally:
        run.stop()


def test_the_group_of_a_source_is_told_what_every_sink_holds_also_with_state_and_at_the_end(
    spark: SparkSession, topics: Topics, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """It stood at the oldest snapshot: behind by all that a replay may need (design/0038, section 8)."""
    source = new_topic()
    topics.create(source, partitions=2)
    rows = hf.read.kafka(
        topics.bootstrap, source, schema="id BIGINT", group=f"watch-{source}", max_rows_per_epoch=2, name="rows"
    )
    totals = rows | hf.accumulate(by="id", n=hf.count(), name="totals")
    pipeline = hf.Pipeline(
        f"told_{source.replace('-', '_')}",
        totals | hf.write.sqlite(str(tmp_path / "totals.db"), table="totals", name="totals_table"),
        rows | hf.write.sqlite(str(tmp_path / "rows.db"), table="rows", name="rows_table"),
    )
    at = {"bootstrap.servers": topics.bootstrap, "group.id": f"watch-{source}", "log_level": 0}
    watcher = Consumer(at)
    places = [TopicPartition(source, number) for number in range(2)]

    def told() -> list[int]:
        return [each.offset for each in watcher.committed(places, timeout=30)]

    topics.produce(source, {0: [b'{"id": 1}'] * 3, 1: [b'{"id": 2}'] * 3})
    pipeline.run(checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark)
    assert told() == [3, 3]
    run = pipeline.start(checkpoint=str(tmp_path / "ckpt"), trigger=hf.every("50 ms"), session=spark)
    try:
        topics.produce(source, {0: [b'{"id": 1}'] * 2})
        eventually(lambda: told() == [5, 3])
        topics.produce(source, {1: [b'{"id": 1}']})
        eventually(lambda: len(sqlite_rows(tmp_path / "rows.db")) == 9)
    finally:
        run.stop()
    assert told() == [5, 4]
    watcher.close()


def test_inspect_says_what_is_held_what_lags_what_is_open_and_who_waits(
    spark: SparkSession, topics: Topics, flow: dict[str, str], tmp_path: Path
) -> None:
    topics.produce(flow["source"], {0: [b'{"id": 1}', b'{"id": 2}']})
    checkpoint = str(tmp_path / "ckpt")
    pipeline_of(flow).run(checkpoint=checkpoint, trigger=hf.available_now(), session=spark)
    topics.produce(flow["source"], {0: [b'{"id": 3}'] * 3}, timestamp=1_000)
    late = Late(topics, flow["name"], flow["target"])

    def asked(*more: str) -> str:
        said = CliRunner().invoke(
            app, ["inspect", f"{tmp_path / 'flow.py'}:pipeline", "--checkpoint", checkpoint, *more]
        )
        assert said.exit_code == 0, said.output
        return said.output

    told = asked()
    assert "  holds everything up to epoch 1, opened last by generation 1\n" in told
    assert re.search(
        rf"  transaction {flow['name']}/0/1/0/0: Ongoing, open for \d+ s, at most 60 s; "
        "an orphan: the next run aborts it\n",
        told,
    )
    assert f"  readers of {flow['target']}/0 wait at 3, 1 before its end\n" in told
    assert f"  {flow['source']}/0: held out=2 table=2, read 2, end 5, lag 3 rows, " in told
    answer = json.loads(asked("--json"))
    (segment,) = answer["sources"][0]["segments"]
    assert {name: segment[name] for name in ("held", "read", "end", "lag")} == {
        "held": {"out": 2, "table": 2},
        "read": 2,
        "end": 5,
        "lag": 3,
    }
    assert segment["lag_s"] > 1e9  # since 1970: the message says so
    out = next(sink for sink in answer["sinks"] if sink["name"] == "out")
    (transaction,) = out["transactions"]
    assert (transaction["standing"], transaction["transaction"]["state"]) == ("orphan", "Ongoing")
    assert out["waiting_readers"] == [{"place": f"{flow['target']}/0", "readable": 3, "end": 4}]

    assert late.name in open_transactions(topics.bootstrap), "to inspect changes nothing"
    pipeline_of(flow).run(checkpoint=checkpoint, trigger=hf.available_now(), session=spark)
    told = asked()
    assert "transaction " not in told
    assert "readers of" not in told
    assert f"  {flow['source']}/0: held out=5 table=5, read 5, end 5, lag 0 rows, 0.0 s\n" in told
    assert [json.loads(value)["id"] for value in KafkaTopic(topics.bootstrap, flow["target"]).values()] == [
        1,
        2,
        3,
        3,
        3,
    ]


RIDE = """{"type": "record", "name": "Ride", "fields": [
    {"name": "id", "type": "int"}, {"name": "km", "type": "float"}, {"name": "city", "type": ["null", "string"]},
    {"name": "ignored", "type": {"type": "map", "values": "long"}}]}"""


@pytest.mark.parametrize("mode", ["carried", pytest.param("staged", marks=pytest.mark.nightly)])
def test_avro_goes_from_topic_to_topic_and_what_is_none_is_a_reject(
    spark: SparkSession, topics: Topics, new_topic: Callable[[], str], tmp_path: Path, mode: str
) -> None:
    """Written and read by serializers that are not this project's; tasks ask the registry, too."""
    source, target = f"in-{new_topic()}", f"out-{new_topic()}"
    topics.create(source, 2)
    topics.create(target)
    outside = KafkaTopic(topics.bootstrap, target)
    with schema_registry() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        serialized = AvroSerializer(client, RIDE)
        given = [
            {"id": i, "km": i / 4, "city": None if i % 5 == 0 else f"c{i}", "ignored": {"x": i}} for i in range(40)
        ]
        payloads = [serialized(ride, SerializationContext(source, MessageField.VALUE)) for ride in given]
        bad = [None, b"\0\0\0\x03\xe7x", b"{}"]
        topics.produce(source, {0: [*payloads[:20], *bad], 1: payloads[20:]})
        rides = hf.read.kafka(
            topics.bootstrap,
            source,
            format="avro",
            schema="id BIGINT, km DOUBLE, city STRING",
            registry=registry.url,
            on_bad_row="reject",
            name="rides",
        )
        db = tmp_path / "rejects.db"
        long = rides | hf.select("id", "km * 2 AS km", "city", name="doubled")
        pipeline = hf.Pipeline(
            f"avro_{target.replace('-', '_')}",
            long
            | hf.write.kafka(
                topics.bootstrap, target, format="avro", registry=registry.url, progress=f"{target}-p", name="out"
            ),
            rides.rejects | hf.write.sqlite(db, table="rejects", name="rejects_out"),
        )
        for _ in range(2):  # the second run finds nothing to do
            pipeline.run(
                checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=MODES[mode]
            )
        theirs, context = AvroDeserializer(client), SerializationContext(target, MessageField.VALUE)
        found = sorted((theirs(value, context) for value in outside.values()), key=lambda row: row["id"])
    assert found == [{"id": ride["id"], "km": ride["km"] * 2, "city": ride["city"]} for ride in given]
    assert sqlite_rows(db, "SELECT position, reason FROM rejects") == [
        (f"{source}/0/20", "it has no value (a tombstone), and columns are wanted"),
        (f"{source}/0/21", "its schema 999 is not in the registry"),
        (f"{source}/0/22", "it does not begin with the id of a schema"),
    ]
