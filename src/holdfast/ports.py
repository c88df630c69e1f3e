"""All interfaces of Holdfast on one page: what a source, a sink, a writer, a stateful operator, a store and a clock do.

The coordinator knows sinks only by :class:`Sink`; fakes and real systems pass the same contract tests.
Specs (:class:`SourceSpec`, :class:`SinkSpec`, :class:`StatefulSpec`) are frozen, picklable values declared in the
graph; they open nothing until a run starts.  The values that cross them are those of :mod:`holdfast.values`,
and are imported from here; those of a step are with it in :mod:`holdfast.state.step`.

What one of them *may* do is a protocol of its own, and is asked in one way: ``isinstance(sink, Rewindable)``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.positions import Positions, SourcePositions

# isort: off
from holdfast.values import (
    REJECT_COLUMN, REJECT_SCHEMA, REJECT_TYPE, Carried, EpochRecord, Explanation, Guarantee, Held, Outcome, Part,
    Publication, Refused, RunIdentity, SideRows, SinkLedger, Span, Staged, Task, Withdrawal,
)  # fmt: skip
# isort: on

if TYPE_CHECKING:
    from holdfast.state.step import Step

__all__ = [
    "REJECT_COLUMN", "REJECT_SCHEMA", "REJECT_TYPE", "Backlogged", "Bindable", "Bounded",
    "Carried", "Clock", "ClockDriven", "Confidential", "EpochRecord", "Exhaustible", "ExplainedSpec",
    "Explaining", "Explanation", "Guarantee", "Guaranteeing", "Held", "Inspectable", "LedgerSpec", "Outcome", "Part",
    "Publication", "Refused", "Rejecting", "Rewindable", "RunIdentity", "SeekableSpec", "SideRows", "Sink",
    "SinkLedger", "SinkSpec", "Source", "SourceSpec", "Span", "Staged", "StatefulSpec", "Store", "Task", "Volatile",
    "Withdrawal", "Writer", "WriterFactory",
]  # fmt: skip


class Writer(Protocol):
    """Writes one task's rows where they are durable and invisible.  Runs on an executor, one thread."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows.  Nothing need be durable before :meth:`stage` returns."""

    def stage(self) -> Staged:
        """Make everything written durable, invisible and findable by the task's name; return the handle.

        A worker never has the last word: the rows count only once the driver has received this handle.
        """

    def abort(self) -> None:
        """Drop everything written; called instead of :meth:`stage` after an error.  Must not raise."""


class WriterFactory(Protocol):
    """Picklable; sent to the executors."""

    def __call__(self, task: Task) -> Writer:
        """Open a writer for one attempt of one task."""


