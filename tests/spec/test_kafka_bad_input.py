"""What cannot be written to Kafka: each a clear error, with nothing lost and nothing in doubt (design/0036, "Rows").

The rows before are there, those of the epoch that failed are not, and what is mended is written.  Permissions and
logins: ``tests/unit/kafka/test_security.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka.record.util import calc_crc32c

import holdfast as hf
from holdfast.connectors.kafka.sink import topics as kafka_topics
from holdfast.connectors.kafka.sink.spec import KafkaSpec
from holdfast.errors import BadRow, Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Task
from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_servers import KafkaTopic
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("word", pa.string()),
        ("gone", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("place", pa.int64()),
        ("topic", pa.string()),
    ]
)
LATELY = datetime.now(UTC) - timedelta(hours=2)
"""Older than a topic takes that is told so, and younger than what brokers delete."""

GOOD = {"id": 1, "word": "a", "gone": False, "at": LATELY, "place": 0, "topic": None}


def rows(**columns: Any) -> pa.Table:
    return pa.Table.from_pylist([{**GOOD, **columns}], SCHEMA)


@dataclass(frozen=True)
class Case:
    """A row that a topic does not take.

    Parameters
    ----------
    row : mapping
        What is wrong with it.
    why, do : str
        Words of the error.
    arguments : mapping
        Of ``write.kafka``.
    topic : mapping
        Settings of the topic.
    later : mapping
        Settings that the topic has when the run has begun.
    mended : mapping, optional
        Settings with which it takes the row; None: it never does.
    """

    row: Mapping[str, Any]
    why: str
    do: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    topic: Mapping[str, str] = field(default_factory=dict)
    later: Mapping[str, str] = field(default_factory=dict)
    mended: Mapping[str, str] | None = None


LARGE = 5_000
"""Bytes of a value that some limits exclude."""

CASES = {
    "a record above the limit of the topic": Case(
        {"word": "x" * LARGE}, "takes 2000 at most", "raise max.message.bytes", topic={"max.message.bytes": "2000"}
    ),
    "a record above a limit that was lowered while the run goes on": Case(
        {"word": "x" * LARGE},
        "Message size too large",
        "raise max.message.bytes",
        {"compression": "none"},
        later={"max.message.bytes": "2000"},
        mended={"max.message.bytes": "20000"},
    ),
    "a tombstone where a value is needed": Case(
        {"word": None},
        "a record without a value is a tombstone",
        "delete=",
        {"format": "bytes", "value": "word", "mode": "upsert", "key": "id"},
    ),
    "a null key of an upsert": Case(
        {"word": None}, "a row is found again by its key", "word is not null", {"mode": "upsert", "key": "word"}
    ),
    "a null key in a compacted topic": Case(
        {"word": None},
        "takes none without a key",
        "or correct key=",
        {"key": "word"},
        topic={"cleanup.policy": "compact"},
    ),
    "a time that the topic does not take": Case(
        {},
        "Invalid timestamp",
        "change these settings of the topic",
        {"timestamp": "at"},
        later={"message.timestamp.before.max.ms": "3600000"},
        mended={"message.timestamp.before.max.ms": str(2**63 - 1)},
    ),
    "a time ahead of the clock by more than the topic takes": Case(
        {"at": datetime.now(UTC) + timedelta(days=2)},
        "message.timestamp.after.max.ms",
        "filter such rows out",
        {"timestamp": "at"},
        topic={"message.timestamp.after.max.ms": "3600000"},
    ),
    "a partition that is not there": Case(
        {"place": 7}, "it has the partitions 0 to 0", "correct the column", {"partition": "place"}
    ),
    "a topic that is not there": Case(
        {"topic": "nowhere"},
        "as they were at the start",
        "create it and start again",
        {"topic_by": "topic", "pattern": "nowhere.*"},
    ),
}
EVERYDAY = {
    "a record above a limit that was lowered while the run goes on",
    "a time ahead of the clock by more than the topic takes",
}


def set_(bootstrap: str, topic: str, settings: Mapping[str, str], *, takes: bool) -> None:
    """Change settings of a topic, and wait until its broker goes by them: the answer comes before.

    ``takes``: whether it then takes large and old records.
    """
    if not settings:
        return
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)
    while _takes_all(bootstrap, topic) != takes:
        pass


def _takes_all(bootstrap: str, topic: str) -> bool:
    """Tell whether a topic takes a large and old record; it is aborted."""
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-looks", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()

    def note(error: object, _: object) -> None:
        refused.extend([] if error is None else [error])

    producer.produce(topic, b"x" * LARGE, timestamp=1, on_delivery=note)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    return not refused


def created(bootstrap: str, topic: str, settings: Mapping[str, str]) -> KafkaTopic:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=dict(settings))])[topic].result(30)
    return KafkaTopic(bootstrap, topic)


def published(epoch: int, *parts: Any) -> Publication:
    return Publication(EpochRecord("bad", epoch, 1, {"s": {"log": epoch}}), parts)


@pytest.mark.parametrize("way", ["carried", "staged"])
@pytest.mark.parametrize(
    "case", [each if each in EVERYDAY else pytest.param(each, marks=pytest.mark.nightly) for each in CASES]
)
def test_a_row_that_a_topic_does_not_take_is_a_bad_row_and_changes_nothing(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], case: str, way: str
) -> None:
    wrong, topic = CASES[case], new_topic()
    outside = created(kafka_of_session.bootstrap, topic, wrong.topic)
    node = hf.write.kafka(
        kafka_of_session.bootstrap, topic, progress=f"{topic}-progress", stage="transactions", **wrong.arguments
    )
    sink: Any = node.spec.connect("rows", "bad", SCHEMA)
    sink.open(RunIdentity("bad", 1))
    sink.publish([published(1, Carried(rows()))], Held())
    before = outside.values()
    assert len(before) == 1
    set_(kafka_of_session.bootstrap, topic, wrong.later, takes=False)

    def part() -> Any:
        if way == "carried":
            return Carried(rows(**wrong.row))
        writer = sink.writer_factory()(Task("bad", 1, 2, 0, 0))
        try:
            writer.write(rows(**wrong.row).to_batches()[0])
            return writer.stage()
        except BaseException:
            writer.abort()
            raise

    def given() -> None:
        bad = published(2, part())
        sink.admit(bad)
        assert wrong.later, "it would be decided"
        sink.publish([bad], Held())

    with pytest.raises(BadRow) as caught:
        given()
    assert wrong.why in caught.value.why
    assert wrong.do in caught.value.do
    assert sink.outcome(2) is Outcome.ABSENT
    sink.sweep(below_epoch=3)
    assert outside.values() == before

    if wrong.mended is None:
        sink.publish([published(2, Carried(rows()))], Held())
    else:
        set_(kafka_of_session.bootstrap, topic, wrong.mended, takes=True)
        given()
    assert sink.outcome(2) is Outcome.PUBLISHED
    assert len(outside.values()) == 2
    sink.close()


@dataclass(frozen=True)
class Refusal:
    """A declaration that a start refuses, or a cluster that does not answer."""

    kind: type[HoldfastError]
    what: str
    do: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    topic: Mapping[str, str] | None = field(default_factory=dict)


REFUSALS = {
    "no broker": Refusal(
        Unavailable, "does not do what it is asked", "check the brokers", {"bootstrap": "127.0.0.1:9"}
    ),
    "a topic that is not there": Refusal(InvalidPipeline, "there is no topic", "create it", topic=None),
    "an unknown codec": Refusal(
        InvalidPipeline, "compression='lzma' is not known", 'compression="lz4"', {"compression": "lzma"}
    ),
    "an unknown format": Refusal(InvalidPipeline, "format='xml' is not known", 'format="json"', {"format": "xml"}),
    "a column of another type": Refusal(
        InvalidPipeline, "the column 'word' has the type string", "make one before the sink", {"headers": "word"}
    ),
    "no key for a compacted topic": Refusal(
        InvalidPipeline, "is compacted, and the rows have no key", 'mode="upsert"', topic={"cleanup.policy": "compact"}
    ),
    "transactions that may last longer than the brokers allow": Refusal(
        InvalidPipeline, "allows 900000 ms", "write a lower one", {"transaction_timeout": "1 h"}
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_no_row_could_mend_is_refused_before_a_row_is_written(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(kafka_topics, "CONNECT_S", 0.5)
    wrong, topic = REFUSALS[case], new_topic()
    if wrong.topic is not None:
        outside = created(kafka_of_session.bootstrap, topic, wrong.topic)
    with pytest.raises(wrong.kind) as caught:
        hf.write.kafka(**{"bootstrap": kafka_of_session.bootstrap, "topic": topic, **wrong.arguments}).spec.connect(
            "rows", "bad", SCHEMA
        )
    assert wrong.what in caught.value.what
    assert wrong.do in caught.value.do
    if wrong.topic is not None:
        assert outside.values() == []


@pytest.mark.parametrize(
    "codec",
    [
        pytest.param("zstd"),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("lz4", "snappy", "gzip", "none")),
    ],
)
def test_every_codec_is_written_and_read(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], codec: Any
) -> None:
    topic = new_topic()
    outside = created(kafka_of_session.bootstrap, topic, {})
    node = hf.write.kafka(kafka_of_session.bootstrap, topic, progress=f"{topic}-progress", compression=codec)
    assert isinstance(node.spec, KafkaSpec)
    sink = node.spec.connect("rows", "codecs", SCHEMA)
    sink.open(RunIdentity("codecs", 1))
    writer = sink.writer_factory()(Task("codecs", 1, 1, 0, 0))
    writer.write(rows(id=1).to_batches()[0])
    record = EpochRecord("codecs", 1, 1, {"s": {"log": 1}})
    sink.publish([Publication(record, (writer.stage(), Carried(rows(id=2))))], Held())
    assert sorted(json.loads(value)["id"] for value in outside.values()) == [1, 2]
    sink.close()


@pytest.mark.parametrize("codec", [7, 1])
def test_a_codec_that_the_library_does_not_know_is_said_with_its_place_and_nothing_is_skipped(
    kafka_of_session: KafkaServer, new_topic: Callable[[], str], tmp_path: Path, codec: int
) -> None:
    """The broker gives a batch as it has it: here the number of its codec is changed, and its checksum with it.

    7 is none; 1 is gzip, which these bytes are not.
    """
    topic = new_topic()
    topics = Topics(kafka_of_session.bootstrap)
    topics.create(topic)
    for value in (b"one", b"two", b"three"):
        topics.produce(topic, {0: [value]})
    (log,) = kafka_of_session.directory.glob(f"data/{topic}-0/*.log")
    with log.open("r+b") as file:
        batches = bytearray(file.read())
        second = 12 + int.from_bytes(batches[8:12])
        end = second + 12 + int.from_bytes(batches[second + 8 : second + 12])
        batches[second + 22] |= codec
        batches[second + 17 : second + 21] = calc_crc32c(bytes(batches[second + 21 : end])).to_bytes(4)
        file.seek(0)
        file.write(batches)
    spec: Any = hf.read.kafka(kafka_of_session.bootstrap, topic, format="bytes", name="rows").node.spec
    source = spec.open("rows", str(tmp_path))
    start = source.initial()
    (span,) = source.spans(start, source.latest(start, bounded=False), parallelism=1)
    seen = []
    with pytest.raises(Corrupt, match=f"in {topic}/0 from offset 1 on cannot be read") as caught:
        seen += list(source.read(span))
    assert "Decompression" in caught.value.why
    assert "newer confluent-kafka" in caught.value.do
    assert seen == []
