"""A sink whose own log says what it holds: what an entry says counts once it is appended, and is carried out then.

Invariants: numbers, generations and epochs of a log only grow; of several runs one appends a number, so a run that was
replaced learns it from the append that would have committed; an entry is followed by another only when it is carried
out; nothing is reported as failed after the append; what the last entry names is not swept.

A kind of sink says what its entries hold, how rows are prepared for one, and how one is carried out.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit import refusals
from holdfast.connectors.kit.expected import unpublished
from holdfast.connectors.kit.explained import lacking
from holdfast.connectors.kit.kept_explanations import KeptExplanations
from holdfast.connectors.kit.rewinds import cannot_go_back
from holdfast.errors import Diverged, Fenced, InDoubt, InvalidPipeline, Unavailable, invariant
from holdfast.ports import (
    EpochRecord,
    Explanation,
    Guarantee,
    Held,
    Outcome,
    Publication,
    Refused,
    RunIdentity,
    Sink,
    Staged,
    Task,
    Withdrawal,
    WriterFactory,
)
from holdfast.positions import Positions
from holdfast.store.entry_log import KEPT


class SinkEntry(Protocol):
    """What every entry says."""

    @property
    def number(self) -> int:
        """Place in the log, from 1."""

    @property
    def generation(self) -> int:
        """Generation that appended it."""

    @property
    def epoch(self) -> int:
        """Highest epoch held."""

    @property
    def explanations(self) -> Sequence[Explanation]:
        """What positions mean, as far as it comes with this entry."""

    def held(self) -> Held:
        """Return it as the coordinator sees it."""


class AttemptName(Protocol):
    """What a name of something staged says."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def generation(self) -> int:
        """Generation that staged it."""

    @property
    def epoch(self) -> int:
        """Its epoch."""


E = TypeVar("E", bound=SinkEntry)
P = TypeVar("P")
"""What is prepared of the rows of some epochs for the entry that commits them."""