class Sink(Protocol):
    """Where rows go: one system, one table or directory.  Runs on the driver, one thread at a time.

    ``publish`` raises :class:`~holdfast.errors.BadRow` where a row is refused, and then nothing was changed.

    ``publish`` and ``outcome`` raise :class:`~holdfast.errors.Unavailable` only when nothing was changed, and
    :class:`~holdfast.errors.InDoubt` when it is unknown (a connection that broke during COMMIT).
    """

    name: str
    guarantee: Guarantee

    @property
    def staging(self) -> str:
        """How large epochs are staged here, in a few words: ``inspect`` shows it."""

    def open(self, run: RunIdentity) -> Held:
        """Create the sink's own ledger, **fence** lower generations, finish what the sink itself had begun to publish,
        and return what is held.

        What lower generations staged stays: a decision in the checkpoint may name it.  Recovery publishes such
        decisions first and sweeps afterwards.

        Raises
        ------
        Fenced
            If the sink has already been opened by ``run.generation`` or a higher one.  Nothing is changed.
        """

    def writer_factory(self) -> WriterFactory:
        """Return the factory that executors call; valid after :meth:`open`."""

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Say, before an epoch is decided, whether this sink takes its rows.  Changes nothing visible.

        A decision cannot be taken back: a row that only ``publish`` refuses would keep the epoch out of this sink for
        ever, and in the others.  So whatever ``publish`` would refuse with ``BadRow`` is refused here: what the row
        says on its own (its values, their lengths), and what only the system can say (constraints), by writing the rows
        and rolling them back.  Not asked where nothing is decided: one sink, whose own commit is the decision.  May be
        called while another thread is in ``publish``.

        Parameters
        ----------
        publication : Publication
            The epoch, as ``publish`` would receive it.
        earlier : sequence of (Sink, Publication)
            The same epoch in the sinks that publish before this one: by then their rows are there.

        Returns
        -------
        bool
            Whether the answer depends on what the sink holds: then epochs before this one must be published first.

        Raises
        ------
        BadRow
            If it refuses a row: names the column, or the constraint.
        Unavailable
            If it does not answer.
        """

    def publish(self, publications: Sequence[Publication], believed: Held) -> None:
        """Make the epochs visible, all together with the ledger row of the last one, atomically and idempotently.

        Epochs ascend.  An epoch that the sink already holds is skipped.  Several epochs in one call are one
        transaction (commit grouping).

        Parameters
        ----------
        publications : sequence of Publication
            One or more.
        believed : Held
            What the sink last reported, by ``open`` or by publishing.  An exactly-once sink compares it with its own
            ledger under the lock that it publishes with (:func:`holdfast.sinks.believed.fresh`): after a failover to a
            standby that lagged, the connection is new and the sink is not what it was.

        Raises
        ------
        Fenced
            If a higher generation has opened the sink.  Nothing is changed.
        Diverged
            If the sink holds less than is believed, or staged rows of a part are gone (they were swept).  Nothing is
            changed.
        """

    def outcome(self, epoch: int) -> Outcome:
        """Ask the sink whether it holds ``epoch``."""

    def sweep(self, *, below_epoch: int) -> int:
        """Drop orphans: whatever a name shows to be this pipeline's, of a lower generation, or of this one and an
        epoch below ``below_epoch``.  Called repeatedly: workers of a dead driver stage late.  Returns how many.
        """

    def close(self) -> None:
        """Release connections.  Must not raise."""


@runtime_checkable
class Inspectable(Protocol):
    """What a sink may offer beyond :class:`Sink`, to say more about itself than ``outcome`` does."""

    def inspect(self) -> tuple[Held, Sequence[str]]:
        """Return what is held, and :attr:`Task.name` of everything staged that the sink itself has not decided on.

        Asked of a sink that is connected and not opened: changes nothing, fences no run.  ``Held.generation`` is the
        highest that opened the sink.
        """


@runtime_checkable
class Rejecting(Protocol):
    """What a sink may offer beyond :class:`Sink`: to publish an epoch without the rows that it refuses."""

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, Sequence[Refused]]:
        """Find the rows that ``publish`` would refuse; return the epoch without them, and the rows.

        Rows are numbered among those of the publication: what an earlier rejection removed from it has no number.
        Asked of a sink that is connected, opened or not: changes nothing, fences no run.

        Parameters
        ----------
        publication : Publication
            The epoch, as ``publish`` would receive it.
        earlier : sequence of (Sink, Publication)
            The same epoch in sinks that publish before this one and have not: where one only asks (a dry run).
        """


@runtime_checkable
class Rewindable(Protocol):
    """What a sink may offer beyond :class:`Sink`: to take back what it published.

    Its ``publish`` then knows records with ``rewound_to``: in one step, atomically and idempotently like any other, it
    withdraws the rows of all epochs after the one that ended at the record's positions, and moves its ledger row to
    the record: a higher epoch, at older positions.
    """

    def withdrawal(self, to: Positions) -> Withdrawal:
        """Say what going back to some positions would withdraw, or why that cannot be done: they are no end of an
        epoch of its.  Asked of a sink that is connected, opened or not: changes nothing, fences no run.
        """


@runtime_checkable
class Explaining(Protocol):
    """What a sink may offer beyond :class:`Sink`: to keep what its positions mean (design/0018).

    ``publish`` keeps the explanations that it lacks, with the epoch or before; ``Held.explained`` says which it has.
    """

    def explanations(self) -> Sequence[Explanation]:
        """Return all of them, for each source in order.  Asked of a sink opened or not: changes nothing."""


@runtime_checkable
class Volatile(Protocol):
    """What a sink may say beyond :class:`Sink`: that it ends with its process."""

    is_volatile: bool
    """Whether what the ledger calls done is not looked for in it."""


@runtime_checkable
class Bindable(Protocol):
    """What a sink may need beyond :class:`Sink`: what only the engine has.  Provided before it is opened."""

    def bind(self, to_dataframe: Callable[..., Any], work_directory: str) -> None:
        """Take what makes DataFrames, and a directory below the checkpoint that belongs to this sink alone."""


class SinkSpec(Protocol):
    """Frozen, picklable declaration of a sink, as part of the graph."""

    @property
    def kind(self) -> str:
        """The kind's name, as users write it."""

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row."""

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: JSON values, without secrets."""

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Check names (keys, the delete column, partition columns) against the columns, where known.  No I/O.

        Raises
        ------
        InvalidPipeline
            If a column that the sink needs is not there.
        """

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Sink:
        """Make the sink for a run.  Connects and checks that every column fits; changes nothing but creating an
        absent target.

        Raises
        ------
        InvalidPipeline
            If a column does not fit its target: names the column and both types.
        Unavailable
            If the system does not answer.
        """


@runtime_checkable
class LedgerSpec(Protocol):
    """What a sink's declaration may offer beyond :class:`SinkSpec`: to be asked where the rows' schema is unknown."""

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the sink's own ledger says; None where this pipeline has none there.

        Creates and changes nothing, fences no run.  Raises InvalidPipeline, Unavailable and Corrupt as ``connect``.
        """


