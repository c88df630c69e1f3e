"""Sinks for tests: a simulated one that passes the contract of the real ones, and a wrapper that makes any sink fail.

The *target* is what lives on when a process dies: visible rows, ledger rows, staged rows.  The *sink* is one process's
connection to it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.kit import refusals
from holdfast.connectors.kit.expected import rows_gone, unpublished
from holdfast.connectors.kit.explained import lacking
from holdfast.connectors.kit.refusals import TableRows
from holdfast.errors import BadRow, Diverged, Fenced
from holdfast.ports import (
    Carried,
    EpochRecord,
    Explanation,
    Guarantee,
    Held,
    Outcome,
    Part,
    Publication,
    Refused,
    RunIdentity,
    Sink,
    Staged,
    Task,
    WriterFactory,
)
from holdfast.testing.failures import Failure, Failures, NoFailures, failing
from holdfast.testing.simulation.process import Process

_TARGETS: weakref.WeakValueDictionary[int, SimulatedTarget] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


_Moment = tuple[list[pa.Table], dict[tuple[str, str], "SimulatedLedgerRow"], dict[str, pa.Table]]
"""What a target was: rows, ledger, staged rows."""


@dataclass
class SimulatedLedgerRow:
    """The sink's own word on one pipeline.

    ``in_progress`` are the handles it has begun to make visible, ``shown`` those that are, and ``before`` what the row
    said until then.
    """

    generation: int = 0
    epoch: int = 0
    record: EpochRecord | None = None
    in_progress: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    before: tuple[int, EpochRecord | None] | None = None
    explanations: dict[str, list[Explanation]] = field(default_factory=dict)

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        explained = {source: len(several) for source, several in self.explanations.items()}
        if self.record is None:
            return Held(generation=self.generation, explained=explained)
        return Held(
            self.epoch, self.generation, self.record.positions, self.record.pts, explained, (), self.record.recent_ends
        )


class SimulatedTarget:
    """A table that survives processes.  Pickles by reference, so that writers find it again within this process.

    Parameters
    ----------
    can_go_back : bool
        Keep what there was after each durable write, for :meth:`go_back`.
    """

    def __init__(self, *, can_go_back: bool = False) -> None:
        self._can_go_back = can_go_back
        self.tables: list[pa.Table] = []
        self.ledger: dict[tuple[str, str], SimulatedLedgerRow] = {}
        self.staged: dict[str, pa.Table] = {}
        self._past: list[_Moment] = []
        self.refuses: Callable[[Mapping[str, object]], bool] | None = None
        """Which rows it refuses, when they are tried and when they are published."""
        self._number = next(_NUMBERS)
        _TARGETS[self._number] = self

    def __reduce__(self) -> tuple[object, ...]:
        return (_target, (self._number,))

    def rows(self) -> list[tuple[object, ...]]:
        """Return what any reader sees, in the order in which it became visible."""
        return [tuple(row.values()) for table in self.tables for row in table.to_pylist()]

    def leftovers(self) -> list[str]:
        """Return a name for everything staged that is still there."""
        return sorted(self.staged)

    def forget_staged(self, keep: Callable[[str], bool] = lambda handle: False) -> list[str]:
        """Lose staged rows, as when somebody removes what he does not know; return what is gone."""
        gone = [handle for handle in self.staged if not keep(handle)]
        for handle in gone:
            del self.staged[handle]
        return gone

    def remember(self) -> None:
        """Keep what is there now, after a durable write of a sink: the target can go back to it."""
        if self._can_go_back:
            self._past.append((list(self.tables), deepcopy(self.ledger), dict(self.staged)))

    @property
    def moment_count(self) -> int:
        """How many moments it can go back to."""
        return len(self._past)

    def go_back(self, moment: int) -> None:
        """Be as it was after a durable write, the first is 0: a failover to a standby that lagged, a restored backup.

        Connections stay open, and are not notified.
        """
        tables, ledger, staged = self._past[moment]
        self.tables, self.ledger, self.staged = list(tables), deepcopy(ledger), dict(staged)
        del self._past[moment + 1 :]

    def go_back_to_epoch(self, sink: str, epoch: int) -> None:
        """Be as it was when a sink held an epoch, and nothing of the next one was there."""
        held = [
            moment
            for moment, (_, ledger, _) in enumerate(self._past)
            if any(row.epoch == epoch and name == sink for (_, name), row in ledger.items())
        ]
        self.go_back(held[-1])


def _target(number: int) -> SimulatedTarget:
    return _TARGETS[number]


@dataclass(frozen=True)
class _Factory:
    target: SimulatedTarget
    sink: str

    def __call__(self, task: Task) -> _Writer:
        return _Writer(self.target, f"{self.sink}|{task.name}", task.name)


class _Writer:
    def __init__(self, target: SimulatedTarget, handle: str, name: str) -> None:
        self._target = target
        self._handle = handle
        self._name = name
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def stage(self) -> Staged:
        table = pa.Table.from_batches(self._batches) if self._batches else pa.table({})
        self._target.staged[self._handle] = table
        return Staged(self._name, table.num_rows, {"handle": self._handle})

    def abort(self) -> None:
        self._batches.clear()


class SimulatedSink:
    """A sink with a ledger, a staging area, fencing and an atomic publish.

    Parameters
    ----------
    name : str
        The node's name.
    target : SimulatedTarget
        What it writes to.
    way : {"transaction", "prepared"}
        ``transaction``: publishing is one durable write.  ``prepared``: the ledger row names the staged parts first
        (the sink's own decision), then they become visible one by one; ``open`` or ``publish`` completes that.
    process : Process, optional
        Its durable writes are places to die.
    failures : Failures, optional
        How its calls fail.
    guarantee : Guarantee
        ``AT_LEAST_ONCE``: remembers nothing and answers ABSENT to everything, as a console does.
    """

    def __init__(
        self,
        name: str,
        target: SimulatedTarget | None = None,
        *,
        way: Literal["transaction", "prepared"] = "transaction",
        process: Process | None = None,
        failures: Failures | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ) -> None:
        self.name = name
        self.guarantee = guarantee
        self.target = target or SimulatedTarget()
        self._way = way
        self._process = process or Process()
        self._failures: Failures = failures or NoFailures()
        self._run = RunIdentity("", 0)

    @property
    def staging(self) -> str:
        """How large epochs are staged here."""
        return f"simulated {self._way}"

    @property
    def _row(self) -> SimulatedLedgerRow:
        return self.target.ledger.setdefault((self._run.pipeline, self.name), SimulatedLedgerRow())

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations, complete what was begun, and return what is held."""
        self._process.check()
        return failing(self._failures(self.name, "open"), self.name, "open", lambda: self._open(run))

    def _open(self, run: RunIdentity) -> Held:
        self._run = run
        before = self._row.generation

        def fence() -> None:  # looks and writes in one step, as a system does
            nonlocal before
            before = self._row.generation
            if before >= run.generation:
                raise self._fenced(before, run.generation)
            self._row.generation = run.generation

        if before >= run.generation:
            raise self._fenced(before, run.generation)
        self._write("fence", fence)
        self._complete()
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return Held(generation=before)
        return replace(self._row.held(), generation=before)

    def writer_factory(self) -> WriterFactory:
        """Return the factory that executors call."""
        return _Factory(self.target, self.name)

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """Say whether the target takes the rows."""
        self._process.check()
        failure = self._failures(self.name, "admit")
        return failing(failure, self.name, "admit", lambda: self._admit(publication))

    def _admit(self, publication: Publication) -> bool:
        if self.target.refuses is None:
            return False
        self._check_rows([self._rows_of(part) for part in publication.parts])
        return True

    def reject(
        self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()
    ) -> tuple[Publication, list[Refused]]:
        """Find the rows that the target refuses."""
        self._process.check()

        def rows_of(part: Part) -> TableRows:
            rows = self._rows_of(part)
            return TableRows(part, rows, partial(self._refusal, rows))

        return refusals.rejected(publication, rows_of)

    def _refusal(self, rows: pa.Table, low: int, high: int) -> BadRow | None:
        try:
            self._check_rows([rows.slice(low, high - low)])
        except BadRow as error:
            return error
        return None

    def _check_rows(self, tables: Sequence[pa.Table]) -> None:
        refuses = self.target.refuses
        for row in (row for table in tables for row in table.to_pylist()) if refuses is not None else ():
            if refuses is not None and refuses(row):
                raise BadRow(f"sink {self.name!r} refuses row {row}.", participant=self.name)

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Make the epochs visible, atomically and idempotently."""
        self._process.check()
        failure = self._failures(self.name, "publish")
        failing(failure, self.name, "publish", lambda: self._publish(publications, expected))

    def _publish(self, publications: Sequence[Publication], expected: Held) -> None:
        self._check_generation()
        self._complete()
        new = list(publications)
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            new = unpublished(f"sink {self.name!r}", self._run.pipeline, publications, self._row.held(), expected)
        if not new:
            return
        parts = [part for each in new for part in each.parts]
        tables = [self._rows_of(part) for part in parts]
        self._check_rows(tables)
        handles = [part.reference["handle"] for part in parts if isinstance(part, Staged)]
        last = new[-1].record
        if self._way == "prepared" and len(handles) == len(parts):

            def begin() -> None:
                self._check_generation()
                self._row.before = (self._row.epoch, self._row.record)
                self._move_row(last, new)
                self._row.in_progress = handles
                self.target.staged.update(zip(handles, tables, strict=True))  # without what is left out

            self._write(f"begin {last.epoch}", begin)
            faults.reach("publish-begun", last.epoch)
            self._complete()
            if self._row.epoch < last.epoch:
                raise rows_gone(f"sink {self.name!r}", handles[0], "its target lost them.", participant=self.name)
            return
        faults.reach("publish-uncommitted", last.epoch)

        def commit() -> None:
            self._check_generation()  # the transaction holds the ledger row's lock
            self.target.tables.extend(tables)
            for handle in handles:
                self._unstage(handle)  # it was read before: whoever removes it now changes nothing
            self._move_row(last, new)

        self._write(f"commit {last.epoch}", commit)

    def _rows_of(self, part: Part) -> pa.Table:
        if isinstance(part, Carried):
            return part.rows
        table = self.target.staged.get(part.reference["handle"])
        if table is None:
            raise rows_gone(f"sink {self.name!r}", part.name, "its target lost them.", participant=self.name)
        return refusals.without(table, refusals.left_out(part))

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Say which staged rows the target no longer has."""
        self._process.check()
        return [part.name for part in parts if part.reference["handle"] not in self.target.staged]

    def _complete(self) -> None:
        """Make visible what the ledger row says is in progress; each part is there or already visible.

        Or it is gone: then nothing more of the decision becomes visible, and if nothing is, the row is taken back.
        """
        row = self._row
        gone = [handle for handle in row.in_progress if handle not in self.target.staged and handle not in row.shown]
        if gone and (row.shown or row.before is None):
            raise Diverged(
                f"sink {self.name!r} has published epoch {row.epoch} in part.",
                why=f"{', '.join(gone)} are gone.",
                do="load their rows again.",
                participant=self.name,
                epoch=row.epoch,
            )
        if gone:
            self._write("take back", partial(self._take_back, list(row.in_progress)))
            return
        for handle in [handle for handle in row.in_progress if handle not in row.shown]:
            self._write(f"show {handle}", partial(self._show, handle))
            if handle not in row.shown:  # it was lost since we looked
                self._complete()
                return
        if self._row.in_progress:
            self._write("finish", self._finish)

    def _finish(self) -> None:
        self._row.in_progress, self._row.shown, self._row.before = [], [], None

    def _take_back(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self._unstage(handle)
        before = self._row.before
        assert before is not None
        self._row.epoch, self._row.record = before
        self._row.in_progress, self._row.before = [], None

    def _unstage(self, handle: str) -> None:
        self.target.staged.pop(handle, None)

    def _show(self, handle: str) -> None:
        table = self.target.staged.pop(handle, None)
        if table is not None:
            self.target.tables.append(table)
            self._row.shown.append(handle)

    def _move_row(self, record: EpochRecord, new: Sequence[Publication]) -> None:
        self._row.epoch, self._row.record = record.epoch, record
        held = self._row.held().explained or {}
        for each in lacking(new, held, f"sink {self.name!r}"):
            self._row.explanations.setdefault(each.source, []).append(each)

    def explanations(self) -> list[Explanation]:
        """Return what is kept of the meaning of its positions."""
        rows = [row for (_, sink), row in self.target.ledger.items() if sink == self.name]
        return [each for row in rows for several in row.explanations.values() for each in several]

    def outcome(self, epoch: int) -> Outcome:
        """Say whether the epoch is held."""
        self._process.check()
        failure = self._failures(self.name, "outcome")
        if failure is Failure.UNKNOWN:
            return Outcome.UNKNOWN
        return failing(failure, self.name, "outcome", lambda: self._outcome(epoch))

    def _outcome(self, epoch: int) -> Outcome:
        if epoch > self._row.epoch or self.guarantee is Guarantee.AT_LEAST_ONCE:
            return Outcome.ABSENT
        return Outcome.STAGED if epoch == self._row.epoch and self._row.in_progress else Outcome.PUBLISHED

    def sweep(self, *, below_epoch: int) -> int:
        """Drop orphans of lower generations, and of this one's earlier epochs."""
        self._process.check()
        orphans = [handle for handle in self.target.staged if self._is_orphan(handle, below_epoch)]
        return failing(self._failures(self.name, "sweep"), self.name, "sweep", lambda: self._swept(orphans))

    def _is_orphan(self, handle: str, below_epoch: int) -> bool:
        sink, _, name = handle.partition("|")
        pipeline, generation, epoch, _, _ = name.rsplit("/", 4)
        if (sink, pipeline) != (self.name, self._run.pipeline) or handle in self._row.in_progress:
            return False
        ours = self._run.generation
        return int(generation) < ours or (int(generation) == ours and int(epoch) < below_epoch)

    def _swept(self, handles: Sequence[str]) -> int:
        for handle in handles:
            self._write(f"sweep {handle}", partial(self._unstage, handle))
        return len(handles)

    def close(self) -> None:
        """Nothing is held open."""

    def _check_generation(self) -> None:
        if self._row.generation > self._run.generation:
            raise self._fenced(self._row.generation, self._run.generation)

    def _fenced(self, higher: int, ours: int) -> Fenced:
        return Fenced(
            f"generation {higher} has opened sink {self.name!r}; generation {ours} is stale.",
            participant=self.name,
            generation=higher,
        )

    def _write(self, label: str, apply: Callable[[], object]) -> None:
        def remembered() -> None:
            apply()
            self.target.remember()

        self._process.write(f"sink {self.name} {label}", remembered)
