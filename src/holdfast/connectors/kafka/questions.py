"""Asks a Kafka cluster, and asks again for as long as the answer may still come.

A leader moves, a broker starts again, a topic was created a moment ago and not every broker has heard of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.connectors.kafka.answers import is_no_topic, is_passing, refused

UNKNOWN_FOR_S = 2.0
"""So long a topic may be unknown before it counts as missing: brokers learn of a new one one after the other."""

FIRST_ATTEMPT_S = 0.5
"""So long the first request may take; each further one twice as long, up to :data:`LONGEST_ATTEMPT_S`.

Whoever is refused is told so after the first one.
"""

LONGEST_ATTEMPT_S = 3.0

_AGAIN_S = 0.05
_UNANSWERED = -1001
T = TypeVar("T")


class NoTopic(Exception):
    """A topic, or the leader of a partition, was unknown for two seconds; the cause is what the library said."""


def answer(admin: AdminClient, ask: Callable[[float], T], timeout_s: float, told: list[KafkaError]) -> T:
    """Ask until there is an answer.

    Parameters
    ----------
    admin : AdminClient
        The client that ``ask`` uses.  NB it is held here: the futures of one that is let go never end.
    ask : callable
        Sends requests that may take so many seconds, and returns what came.
    timeout_s : float
        How long it is asked in all.
    told : list of KafkaError
        What the library says besides (``error_cb``); an answer empties it.

    Raises
    ------
    NoTopic
        If the topic is unknown, for longer than a new one can be.
    KafkaException
        If the brokers refuse, or do not answer in time.
    """
    begun, attempt_s = time.monotonic(), FIRST_ATTEMPT_S
    unknown_since: float | None = None
    while True:
        left_s = timeout_s - (time.monotonic() - begun)
        try:
            found = ask(min(max(1.0, left_s), attempt_s))
        except KafkaException as error:
            while admin.poll(0):
                pass
            now = time.monotonic()
            if not is_no_topic(error):
                unknown_since = None
            elif unknown_since is None:
                unknown_since = now
            elif now - unknown_since > UNKNOWN_FOR_S:
                raise NoTopic from error
            is_over = now - begun > timeout_s or refused(told)
            if is_over or not (is_no_topic(error) or is_passing(error)):
                raise
        else:
            told.clear()
            return found
        attempt_s = min(2 * attempt_s, LONGEST_ATTEMPT_S)
        time.sleep(_AGAIN_S)
        with suppress(KafkaException):  # NB the library remembers who leads what, and even that there is no such topic
            admin.list_topics(timeout=1.0)


def offsets(
    admin: AdminClient, wanted: Mapping[TopicPartition, Any], isolation: Any, timeout_s: float
) -> dict[TopicPartition, int]:
    """Return an offset of each partition: one request to each broker that leads some.

    Parameters
    ----------
    admin : AdminClient
        Who asks.
    wanted : mapping of TopicPartition to OffsetSpec
        Which offset of which partition.
    isolation : IsolationLevel
        Whether the end is that of committed records.
    timeout_s : float
        How long one request may take.

    Raises
    ------
    KafkaException
        If one of them gets no answer.
    """
    futures = admin.list_offsets(dict(wanted), isolation_level=isolation, request_timeout=timeout_s)
    found = {at: int(each.result().offset) for at, each in futures.items()}
    if _UNANSWERED in found.values():  # NB of a leader that does not answer the library says this, and no error
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    return found
