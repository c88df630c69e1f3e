"""What an error of the Kafka library means to a source: wrong arguments or permissions, or a cluster that is away."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.answers import is_passing, refused
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.errors import Corrupt, HoldfastError, InvalidPipeline, Unavailable


def translated(
    error: BaseException | KafkaError, brokers: Brokers, node: str, told: Sequence[KafkaError] = ()
) -> HoldfastError:
    """Return what an error means, without secrets.

    Parameters
    ----------
    error : exception or KafkaError
        Of the library.
    brokers : Brokers
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
    text = brokers.shown(text)
    if refusal is not None:
        return InvalidPipeline(
            f"{node}: the Kafka cluster {brokers} refuses this user, or the connection to it is not made.",
            why=f"it said: {text}.",
            do="correct security= (protocol, mechanism, user, password, certificates), or let the user have Describe "
            "and Read on the topics.",
            participant=node,
        )
    return Unavailable(
        f"{node}: the Kafka cluster {brokers} does not answer.",
        why=f"it was tried for some time; what was said last: {text}.",
        do="start the brokers, or correct the address, or the protocol in security=; then start again: nothing was "
        "changed.",
        participant=node,
    )


def unreadable(error: KafkaError, brokers: Brokers, node: str, place: str) -> Corrupt:
    """Return what it means that messages have come and are no messages.

    Parameters
    ----------
    error : KafkaError
        Of the library.
    brokers : Brokers
        The cluster.
    node : str
        Who reads.
    place : str
        Where, in words: topic, partition and offset.
    """
    return Corrupt(
        f"{node}: what the Kafka cluster {brokers} has {place} cannot be read.",
        why=f"the client library said: {brokers.shown(error.str())}.",
        do="if it does not know the codec: install a newer confluent-kafka, where executors run too, or let the "
        "producer write another compression.type.  If the bytes are damaged: bring the messages back (a mirror of the "
        "topic, under its name).  Nothing was skipped.",
        participant=node,
    )
