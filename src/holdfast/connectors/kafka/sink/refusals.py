"""What an error of the Kafka library means to a sink: a bad argument or row, no permission, a cluster that is away."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from confluent_kafka import KafkaError

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.answers import NO_TOPIC, REFUSED, refused
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.errors import BadRow, HoldfastError, InDoubt, InvalidPipeline, Unavailable

_FENCED = {
    codes.FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}
_NOT_TAKEN = {KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


class ProducerGone(Exception):
    """Another process has taken the name of a producer: whose the sink is says its ledger."""


def translated(
    error: BaseException, brokers: Brokers, node: str, told: Sequence[KafkaError], *, is_in_doubt: bool
) -> HoldfastError | ProducerGone:
    """Return what an error means, without secrets.

    Parameters
    ----------
    error : exception
        Of the library.
    brokers : Brokers
        The cluster.
    node : str
        Who asked it, for the message.
    told : sequence of KafkaError
        What the library said besides: why a request got no answer.
    is_in_doubt : bool
        Whether it is of a commit that may have been done.
    """
    said = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
    code = None if said is None else said.code()
    if code in (None, codes.TIMED_OUT, codes.TRANSPORT) and told:
        refusal = refused(told)
        chosen = refusal or told[-1]
        if refusal is not None:
            code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
        text = f"{said.str() if said else error}: {chosen.str()}"
    else:
        text = said.str() if said is not None else str(error)
    text = brokers.shown(text)
    if code in _FENCED:
        return ProducerGone(text)
    if code in REFUSED:
        return InvalidPipeline(
            f"{node}: the Kafka cluster {brokers} refuses this user, or the connection to it is not made.",
            why=f"it said: {text}.",
            do="correct security= (protocol, mechanism, user, password, certificates), or let the user have Write "
            "and Describe on the topics, Read, Write, Describe and Create on the progress topic, and Write and "
            "Describe on transactional ids that begin with holdfast/.",
            participant=node,
        )
    if code in NO_TOPIC - {codes.NOENT}:  # our topics were seen: one without a leader is away
        return InvalidPipeline(
            f"{node}: a topic, or a partition of it, is not on the Kafka cluster {brokers}.",
            why=f"it said: {text}.",
            do="create it, or correct its name; Holdfast creates no topic of yours.",
            participant=node,
        )
    if code in _TOO_LARGE:
        return BadRow(
            f"{node}: the Kafka cluster {brokers} refuses a record for its size.",
            why=f"it said: {text}.",
            do="raise max.message.bytes of the topic, or filter such rows out before the sink.",
            participant=node,
        )
    if code in _NOT_TAKEN:
        return BadRow(
            f"{node}: the Kafka cluster {brokers} does not take a record.",
            why=f"it said: {text}.  A compacted topic takes none without a key, and a topic none of another time "
            "than message.timestamp.before.max.ms and message.timestamp.after.max.ms allow.",
            do="filter such rows out before the sink, correct the columns of key= and timestamp=, or change these "
            "settings of the topic.",
            participant=node,
        )
    if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return InvalidPipeline(
            f"{node}: the Kafka cluster {brokers} takes no transaction that may last so long.",
            why=f"it said: {text}; its limit is transaction.max.timeout.ms.",
            do='write a lower one: transaction_timeout="10 minutes"; or raise the limit of the brokers.',
            participant=node,
        )
    if is_in_doubt:
        return InDoubt(
            f"{node}: it is unknown whether the Kafka cluster {brokers} has committed a transaction.",
            why=f"{text}.",
            do="nothing by hand: the sink is asked next.",
            participant=node,
        )
    return Unavailable(
        f"{node}: the Kafka cluster {brokers} does not do what it is asked; nothing was changed.",
        why=f"{text}.",
        do="it is retried; if the problem persists, check the brokers, the way to them, and the protocol in security=.",
        participant=node,
    )


def unlisted(topics: Collection[str], brokers: Brokers, node: str) -> Unavailable:
    """Return what is said of topics that were there and that the brokers do not list."""
    named = ", ".join(map(repr, sorted(topics)))
    return Unavailable(
        f"{node}: the Kafka cluster {brokers} lists no topic {named}.",
        why="it was there: it was deleted, or this user may no longer describe it, or the broker that was asked "
        "has not heard of it.",
        do="it is retried.  Let the user have Describe on it; or bring it back with its records: a progress topic "
        "that is made anew is empty, and then the sink is a new one.",
        participant=node,
    )
