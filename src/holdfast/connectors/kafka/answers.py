"""What an error of the Kafka library says, by what is done about it: asked again, refused, or no such topic."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.errors import InvalidPipeline

NO_TOPIC = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, codes.UNKNOWN_TOPIC, codes.UNKNOWN_PARTITION, codes.NOENT))
_AGAIN = frozenset(
    (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        codes.TRANSPORT,
        codes.TIMED_OUT,
        codes.ALL_BROKERS_DOWN,
        codes.NODE_UPDATE,
        codes.WAIT_COORD,
    )
)
REFUSED = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        codes.AUTHENTICATION,
        codes.SSL,
    )
)
UNREADABLE = frozenset(
    (
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        codes.NOT_IMPLEMENTED,
        codes.BAD_MESSAGE,
        codes.BAD_COMPRESSION,
    )
)
"""Of a partition: the library cannot make messages of what the brokers have sent."""

_REFUSING = "SSL alert"
"""How a broker refuses a client's certificate, after the handshake; the library gives it no number of its own."""


def code_of(error: BaseException | KafkaError) -> int | None:
    """Return the number of an error of the library; None where it has none."""
    said = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return said.code() if isinstance(said, KafkaError) else None


def is_passing(error: BaseException | KafkaError) -> bool:
    """Whether the next attempt may succeed: the leader of a partition moves, a broker has gone."""
    return code_of(error) in _AGAIN


def is_no_topic(error: BaseException) -> bool:
    """Whether a topic, or a partition of it, is not known to the broker that was asked."""
    return code_of(error) in NO_TOPIC


def refused(told: Sequence[KafkaError]) -> KafkaError | None:
    """Return the first of some errors that says that this user, or this way to connect, is not let in."""
    return next((each for each in told if each.code() in REFUSED or _REFUSING in each.str()), None)


def unusable(error: BaseException, brokers: Brokers, node: str) -> InvalidPipeline:
    """Return what it means that the library cannot make a client of these settings."""
    return InvalidPipeline(
        f"{node}: no client for the Kafka cluster {brokers} can be made.",
        why=f"the library said: {brokers.shown(str(error))}.",
        do="correct security=: are the files there, on the driver and on the executors?",
        participant=node,
    )
