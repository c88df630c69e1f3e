"""The topics that a Kafka sink declares: what must be true of them when a run starts, and what they take."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.connectors.kafka.sink.form import Limits, MessageForm
from holdfast.connectors.kafka.sink.ledger import KafkaNames
from holdfast.connectors.kafka.sink.session import CONNECT_S, OF_PROGRESS, KafkaSession
from holdfast.connectors.kafka.topics import Selection
from holdfast.errors import InvalidPipeline

_UNBOUNDED_MS = 1 << 62
"""Kafka writes "no bound" as the largest number of 64 bits."""


def limits_of(session: KafkaSession, names: KafkaNames, form: MessageForm, declared: Selection) -> Limits:
    """Return what the declared topics take; rows go to no others.

    Parameters
    ----------
    session : KafkaSession
        The cluster.
    names : KafkaNames
        Whose sink it is.
    form : MessageForm
        How rows are written.
    declared : Selection
        Topics that rows may name, beside the one of all rows.

    Raises
    ------
    InvalidPipeline
        If one is not there, is a ledger, or takes no record without a key, and rows have none.
    """
    named = {*declared.topics, *([] if form.topic is None else [form.topic])}
    there = session.partitions(CONNECT_S, awaited=named)
    matching = {*declared.matching(there)} - {names.progress}
    missing: list[str | None] = [*sorted(named - there.keys())]
    if missing or not named | matching:
        raise InvalidPipeline(
            f"{session.node}: there is no topic {[*missing, declared.pattern][0]!r} on the Kafka cluster "
            f"{session.brokers}.",
            why="Holdfast creates no topic of yours: how many partitions and copies it has is for you to say. Or "
            "this user may not describe it.",
            do="create it, or correct its name.",
            participant=names.sink,
        )
    settings = session.topic_settings(named | matching)
    ledgers = {topic for topic, said in settings.items() if OF_PROGRESS.items() <= said.items()}
    if wrong := sorted(ledgers & named):
        raise InvalidPipeline(
            f"{session.node}: the topic {wrong[0]!r} is the ledger of some sink: rows cannot go there.",
            why="it has the settings with which write.kafka creates progress topics, and what is written there would "
            "count as what a sink holds.",
            do="name another topic.",
            participant=names.sink,
        )
    topics = (named | matching) - ledgers
    compacted = {topic for topic in topics if "compact" in settings.get(topic, {}).get("cleanup.policy", "")}
    if compacted and not form.key:
        raise InvalidPipeline(
            f"{session.node}: the topic {min(compacted)!r} is compacted, and the rows have no key.",
            why="such a topic keeps the last record of each key, and takes none without one.",
            do='name the column of the key: mode="upsert", key="order_id"; or write to a topic with '
            "cleanup.policy=delete.",
            participant=names.sink,
        )
    sizes = [int(settings[topic]["max.message.bytes"]) for topic in topics & settings.keys()]
    return Limits(
        {topic: there[topic] for topic in topics},
        min(sizes, default=Limits.message_bytes),
        frozenset(compacted),
        behind_ms=_shortest(settings, topics, "before"),
        ahead_ms=_shortest(settings, topics, "after"),
    )


def _shortest(settings: Mapping[str, Mapping[str, str]], topics: Collection[str], which: str) -> int | None:
    """Return how far times may be from the clock in all of some topics; None where that is without a bound.

    A topic that gives records the time of their arrival looks at no other.
    """
    limits = [
        int(said[name])
        for topic, said in settings.items()
        if topic in topics and said.get("message.timestamp.type") != "LogAppendTime"
        for name in (f"message.timestamp.{which}.max.ms",)
        if name in said
    ]
    shortest = min(limits, default=_UNBOUNDED_MS)
    return None if shortest >= _UNBOUNDED_MS else shortest