class Source(Protocol):
    """Where rows come from.  Lives in the process that plans epochs, on the driver's machine; executors ``read``.

    Everything it needs after a crash is durable before it returns a position: the same ``(start, end)`` yields the
    same rows, always.
    """

    def initial(self) -> SourcePositions:
        """Positions before the first row."""

    def latest(self, start: SourcePositions, *, bounded: bool) -> SourcePositions:
        """End positions of the next epoch from ``start``: what is there now, limited by ``max_rows_per_epoch`` and
        ``max_files_per_epoch``; equal to ``start`` when nothing is.  With ``bounded`` only what was there when
        :meth:`freeze` was called.  Durable when it returns.
        """

    def freeze(self) -> None:
        """Record what is there now: the end of an ``available_now`` run."""

    def newest(self) -> SourcePositions | None:
        """Positions after everything that is known now, for the display of lag; None when unknown."""

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Cut the rows between two positions into the parts that tasks read, at most a few per core."""

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Bytes between two positions, known without reading them; None when unknown.  Cheap."""

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """Rows between two positions, where known without reading them.  Cheap."""

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span, in order, with the source's schema.  Stateless; runs on executors."""

    def committed(self, end: SourcePositions) -> None:
        """Everything before ``end`` has been published in every sink: what is only needed for replay may be dropped."""


class SourceSpec(Protocol):
    """Frozen, picklable declaration of a source, as part of the graph."""

    @property
    def kind(self) -> str:
        """Kind of the source, as users write it."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns; None when only the engine learns them (``read.spark``)."""

    @property
    def timestamp(self) -> str | None:
        """The column that holds event time; None when there is none."""

    @property
    def rejects(self) -> bool:
        """Whether malformed rows become rows of the ``rejects`` side output.

        Then :meth:`Source.read` yields batches of ``read_schema`` = ``schema`` (all nullable) + ``REJECT_COLUMN``.
        """

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: JSON values, without secrets."""

    def open(self, name: str, workspace: str) -> Source:
        """Open the source for a run.

        Parameters
        ----------
        name : str
            The node's name.
        workspace : str
            Directory or URL below the checkpoint that belongs to this source alone (file log, journal); created when
            absent.
        """

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return why reading cannot continue at positions that a sink holds; empty when it can.

        Asked when the engine's own record of positions is lost.  With ``until`` the rows up to there are known, and
        asked for again: why they cannot be read any more.  Creates and changes nothing.
        """

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return the positions up to which this source can have delivered rows, by what it keeps of its past.

        Asked at each start: a sink that holds more was written with a later past, in which the same positions may have
        been other rows.  Empty where a position means the same rows whatever is kept.  Cheap; creates and changes
        nothing.
        """


@runtime_checkable
class Exhaustible(Protocol):
    """What a source may offer beyond :class:`Source`, if its declaration is :class:`Bounded`: to know its end."""

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether nothing follows these positions."""


