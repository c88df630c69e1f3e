"""What a sink and its writers do, and what they may do besides.

The coordinator knows sinks only by :class:`Sink`; fakes and real systems pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

from holdfast.capabilities import optional
from holdfast.positions import Positions
from holdfast.types.canonical import Digests
from holdfast.values import (
    NO_LOSSES,
    Explanation,
    Guarantee,
    Held,
    Losses,
    OpenTransaction,
    Outcome,
    Publication,
    PublishedEpoch,
    Refused,
    Repair,
    Reset,
    RunIdentity,
    SinkLedger,
    Staged,
    Task,
    WaitingReaders,
    Withdrawal,
)


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

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Make the epochs visible, all together with the ledger row of the last one, atomically and idempotently.

        Epochs ascend.  An epoch that the sink already holds is skipped.  Several epochs in one call are one
        transaction (commit grouping).

        Parameters
        ----------
        publications : sequence of Publication
            One or more.
        expected : Held
            What the sink last reported, by ``open`` or by publishing.  An exactly-once sink compares it with its own
            ledger under the lock that it publishes with (:func:`holdfast.connectors.kit.expected.unpublished`): after a
            failover to a
            standby that lagged, the connection is new and the sink is not what it was.

        Raises
        ------
        Fenced
            If a higher generation has opened the sink.  Nothing is changed.
        Diverged
            If the sink holds less than is expected, or staged rows of a part are gone (they were swept).  Nothing is
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


@optional(Sink)
class Inspectable(Protocol):
    """What a sink may offer beyond :class:`Sink`, to say more about itself than ``outcome`` does."""

    def inspect(self) -> tuple[Held, Sequence[str]]:
        """Return what is held, and :attr:`Task.name` of everything staged that the sink itself has not decided on.

        Asked of a sink that is connected and not opened: changes nothing, fences no run.  ``Held.generation`` is the
        highest that opened the sink.
        """


@optional(Sink)
class Transactional(Protocol):
    """What a sink may offer beyond :class:`Sink`: to show what is open in its system, and who waits for that.

    Asked of a sink that is connected, opened or not: changes nothing, fences no run.  Raises as ``outcome``.
    """

    def open_transactions(self) -> Sequence[OpenTransaction]:
        """Return those under its names, of whatever generation."""

    def waiting_readers(self) -> Sequence[WaitingReaders]:
        """Return the parts of its target of which readers do not see all, whoever holds them back."""


@optional(Sink)
class Expiring(Protocol):
    """What a sink may offer beyond :class:`Sink`: to say which staged rows it no longer has (design/0002, "Expiry").

    Every sink that keeps staged rows where somebody else can remove them; not one whose handles hold the rows.
    """

    def expired(self, parts: Sequence[Staged]) -> Sequence[str]:
        """Return :attr:`Task.name` of the parts whose rows are gone, or are not what was staged.

        Only about epochs that the sink does not hold: publishing takes the rows away.  Asked of a sink that is
        connected, opened or not: changes nothing, fences no run.  Raises as ``outcome``.
        """


@optional(Sink)
class Evolving(Protocol):
    """What a sink may offer beyond :class:`Sink`: to add the columns that its target lacks (design/0035).

    ``connect`` takes such a target, and every other question may be asked of it; rows are written only behind this.
    """

    def add_columns(self) -> Sequence[str]:
        """Add them in one transaction of this generation; return their names.  Again, it adds none.

        Called by each start behind recovery, when nothing of older generations is prepared in the target any more, and
        before :meth:`Sink.writer_factory`.

        Raises
        ------
        Fenced
            If a higher generation has opened the sink.  Nothing is changed.
        Unavailable
            If the target is in use, or the system does not answer.  It may be called again.
        InvalidPipeline
            If somebody has added one meanwhile, and it does not fit.
        """


@optional(Sink)
class Early(Protocol):
    """What a sink may offer beyond :class:`Sink`: to be given an epoch before it is decided (design/0025).

    Only one to which nothing is added by rows that it is given again: it knows them by their ids.
    """

    is_early: bool
    """Whether the user wants that."""

    def send(self, publication: Publication) -> None:
        """Write the rows of an epoch that may still be produced again; note nothing: ``publish`` of it follows, and
        notes it.  That need not write them again in this process, and does in any other.  Raises as ``publish``.
        """


@optional(Sink)
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


@optional(Sink)
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


@optional(Sink)
class Explaining(Protocol):
    """What a sink may offer beyond :class:`Sink`: to keep what its positions mean (design/0018).

    ``publish`` keeps the explanations that it lacks, with the epoch or before; ``Held.explained`` says which it has.
    """

    def explanations(self) -> Sequence[Explanation]:
        """Return all of them, for each source in order.  Asked of a sink opened or not: changes nothing."""


@optional(Sink)
class Volatile(Protocol):
    """What a sink may say beyond :class:`Sink`: that it ends with its process."""

    is_volatile: bool
    """Whether what the ledger calls done is not looked for in it."""


@optional(Sink)
class Idempotent(Protocol):
    """What a sink may say beyond :class:`Sink`: that it recognises rows that it was given before (design/0023)."""

    is_idempotent: bool
    """Whether rows may be sent early and again, also cut into other epochs: by their ids none is doubled."""


@optional(Sink)
class Bindable(Protocol):
    """What a sink may need beyond :class:`Sink`: what only the engine has.  Provided before it is opened."""

    def bind(self, to_dataframe: Callable[..., Any], work_directory: str) -> None:
        """Take what makes DataFrames, and a directory below the checkpoint that belongs to this sink alone."""


@optional(Sink)
class Comparable(Protocol):
    """What a sink may offer beyond :class:`Sink`: to be compared with what it should hold (design/0024)."""

    def content(self) -> AbstractContextManager[Content]:
        """Open a view of the rows: ledger and rows of one moment, however long it is read.

        Asked of a sink that is connected, opened or not: changes nothing, fences no run.
        """

    def repair(self, repair: Repair) -> int | None:
        """Remove and write rows in one transaction, under the lock that publishing takes; return how many.

        None, with nothing changed, if the ledger is no longer at the epoch and the positions of the view: whoever has
        published meanwhile may have changed what is to be repaired.  Raises as ``publish``.
        """


@optional(Sink)
class SharedTable(Protocol):
    """What a sink may offer that is :class:`Comparable`, where shards write one table: a row does not say whose it is.

    ``content`` refuses such a table, and ``repair`` leaves it alone.
    """

    def content_of_shards(self) -> AbstractContextManager[tuple[Content, Mapping[str, Held]]]:
        """Open a view of the rows of all shards, as ``content`` does, with what the ledger of each says at the same
        moment: by its name, of those that hold something, and of the own one where it is there.
        """

    def repair_of_shards(self, repair: Repair, held: Mapping[str, Held]) -> int | None:
        """Remove and write rows in one transaction, under the locks that publishing takes in all shards.

        None, with nothing changed, if one of the ledgers is no longer as the view had it.  Raises as ``publish``.
        """


class Content(Protocol):
    """The rows of a sink at one moment, and its ledger at the same moment."""

    held: Held
    """What the ledger says: the rows are those up to its positions."""

    schema: pa.Schema
    """The columns that are compared: those that the pipeline writes."""

    key: tuple[str, ...]
    """The columns of an upsert; empty where rows are only counted (append)."""

    losses: Losses
    """Distinctions between values that this sink does not keep: whom it is compared with must leave them out, too."""

    def row_count(self) -> int:
        """Return about how many rows there are, without looking at their values."""

    def digests(self, bits: int, losses: Losses = NO_LOSSES, by: Collection[str] = ()) -> Digests:
        """Return count and sum for each of ``2**bits`` buckets, computed where the rows are; or of fewer buckets, if
        no more are known.

        May be called on any thread, on one at a time.

        Parameters
        ----------
        bits : int
            At most :data:`~holdfast.types.canonical.BITS_MAX`.
        losses : frozenset of Loss
            Those of the other side; the sink's own count in any case.
        by : collection of str
            Columns by whose hash rows are divided into buckets; none of them: by all columns.
        """

    def rows(
        self, bits: int, buckets: Collection[int], losses: Losses = NO_LOSSES, by: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some buckets: the columns of ``schema``, :data:`PLACE_COLUMN` (binary): where the row is,
        so that of equal rows one can be removed, and :data:`HASH_COLUMN` (uint64): the row's hash.

        Rows are equal where their hashes are.  A value that somebody else has written and that is none of the column's
        type comes as null; the hash is that of no row of the pipeline.
        """


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


