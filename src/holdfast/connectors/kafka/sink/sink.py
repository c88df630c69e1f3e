"""A Kafka topic during a run, on the driver.

Invariants: rows and ledger are one transaction of a producer whose name all generations share, so a run that opens the
sink ends what an earlier one had begun, and that one can write no more.  A producer that is made writes a barrier, and
the ledger is read up to it; until that producer fails nobody else has moved it.

The durable writes of an epoch: 1. the transaction with carried rows and the ledger's record, which is the decision on
the transactions that tasks left open; 2. the end of each of these; 3. the ledger's record without them.  What a crash
after each leaves: design/0036.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kafka.sink import ledger, overview, staging
from holdfast.connectors.kafka.sink.form import Limits, MessageForm, RecordColumns
from holdfast.connectors.kafka.sink.ledger import ABSENT, DRIVER, KafkaLedger, KafkaNames, Unfinished
from holdfast.connectors.kafka.sink.refusals import ProducerGone
from holdfast.connectors.kafka.sink.session import LOOK_S, KafkaSession, TransactionalProducer
from holdfast.connectors.kafka.sink.staging import KafkaWriterFactory, NameAllowance, tasks_of
from holdfast.connectors.kafka.sink.topics import limits_of
from holdfast.connectors.kafka.sink.transactions import COMMITTED, FORGOTTEN, ONGOING, Transactions
from holdfast.connectors.kafka.topics import NO_TOPICS, Selection
from holdfast.connectors.kit import sql
from holdfast.connectors.kit.expected import unpublished
from holdfast.connectors.kit.explained import lacking
from holdfast.connectors.kit.handle_rows import HandleWriterFactory, batches_of
from holdfast.errors import BadRow, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import (
    Carried,
    Explanation,
    Guarantee,
    Held,
    OpenTransaction,
    Outcome,
    Publication,
    RunIdentity,
    Sink,
    Staged,
    WaitingReaders,
    WriterFactory,
)

log = logging.getLogger("holdfast.connectors.kafka")

DRIVER_TIMEOUT_MS = 60_000
"""How long a transaction of the driver may stay open where tasks write large epochs: if the driver has died in it,
readers of the topic wait for so long, or until the next run."""

_TRIES = 5
"""How often a name may be taken from us by runs that are not newer, before that is an error."""


class KafkaSink:
    """One Kafka topic, or several, during a run."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        names: KafkaNames,
        session: KafkaSession,
        form: MessageForm,
        schema: pa.Schema,
        *,
        stages: bool,
        timeout_ms: int,
        topics: Selection = NO_TOPICS,
    ) -> None:
        self.name = names.sink
        self._names = names
        self._pipeline = names.pipeline
        self._session = session
        self._form = form
        self._topics = topics
        self._schema = schema
        self._stages = stages
        self._timeout_ms = timeout_ms
        self._limits = Limits()
        self._node = f"sink {self.name!r}"
        self._transactions = Transactions(session)
        self._owner = secrets.token_hex(8)
        self._generation = self._before = 0
        self._producer: TransactionalProducer | None = None
        self._ledger = ABSENT
        self._names_left = NameAllowance()
        self._was_short = False
        self._has_progress = False

    @property
    def staging(self) -> str:
        """How large epochs are staged."""
        return "open transactions" if self._stages else "rows in the handles"

    def prepare(self) -> None:
        """See that the topics are there, and what they take."""
        self._form.check_schema(self._node, self._schema)
        self._limits = limits_of(self._session, self._names, self._form, self._topics)
        longest = self._session.broker_setting("transaction.max.timeout.ms")
        if longest is not None and self._timeout_ms > int(longest):
            raise InvalidPipeline(
                f"{self._node}: transaction_timeout is {self._timeout_ms} ms, and the Kafka cluster "
                f"{self._session.brokers} allows {longest} ms.",
                why="a task's transaction stays open until its epoch is published; its brokers have the limit "
                "transaction.max.timeout.ms.",
                do='write a lower one: transaction_timeout="10 minutes"; or raise the limit of the brokers.',
                participant=self.name,
            )

    # --- open -------------------------------------------------------------------------------------------------------

    def open(self, run: RunIdentity) -> Held:
        """Take the sink for this generation, end what an earlier run had begun, complete what it had decided."""
        if self._names.progress not in self._session.partitions():
            self._session.create_compacted(self._names.progress)
        self._check_is_compacted()
        self._has_progress = True
        self._stages = self._stages and not run.is_grouped  # rows of several epochs would wait for their group
        try:
            found = self._read(waits=False)  # generations only grow: an earlier state can refuse, and not mislead
            if not self._is_ours(found, run.generation):
                self._check_is_lower(found, run.generation)
                self._end_drivers()
                self._take(found, run.generation)
            self._generation = run.generation
            found = self._current()
            if found.unfinished is not None:
                self._complete(found.unfinished)
        except InDoubt as doubt:  # asking is what an opening does first
            raise Unavailable(doubt.what, why=doubt.why, do="it is tried again.", participant=self.name) from doubt
        except ProducerGone as gone:
            raise staging.replaced(self._names, gone) from gone
        return replace(self._ledger.held(), generation=self._before)

    def _take(self, seen: KafkaLedger, generation: int) -> None:
        """Note, behind a new producer, that the sink is this generation's; nobody else moves its ledger then."""

        def check(found: KafkaLedger | None) -> None:
            # Generations only grow: an answer that has a lower one is not the ledger, whatever the cluster says.
            now, before = (found or ABSENT).row.generation, seen.row.generation
            if now < before:
                raise staging.went_back(self._names, f"generation {now}, after {before}")
            if not self._is_ours(found or ABSENT, generation):
                self._check_is_lower(found or ABSENT, generation)

        told = self._behind_barrier(check)
        found = self._ledger
        if not self._is_ours(found, generation):
            self._before = found.row.generation
            row = replace(found.row, generation=generation)
            moved = replace(found, row=row, owner=self._owner, is_sealed=True)
            self._commit(moved, () if found.is_sealed else told)

    def _check_is_compacted(self) -> None:
        """A topic that drops records by their age would drop the ledger of a sink that has been idle for long."""
        policy = (
            self._session.topic_settings([self._names.progress]).get(self._names.progress, {}).get("cleanup.policy")
        )
        if policy is not None and policy != "compact":
            raise InvalidPipeline(
                f"{self._node}: the progress topic {self._names.progress!r} has cleanup.policy={policy}.",
                why="it holds the ledger of the sink, which must not be dropped for its age.",
                do="set cleanup.policy=compact on it; or name another topic, which is created so: progress=.",
                participant=self.name,
            )

    def _end_drivers(self) -> None:
        """End what a dead driver has begun for whichever sink of the pipeline.

        Sinks are opened one after the other, and their ledgers share a topic: what is open for one that comes later
        hides the ledger of this one, and would until the brokers end it.  Where it is a living driver's, it asks its
        ledger and makes another producer, or is fenced.
        """
        for name in self._transactions.open_names(self._names.of_pipeline):
            if name.endswith(DRIVER):
                self._transactions.abort(name)

    def _is_ours(self, found: KafkaLedger, generation: int) -> bool:
        """Return whether the answer to an earlier try was lost."""
        return found.row.generation == generation and found.owner == self._owner

    def _check_is_lower(self, found: KafkaLedger, generation: int) -> None:
        if found.row.generation >= generation:
            raise sql.fenced(self._node, self._pipeline, generation, found.row.generation)

    def _has_gone_back(self, found: KafkaLedger) -> bool:
        """Whether it is older than what is known: none but this run moves it, so an answer that was lost is newer."""
        known = self._ledger
        is_taken_back = known.unfinished is not None and known.unfinished.before is not None
        if is_taken_back and found.row.epoch == known.taken_back().row.epoch:
            return False
        return found.row.epoch < known.row.epoch

    # --- publish ----------------------------------------------------------------------------------------------------

    def writer_factory(self) -> WriterFactory:
        """Return the factory that executors call, for one epoch."""
        if not self._stages or self._is_short_of_names():
            return HandleWriterFactory(self._schema)
        ours = self._session
        session = KafkaSession(ours.brokers, self._node, ours.client_id, ours.compression)
        return KafkaWriterFactory(session, self._names, self._form, self._schema, self._limits, self._timeout_ms)

    def _is_short_of_names(self) -> bool:
        is_short = self._names_left.is_spent
        if is_short and not self._was_short:
            log.warning(
                "%s: tasks have used up the transactional ids of a day: for now the driver writes large epochs; let "
                "epochs be larger (max_rows_per_epoch= of the source), or tasks fewer",
                self._node,
            )
        self._was_short = is_short
        return is_short

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """See that the rows have their form, and that the topics take them."""
        for batch in self._batches([publication]):
            self._form.check(self._node, batch, self._limits)
        return False

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Write rows and ledger in one transaction; then commit what tasks left open, and note that that is done."""
        for _ in range(_TRIES):
            try:
                self._publish(publications, expected)
                return
            except ProducerGone as gone:
                self._drop()
                taken = gone
        raise staging.replaced(self._names, taken) from taken

    def _publish(self, publications: Sequence[Publication], expected: Held) -> None:
        found = self._current()
        if found.unfinished is not None and not self._complete(found.unfinished):
            found = self._ledger
        new = unpublished(self._node, self._pipeline, publications, self._ledger.row.held(), expected)
        if not new:
            return
        staged = [name for part in _staged(new) for name in _names([part])]
        states = self._transactions.describe(staged)
        if gone := [part.name for part in _staged(new) if any(states[n].state != ONGOING for n in _names([part]))]:
            raise staging.expired(self._names, gone)
        told = lacking(new, self._ledger.explained, self._node)
        moved = self._ledger.moved_to(new[-1].record)
        if staged:
            self._names_left.spend(len(staged))
            ids = {name: (found.producer_id, found.epoch) for name, found in states.items()}
            before = None if any(batch.num_rows for batch in self._batches(new)) else self._ledger.of_epoch()
            moved = replace(moved, unfinished=Unfinished(new[0].record.epoch, ids, before))
        self._commit(moved, told, self._messages(new))
        if moved.unfinished is not None and not self._complete(moved.unfinished):
            raise staging.expired(self._names, sorted(tasks_of(self._names, staged)))

    def _complete(self, left: Unfinished) -> bool:
        """Commit transactions that the ledger has decided to commit; False if all were aborted: it is taken back."""
        epoch = self._ledger.row.epoch
        try:
            for _ in range(_TRIES):
                states = self._transactions.describe(left.transactions)
                if forgotten := [name for name, found in states.items() if found.state == FORGOTTEN]:
                    raise staging.forgotten(self._names, left, forgotten, epoch)
                aborted = [name for name, found in states.items() if found.state not in (ONGOING, *COMMITTED)]
                is_seen = left.before is None or any(found.state in COMMITTED for found in states.values())
                if not aborted or is_seen:
                    if not self._end(left, aborted, commit=True, epoch=epoch):
                        continue  # one has just ended otherwise: for its age, or somebody completes the same decision
                    if aborted:
                        raise staging.published_in_part(self._names, left, aborted, epoch)
                    self._commit(replace(self._ledger, unfinished=None))
                    return True
                if self._end(left, aborted, commit=False, epoch=epoch):
                    log.warning(
                        "%s: all transactions of epochs %d to %d have timed out: they are produced again",
                        self._node,
                        left.first,
                        epoch,
                    )
                    self._commit(self._ledger.taken_back())
                    return False
            raise staging.not_yet_visible(self._names, epoch, "its transactions end while they are looked at.")
        except Unavailable as error:
            raise staging.not_yet_visible(self._names, epoch, error.what) from error

    def _end(self, left: Unfinished, ended: Collection[str], *, commit: bool, epoch: int) -> bool:
        """Commit or abort those that have not ended; False as soon as one turns out to have ended the other way."""
        for name, (producer_id, number) in left.transactions.items():
            if commit:
                faults.reach("publish-begun", epoch, self._pipeline)
            if name not in ended and not self._transactions.end(name, producer_id, number, commit=commit):
                return False
        return True

    def _commit(
        self, moved: KafkaLedger, told: Sequence[Explanation] = (), messages: Iterable[RecordColumns] = ()
    ) -> None:
        """Write rows and what the ledger says now, in one transaction."""
        with self._transaction() as producer:
            for some in messages:
                producer.send(some)
            producer.send(ledger.records(self._names, moved, told))
            if moved.row.epoch > self._ledger.row.epoch:
                producer.flush()
                faults.reach("publish-uncommitted", moved.row.epoch, self._pipeline)
        explained = {**self._ledger.explained, **{each.source: each.number for each in told}}
        self._ledger = replace(moved, explained=explained)

    @contextmanager
    def _transaction(self) -> Iterator[TransactionalProducer]:
        """Commit what is sent within; after an error this producer is used no more, and the next ends what it left."""
        producer = self._producer
        assert producer is not None
        is_done = False
        try:
            producer.begin()
            yield producer
            producer.commit()
            is_done = True
        except (BadRow, InvalidPipeline):  # the brokers have answered, so they can be told at once: readers wait
            producer.abort()
            raise
        finally:
            if not is_done:
                self._drop()

    def _current(self) -> KafkaLedger:
        """Return the ledger if this generation owns it, with a producer that can write."""
        if self._producer is None:
            if (theirs := self._read(waits=False).row.generation) > self._generation:
                raise sql.fenced(self._node, self._pipeline, self._generation, theirs)
            self._behind_barrier(self._check_is_continued)
        return self._ledger

    def _check_is_continued(self, found: KafkaLedger | None) -> None:
        sql.check_generation(self._node, self._pipeline, self._generation, None if found is None else found.row)
        if self._has_gone_back(found or ABSENT):
            how = f"epoch {(found or ABSENT).row.epoch}, after {self._ledger.row.epoch}"
            raise staging.went_back(self._names, how)

    def _read(self, *, waits: bool = True, patience_s: float | None = None) -> KafkaLedger:
        return self._asked(waits=waits, patience_s=patience_s)[0] or ABSENT

    def _asked(
        self, *, waits: bool = True, patience_s: float | None = None
    ) -> tuple[KafkaLedger | None, list[Explanation]]:
        return ledger.read(self._session, self._names, waits=waits, patience_s=patience_s, is_there=self._has_progress)

    def _behind_barrier(self, check: Callable[[KafkaLedger | None], None]) -> list[Explanation]:
        """Make a producer, let it write a barrier, and keep what the ledger says up to that, if it is right.

        What positions mean is returned.

        No leader that is cut off from its cluster can have taken the barrier.  A producer goes with a ledger that was
        read behind it: there is none after an error.
        """
        self._drop()
        # Small epochs take no time.  The ledger's record comes last: its topic is never blocked for long.
        timeout_ms = min(DRIVER_TIMEOUT_MS, self._timeout_ms) if self._stages else self._timeout_ms
        names, limits, barrier = self._names, self._limits, secrets.token_hex(8)
        self._producer = self._session.producer(names.driver, timeout_ms, limits.message_bytes, names.progress)
        try:
            with self._transaction() as producer:
                producer.send(ledger.barrier_record(names, barrier))
            found, told = ledger.read(self._session, names, barrier=barrier)
            check(found)
        except InDoubt as doubt:
            raise staging.without_barrier(names, doubt) from doubt
        except BaseException:
            self._drop()
            raise
        self._ledger = found or ABSENT
        return told

    def _drop(self) -> None:
        if self._producer is not None:
            self._producer.drop()
            self._producer = None

    # --- questions --------------------------------------------------------------------------------------------------

    def outcome(self, epoch: int) -> Outcome:
        """Ask the ledger."""
        try:
            found = self._read()
        except Unavailable:
            return Outcome.UNKNOWN
        if found.row.generation < self._generation or self._has_gone_back(found):  # a broker that lags, or is cut off
            return Outcome.UNKNOWN
        if epoch > found.row.epoch:
            return Outcome.ABSENT
        left = found.unfinished
        return Outcome.STAGED if left is not None and epoch >= left.first else Outcome.PUBLISHED

    def inspect(self) -> tuple[Held, list[str]]:
        """Return what is held, and the names of what is staged."""
        found = self._read(patience_s=LOOK_S)
        decided = set() if found.unfinished is None else set(found.unfinished.transactions)
        names = [name for name in self._transactions.open_names(self._names.staged) if name not in decided]
        return replace(found.held(), explained=None), sorted(set(tasks_of(self._names, names)))

    def open_transactions(self) -> list[OpenTransaction]:
        """Ask the coordinators."""
        found = self._read(waits=False)
        decided = set() if found.unfinished is None else set(found.unfinished.transactions)
        return overview.open_transactions(self._names, self._transactions, decided)

    def waiting_readers(self) -> list[WaitingReaders]:
        """Compare the last stable offset of each partition with its end."""
        return overview.waiting_readers(self._session, self._limits.partitions)

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        found = self._asked()[1]
        if len(found) < (known := sum(self._ledger.explained.values())):
            raise staging.went_back(self._names, f"{len(found)} explanations of positions, after {known}")
        return found

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose transactions are no longer open."""
        states = self._transactions.describe(_names(parts))
        return [part.name for part in parts if any(states[name].state != ONGOING for name in _names([part]))]

    def sweep(self, *, below_epoch: int) -> int:
        """End the transactions that lower generations left open, and this one below an epoch."""
        suspects = [
            name
            for name in self._transactions.open_names(self._names.staged)
            if (task := self._names.task_of(name)) is not None
            and (task.generation, task.epoch) < (self._generation, below_epoch)
        ]
        if not suspects:  # usually: then one request was all
            return 0
        found = self._read()
        if found.row.generation != self._generation:
            return 0
        decided = set() if found.unfinished is None else set(found.unfinished.transactions)
        orphans = [name for name in suspects if name not in decided]
        for name in orphans:
            self._transactions.abort(name)
        return len(orphans)

    def close(self) -> None:
        """Let the connections go."""
        self._drop()
        self._transactions.close()
        self._session.close()

    # --- rows -------------------------------------------------------------------------------------------------------

    def _batches(self, publications: Iterable[Publication]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the driver writes, in their order."""
        for publication in publications:
            ours = tuple(part for part in publication.parts if not _names([part]))
            yield from batches_of(replace(publication, parts=ours), self._schema)

    def _messages(self, publications: Iterable[Publication]) -> Iterator[RecordColumns]:
        for batch in self._batches(publications):
            yield from self._form.messages(self._node, batch, self._limits)


def _staged(publications: Iterable[Publication]) -> list[Staged]:
    return [part for each in publications for part in each.parts if isinstance(part, Staged) and _names([part])]


def _names(parts: Iterable[Staged | Carried]) -> list[str]:
    return [
        part.reference["transaction"] for part in parts if isinstance(part, Staged) and "transaction" in part.reference
    ]
