"""What an error of the Kafka library means: wrong arguments or permissions, or a cluster that does not answer."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.kafka import codes
from holdfast.masking import masked
from holdfast.sources.kafka.brokers import BrokerAddress

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
_REFUSED = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        codes.AUTHENTICATION,
        codes.SSL,
    )
)


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
    return next((each for each in told if each.code() in _REFUSED), None)


def unusable(error: BaseException, address: BrokerAddress, node: str) -> InvalidPipeline:
    """Return what it means that the library cannot make a client of these settings."""
    return InvalidPipeline(
        f"{node}: no client for the Kafka cluster {address} can be made.",
        why=f"the library said: {masked(address.without_secrets(str(error)))[:300].rstrip('.')}.",
        do="correct security=: are the files there, on the driver and on the executors?",
        participant=node,
    )


def translated(
    error: BaseException | KafkaError, address: BrokerAddress, node: str, told: Sequence[KafkaError] = ()
) -> HoldfastError:
    """Return what an error means, without secrets.

    Parameters
    ----------
    error : exception or KafkaError
        Of the library.
    address : BrokerAddress
        The cluster.
    node : str
        Who asked it, for the message.
    told : sequence of KafkaError
        What the library said besides: why a request got no answer.
    """
    said = error if isinstance(error, KafkaError) else (error.args[0] if error.args else None)
    said = said if isinstance(said, KafkaError) else None
    refusal = refused([each for each in (said, *told) if each is not None])
    named = [each for each in told if each.code() != codes.ALL_BROKERS_DOWN]
    chosen = refusal or (named[-1] if named and (said is None or is_passing(said)) else said)
    text = chosen.str() if chosen is not None else str(error)
    text = masked(address.without_secrets(text))[:300].rstrip(".")
    if refusal is not None:
        return InvalidPipeline(
            f"{node}: the Kafka cluster {address} refuses this user, or the connection to it is not made.",
            why=f"it said: {text}.",
            do="correct security= (protocol, mechanism, user, password, certificates), or let the user have Describe "
            "and Read on the topics.",
            participant=node,
        )
    return Unavailable(
        f"{node}: the Kafka cluster {address} does not answer.",
        why=f"it was tried for some time; what was said last: {text}.",
        do="start the brokers, or correct the address, or the protocol in security=; then start again: nothing was "
        "changed.",
        participant=node,
    )
