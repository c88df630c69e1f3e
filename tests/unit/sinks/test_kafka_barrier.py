"""The ledger is read up to a record that the reader's own producer has written (design/0036); what answers is scripted.

With real brokers: ``tests/crash/test_kafka_crash_loop.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.sink import ledger, session
from holdfast.connectors.kafka.sink.form import MessageForm, RecordColumns
from holdfast.connectors.kafka.sink.ledger import KafkaLedger, KafkaNames
from holdfast.connectors.kafka.sink.session import KafkaSession, LogRecord
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kit.sql import LedgerRow
from holdfast.errors import Corrupt, Fenced, InDoubt, Unavailable
from holdfast.ports import EpochRecord, Explanation, Outcome, RunIdentity

NAMES = KafkaNames("words", "target")
BARRIER = (NAMES.barrier.encode(), b"ours")

Record = tuple[bytes, bytes | None]


# --- the reading ------------------------------------------------------------------------------------------------------


class Message:
    """A record, or the end of the partition at an offset."""

    def __init__(self, record: Record | None, offset: int) -> None:
        self._record = record
        self._offset = offset

    def error(self) -> KafkaError | None:
        return None if self._record else KafkaError(codes.PARTITION_EOF)

    def key(self) -> bytes:
        assert self._record
        return self._record[0]

    def value(self) -> bytes | None:
        assert self._record
        return self._record[1]

    def headers(self) -> None:
        return None

    def offset(self) -> int:
        return self._offset


END = None


def records(said: Iterable[Record | None], monkeypatch: pytest.MonkeyPatch, **how: Any) -> list[Record]:
    """Return keys and values of what is read of a topic of which a consumer says that."""
    messages = iter([])

    class Consumer:
        def __init__(self, _: Any) -> None:
            nonlocal messages
            messages = (Message(record, offset) for offset, record in enumerate(said))

        def assign(self, _: Any) -> None:
            pass

        def poll(self, _: float) -> Message | None:
            return next(messages, None)

        def close(self) -> None:
            pass

    monkeypatch.setattr(session, "Consumer", Consumer)
    read = KafkaSession(Brokers("nowhere:9092"), "sink 'target'", "test").records("progress", **how)
    return [(record.key, record.value) for record in read]


def test_it_ends_with_the_barrier_and_with_no_older_one(monkeypatch: pytest.MonkeyPatch):
    before: list[Record | None] = [(b"other!", b"ours"), (BARRIER[0], b"older"), END, (b"words/target", b"{}"), END]
    read = records([*before, BARRIER, (b"words/target", b"{1}")], monkeypatch, last=BARRIER)
    assert read == [record for record in before if record] + [BARRIER]


@pytest.mark.parametrize(
    "said",
    [
        [(BARRIER[0], b"older"), END],
        chain([END], repeat((b"words/other", b"{}"), 10), chain.from_iterable(repeat(((b"words/other", b"{}"), END)))),
    ],
    ids=["nothing comes", "others write there"],
)
def test_where_the_barrier_is_not_nothing_is_believed(said: Iterable[Record | None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "TIMEOUT_S", 0.05)
    with pytest.raises(Unavailable, match="cannot be read to its end"):
        records(said, monkeypatch, last=BARRIER)


# --- a start ----------------------------------------------------------------------------------------------------------


class Cluster:
    """A progress topic, its producers, and readings of it that may fail or lag: ``next_reads`` says how, one by one."""

    def __init__(self) -> None:
        self.log: list[LogRecord] = []
        self.next_reads: list[str] = []
        self.next_commits: list[str] = []
        self.lasts: list[Record | None] = []
        self.made = 0

    def sink(self, monkeypatch: pytest.MonkeyPatch) -> KafkaSink:
        asked = KafkaSession(Brokers("nowhere:9092"), "sink 'target'", "test")
        monkeypatch.setattr(asked, "partitions", lambda *_, **__: {NAMES.progress: 1})
        monkeypatch.setattr(asked, "topic_settings", lambda *_: {NAMES.progress: {"cleanup.policy": "compact"}})
        monkeypatch.setattr(asked, "producer", lambda *_: self.producer())
        monkeypatch.setattr(asked, "records", self.records)
        sink = KafkaSink(
            NAMES, asked, MessageForm("topic"), pa.schema([("word", pa.string())]), stages=False, timeout_ms=60_000
        )
        monkeypatch.setattr(sink._transactions, "open_names", lambda _: [])
        return sink

    def records(
        self, _: str, *, waits: bool = True, patience_s: float | None = None, last: Record | None = None
    ) -> Iterator[LogRecord]:
        assert last is None or last in [record[:2] for record in self.log], "it would be waited for"
        self.lasts.append(last)
        how = self.next_reads.pop(0) if self.next_reads else "whole"
        if how == "fails":
            raise Unavailable("nobody answers.", why="so it is.", do="wait.")
        yield from [] if how == "lags" else self.log

    def producer(self) -> Producer:
        self.made += 1
        return Producer(self, self.made)

    def generation(self) -> int:
        told = {record.key: record.value for record in self.log}
        key = NAMES.key.encode()
        found, _ = ledger._parsed(NAMES, {key: told[key] or b""}, is_sealed=True)
        return found.row.generation


class Producer:
    """One that writes only while it is the newest; its commit may be done without an answer."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._number = number
        self._sent: list[LogRecord] = []

    def begin(self) -> None:
        assert self._number == self._cluster.made, "of a producer that is dropped"

    def send(self, some: RecordColumns) -> None:
        assert some.keys is not None
        assert some.headers is not None
        headers = [[(each["key"], each["value"]) for each in several] for several in some.headers.to_pylist()]
        self._sent += map(LogRecord, some.keys.to_pylist(), some.values.to_pylist(), headers)

    def flush(self) -> None:
        pass

    def commit(self) -> None:
        self._cluster.log += self._sent
        self._sent = []
        if self._cluster.next_commits and self._cluster.next_commits.pop(0) == "no answer":
            raise InDoubt("nobody knows.", why="no answer came.", do="ask.")

    def drop(self) -> None:
        self._number = 0