class LogSink(ABC, Generic[E, P]):
    """The sink of a run; see :class:`holdfast.ports.Sink`.

    Parameters
    ----------
    name, pipeline : str
        Identity.

    Notes
    -----
    A lock orders appends: those of epochs, and those of the thread that joins or seals files.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    log_name = "log"
    """What the log is called, in errors."""
    holder = "directory holds"
    """What holds the epochs, in errors."""

    _explanations: KeptExplanations
    _log: logging.Logger

    def __init__(self, name: str, pipeline: str) -> None:
        self.name = name
        self._pipeline = pipeline
        self._generation = 0
        self._lock = RLock()

    # --- what a kind of sink says -------------------------------------------------------------------

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the log lies, in errors."""

    @abstractmethod
    def _last(self) -> E:
        """Return the last entry, whoever appended it; one with the number 0 where the log is empty."""

    @abstractmethod
    def _fence(self, last: E, run: RunIdentity) -> E:
        """Return the entry that takes the log over: it says what the last one says, and names nothing to carry out."""

    @abstractmethod
    def _try(self, entry: E) -> bool:
        """Append an entry durably; return False when another run was faster."""

    @abstractmethod
    def _finish(self, entry: E, *, is_new: bool = False) -> None:
        """Carry an entry out.  Idempotent: who opens the sink next does what a crash has left.

        Parameters
        ----------
        entry : SinkEntry
            The last one.
        is_new : bool
            Whether it was appended, durably, by this call's caller.
        """

    @abstractmethod
    def _prepare(self, new: Sequence[Publication], last: E, carried: list[Staged]) -> P:
        """Make durable what an entry will name; carried rows that are staged for it are listed, to be dropped."""

    @abstractmethod
    def _entry(self, new: Sequence[Publication], last: E, prepared: P, told: Sequence[Explanation]) -> E:
        """Return the entry that commits some epochs."""

    @abstractmethod
    def _staged(self) -> Iterable[AttemptName]:
        """Return what is staged, of whatever run."""

    @abstractmethod
    def _remove(self, names: Iterable[AttemptName]) -> int:
        """Remove what is staged; return of how many attempts of tasks."""

    @abstractmethod
    def _check(self, rows: pa.Table) -> None:
        """Raise :class:`~holdfast.errors.BadRow` where carried rows could not be kept."""

    def _drop(self, carried: Sequence[Staged]) -> None:
        """Remove rows that were staged here for an entry that was not appended."""

    def _took_over(self, fence: E, last: E) -> Held:
        """Do what is to be done once the log is this run's; return what is held."""
        return last.held()

    def _committed(self, entry: E, prepared: P) -> None:
        """Note an entry that was appended, before it is carried out."""

    def _tidy(self, publications: Sequence[Publication], entry: E | None) -> None:
        """Remove what is not needed any more: the entry that was appended, None where all epochs were held."""

    def _peek(self) -> E:
        """Return the last entry for a question, beside whatever else goes on."""
        return self._last()

    def _may_follow(self, entry: E, last: E) -> bool:
        """Tell whether an entry holds no less than the one before it."""
        return entry.epoch >= last.epoch

    def _check_successor(self, entry: E, last: E) -> None:
        """Assert what else holds between an entry and the one before it."""

    def _is_in_place(self, error: Exception) -> bool:
        """Tell whether an entry may be in the log although its append has failed."""
        return isinstance(error, InDoubt)

    def _explanation_counts(self, last: E) -> Mapping[str, int]:
        """Return source -> how many explanations of its positions the log has."""
        return last.held().explained or {}

    def _is_staged(self, last: E, epoch: int) -> bool:
        """Tell whether an epoch of the last entry is committed, and not carried out."""
        return False

    def _named(self, last: E) -> Collection[str]:
        """Return the names of what is staged and must stay."""
        return frozenset()

    # --- what all of them do ------------------------------------------------------------------------

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations, carry out the last entry, return what is held."""
        with self._lock:
            while True:
                last = self._last()
                if last.generation >= run.generation:  # another run took it between our claim and here
                    raise self._fenced(run.generation, last)
                # Before the fence, which names nothing: the last entry says everything, so its epoch must be whole.
                # A lower generation may carry it out at the same time; each part of it is done once.
                self._finish(last)
                fence = self._fence(last, run)
                if self._append(fence, last):  # else another process has appended since: what it published counts
                    break
            self._generation = run.generation
            held = self._took_over(fence, last)
            if not (held.epoch or held.explained or held.stops):
                self._explanations.forget()
            return replace(held, explained=self._explanation_counts(last))

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Check the carried rows; whatever staged rows cannot be, their tasks have said."""
        refusals.check_carried(publication, self._check)
        return False

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the carried rows that could not be kept."""
        return refusals.rejected_carried(publication, self._check)

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Make the epochs visible: one log entry for all of them, which is then carried out."""
        with self._lock:
            last = self._last()
            self._check_generation(last)
            new = unpublished(self._node, self._pipeline, publications, last.held(), expected)
            self._finish(last)
            # Without new ones: the entry was appended, an error followed, and the run publishes again.
            entry = self._publish(new, last) if new else None
            self._tidy(publications, entry)

    def _publish(self, new: Sequence[Publication], last: E) -> E:
        carried: list[Staged] = []
        try:
            prepared = self._prepare(new, last, carried)
            for publication in new:
                faults.reach("publish-uncommitted", publication.record.epoch, publication.record.pipeline)
            told = lacking(new, self._explanation_counts(last), self._node)
            entry = self._entry(new, last, prepared, told)
        except Exception:
            self._drop(carried)
            raise
        try:
            is_ours = self._append(entry, last)  # the commit: a crash right after it leaves the rest to the next open
        except Exception as error:
            if not self._is_in_place(error):  # else what it names must stay
                self._drop(carried)
            raise
        if not is_ours:  # another run opened the sink between our reading of the log and the append
            self._drop(carried)
            self.fenced_out()
        self._committed(entry, prepared)
        for publication in new:
            faults.reach("publish-begun", publication.record.epoch, publication.record.pipeline)
        self._finish(entry, is_new=True)
        return entry

    def outcome(self, epoch: int) -> Outcome:
        """Ask the log, and where that does not tell, whether its last entry is carried out."""
        try:
            last = self._peek()
            if epoch > last.epoch:
                return Outcome.ABSENT
            if self._is_staged(last, epoch):
                return Outcome.STAGED
        except (Unavailable, InvalidPipeline, InDoubt, OSError) as error:
            self._log.warning("sink %s did not answer for epoch %d: %s", self.name, epoch, error)
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        last = self._last()
        return self._explanations.all(self._explanation_counts(last), last.explanations)

    def sweep(self, *, below_epoch: int) -> int:
        """Drop orphans by name."""
        with self._lock:
            last = self._last()
            if last.generation != self._generation:  # fenced: what is staged may be the newer run's
                return 0
            named = self._named(last)
            return self._remove(
                each
                for each in self._staged()
                if (each.generation, each.epoch) < (self._generation, below_epoch) and each.name not in named
            )

    def close(self) -> None:
        """Nothing is held open."""

    # --- for what appends beside epochs -------------------------------------------------------------

    @property
    def lock(self) -> RLock:
        """Orders appends."""
        return self._lock

    def follow(self) -> E:
        """Return the last entry, which is this run's, carried out; under :attr:`lock`."""
        last = self._last()
        self._check_generation(last)
        self._finish(last)
        return last

    def fenced_out(self) -> None:
        """Raise why an append found its number taken."""
        self._check_generation(self._last())
        raise Unavailable(f"Sink {self.name!r} lost its place in its {self.log_name} to itself.", do="start again.")

    # --- parts of a publication ---------------------------------------------------------------------

    @property
    def _node(self) -> str:
        return f"sink {self.name!r}"

    def _handles(self, publication: Publication, factory: WriterFactory, carried: list[Staged]) -> list[Staged]:
        """Return the parts of an epoch as handles; carried rows are staged for it, and listed."""
        handles: list[Staged] = []
        for index, part in enumerate(publication.parts):
            if isinstance(part, Staged):
                handles.append(part)
                continue
            writer = factory(Task(self._pipeline, self._generation, publication.record.epoch, index, 0))
            try:
                for batch in part.rows.to_batches():
                    writer.write(batch)
                handle = writer.stage()
            except BaseException:
                writer.abort()
                raise
            carried.append(handle)
            handles.append(handle)
        return handles

    def _append(self, entry: E, last: E) -> bool:
        """Append an entry after the last one."""
        invariant(
            entry.number == last.number + 1 and entry.generation >= last.generation and self._may_follow(entry, last),
            f"entry {entry.number} of the {self.log_name} of {self._node}, of generation {entry.generation} and epoch "
            f"{entry.epoch}, is to follow entry {last.number}, of {last.generation} and {last.epoch}.",
            why="numbers, generations and epochs of a log only grow.",
            pipeline=self._pipeline,
            participant=self.name,
            epoch=entry.epoch,
            generation=entry.generation,
        )
        self._check_successor(entry, last)
        return self._try(entry)

    def _check_generation(self, last: E) -> None:
        """Stop a run that does not own the log any more.

        Raises
        ------
        Fenced
            If a higher generation has opened the sink.
        Diverged
            If the entries of this run are gone.
        """
        ours = self._generation
        if last.generation > ours:
            raise self._fenced(ours, last)
        if last.generation < ours:
            raise Diverged(
                f"The {self.log_name} of sink {self.name!r} does not hold generation {ours}, which wrote to it.",
                why=f"somebody removed or replaced {self.place}.",
                do=f"restore it from a copy; without it, which epochs the {self.holder} is unknown.",
                pipeline=self._pipeline,
                participant=self.name,
                generation=ours,
            )

    def _fenced(self, generation: int, last: E) -> Fenced:
        return Fenced(
            f"Generation {generation} of pipeline {self._pipeline!r} may not write to sink {self.name!r}.",
            why=f"generation {last.generation} has opened it.",
            do="stop this run: another one has taken over.",
            pipeline=self._pipeline,
            participant=self.name,
            epoch=last.epoch,
            generation=last.generation,
        )


