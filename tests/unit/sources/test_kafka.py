"""``read.kafka`` against a real broker (design/0038): what is read, not waited for, and never skipped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicCollection

from holdfast import read
from holdfast.connectors.kafka.source import consuming
from holdfast.connectors.kafka.source import source as planning
from holdfast.connectors.kafka.source.consuming import chunks_of
from holdfast.errors import BadRow, Diverged, InvalidPipeline, Unavailable
from holdfast.ports import REJECT_COLUMN
from holdfast.testing.servers.kafka import KafkaCluster, KafkaServer, kafka_server
from tests.contract.source_contract import drain, rows_between
from tests.kafka_topics import Topics

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def topics(kafka_of_session: KafkaServer) -> Topics:
    return Topics(kafka_of_session.bootstrap)


@pytest.fixture
def topic(new_topic: Callable[[], str]) -> str:
    return f"source-{new_topic()}"


@pytest.fixture
def opened(topics: Topics, tmp_path: Path) -> Callable[..., Any]:
    """Return what opens a source of bytes, each time as a new process does."""

    def open_(*topic: str, **arguments: Any) -> Any:
        spec: Any = read.kafka(topics.bootstrap, list(topic) or None, **{"format": "bytes", **arguments}).node.spec
        return spec.open("messages", str(tmp_path / "workspace"))

    return open_


def values(source: Any, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[bytes]:
    return [row["value"] for row in rows_between(source, start, end)]


def reached(source: Any, start: Mapping[str, Any], offset: int) -> Any:
    """Return positions with an offset, once they have come so far: brokers mark the end of a transaction later."""
    end = time.monotonic() + 30
    while (found := source.latest(start, bounded=False)) and max(found.values()) < offset:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def numbered(*numbers: int) -> Sequence[bytes]:
    return [b"%d" % number for number in numbers]


@pytest.mark.usefixtures("functions")
def test_a_message_is_a_row_with_all_that_it_has(topics: Topics, topic: str, opened: Callable[..., Any]) -> None:
    topics.create(topic, 2)
    topics.produce(
        topic, {1: [b"v", None]}, key=b"\xff", headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123
    )
    topics.produce(topic, {0: [b""]})
    source = opened(topic)
    start = source.initial()
    plain, *rows = rows_between(source, start, source.latest(start, bounded=False))
    at = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    first = {"key": b"\xff", "value": b"v", "topic": topic, "partition": 1, "offset": 0, "timestamp": at}
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert rows == [{**first, "headers": headers}, {**first, "value": None, "offset": 1, "headers": headers}]
    assert (plain["key"], plain["value"], plain["headers"], plain["partition"]) == (None, b"", None, 0)


@pytest.mark.usefixtures("functions")
def test_nobody_waits_for_rows_that_are_aborted_or_undecided(
    topics: Topics, topic: str, opened: Callable[..., Any]
) -> None:
    topics.create(topic, 1)
    topics.transaction(topic, {0: numbered(1, 2)})
    topics.transaction(topic, {0: numbered(3, 4)}, commits=False)
    open_ = topics.transaction(topic, {0: numbered(5, 6)}, commits=None)
    topics.produce(topic, {0: numbered(7)})
    source = opened(topic)
    start = source.initial()
    (segment,) = start
    begun = time.monotonic()
    middle = reached(source, start, 6)  # each mark of a transaction has an offset, too
    assert middle == {segment: 6}
    assert values(source, start, middle) == numbered(1, 2)
    assert values(source, {segment: 3}, middle) == []
    assert values(source, {segment: 4}, {segment: 5}) == []
    open_.commit_transaction(30)
    end = reached(source, middle, 10)
    assert values(source, middle, end) == numbered(5, 6, 7)
    assert time.monotonic() - begun < 10, "it waited"
    every = opened(topic, isolation="read_uncommitted")
    assert values(every, start, end) == numbered(1, 2, 3, 4, 5, 6, 7)


@pytest.mark.usefixtures("functions")
def test_each_partition_gets_its_share_and_large_ones_are_cut(
    topics: Topics, topic: str, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(topic, 3)
    topics.produce(topic, {0: numbered(*range(100)), 1: numbered(*range(1000, 1004)), 2: numbered(*range(2000, 2050))})
    source = opened(topic, max_rows_per_epoch=30)
    positions = drain(source, source.initial())
    assert [sorted(each.values()) for each in positions[:3]] == [[0, 0, 0], [4, 13, 13], [4, 28, 28]]
    for start, end in pairwise(positions):
        assert source.rows_between(start, end) <= 30
    monkeypatch.setattr("holdfast.connectors.kafka.source.cluster.SPAN_ROWS_MIN", 10)
    monkeypatch.setattr("holdfast.connectors.kafka.source.cluster.SPAN_ROWS_ENOUGH", 10)
    spans = source.spans(positions[0], positions[-1], parallelism=3)
    assert len(spans) == 6
    assert len({segment for span in spans for segment, _, _ in span.value.ranges}) == 3
    found = [row["value"] for span in spans for batch in source.read(span) for row in batch.to_pylist()]
    assert found == numbered(*range(100), *range(1000, 1004), *range(2000, 2050))


def test_partitions_and_topics_that_are_added_are_read_from_their_beginning(
    topics: Topics, topic: str, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LOOK_S", 0.0)
    topics.create(f"{topic}-a", 1)
    topics.create(f"not-{topic}-a", 1)
    topics.produce(f"{topic}-a", {0: numbered(1)})
    source = opened(pattern=f"{topic}-.*", start="latest")
    start = source.initial()
    assert list(start.values()) == [1]
    topics.grow(f"{topic}-a", 2)
    topics.produce(f"{topic}-a", {1: numbered(2)})
    topics.create(f"{topic}-b", 1)
    topics.produce(f"{topic}-b", {0: numbered(3, 4)})
    topics.drop_before(f"{topic}-b", 0, 1)
    end = drain(source, start)[-1]
    assert values(source, start, end) == numbered(2, 4)
    topics.drop_before(f"{topic}-b", 0, 2)  # the replay of an epoch that is not finished
    with pytest.raises(Diverged, match=r"partition 0 of topic '.*-b' messages 1 to 1 are gone: it begins at 2"):
        values(opened(pattern=f"{topic}-.*", start="latest"), start, end)
    topics.delete(f"{topic}-b")
    assert source.latest(end, bounded=False) == end  # all that was known of it was read


@pytest.mark.usefixtures("functions")
def test_what_retention_has_removed_is_named_and_never_skipped(
    topics: Topics, topic: str, opened: Callable[..., Any]
) -> None:
    topics.create(topic, 1)
    topics.produce(topic, {0: numbered(*range(10))})
    source = opened(topic)
    start = source.initial()
    (segment,) = start
    end = source.latest(start, bounded=False)
    spec = source.spec
    assert spec.obstacle("messages", "", {segment: 3}, end) == ""
    topics.drop_before(topic, 0, 5)
    why = f"of partition 0 of topic '{topic}' messages 3 to 4 are gone: it begins at 5."
    assert spec.obstacle("messages", "", {segment: 3}, end) == why
    assert spec.obstacle("messages", "", {segment: 5}, end) == ""
    assert "ends at 10, and was read, or planned, up to 11" in spec.obstacle("messages", "", {segment: 11})
    with pytest.raises(Diverged, match="messages 3 to 4 are gone"):
        values(source, {segment: 3}, end)
    assert values(source, {segment: 5}, end) == numbered(5, 6, 7, 8, 9)


def test_a_topic_created_again_is_noticed(topics: Topics, topic: str, opened: Callable[..., Any]) -> None:
    topics.create(topic, 1)
    topics.produce(topic, {0: numbered(1, 2)})
    source = opened(topic)
    end = source.latest(source.initial(), bounded=False)
    topics.delete(topic)
    with pytest.raises(Diverged, match="is not there"):
        values(source, source.initial(), end)
    topics.create(topic, 1)
    topics.produce(topic, {0: numbered(3, 4, 5)})
    assert "was deleted and created again" in source.spec.obstacle("messages", "", end)
    for one in (source, opened(topic)):
        with pytest.raises(Diverged, match="was deleted and created again"):
            one.latest(end, bounded=False)


def test_the_start_is_chosen_once(topics: Topics, topic: str, opened: Callable[..., Any], tmp_path: Path) -> None:
    topics.create(topic, 1)
    for at in (1, 2, 3):
        topics.produce(topic, {0: numbered(at)}, timestamp=at * 1_000_000)
    begins = {}
    for start in ("earliest", "latest", "1970-01-01T00:33:20Z", "1970-01-02"):
        spec = read.kafka(topics.bootstrap, topic, format="bytes", start=start).node.spec
        begins[start] = [*spec.open("a", str(tmp_path / start)).initial().values()]
    assert [*begins.values()] == [[0], [3], [1], [3]]
    topics.produce(topic, {0: numbered(4)})
    again = read.kafka(topics.bootstrap, topic, format="bytes", start="latest").node.spec.open(
        "a", str(tmp_path / "latest")
    )
    assert values(again, again.initial(), again.latest(again.initial(), bounded=False)) == numbered(4)


@pytest.mark.usefixtures("functions")
def test_bad_payloads_are_rejected_one_by_one(topics: Topics, topic: str, opened: Callable[..., Any]) -> None:
    topics.create(topic, 1)
    good = [b'{"id": 1}', b'{"id":\n 2,\r\n "x": [1]}\n', b' {"id": 3} ']
    bad = [b"", None, b"[]", b'{"id": "x"}', b'{"id": 4}\n{"id": 5}', b'{"id": 6, "t": "a\nb"}', b'{"id": "\xff"}']
    mixed = [each for pair in zip(bad, [*good, *good, *good], strict=False) for each in pair]
    topics.produce(topic, {0: mixed})
    arguments = {"format": "json", "schema": "id BIGINT, t STRING", "metadata": {"o": "offset"}}
    source = opened(topic, on_bad_row="reject", **arguments)
    start = source.initial()
    end = source.latest(start, bounded=False)
    rows = rows_between(source, start, end)
    assert [row["id"] for row in rows[1::2]] == [1, 2, 3, 1, 2, 3, 1]
    assert [row["o"] for row in rows] == list(range(len(mixed)))
    rejects = [row[REJECT_COLUMN] for row in rows[::2]]
    assert [each["position"] for each in rejects] == [f"{topic}/0/{at}" for at in range(0, 14, 2)]
    assert rejects[1]["reason"].startswith("it has no value")
    assert all(row[REJECT_COLUMN] is None for row in rows[1::2])
    with pytest.raises(BadRow, match=f"{topic}/0/0, cannot be read: it is empty"):
        rows_between(opened(topic, **arguments), start, end)


def test_what_is_wrong_is_said_with_the_cure(topics: Topics, topic: str, tmp_path: Path) -> None:
    def source(bootstrap: str, **arguments: Any) -> Any:
        spec: Any = read.kafka(bootstrap, topic, format="bytes", **arguments).node.spec
        return spec.open("messages", str(tmp_path))

    with pytest.raises(InvalidPipeline, match=f"topic '{topic}' is not on the Kafka cluster"):
        source(topics.bootstrap).initial()
    with pytest.raises(InvalidPipeline, match="environment variable NO_SUCH, which is not set"):
        source("${NO_SUCH}:9092").initial()
    mistakes: list[dict[str, Any]] = [{"bootstrap": "localhost"}, {"security": {"user": "x"}}]
    for wrong in [*mistakes, {"start": "soon"}, {"schema": "a INT"}]:
        with pytest.raises(InvalidPipeline):
            source(**{"bootstrap": topics.bootstrap, **wrong})
    secret: Any = read.kafka(topics.bootstrap, topic, format="bytes", security={"password": "hunter2"}).node.spec
    assert secret.sends_secret
    assert "hunter2" not in repr(secret) + json.dumps(secret.arguments())


def test_a_replay_of_a_partition_that_appeared_later_says_what_retention_took(
    topics: Topics, topic: str, opened: Callable[..., Any]
) -> None:
    """A sink that is restored from before the topic: its beginning is what there was, and not what is left."""
    topics.create(f"{topic}-a")
    named = {"pattern": f"{topic}-.*"}
    source = opened(**named)
    start = source.initial()
    topics.create(f"{topic}-b")
    topics.produce(f"{topic}-b", {0: numbered(*range(10))})
    again = opened(**named)
    end = reached(again, start, 10)
    assert values(again, start, end) == numbered(*range(10))
    topics.drop_before(f"{topic}-b", 0, 6)
    replay = opened(**named)
    replay.newest()
    with pytest.raises(Diverged, match="messages 0 to 5 are gone: it begins at 6"):
        values(replay, start, end)
    why = replay.spec.obstacle("messages", replay.workspace, start, end)
    assert "messages 0 to 5 are gone" in why
    assert replay.spec.obstacle("messages", replay.workspace, end, end) == ""


@pytest.mark.parametrize("is_back", [False, True], ids=["deleted", "created again"])
def test_a_bounded_run_says_that_the_topic_is_another_one(
    topics: Topics, topic: str, opened: Callable[..., Any], is_back: bool
) -> None:
    topics.create(topic)
    topics.produce(topic, {0: numbered(*range(10))})
    source = opened(topic)
    position = dict.fromkeys(source.latest(source.initial(), bounded=True), 4)
    topics.delete(topic)
    if is_back:
        topics.create(topic)
        topics.produce(topic, {0: numbered(*range(10))})
    again = opened(topic)
    again.freeze()
    with pytest.raises(Diverged, match="created again" if is_back else "is not there"):
        again.latest(position, bounded=True)


@pytest.mark.usefixtures("functions")
def test_ranges_that_hold_too_much_are_read_one_after_the_other(
    topics: Topics, topic: str, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "HELD_BYTES", 50)
    monkeypatch.setattr(consuming, "CHUNK_BYTES", 20)
    monkeypatch.setattr(consuming, "CHUNK_ROWS", 4)
    topics.create(topic, 4)
    sent: dict[int, list[bytes]] = {at: [] for at in range(4)}
    for turn in range(5):  # so many requests, and so many pieces of each partition
        some = {at: list(numbered(*range(1000 * at + 9 * turn, 1000 * at + 9 * turn + 9))) for at in sent}
        topics.produce(topic, some)
        sent = {at: sent[at] + some[at] for at in sent}
    source = opened(topic)
    start = source.initial()
    assert values(source, start, source.latest(start, bounded=False)) == list(chain(*sent.values()))


@pytest.mark.nightly
def test_a_cluster_that_is_away_is_waited_for_and_then_said_so(
    three_kafkas: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of a partition is killed while it is read; then all of them."""
    topics = Topics(three_kafkas.bootstrap)
    topics.create("t", 3, 3, min_insync_replicas="2")
    topics.produce("t", {at: numbered(*range(200)) for at in range(3)})
    source: Any = read.kafka(three_kafkas.bootstrap, "t", format="bytes").node.spec.open("a", str(tmp_path))
    start = source.initial()
    end = source.latest(start, bounded=False)
    before = values(source, start, end)
    assert len(before) == 600
    three_kafkas.brokers[0].stop()
    assert values(source, start, end) == before
    topics.produce("t", {at: numbered(200) for at in range(3)})
    later = source.latest(end, bounded=False)
    assert values(source, end, later) == numbered(200) * 3
    three_kafkas.stop()
    monkeypatch.setattr(planning, "TIMEOUT_S", 2.0)
    again: Any = source.spec.open("a", str(tmp_path))
    with pytest.raises(Unavailable, match="does not answer"):
        again.latest(end, bounded=False)


