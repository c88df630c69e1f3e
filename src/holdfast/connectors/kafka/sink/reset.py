"""A Kafka sink begins as if it had never been: tombstones of its ledger, in a transaction of its own producer."""

from __future__ import annotations

from holdfast.connectors.kafka.sink import ledger
from holdfast.connectors.kafka.sink.ledger import KafkaNames
from holdfast.connectors.kafka.sink.session import KafkaSession
from holdfast.connectors.kafka.sink.transactions import Transactions
from holdfast.connectors.kit.rewinds import counted
from holdfast.ports import Reset

_TIMEOUT_MS = 60_000
_MESSAGE_BYTES = 1 << 20


def reset(session: KafkaSession, names: KafkaNames, topics: str, *, is_dry_run: bool) -> Reset:
    """Do it; parameters as of :class:`~holdfast.ports.ResettableSpec`, and what the sink's topics are called.

    The durable writes: 1. the producer, which ends what a live one has begun: that one can write no more; 2. each
    transaction of a task; 3. the tombstones.  After a crash the same call does the rest; records that are visible stay.
    """
    found, told = ledger.read(session, names, waits=False)
    transactions = Transactions(session)
    try:
        staged = transactions.open_names(names.staged)
        removed = [f"the ledger in topic {names.progress}, of epoch {found.row.epoch}"] if found is not None else []
        removed += [f"{counted(len(staged), 'open transaction')} of tasks"] if staged else []
        stays = (f"records of {topics}: no sink can remove them, and a run with a new checkpoint writes them again",)
        if removed and not is_dry_run:
            producer = session.producer(names.driver, _TIMEOUT_MS, _MESSAGE_BYTES, names.progress)
            try:
                for name in staged:
                    transactions.abort(name)
                producer.begin()
                producer.send(ledger.tombstones(names, told))
                producer.flush()
                producer.commit()
            finally:
                producer.drop()
            for name in transactions.open_names(names.staged):  # of a task that was alive
                transactions.abort(name)
    finally:
        transactions.close()
    return Reset(tuple(removed), stays if removed else ())
