"""Rows that are in Kafka and not visible: one open transaction for each attempt of a task, found by its name.

Invariant: a task never ends its transaction once it has said that it is staged; a name is used by one producer only.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kafka.sink.form import Limits, MessageForm
from holdfast.connectors.kafka.sink.ledger import KafkaNames
from holdfast.connectors.kafka.sink.refusals import ProducerGone
from holdfast.connectors.kafka.sink.session import KafkaSession, TransactionalProducer
from holdfast.errors import Unavailable
from holdfast.ports import Staged, Task
from holdfast.types.casting import declared

_LINGER_MS = 5
"""How long a task's records wait for others of their batch."""


@dataclass(frozen=True)
class KafkaWriterFactory:
    """Picklable factory of :class:`KafkaWriter`.

    Parameters
    ----------
    session : KafkaSession
        Connections of each writer's own.
    names : KafkaNames
        Names.
    form : MessageForm
        How rows are written.
    schema : pyarrow.Schema
        Columns of the rows.
    limits : Limits
        What the cluster takes.
    timeout_ms : int
        How long a transaction may stay open.
    """

    session: KafkaSession
    names: KafkaNames
    form: MessageForm
    schema: pa.Schema
    limits: Limits
    timeout_ms: int

    def __call__(self, task: Task) -> KafkaWriter:
        """Open a writer for one attempt of one task.  Nothing is sent before the first row."""
        return KafkaWriter(self, task)


class KafkaWriter:
    """Writes one task's rows; see :class:`holdfast.ports.Writer`."""

    def __init__(self, factory: KafkaWriterFactory, task: Task) -> None:
        self._factory = factory
        self._task = task
        self._name = factory.names.staged_by(task, secrets.token_hex(4))
        self._producer: TransactionalProducer | None = None
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows."""
        if not batch.num_rows:
            return
        made = self._factory
        rows = declared(batch, made.schema)
        messages = made.form.messages(f"sink {made.names.sink!r}", rows, made.limits)
        try:
            if self._producer is None:
                self._producer = made.session.producer(
                    self._name, made.timeout_ms, made.limits.message_bytes, made.names.progress, linger_ms=_LINGER_MS
                )
                self._producer.begin()
            for some in messages:
                self._row_count += self._producer.send(some)
        except ProducerGone as gone:
            raise self._gone(gone) from gone
        faults.reach("stage-write", self._task.epoch)

    def stage(self) -> Staged:
        """Return the handle when the brokers have all rows; the transaction stays open."""
        if self._producer is None:
            return Staged(self._task.name, 0)
        try:
            self._producer.flush()
        except ProducerGone as gone:
            raise self._gone(gone) from gone
        self._producer = None  # without ending what it has begun: the driver has the last word
        self._factory.session.close()
        return Staged(self._task.name, self._row_count, {"transaction": self._name})

    def abort(self) -> None:
        """Drop everything written."""
        if self._producer is not None:
            self._producer.abort()
            self._producer = None
        self._factory.session.close()

    def _gone(self, gone: ProducerGone) -> Unavailable:
        return Unavailable(
            f"sink {self._factory.names.sink!r}: the transaction of a task was ended while it wrote.",
            why=f"the brokers said: {gone}; it lasted longer than transaction_timeout=, or another run has swept it.",
            do="the epoch is produced again; if this comes again, raise transaction_timeout= or let epochs be smaller: "
            "max_rows_per_epoch of the source.",
            participant=self._factory.names.sink,
        )