@pytest.mark.nightly
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_partition_without_a_leader_is_waited_for_and_is_not_gone(
    three_kafkas: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """The only broker that has it is killed, and started again: of one partition, and of one of three."""
    topics = Topics(three_kafkas.bootstrap)
    topics.create("t", partitions)
    topics.produce("t", {at: numbered(*range(5)) for at in range(partitions)})

    def source(workspace: str = "a") -> Any:
        return read.kafka(three_kafkas.bootstrap, "t", format="bytes").node.spec.open("a", str(tmp_path / workspace))

    before = source()
    start = before.initial()
    end = before.latest(start, bounded=False)
    described = topics.admin.describe_topics(TopicCollection(["t"]))["t"].result()
    broker = next(each for each in three_kafkas.brokers if each.number == described.partitions[0].leader.id)
    broker.stop()
    monkeypatch.setattr(planning, "TIMEOUT_S", 4.0)  # longer than a topic may be unknown
    monkeypatch.setattr(chunks_of, "__defaults__", (4.0,))
    for ask in (source("new").initial, partial(source().latest, end, bounded=False), source().freeze):
        with pytest.raises(Unavailable, match="does not answer"):
            ask()
    with pytest.raises(Unavailable, match="does not answer"):
        values(source(), start, end)
    broker.start()
    monkeypatch.undo()
    after = source()
    assert (after.initial(), after.latest(start, bounded=False)) == (start, end)
    assert values(after, start, end) == numbered(*range(5)) * partitions


_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_USERS = 'user_admin="a" user_app="b"'
_SASL = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": f'{_PLAIN} username="admin" password="a" {_USERS};',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}


@pytest.mark.nightly
def test_a_login_a_permission_and_an_address_that_are_refused_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "TIMEOUT_S", 4.0)
    monkeypatch.setenv("ADMIN_PASSWORD", "a")
    admin = {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "username": "admin", "password": "${ADMIN_PASSWORD}"}

    def begins(bootstrap: str, security: Mapping[str, str]) -> Any:
        spec: Any = read.kafka(bootstrap, "t", format="bytes", security=security).node.spec
        return spec.open("a", str(tmp_path)).initial()

    with kafka_server(_SASL, protocol="SASL_PLAINTEXT") as server:
        with pytest.raises(InvalidPipeline, match="'t' is not on the Kafka cluster"):
            begins(server.bootstrap, admin)
        wrong = "hunter2-wrong"
        with pytest.raises(InvalidPipeline, match=r"refuses this user.*\n.*Authentication failed") as refused:
            begins(server.bootstrap, {**admin, "password": wrong})
        assert wrong not in str(refused.value)
        with pytest.raises(InvalidPipeline, match=r"refuses this user.*\n.*authorization failed"):
            begins(server.bootstrap, {**admin, "username": "app", "password": "b"})
        with pytest.raises(Unavailable, match="handshake failed"):
            begins(server.bootstrap, {"protocol": "SSL"})
        with pytest.raises(InvalidPipeline, match="no client"):
            begins(server.bootstrap, {"protocol": "SSL", "ca": str(tmp_path / "none")})
    with pytest.raises(Unavailable, match="Connection refused"):
        begins(server.bootstrap, admin)