B = TypeVar("B")
"""What follows some positions in a log."""


class RewindableLogSink(LogSink[E, P], Generic[E, P, B]):
    """A sink whose log can be taken back to what one of its entries says; see :class:`holdfast.ports.Rewindable`."""

    kept = KEPT
    """How many entries its log keeps."""

    @abstractmethod
    def _standing(self, last: E) -> Sequence[E]:
        """Return the entries that are kept and that no rewind has taken back, oldest first."""

    @abstractmethod
    def _behind(self, entries: Sequence[E], to: Positions) -> B | None:
        """Return what was published after some positions; None where no entry ended there."""

    @abstractmethod
    def _withdrawal(self, back: B) -> Withdrawal:
        """Say what going back would withdraw, or what of it is not found."""

    def _reachable(self, entries: Sequence[E]) -> Sequence[E]:
        """Return the entries that a rewind can go back to."""
        return entries

    def withdrawal(self, to: Positions) -> Withdrawal:
        """Say what going back to some positions would withdraw: what the log names after them."""
        entries = self._standing(self._last())
        back = self._behind(entries, to)
        if back is not None:
            return self._withdrawal(back)
        ends = sorted({entry.epoch for entry in self._reachable(entries) if entry.epoch})
        if not ends:
            return Withdrawal(obstacle="it holds nothing")
        return Withdrawal(
            obstacle=f"none of its log entries ended there; it keeps the last {self.kept}, which can go back to epochs "
            f"{ends[0]} to {ends[-1]}"
        )

    def _back(self, record: EpochRecord, last: E) -> B | None:
        """Return what an epoch that is a rewind withdraws; None where it is none."""
        if record.rewound_to is None:
            return None
        entries = self._standing(last)
        back = self._behind(entries, record.positions)
        if back is None:
            raise cannot_go_back(self._node, record, sorted({entry.epoch for entry in entries}))
        return back