@pytest.fixture
def cluster() -> Cluster:
    """Return one whose sink generation 1 has owned."""
    found = Cluster()
    was = KafkaLedger(LedgerRow(7, 1, "{}", None), "", "another", None, {})
    key, value = NAMES.key.encode(), was.text().encode()
    found.log.append(LogRecord(key, value, [(ledger.HEADER, NAMES.seal(key, value))]))
    return found


def opened(sink: KafkaSink) -> list[str]:
    """Open it until that succeeds, as a start does; return what was said of each failure."""
    said = []
    for _ in range(5):
        try:
            held = sink.open(RunIdentity("words", 2))
        except Unavailable as failure:
            said.append(failure.what)
            continue
        assert (held.epoch, held.generation) == (7, 1)
        return said
    raise AssertionError(said)


def noted(sink: KafkaSink, cluster: Cluster) -> tuple[int, int]:
    """Return the generation that the ledger says, and what it says when the sink has written it again."""
    before = cluster.generation()
    sink._commit(sink._current())
    return before, cluster.generation()


@pytest.mark.parametrize(
    ("reads", "commits", "failures"),
    [
        ([], [], 0),
        ([], ["no answer"], 1),
        (["whole", "fails"], [], 1),
        ([], ["answer", "no answer"], 1),
        (["whole", "whole", "lags", "fails", "whole"], ["answer", "no answer"], 2),
        (["whole", "whole", "lags", "whole"], ["answer", "no answer"], 1),
    ],
    ids=[
        "all answer",
        "nothing is said of the barrier",
        "it cannot be read up to the barrier",
        "nothing is said of the generation",
        "and the next reading lags, and the one behind its barrier fails",
        "and only the next reading lags",
    ],
)
def test_a_start_that_is_tried_again_writes_no_lower_generation(
    cluster: Cluster, reads: list[str], commits: list[str], failures: int, monkeypatch: pytest.MonkeyPatch
):
    sink = cluster.sink(monkeypatch)
    cluster.next_reads, cluster.next_commits = reads, commits
    assert len(opened(sink)) == failures
    assert noted(sink, cluster) == (2, 2)
    assert len([last for last in cluster.lasts if last]) >= 1, "no reading is exact"


def test_a_generation_that_is_not_higher_is_fenced_behind_the_barrier(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    cluster.sink(monkeypatch).open(RunIdentity("words", 2))
    cluster.next_reads = ["lags"]
    late = cluster.sink(monkeypatch)
    with pytest.raises(Fenced):
        late.open(RunIdentity("words", 2))
    assert late._producer is None


def test_what_a_lagging_broker_says_is_not_taken_for_an_outcome_or_the_whole_past(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    sink = cluster.sink(monkeypatch)
    sink.open(RunIdentity("words", 2))
    before = list(cluster.log)
    record = EpochRecord("words", 8, 2, {"words": {"a": 1}})
    told = [Explanation("words", 1, "a log")]
    sink._commit(sink._ledger.moved_to(record), told)
    assert (sink.outcome(8), sink.explanations()) == (Outcome.PUBLISHED, told)
    cluster.log, after = before, cluster.log
    assert sink.outcome(8) is Outcome.UNKNOWN
    with pytest.raises(Unavailable, match="older ledger"):
        sink.explanations()
    cluster.log = after
    assert (sink.outcome(8), sink.outcome(9)) == (Outcome.PUBLISHED, Outcome.ABSENT)


# --- records of version 09f82eec: none of them has a header -----------------------------------------------------------

SAID = b'{"root": "/data", "format": "json"}'
UNSEALED = (
    LogRecord(b"words/target#left#1", SAID),
    LogRecord(
        b"words/target",
        b'{"epoch": 7, "positions": "{\\"left\\": {\\"log\\": 1}}", "pts": 5, "step_time": null, "generation": 1, '
        b'"owner": "0a04e6244fac05eb"}',
    ),
)
STRANGE = LogRecord(b"words/target", b'{"epoch": 1, "positions": "{}", "pts": null, "generation": 9, "owner": ""}')


def test_records_without_a_header_are_written_again_with_one_by_the_run_that_takes_the_sink(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    cluster = Cluster()
    cluster.log += UNSEALED
    sink = cluster.sink(monkeypatch)
    cluster.next_commits = ["answer", "no answer"]
    assert len(opened(sink)) == 1, "the answer is lost when it has written them"
    told = [Explanation("left", 1, SAID.decode())]
    assert (sink.outcome(7), sink.explanations()) == (Outcome.PUBLISHED, told)
    assert caplog.text == "", "nobody else has written them"
    cluster.log = [record for record in cluster.log if record not in UNSEALED]  # as compaction does
    assert all(map(NAMES.has_written, cluster.log))
    cluster.log += (STRANGE, *UNSEALED)
    assert (sink.outcome(7), sink.explanations()) == (Outcome.PUBLISHED, told)
    assert "another producer's" in caplog.text


def test_records_without_a_header_that_no_version_wrote_are_not_believed(monkeypatch: pytest.MonkeyPatch):
    cluster = Cluster()
    cluster.log += (*UNSEALED, STRANGE)
    with pytest.raises(Corrupt, match="another producer"):
        cluster.sink(monkeypatch).open(RunIdentity("words", 2))