@runtime_checkable
class Backlogged(Protocol):
    """What a source may offer beyond :class:`Source`, where positions do not show it: whether it is behind."""

    def has_more(self, positions: SourcePositions) -> bool:
        """Return whether there is something after these positions that an epoch could have taken."""


@runtime_checkable
class Bounded(Protocol):
    """What a source's declaration may say beyond :class:`SourceSpec`; without it a source never ends."""

    bounded: bool
    """Whether it ends."""


@runtime_checkable
class Guaranteeing(Protocol):
    """What a source's declaration may say beyond :class:`SourceSpec`; without it a source is exactly-once."""

    guarantee: Guarantee
    """What it promises for each row."""


@runtime_checkable
class Confidential(Protocol):
    """What the declaration of a source or a sink may say besides: that executors are sent a secret."""

    sends_secret: bool
    """Whether one travels to them, in a task or in Spark's plan."""


@runtime_checkable
class SeekableSpec(Protocol):
    """What a source's declaration may offer beyond :class:`SourceSpec`: to begin at a time."""

    def from_time(self, at_us: int) -> SourceSpec:
        """Return the declaration of the same source that begins at its random access point at or before a time:
        microseconds of Unix time, or ticks.  Rows before it may come; none at or after it may be missing.
        """


@runtime_checkable
class ExplainedSpec(Protocol):
    """What a source's declaration offers beyond :class:`SourceSpec` where its positions mean nothing by themselves."""

    def explanations(self, name: str, workspace: str, after: int) -> Sequence[Explanation]:
        """Return what is durable of their meaning, above a number, in order.  Creates and changes nothing."""

    def restore(self, name: str, workspace: str, explanations: Sequence[Explanation]) -> None:
        """Make these durable where they are not; raise Diverged where a number says something else."""


@runtime_checkable
class StatefulSpec(Protocol):
    """What the declaration of an operator that keeps state has besides that of a stateless one."""

    input_names: tuple[str, ...]
    """The names under which its step knows the node's inputs, in their order; that of a single one is ``rows``."""

    side_outputs: Mapping[str, SideRows]
    """Outputs of its step besides ``rows`` that can be used: ``late``, ``shed``, ``unmatched``."""

    time_columns: tuple[str | None, ...]
    """For each input the timestamp column that it uses; None: that of the stream."""

    def step(self, inputs: Mapping[str, pa.Schema]) -> Step:
        """Return the step for inputs of these schemas; raise InvalidPipeline where a column is missing or unfit."""


@runtime_checkable
class ClockDriven(Protocol):
    """What the declaration of a stateful operator may say beyond :class:`StatefulSpec`: what it does by batch time."""

    watches_clock: bool
    """Whether it decides by batch time (something is forgotten, say): it is called in every epoch, rows or not."""

    wakes: bool
    """Whether rows leave it by batch time: epochs are planned although nothing arrives.  Then it watches, too."""


class Store(Protocol):
    """Small durable objects under keys (``a/b/c``): local directory, object store, or simulated.

    Every write is atomic and durable when it returns: a reader sees the old or the new object, never a part.
    """

    def get(self, key: str) -> bytes | None:
        """Return the object, or None when absent."""

    def put(self, key: str, data: bytes) -> None:
        """Create or replace the object."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; return False, changing nothing, when it exists.  Exactly one of several callers wins."""

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""


class Clock(Protocol):
    """Clock time and waiting; simulated in tests."""

    def now_us(self) -> int:
        """Microseconds of Unix time."""

    def sleep_s(self, seconds: float) -> None:
        """Wait."""
