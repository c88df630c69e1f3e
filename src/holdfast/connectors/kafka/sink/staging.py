"""Rows that are in Kafka and not visible: one open transaction for each attempt of a task, found by its name.

Invariant: a task never ends its transaction once it has said that it is staged; a name is used by one producer only.

How many transactional ids a sink may use up: each is kept by its coordinator for a week after its last use.

Invariant: of any day not more than ``per_day`` and ``at_once`` together (design/0036, "Names").  What is spent comes
back evenly with time.

What a sink says of an epoch, or of its ledger, where a cluster has ended or forgotten what was not to end.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kafka.sink.form import Limits, MessageForm
from holdfast.connectors.kafka.sink.ledger import KafkaNames, Unfinished
from holdfast.connectors.kafka.sink.refusals import ProducerGone
from holdfast.connectors.kafka.sink.session import KafkaSession, TransactionalProducer
from holdfast.connectors.kit.expected import rows_gone
from holdfast.errors import Diverged, InDoubt, Unavailable
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
        faults.reach("stage-write", self._task.epoch, self._task.pipeline)

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


PER_DAY = 100_000
"""700,000 in the week that an id is kept (``transactional.id.expiration.ms``): 256 MB, in the memory of all
coordinators together, at the 366 bytes that one was measured to take (Kafka 4.4)."""

AT_ONCE = 20_000
"""For the backlog of a first start: 20,000 tasks are more than a billion rows."""

DAY_S = 86_400.0


class NameAllowance:
    """What is left to one sink of one process.

    Parameters
    ----------
    per_day, at_once : int
        How many come back in a day, and how many there are at most: those of the beginning.
    now_s : callable
        Seconds that only grow.

    Examples
    --------
    >>> now = 0.0
    >>> left = NameAllowance(24, 2, lambda: now)
    >>> left.spend(2)
    >>> left.is_spent
    True
    >>> now = 3600.0
    >>> left.is_spent
    False
    """

    def __init__(
        self, per_day: int = PER_DAY, at_once: int = AT_ONCE, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_day = per_day
        self._at_once = at_once
        self._now_s = now_s
        self._left = float(at_once)
        self._at_s = now_s()

    @property
    def is_spent(self) -> bool:
        """Whether none is left now."""
        now_s = self._now_s()
        back = (now_s - self._at_s) * self._per_day / DAY_S
        self._left, self._at_s = min(self._at_once, self._left + back), now_s
        return self._left < 1

    def spend(self, count: int) -> None:
        """Take some; an epoch that has begun takes more than are left."""
        self._left -= count


_NAMES = "(The names are pipeline/generation/epoch/task/attempt.)"


def tasks_of(names: KafkaNames, transactions: Iterable[str]) -> Iterator[str]:
    """Yield the names of the tasks whose transactions these are; a driver's is none's."""
    for name in transactions:
        task = names.task_of(name)
        if task is not None:
            yield task.name


def expired(names: KafkaNames, tasks: Sequence[str]) -> Diverged:
    """Return what is said of tasks whose rows were to be published, and are no longer there."""
    why = "their transactions are no longer open: they lasted longer than transaction_timeout=, or were swept."
    return rows_gone(_node(names), ", ".join(tasks), why, pipeline=names.pipeline, participant=names.sink)


def published_in_part(names: KafkaNames, left: Unfinished, aborted: Sequence[str], epoch: int) -> Diverged:
    """Return what is said of an epoch that is visible but for some transactions."""
    visible = sorted(tasks_of(names, (name for name in left.transactions if name not in aborted)))
    return Diverged(
        f"{_node(names)}: rows of epoch {epoch} were aborted by the brokers, and others of it are visible.",
        why=f"the transactions of {', '.join(sorted(tasks_of(names, aborted)))} had ended before the driver could "
        f"commit them as it had decided: it was away for longer than transaction_timeout=, or somebody aborted them; "
        f"visible are {', '.join(visible) or 'those of no task'}.{_carried(left)} {_NAMES}",
        do="load the rows of those tasks again from the source, then start over with another name=; and raise "
        'transaction_timeout=, or write stage="driver".',
        pipeline=names.pipeline,
        participant=names.sink,
        epoch=epoch,
    )


def forgotten(names: KafkaNames, left: Unfinished, unknown: Sequence[str], epoch: int) -> Diverged:
    """Return what is said of an epoch of which nobody knows any more whether it is visible."""
    return Diverged(
        f"{_node(names)}: nobody knows whether rows of epoch {epoch} are visible.",
        why=f"it was decided, its run ended before it had noted that all is done, and since then the cluster has "
        f"forgotten the transactions of {', '.join(sorted(tasks_of(names, unknown)))} "
        f"(transactional.id.expiration.ms, a week as installed).{_carried(left)} {_NAMES}",
        do="look with a read_committed consumer which rows of that epoch are in the topic, load those that are not "
        "again from the source, then start over with another name=.",
        pipeline=names.pipeline,
        participant=names.sink,
        epoch=epoch,
    )


def not_yet_visible(names: KafkaNames, epoch: int, why: str) -> InDoubt:
    """Return what is said of an epoch that is decided and could not be completed."""
    return InDoubt(
        f"{_node(names)}: epoch {epoch} is decided, and not all of it is visible yet.",
        why=why,
        do="nothing by hand: publishing or opening the sink again completes it.",
        pipeline=names.pipeline,
        participant=names.sink,
        epoch=epoch,
    )


def without_barrier(names: KafkaNames, doubt: InDoubt) -> Unavailable:
    """Return what is said where nobody knows whether there is a barrier to read the ledger up to."""
    return Unavailable(
        f"{_node(names)}: its ledger was not read; nothing was changed.",
        why=f"before it is read, a record is written that marks its end, and the cluster did not say whether it has "
        f"that: {doubt.why}",
        do="it is retried; if the problem persists, check the brokers and the way to them.",
        pipeline=names.pipeline,
        participant=names.sink,
    )


def went_back(names: KafkaNames, how: str) -> Unavailable:
    """Return what is said of a reading of the ledger that is older than what is known."""
    return Unavailable(
        f"{_node(names)}: the Kafka cluster has told an older ledger than before.",
        why=f"{how}: records of the topic {names.progress!r} are gone, or the broker that was asked lacks some.",
        do="it is retried.  If it stays so, look whether the brokers have lost what they had acknowledged "
        "(min.insync.replicas, unclean.leader.election.enable).",
        pipeline=names.pipeline,
        participant=names.sink,
    )


def replaced(names: KafkaNames, gone: ProducerGone) -> Unavailable:
    """Return what is said where another producer has taken the name of the driver's."""
    return Unavailable(
        f"{_node(names)}: the producer of this run was replaced while it wrote; nothing was changed.",
        why=f"another run is taking the pipeline over; the brokers said: {gone}.",
        do="it is retried: the ledger is read again.",
        pipeline=names.pipeline,
        participant=names.sink,
    )


def _carried(left: Unfinished) -> str:
    return " Rows that the driver wrote are visible." if left.before is None else ""


def _node(names: KafkaNames) -> str:
    return f"sink {names.sink!r}"
