"""The connections to a Kafka cluster, and what its errors mean.

Invariant: a producer that has failed is dropped and never used again; the next one of its name ends what it left open
(``init_transactions``) before it writes anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.answers import REFUSED, code_of, unusable
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.native.clients import MessageProducer, open_producer
from holdfast.connectors.kafka.questions import UNKNOWN_FOR_S, NoTopic, answer, offsets
from holdfast.connectors.kafka.sink.form import RecordColumns
from holdfast.connectors.kafka.sink.refusals import ProducerGone, translated, unlisted
from holdfast.errors import HoldfastError, Unavailable

T = TypeVar("T")

TIMEOUT_S = 30.0
"""How long an answer is waited for."""

LOOK_S = 2.0
"""How long a look at a sink waits for what an open transaction hides: that of a run lasts milliseconds, and that of a
dead one until somebody takes over."""

MARKER_BYTES = 16 << 20
"""The largest record of a progress topic: positions of many segments, names of many transactions."""

OF_PROGRESS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(MARKER_BYTES),  # no record may be larger than a segment
    "max.message.bytes": str(MARKER_BYTES),
}
"""Settings with which a progress topic is created, and by which those of other sinks are known."""

CONNECT_S = 10.0
"""How long the first one."""

SLICE_S = 0.2
"""After so long it is looked at whether a record was refused: what follows it is then never sent."""

_PASSING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}
"""What a topic says that is just being created, or whose leader moves; the library calls none of it retriable."""
_THROWN_AWAY = {codes.PURGE_QUEUE, codes.PURGE_INFLIGHT}

_TELLS_NOT = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
}
"""Of settings: this user has no right to DescribeConfigs, or the cluster has no such request."""

_LOOK_S = 0.05

_PRODUCER: dict[str, Any] = {
    "allow.auto.create.topics": False,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 1 << 20,
    "partitioner": "murmur2_random",  # Java's own: a key has one partition, whoever writes it
    "reconnect.backoff.ms": 10,
    "retry.backoff.ms": 10,
}


class LogRecord(NamedTuple):
    """A record of a progress topic; of its headers name and value."""

    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class KafkaSession:
    """Connections, opened when they are first needed.  Picklable: without them.

    Parameters
    ----------
    brokers : Brokers
        With its variables filled in.
    node, client_id : str
        ``sink 'name'``, for errors, and the name that the brokers show of the connections.
    compression : str
        Of the batches of records.
    """

    def __init__(self, brokers: Brokers, node: str, client_id: str, compression: str = "lz4") -> None:
        self.brokers = brokers
        self.node = node
        self.client_id = client_id
        self.compression = compression
        self._said: list[KafkaError] = []
        self._missing: set[str] = set()
        self._admin: AdminClient | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (KafkaSession, (self.brokers, self.node, self.client_id, self.compression))

    def config(self, **settings: Any) -> dict[str, Any]:
        """Return what all clients are given, and more."""
        return self.brokers.client(client_id=self.client_id, error_cb=self._said.append, **settings)

    @property
    def admin(self) -> AdminClient:
        """The client of questions."""
        with self._lock:
            if self._admin is None:
                self._admin = self._made(AdminClient, self.config())
            return self._admin

    def _made(self, client: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
        """Make a client; what is wrong with its settings no second try mends."""
        try:
            return client(settings)
        except KafkaException as error:
            raise unusable(error, self.brokers, self.node) from error

    def close(self) -> None:
        """Let the connections go."""
        with self._lock:
            self._admin = None

    # --- questions --------------------------------------------------------------------------------------------------

    def partitions(self, timeout_s: float | None = None, *, awaited: Collection[str] = ()) -> dict[str, int]:
        """Return topic -> number of partitions, of all that this user may see.

        Topics that are ``awaited`` are waited for as long as a new one may be unknown; once, if that was in vain.
        """
        begun = time.monotonic()
        while True:
            with self.explained():
                found = self._asked(lambda admin, attempt_s: admin.list_topics(timeout=attempt_s), timeout_s).topics
            there = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
            missing = {*awaited} - there.keys() - self._missing
            if not missing:
                return there
            if time.monotonic() - begun > UNKNOWN_FOR_S:
                self._missing |= missing
            time.sleep(_LOOK_S)

    def topic_settings(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """Return topic -> its settings; none of one of which this user may not ask them."""
        return self._settings([ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics], TIMEOUT_S)

    def broker_setting(self, name: str) -> str | None:
        """Return a setting of the brokers; None where this user may not ask, or none tells it."""
        with self.explained():
            brokers = self._asked(lambda admin, attempt_s: admin.list_topics(timeout=attempt_s)).brokers
        for number in sorted(brokers):
            with suppress(Unavailable):
                resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
                return self._settings([resource], CONNECT_S).get(resource.name, {}).get(name)
        return None

    def _settings(self, resources: list[ConfigResource], timeout_s: float) -> dict[str, dict[str, str]]:
        def ask(admin: AdminClient, attempt_s: float) -> dict[str, dict[str, str]]:
            found = {}
            for resource, answered in admin.describe_configs(resources, request_timeout=attempt_s).items():
                try:
                    found[resource.name] = {name: each.value for name, each in answered.result().items()}
                except KafkaException as error:
                    if code_of(error) not in _TELLS_NOT:
                        raise
            return found

        with self.explained():
            return self._asked(ask, timeout_s) if resources else {}

    def _asked(self, ask: Callable[[AdminClient, float], T], timeout_s: float | None = None) -> T:
        admin = self.admin
        return answer(admin, partial(ask, admin), TIMEOUT_S if timeout_s is None else timeout_s, self._said)

    def create_compacted(self, topic: str) -> None:
        """Create a topic of one partition that keeps the last record of each key."""
        with self.explained():
            new = NewTopic(topic, num_partitions=1, replication_factor=-1, config=OF_PROGRESS)
            admin = self.admin
            try:
                admin.create_topics([new], request_timeout=TIMEOUT_S)[topic].result()
            except KafkaException as error:
                # NB brokers look at the right to create before they look whether there is such a topic.
                is_there = code_of(error) in REFUSED and topic in self.partitions(awaited=[topic])
                if not is_there and code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        end = time.monotonic() + TIMEOUT_S
        while topic not in self.partitions():
            if time.monotonic() > end:
                raise unlisted({topic}, self.brokers, self.node)
            time.sleep(_LOOK_S)

    def records(
        self,
        topic: str,
        *,
        waits: bool = True,
        patience_s: float | None = None,
        last: tuple[bytes, bytes] | None = None,
    ) -> Iterator[LogRecord]:
        """Yield every committed record with a key of a topic of one partition, up to its end of now.

        An open transaction hides what was committed behind it, so the end of what may be read must have reached the
        end of what is written; transactions there are short.  Without ``waits`` what is hidden is left out; it is
        waited for at most ``patience_s``, by default as long as for every answer.  With a record that is known to be
        there (``last``) no broker is asked where the topic ends: it ends with that one.
        """
        with self.explained():
            if last is not None:
                yield from self._read(topic, None, last)
                return
            end = self._end(topic, IsolationLevel.READ_UNCOMMITTED)
            patience = time.monotonic() + (TIMEOUT_S if patience_s is None else patience_s)
            while (readable := self._end(topic, IsolationLevel.READ_COMMITTED)) < end and waits:
                if time.monotonic() > patience:
                    raise self._unread(topic)
                time.sleep(0.01)
            yield from self._read(topic, min(end, readable))

    def _unread(self, topic: str) -> Unavailable:
        return Unavailable(
            f"{self.node}: the topic {topic!r} cannot be read to its end.",
            why="a transaction of another process has been open there for long, or the broker that was read from is "
            "cut off from its cluster.",
            do="it is retried: the cluster ends a transaction whose process is gone after its timeout. "
            "Sinks that must not wait for each other have a topic of their own: progress=.",
            participant=self.node,
        )

    def ends(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return of each partition where readers of committed records stop, and where it ends; in this order of asking,
        so one that is at rest is not taken for one that holds readers back.
        """
        with self.explained():
            ends = self._ends(partitions, IsolationLevel.READ_UNCOMMITTED)
            readable = self._ends(partitions, IsolationLevel.READ_COMMITTED)
        return {place: (min(readable[place], end), end) for place, end in ends.items()}

    def _end(self, topic: str, isolation: IsolationLevel) -> int:
        return self._ends([(topic, 0)], isolation)[topic, 0]

    def _ends(self, partitions: Collection[tuple[str, int]], isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        places = {TopicPartition(*place): place for place in partitions}
        wanted = dict.fromkeys(places, OffsetSpec.latest())

        def ask(admin: AdminClient, attempt_s: float) -> dict[tuple[str, int], int]:
            found = {places[at]: offset for at, offset in offsets(admin, wanted, isolation, attempt_s).items()}
            if min(found.values()) < 0:
                raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
            return found

        end = time.monotonic() + TIMEOUT_S
        while places:
            try:
                return self._asked(ask, end - time.monotonic())
            except NoTopic as nowhere:  # the library says the same of partitions without a leader
                if missing := {topic for topic, _ in partitions} - self.partitions().keys():
                    raise unlisted(missing, self.brokers, self.node) from nowhere
                if time.monotonic() > end:
                    raise
        return {}

    def _read(self, topic: str, end: int | None, last: tuple[bytes, bytes] | None = None) -> Iterator[LogRecord]:
        consumer = self._made(
            Consumer,
            self.config(
                group_id="holdfast",
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                enable_partition_eof=True,
                fetch_wait_max_ms=10,
            ),
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            patience, has_ended = time.monotonic() + TIMEOUT_S, False
            while True:
                message = consumer.poll(1.0)
                if message is None:
                    if time.monotonic() > patience:
                        raise self._unread(topic) if has_ended else KafkaException(KafkaError(codes.TIMED_OUT))
                    continue
                error = message.error()
                if error is None:
                    if message.key() is not None:
                        yield LogRecord(message.key(), message.value(), message.headers() or [])
                        if (message.key(), message.value()) == last:
                            return
                elif error.code() == codes.PARTITION_EOF:
                    has_ended = True
                    # NB who answered where it ends may know less than who is read from.
                    if end is not None and message.offset() >= end:
                        return
                    if time.monotonic() > patience:  # where others write no poll is in vain
                        raise self._unread(topic)
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise KafkaException(error)
                # else the library asks for the group that it wants to be named, and nothing is done with it
        finally:
            consumer.close()

    # --- producers --------------------------------------------------------------------------------------------------

    def producer(
        self, transactional_id: str, timeout_ms: int, message_bytes: int, topic: str, linger_ms: int = 0
    ) -> TransactionalProducer:
        """Return a producer of this name; what an earlier one left open is ended, and that one can write no more.

        ``topic``: one that is there; ``linger_ms``: how long records wait for others of their batch.
        """
        settings = {
            **_PRODUCER,
            "compression.type": self.compression,
            "linger.ms": linger_ms,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.max.bytes": max(message_bytes, MARKER_BYTES),
            "batch.size": min(1 << 20, max(message_bytes - 1_000, 1)),  # a topic's limit is that of a batch
        }
        with self.explained():
            made = self._made(partial(open_producer, self.brokers), {**self.config(), **settings})
            _again(lambda: made.init_transactions(TIMEOUT_S, topic))
        return TransactionalProducer(self, made)

    # --- errors -----------------------------------------------------------------------------------------------------

    @contextmanager
    def explained(self, *, is_in_doubt: bool = False) -> Iterator[None]:
        """Translate the library's errors."""
        try:
            yield
        except KafkaException as error:
            raise self.translated(error, is_in_doubt=is_in_doubt) from error
        except NoTopic as error:
            raise self.translated(error.__cause__ or error, is_in_doubt=is_in_doubt) from error
        except SystemError as error:  # what the library makes of a fatal error within one of its callbacks
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise self.translated(error.__cause__, is_in_doubt=is_in_doubt) from error

    def translated(self, error: BaseException, *, is_in_doubt: bool) -> HoldfastError | ProducerGone:
        """Return what an error of the library means."""
        if self._admin is not None:
            self._admin.poll(0)  # it tells of a refused login only when it is asked so
        meaning = translated(error, self.brokers, self.node, self._said, is_in_doubt=is_in_doubt)
        self._said.clear()
        return meaning


class TransactionalProducer:
    """A producer of one name, good until its first error."""

    def __init__(self, session: KafkaSession, producer: MessageProducer) -> None:
        self._session = session
        self._producer = producer

    def begin(self) -> None:
        """Begin a transaction."""
        with self._session.explained():
            self._producer.begin_transaction()

    def send(self, some: RecordColumns) -> int:
        """Hand messages over to be sent; return how many."""
        for topic, partition, left in some.by_place():
            self._send(topic, partition, left)
        with self._session.explained():
            self._producer.poll(0)
        return len(some)

    def _send(self, topic: str, partition: int, left: RecordColumns) -> None:
        while len(left):
            with self._session.explained():
                columns = (left.values, left.keys, partition, left.headers, left.times)
                count, error = self._producer.send(topic, *columns)
                left = left.after(count)
                if error is not None and error.code() != codes.QUEUE_FULL:
                    raise KafkaException(error)
                if error is not None:
                    self._await_room()

    def _await_room(self) -> None:
        """Wait a little: a million messages wait, the brokers are slower than we are."""
        self._producer.poll(0.01)
        self._check()

    def flush(self) -> None:
        """Return when the brokers have everything."""
        with self._session.explained():
            before, patience = None, 0.0
            while left := self._producer.flush(SLICE_S):
                self._check()
                if left != before:
                    before, patience = left, time.monotonic() + TIMEOUT_S
                elif time.monotonic() > patience:  # in all that time the brokers took nothing
                    raise KafkaException(KafkaError(codes.TIMED_OUT))
            self._check()

    def commit(self) -> None:
        """Commit; raises :class:`InDoubt` where it is not known whether that was done."""
        try:
            _again(lambda: self._producer.commit_transaction(TIMEOUT_S))
        except KafkaException as error:
            is_in_doubt = not error.args[0].txn_requires_abort()
            raise self._session.translated(error, is_in_doubt=is_in_doubt) from error

    def abort(self) -> None:
        """Abort, if that can be done; the next producer of the name does it else.

        NB nothing is purged before: a request that is under way would reach the broker behind the end of its
        transaction.  The library waits for its answer.
        """
        with suppress(KafkaException):
            self._producer.abort_transaction(CONNECT_S)

    def drop(self) -> None:
        """Let it go, with its transaction as it is."""
        with suppress(KafkaException):
            self._producer.purge()

    def _check(self) -> None:
        if self._producer.failed:
            raise KafkaException(self._reason(self._producer.failed[0]))

    def _reason(self, error: KafkaError) -> KafkaError:
        """Return why a record was not delivered; of those that the library threw away it says no more than that."""
        if error.code() in _THROWN_AWAY:
            try:
                self._producer.begin_transaction()  # never possible within one: it says what has ended that
            except KafkaException as why:
                if why.args[0].code() != codes.STATE:
                    return why.args[0]
        return error


def _again(step: Callable[[], T]) -> T:
    """Do a step until its errors are no longer such that pass: a partition that has no leader yet, for instance."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return step()
        except KafkaException as error:
            said = error.args[0]
            if not (said.retriable() or said.code() in _PASSING) or said.code() in REFUSED or time.monotonic() > end:
                raise
            time.sleep(0.01)
