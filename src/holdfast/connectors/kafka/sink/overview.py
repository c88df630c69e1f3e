"""What is shown of a topic from outside: transactions that are open, and readers who wait for them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from holdfast.connectors.kafka.sink.ledger import KafkaNames
from holdfast.connectors.kafka.sink.session import KafkaSession
from holdfast.connectors.kafka.sink.transactions import ENDING, ONGOING, Transactions
from holdfast.ports import OpenTransaction, WaitingReaders


def open_transactions(names: KafkaNames, transactions: Transactions, decided: Collection[str]) -> list[OpenTransaction]:
    """Return what the coordinators say of the driver's transaction and of those of tasks."""
    now_ms = time.time() * 1000  # the brokers' clocks, too, tell the time of day
    shown = []
    found = transactions.open_names(names.every, (ONGOING, *ENDING))
    for name, of in transactions.describe(found).items():
        task = names.task_of(name)
        if of.state in (ONGOING, *ENDING) and (task is not None or name == names.driver):
            age_s = max(0.0, now_ms - of.started_ms) / 1000
            whose = "" if task is None else task.name
            shown.append(OpenTransaction(whose, of.state, age_s, of.timeout_ms / 1000, name in decided))
    return shown


def waiting_readers(session: KafkaSession, partitions: Mapping[str, int]) -> list[WaitingReaders]:
    """Return the partitions whose last stable offset is before their end."""
    ends = session.ends([(topic, at) for topic, count in partitions.items() for at in range(count)])
    return [WaitingReaders(f"{topic}/{at}", *of) for (topic, at), of in sorted(ends.items()) if of[0] < of[1]]