@pytest.mark.usefixtures("functions")
def test_lag_is_the_messages_behind_a_position_and_the_age_of_the_first(topics: Topics, topic: str) -> None:
    topics.create(topic, 3)
    topics.produce(topic, {0: numbered(1, 2, 3)}, timestamp=1_000_000)
    topics.produce(topic, {1: numbered(4)}, timestamp=2_000_000)
    topics.transaction(topic, {2: numbered(5)}, commits=False)
    topics.drop_before(topic, 0, 1)
    spec: Any = read.kafka(topics.bootstrap, topic, format="bytes").node.spec
    end = time.monotonic() + 30
    while (lags := spec.lags("a", {}))[2].end < 2:  # the mark of the transaction comes a little later
        assert time.monotonic() < end
    assert [(each.place, each.position, each.end, each.oldest_us) for each in lags] == [
        (f"{topic}/0", 1, 3, 1_000_000_000),
        (f"{topic}/1", 0, 1, 2_000_000_000),
        (f"{topic}/2", 0, 2, None),
    ]
    here = {each.segment: each.end for each in lags}
    assert [(each.position, each.oldest_us) for each in spec.lags("a", here)] == [(3, None), (1, None), (2, None)]
    first, *_ = here
    assert spec.lags("a", {**here, first: 0})[0].oldest_us == 1_000_000_000, "what retention took has no age"


def test_without_a_broker_a_start_says_who_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TIMEOUT_S", 0.5)
    spec: Any = read.kafka("127.0.0.1:1", "t", format="bytes").node.spec
    with pytest.raises(Unavailable, match=r"the Kafka cluster 127\.0\.0\.1:1 does not answer"):
        spec.open("a", str(tmp_path)).initial()


@pytest.mark.usefixtures("functions")
def test_a_key_that_is_no_text_is_a_column_of_bytes_beside_a_value_of_json(
    topics: Topics, topic: str, opened: Callable[..., Any]
) -> None:
    topics.create(topic, 1)
    topics.produce(topic, {0: [b'{"id": 1}']}, key=b"\xff\xfe")
    source = opened(topic, format="json", schema="id BIGINT", metadata=["key"])
    start = source.initial()
    assert rows_between(source, start, source.latest(start, bounded=False)) == [{"id": 1, "key": b"\xff\xfe"}]
