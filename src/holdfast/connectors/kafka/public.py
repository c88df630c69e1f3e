"""Many messages at a time by the functions of confluent-kafka: a Python object for each, and nothing but its promises.

What ``native/`` does without those objects; both keep what :mod:`holdfast.connectors.kafka.native.clients` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from holdfast.connectors.kafka import codes

NAME_BYTES_MAX = 249
"""The longest name of a topic that brokers take; the library breaks at one of more than 512."""

_LOOK_S = 1.0
_NOWHERE = -1


class PublicMessages:
    """Messages as confluent-kafka gives them.

    Parameters
    ----------
    messages : list of confluent_kafka.Message
        In their order.
    """

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self._messages)

    def split(self, places: np.ndarray) -> list[tuple[int, PublicMessages]]:
        """Return place and the messages there, in their order."""
        found: dict[int, list[Message]] = {}
        for place, message in zip(places.tolist(), self._messages, strict=True):
            found.setdefault(int(place), []).append(message)
        return [(place, PublicMessages(found[place])) for place in sorted(found)]

    def join(self, others: Sequence[PublicMessages]) -> PublicMessages:
        """Return these messages and those of others behind them."""
        return PublicMessages([message for part in (self, *others) for message in part._messages])

    def errors(self) -> np.ndarray:
        """Return codes; 0 is none."""
        said = (message.error() for message in self._messages)
        return self._numbers(0 if error is None else error.code() for error in said)

    def topics(self) -> np.ndarray:
        """Return what stands for the topic of each: the place of its first message."""
        firsts: dict[str | None, int] = {}
        return self._numbers(firsts.setdefault(each.topic(), at) for at, each in enumerate(self._messages))

    def topic_name(self, topic: int) -> str:
        """Return the name of one of :meth:`topics`; an error may have none."""
        return self._messages[topic].topic() or ""

    def partitions(self) -> np.ndarray:
        """Return partition numbers."""
        return self._numbers(_number(message.partition()) for message in self._messages)

    def offsets(self) -> np.ndarray:
        """Return offsets."""
        return self._numbers(_number(message.offset()) for message in self._messages)

    def sizes(self) -> np.ndarray:
        """Return the bytes of key and value of each."""
        return self._numbers(len(each.key() or b"") + len(each.value() or b"") for each in self._messages)

    def values(self) -> pa.Array:
        """Return values, binary; null where there is none (a tombstone)."""
        return pa.array([message.value() for message in self._messages], pa.binary())

    def keys(self) -> pa.Array:
        """Return keys, binary; null where there is none."""
        return pa.array([message.key() for message in self._messages], pa.binary())

    def timestamps(self) -> np.ndarray:
        """Return milliseconds of Unix time; -1 where there is none."""
        return self._numbers(message.timestamp()[1] for message in self._messages)

    def timestamp_kinds(self) -> set[int]:
        """Return which kinds of times there are: ``confluent_kafka.TIMESTAMP_LOG_APPEND_TIME`` and others."""
        return {message.timestamp()[0] for message in self._messages}

    def headers(self) -> list[list[tuple[str, bytes | None]] | None]:
        """Return the headers of each; None where there are none.

        NB confluent-kafka raises SystemError where a name is no UTF-8, which Kafka's own clients never write.
        """
        return [message.headers() or None for message in self._messages]

    def error(self, place: int) -> KafkaError:
        """Return what one says that is no message."""
        error = self._messages[place].error()
        assert error is not None
        return error

    def _numbers(self, numbers: Iterable[int]) -> np.ndarray:
        return np.fromiter(numbers, np.int64, len(self._messages))


def _number(number: int | None) -> int:
    return _NOWHERE if number is None else number


class PublicConsumer:
    """A consumer of partitions that it is told.

    Parameters
    ----------
    settings : mapping of str to object
        As confluent-kafka takes them, without functions.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._consumer = Consumer(dict(settings))
        self._known: set[str] = set()

    def assign(self, places: Iterable[tuple[str, int, int]]) -> None:
        """Read on from these offsets of these partitions, and of no others."""
        listed = [TopicPartition(*place) for place in places]
        for name in {place.topic for place in listed} - self._known:
            check_name(name)
            # By an assignment alone the library looks a topic up the next time that it goes through its topics.
            with suppress(KafkaException):
                self._consumer.list_topics(name, timeout=_LOOK_S)
                self._known.add(name)
        self._consumer.assign(listed)
        self._consumer.resume(listed)  # NB a partition stays paused from one assignment to the next

    def unassign(self) -> None:
        """Read nothing on."""
        self._consumer.unassign()

    def pause(self, place: tuple[str, int]) -> None:
        """Give nothing more of a partition."""
        self._consumer.pause([TopicPartition(*place)])

    def take(self, limit: int, timeout_s: float) -> PublicMessages:
        """Return at most so many messages; one is waited for, the others are there.  Errors are among them."""
        found = self._consumer.consume(1, timeout_s)
        if found and limit > 1:
            found += self._consumer.consume(limit - 1, 0)
        return PublicMessages(found)

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()