@optional(SinkSpec)
class LineageSpec(Protocol):
    """What a sink's declaration may offer beyond :class:`SinkSpec`: which of its rows came when (design/0022)."""

    def history(self, name: str, pipeline: str) -> Sequence[PublishedEpoch]:
        """Return the last epochs that it has published, oldest first; of a rewind, its own epoch with its positions.

        Creates and changes nothing, fences no run.  Raises as ``connect``.
        """

    def find(self, name: str, where: str | tuple[str, str], *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return rows of the target, whoever has written them: at most so many.

        Creates and changes nothing.

        Parameters
        ----------
        name : str
            The sink's, for errors.
        where : str or (str, str)
            A condition in the language of the system; or a column and the text of its value.
        limit : int
            How many rows.

        Raises
        ------
        InvalidPipeline
            If the system refuses the condition: its own words.
        """


@optional(SinkSpec)
class ExaminedSpec(Protocol):
    """What a sink's declaration may offer beyond :class:`SinkSpec`: to look at its target before anything runs."""

    def examine(self, name: str, pipeline: str, schema: pa.Schema) -> Sequence[str]:
        """Check that rows of a schema fit; return the columns that a start adds to a target that is there.

        Creates and changes nothing.  Raises what ``connect`` would.
        """


@optional(SinkSpec)
class RewindableSpec(Protocol):
    """What the declaration of a sink has whose sinks are :class:`Rewindable`."""

    def withdrawal(self) -> Withdrawal:
        """Return what its sink withdraws, as far as the declaration alone says: why it never can, or nothing.

        Connects to nothing.
        """


@optional(SinkSpec)
class LedgerSpec(Protocol):
    """What a sink's declaration may offer beyond :class:`SinkSpec`: to be asked where the rows' schema is unknown."""

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the sink's own ledger says; None where this pipeline has none there.

        Creates and changes nothing, fences no run.  Raises InvalidPipeline, Unavailable and Corrupt as ``connect``.
        """


@optional(SinkSpec)
class OverlappingSpec(Protocol):
    """What a sink's declaration may say beyond :class:`SinkSpec`: that a row may go where another sink's rows are."""

    def overlap(self, other: SinkSpec) -> str:
        """Return how rows of this sink and of another one could have one place; empty: they cannot."""


@optional(SinkSpec)
class ResettableSpec(Protocol):
    """What a sink's declaration may offer beyond :class:`SinkSpec`: to begin as if it had never been (design/0042)."""

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove what the sink keeps of a pipeline: ledger, explanations, what is staged.  Again, it removes the rest.

        A run that has the sink open can publish nothing more: it finds its ledger gone.

        Parameters
        ----------
        name, pipeline : str
            Whose it is.
        rows : bool
            Whether the rows of the target are removed too.
        is_dry_run : bool
            Say it, and change nothing.

        Raises
        ------
        InvalidPipeline
            If this user may not remove it.
        Unavailable
            If the system does not answer, or is in use.  It may be called again.
        """
