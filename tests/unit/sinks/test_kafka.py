"""How rows become records, what an address shows, and what a declaration refuses; no broker is asked."""

from __future__ import annotations

import datetime
import pickle
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo
from kafka import errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager

import holdfast as hf
from holdfast.connectors.kafka import codes, questions
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.fields import FIELDS
from holdfast.connectors.kafka.sink import form as kafka_form
from holdfast.connectors.kafka.sink import session, transactions
from holdfast.connectors.kafka.sink.form import Limits, MessageForm, RecordColumns
from holdfast.connectors.kafka.sink.ledger import HEADER, KafkaNames
from holdfast.connectors.kafka.sink.session import KafkaSession, LogRecord
from holdfast.connectors.kafka.sink.spec import KafkaSpec
from holdfast.connectors.kafka.sink.transactions import Transactions
from holdfast.errors import BadRow, InvalidPipeline, Unavailable
from holdfast.ports import Task

LIMITS = Limits({"t": 3, "other": 1}, 1_000, frozenset({"t"}))


def messages(form: MessageForm, *, limits: Limits = LIMITS, **columns):
    return [
        row for some in form.messages("sink 's'", pa.RecordBatch.from_pydict(columns), limits) for row in rows_of(some)
    ]


def rows_of(some: RecordColumns):
    """Return topic, partition, key, value, headers and time of each message."""
    topics = some.topics if isinstance(some.topics, pa.Array) else pa.repeat(some.topics, len(some))
    columns = zip(
        (topics, some.partitions, some.keys, some.values, some.headers, some.times),
        (None, -1, None, None, None, 0),
        strict=True,
    )
    for topic, partition, key, value, headers, at in zip(
        *([absent] * len(some) if column is None else column.to_pylist() for column, absent in columns), strict=True
    ):
        found = None if headers is None else [(each["key"], each["value"]) for each in headers]
        yield topic, partition, key, value, found, at


def test_by_default_a_value_is_the_row_as_json_and_there_is_no_key():
    assert messages(MessageForm("t"), id=[1, 2], word=["a", None]) == [
        ("t", -1, None, b'{"id":1,"word":"a"}', None, 0),
        ("t", -1, None, b'{"id":2,"word":null}', None, 0),
    ]


def test_every_part_of_a_record_has_its_column():
    form = MessageForm("t", "json", "append", ("k",), (), "h", "at", "p", "where")
    at = pa.array([datetime.datetime(2024, 1, 1), None], pa.timestamp("us", "UTC"))
    found = messages(
        form,
        k=["é", None],
        h=pa.array([[("a", b"1"), ("b", None)], None], pa.map_(pa.string(), pa.binary())),
        at=at,
        p=[2, None],
        where=[None, "other"],
    )
    assert found == [
        (
            "t",
            2,
            "é".encode(),
            '{"k":"é","at":"2024-01-01T00:00:00.000000Z"}'.encode(),
            [("a", b"1"), ("b", None)],
            1704067200000,
        ),
        ("other", -1, None, b'{"k":null,"at":null}', None, 0),
    ]


def test_headers_are_written_as_read_kafka_gives_them_also_one_name_twice_and_in_their_order():
    form, headers = MessageForm("other", headers="headers"), FIELDS["headers"]
    form.check_schema("sink 's'", pa.schema([headers]))
    given = [("trace", b"1"), ("a", None), ("trace", b"\xff")]
    rows = pa.array([[{"key": key, "value": value} for key, value in given], [], None], headers.type)
    assert [found for *_, found, _ in messages(form, id=[1, 2, 3], headers=rows)] == [given, [], None]


def test_a_header_without_a_name_is_a_bad_row():
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    for wrong in ([{"key": None, "value": "1"}], [None], [{"key": "a\0b", "value": "1"}]):
        with pytest.raises(BadRow, match="a header has no name"):
            messages(MessageForm("other", headers="h"), h=pa.array([[{"key": "a", "value": "1"}], wrong], kind))


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.int64(), pa.string()),
        pa.list_(pa.string()),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())])),
    ],
)
def test_columns_that_are_no_headers_are_refused_when_a_run_starts(kind):
    with pytest.raises(InvalidPipeline, match="'h' has the type"):
        MessageForm("t", headers="h").check_schema("sink 's'", pa.schema([("h", kind)]))


@pytest.mark.parametrize(
    ("key", "expected"),
    [(("n",), b"7"), (("x",), b"1.5"), (("n", "w"), b'{"n":7,"w":"a"}'), (("raw",), b"\xff\x00"), (("w",), b"a")],
)
def test_a_key_is_text_or_bytes_as_they_are_and_anything_else_as_json(key, expected):
    ((*_, found, _, _, _),) = messages(
        MessageForm("t", key=key, value=("n",)), n=[7], x=[1.5], w=["a"], raw=[b"\xff\x00"]
    )
    assert found == expected