class PublicProducer:
    """A producer with transactions.

    Parameters
    ----------
    settings : mapping of str to object
        As confluent-kafka takes them; of functions ``error_cb`` alone.

    Attributes
    ----------
    failed : list of KafkaError
        Why messages were not delivered; grows while :meth:`poll`, :meth:`flush` and the ends of transactions are
        called.
    """

    failed: list[KafkaError]

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.failed = []
        # Of the list alone: a function of this object would keep it, and what it keeps at the brokers, until the
        # collector comes.
        told = partial(_note, self.failed)
        self._producer = Producer({**settings, "delivery.report.only.error": True, "on_delivery": told})

    def send(
        self,
        topic: str,
        values: pa.Array,
        keys: pa.Array | None = None,
        partition: int = _NOWHERE,
        headers: pa.Array | None = None,
        times: pa.Array | None = None,
    ) -> tuple[int, KafkaError | None]:
        """Hand messages over, in their order; return how many were taken, and why not the next one."""
        check_name(topic)
        columns = [
            [None] * len(values) if column is None else column.to_pylist() for column in (values, keys, headers, times)
        ]
        for number, (value, key, pairs, time_ms) in enumerate(zip(*columns, strict=True)):
            said = {} if pairs is None else {"headers": [tuple(pair.values()) for pair in pairs]}
            try:
                self._producer.produce(topic, value, key, partition, timestamp=time_ms or 0, **said)
            except BufferError:
                return number, KafkaError(codes.QUEUE_FULL)
            except KafkaException as error:
                return number, error.args[0]
        return len(values), None

    def poll(self, timeout_s: float) -> None:
        """Note what was not delivered; return when there was something, or after so long."""
        self._producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Wait until the brokers have everything; return how many messages they do not have."""
        return int(self._producer.flush(timeout_s))

    def purge(self) -> None:
        """Forget what was not sent."""
        self._producer.purge()

    def init_transactions(self, timeout_s: float, topic: str) -> None:
        """End what an earlier producer of the name has left open."""
        check_name(topic)
        self._producer.init_transactions(timeout_s)

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit."""
        self._producer.commit_transaction(timeout_s)

    def abort_transaction(self, timeout_s: float) -> None:
        """Abort."""
        self._producer.abort_transaction(timeout_s)


def check_name(topic: str) -> None:
    """Raise what the library says of a topic that cannot be, if the name is too long for one."""
    if len(topic.encode()) > NAME_BYTES_MAX:
        raise KafkaException(KafkaError(codes.UNKNOWN_TOPIC))


def _note(failed: list[KafkaError], error: KafkaError | None, _: Message) -> None:
    """Note why a message was not delivered."""
    if error is not None:
        failed.append(error)