def test_bytes_are_written_as_they_are_also_nulls():
    form = MessageForm("t", "bytes", value=("raw",))
    assert [value for _, _, _, value, _, _ in messages(form, raw=[b"\x00\n", None])] == [b"\x00\n", None]


def test_an_upsert_has_tombstones_where_its_column_says_so():
    form = MessageForm("t", "json", "upsert", ("k",), delete="gone")
    assert [(key, value) for _, _, key, value, _, _ in messages(form, k=["a", "b"], gone=[True, None])] == [
        (b"a", None),
        (b"b", b'{"k":"b"}'),
    ]


@pytest.mark.parametrize(
    ("form", "columns", "words"),
    [
        (MessageForm("t", mode="upsert", key=("k",)), {"k": ["a", None]}, "null in the key column 'k'"),
        (MessageForm("t", "bytes", "upsert", ("k",), ("v",)), {"k": ["a"], "v": [None]}, "has no value"),
        (MessageForm("t"), {"k": ["x" * 1_000]}, "a record of 1008 bytes"),
        (MessageForm("t", partition="p"), {"k": ["a"], "p": [3]}, "column 'p': a row cannot go to the partition 't/3'"),
        (MessageForm("t", partition="p"), {"k": ["a"], "p": [-2]}, "cannot go to the partition 't/-2'"),
        (MessageForm(None, topic_by="w"), {"w": ["nowhere"]}, "column 'w': a row cannot go to the topic 'nowhere'"),
        (MessageForm(None, topic_by="w"), {"w": ["__transaction_state"]}, "to the topic '__transaction_state'"),
        (MessageForm(None, topic_by="w"), {"w": ["holdfast-progress"]}, "to the topic 'holdfast-progress'"),
        (MessageForm(None, topic_by="w"), {"w": [None]}, "to the topic None"),
        (MessageForm("t", key=("k",)), {"k": ["a", None]}, "'k' is null: a row cannot go to the topic 't'"),
        (MessageForm(None, key=("k",), topic_by="w"), {"k": ["a", None], "w": ["other", "t"]}, "to the topic 't'"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_before(form, columns, words):
    if "v" in columns:
        columns = {**columns, "v": pa.array(columns["v"], pa.binary())}
    if "w" in columns:
        columns = {**columns, "w": pa.array(columns["w"], pa.string())}
    with pytest.raises(BadRow) as caught:
        messages(form, **columns)
    assert words in caught.value.what
    assert caught.value.do


@pytest.mark.parametrize(("minutes", "is_taken"), [(-61, False), (-59, True), (29, True), (31, False), (None, True)])
def test_a_time_that_no_topic_takes_is_refused_before(monkeypatch, minutes, is_taken):
    """Kafka 4 takes none that is an hour ahead of its clock: such an epoch was decided, and refused for ever."""
    now = datetime.datetime(2026, 1, 1, 12)
    monkeypatch.setattr(kafka_form, "now_ms", lambda: int(now.replace(tzinfo=datetime.UTC).timestamp() * 1000))
    limits = Limits({"t": 1}, 1_000, behind_ms=3_600_000, ahead_ms=1_800_000)
    times = [now, None if minutes is None else now + datetime.timedelta(minutes=minutes)]
    columns = {"at": pa.array(times, pa.timestamp("us", "UTC"))}
    if is_taken:
        assert len(messages(MessageForm("t", timestamp="at"), limits=limits, **columns)) == 2
        return
    with pytest.raises(BadRow, match="column 'at'") as caught:
        messages(MessageForm("t", timestamp="at"), limits=limits, **columns)
    assert f"message.timestamp.{'before' if minutes < 0 else 'after'}.max.ms" in caught.value.why


@pytest.mark.parametrize("format", ["json", "bytes"])
def test_text_that_is_no_utf_8_is_refused(format):
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    form = MessageForm("t", format, key=("k",), value=("k",))
    with pytest.raises(BadRow, match="'k'"):
        messages(form, k=bad)


def test_a_column_of_another_type_is_refused_when_a_run_starts():
    with pytest.raises(InvalidPipeline, match="'h' has the type string"):
        MessageForm("t", headers="h").check_schema("sink 's'", pa.schema([("h", pa.string())]))


# --- the declaration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": None}, "no topic is named"),
        ({"format": "xml"}, "format='xml' is not known"),
        ({"mode": "update"}, "mode='update' is not known"),
        ({"stage": "never"}, "stage='never' is not known"),
        ({"format": "bytes"}, "without the one column of the value"),
        ({"mode": "upsert"}, "without key="),
        ({"delete": "gone"}, 'with mode="append"'),
        ({"progress": "t"}, "cannot be the topic of the ledger"),
        ({"topic_by": "w", "topics": ["holdfast-progress"]}, "cannot be the topic of the ledger"),
        ({"topic": "__transaction_state"}, "rows cannot go to the topic '__transaction_state'"),
        ({"topic_by": "w", "topics": ["__consumer_offsets"]}, "rows cannot go to the topic '__consumer_offsets'"),
        ({"topic_by": "w"}, "topic_by= without topics= or pattern="),
        ({"topics": ["a"]}, "topics= or pattern= without topic_by="),
        ({"topic_by": "w", "topics": ["a b"]}, "'a b' cannot be a topic"),
        ({"topic_by": "w", "pattern": "a("}, "'a(' is no regular expression"),
        ({"bootstrap": "localhost"}, "is no address of Kafka brokers"),
        ({"security": {"passwort": "x"}}, "key 'passwort' is not known"),
        ({"security": {"protocol": "TLS"}}, "'TLS' with 'PLAIN' is not known"),
        ({"security": {"mechanism": "MD5"}}, "'PLAINTEXT' with 'MD5' is not known"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, words):
    with pytest.raises(InvalidPipeline) as caught:
        hf.write.kafka(**{"bootstrap": "h:9092", "topic": "t", **arguments})
    assert words in caught.value.what


def test_a_record_is_the_ledgers_only_by_the_name_of_its_own_driver_and_a_digest_of_all_of_it():
    names, other = KafkaNames("p", "s"), KafkaNames("p", "t")
    key, value = names.key.encode(), b"{}"
    header = (HEADER, names.seal(key, value))
    assert names.has_written(LogRecord(key, value, [("trace", b"7"), header]))
    for wrong in (
        LogRecord(key, value),
        LogRecord(key, b"{ }", [header]),
        LogRecord(key, None, [header]),
        LogRecord(key + b"#s#1", value, [header]),
        LogRecord(key, value, [(HEADER, other.seal(key, value))]),
    ):
        assert not names.has_written(wrong)


def test_a_column_that_is_not_there_is_named():
    spec = KafkaSpec("h:9092", MessageForm("t", key=("k",)))
    spec.check_columns(None)
    spec.check_columns(["k"])
    with pytest.raises(InvalidPipeline, match="no column 'k'"):
        spec.check_columns(["id"])


def test_no_secret_is_shown():
    security = {"protocol": "SASL_SSL", "username": "app", "password": "${KAFKA_PASSWORD}"}
    brokers = Brokers("h:9092", security).expanded({"KAFKA_PASSWORD": "s3cret"})
    assert brokers.client()["sasl.password"] == brokers.admin()["sasl_plain_password"] == "s3cret"
    assert "s3cret" not in repr(brokers) + str(brokers)
    assert brokers.without_secrets("login with s3cret failed") == "login with *** failed"
    node: Any = hf.write.kafka("h:9092", "t", security={**security, "password": "s3cret"})
    assert "s3cret" not in repr(node) + str(node.spec.arguments())
    assert node.spec.sends_secret
    other: Any = hf.write.kafka("h:9092", "t", key="k", security=security)
    assert not other.spec.sends_secret


@pytest.mark.parametrize(
    ("security", "words"),
    [
        ({"protocol": "SASL_SSL", "username": "app"}, "'SASL_SSL' has no user and password"),
        ({"username": "app", "password": "s3cret"}, "has 'username', and with the protocol 'PLAINTEXT' nobody logs in"),
        ({"protocol": "SSL", "mechanism": "PLAIN"}, "has 'mechanism', and with the protocol 'SSL' nobody logs in"),
    ],
)
def test_a_login_is_whole_or_there_is_none(security, words):
    with pytest.raises(InvalidPipeline) as caught:
        Brokers("h:9092", security).expanded({})
    assert words in caught.value.what
    assert "s3cret" not in str(caught.value)


def test_a_login_without_a_mechanism_is_plain():
    brokers = Brokers("h:9092", {"protocol": "SASL_SSL", "username": "app", "password": "s3cret"}).expanded({})
    assert brokers.client()["sasl.mechanism"] == brokers.admin()["sasl_mechanism"] == "PLAIN"
    assert "sasl.mechanism" not in Brokers("h:9092", {"protocol": "SSL"}).expanded({}).client()


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(InvalidPipeline, match="KAFKA_PASSWORD, which is not set"):
        Brokers("h:9092", {"password": "${KAFKA_PASSWORD}"}).expanded({})


def test_names_of_transactions_say_whose_they_are():
    names, other = KafkaNames("p/q", "s"), KafkaNames("p", "q/s")
    task = Task("p/q", 3, 14, 0, 2)
    assert names.task_of(names.staged_by(task, "ab12")) == task
    assert names.staged != other.staged
    assert names.task_of(names.staged + "a.b") is None
    assert names.driver != names.staged


def test_what_goes_to_executors_can_be_pickled():
    spec = KafkaSpec("h:9092", MessageForm("t", key=("k",)), {"protocol": "SSL"})
    assert pickle.loads(pickle.dumps(spec)) == spec


UNANSWERED = -1001
"""The library's offset of a partition whose leader did not answer: no error is told."""


class WeakCluster:
    """A cluster that answers so many questions for the end of a partition badly, then well.

    Parameters
    ----------
    bad : list
        What it says first: a code of an error, or an offset.
    lists : bool
        Whether the topic is among those that it lists.
    """

    def __init__(self, bad: list[int], *, lists: bool = True) -> None:
        self._bad, self._lists = bad, lists

    def list_offsets(self, wanted, **_):
        answer = Future()
        said = self._bad.pop(0) if self._bad else 7
        if said == UNANSWERED or said >= 7:
            answer.set_result(ListOffsetsResultInfo(said, -1, 0))
        else:
            answer.set_exception(KafkaException(KafkaError(said, "No leaders found")))
        return dict.fromkeys(wanted, answer)

    def list_topics(self, **_):
        return SimpleNamespace(topics={"progress": SimpleNamespace(partitions=[0], error=None)} if self._lists else {})

    def poll(self, _):
        return 0


def asked(cluster: WeakCluster) -> KafkaSession:
    made = KafkaSession(Brokers("here:9092"), "sink 'rows'", "test")
    admin: Any = cluster
    made._admin = admin
    return made


@pytest.mark.parametrize("said", [codes.NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART, UNANSWERED])
def test_a_partition_that_does_not_say_where_it_ends_is_asked_again(monkeypatch, said):
    """Without a leader; of a topic that a broker has not heard of; with a leader that does not answer."""
    monkeypatch.setattr(questions, "_AGAIN_S", 0)
    assert asked(WeakCluster([said] * 2)).ends([("progress", 0)]) == {("progress", 0): (7, 7)}


def test_a_topic_that_is_unknown_for_long_is_said_to_be_unlisted(monkeypatch):
    monkeypatch.setattr(questions, "_AGAIN_S", 0)
    monkeypatch.setattr(questions, "UNKNOWN_FOR_S", 0)
    with pytest.raises(Unavailable, match="lists no topic 'progress'"):
        asked(WeakCluster([codes.NOENT] * 1000, lists=False)).ends([("progress", 0)])


def test_a_partition_that_gets_no_leader_is_away_and_not_missing(monkeypatch):
    monkeypatch.setattr(session, "TIMEOUT_S", 0)
    with pytest.raises(Unavailable, match="No leaders found"):
        asked(WeakCluster([codes.NOENT] * 1000)).ends([("progress", 0)])


def test_a_row_whose_key_says_where_it_goes_does_not_overtake_one_that_names_its_partition():
    values, partitions = pa.array([b"1", b"2", b"3", b"4", b"5"], pa.large_binary()), pa.array([None, 0, 0, None, 1])
    some = RecordColumns("t", values, values, partitions.cast(pa.int32()))
    assert [(partition, part.values.to_pylist()) for _, partition, part in some.by_place()] == [
        (-1, [b"1"]),
        (0, [b"2", b"3"]),
        (-1, [b"4"]),
        (1, [b"5"]),
    ]


class LoadingCoordinators:
    """A cluster whose coordinators load, for so many questions."""

    def __init__(self, times: int) -> None:
        self._left = times

    def list_transactions(self, **_):
        self._left -= 1
        if self._left >= 0:
            raise kafka_errors.CoordinatorLoadInProgressError
        return {1: [SimpleNamespace(transactional_id=name) for name in ("holdfast/b", "other", "holdfast/a")]}

    def close(self):
        pass


def test_coordinators_that_load_are_asked_again_and_are_away_after_a_time(monkeypatch):
    asking = Transactions(KafkaSession(Brokers("here:9092"), "sink 'rows'", "test"))
    loading = LoadingCoordinators(3)
    monkeypatch.setattr(asking, "_admin", lambda: loading)
    assert asking.open_names("holdfast/") == ["holdfast/a", "holdfast/b"]
    monkeypatch.setattr(transactions, "TIMEOUT_S", 0)
    loading = LoadingCoordinators(1000)
    with pytest.raises(Unavailable, match="a coordinator is away"):
        asking.open_names("holdfast/")


def test_a_client_that_finds_no_broker_leaves_no_thread_behind(monkeypatch):
    def away(*_):
        raise kafka_errors.KafkaConnectionError("nobody is there")

    monkeypatch.setattr(KafkaConnectionManager, "bootstrap", away)
    asking = Transactions(KafkaSession(Brokers("127.0.0.1:1"), "sink 'rows'", "test"))
    before = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(Unavailable, match="nobody is there"):
            asking.open_names("holdfast/")
    for left in set(threading.enumerate()) - before:
        left.join(30)
        assert not left.is_alive()
