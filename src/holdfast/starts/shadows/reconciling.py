"""``holdfast reconcile``: a sink is asked what it holds, a shadow computes what it should, the difference is applied.

A comparison disturbs no run: it asks the sink for a view of one moment.  A repair takes the pipeline over like every
start: what is in doubt is resolved first, a run that is alive is fenced, and nobody publishes meanwhile.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.checkpoint.backfills import check_none_adds
from holdfast.checkpoint.directory_header import noted_beginning
from holdfast.checkpoint.explained import agreed
from holdfast.config import Settings
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.ports import Comparable, Content, Explanation, LedgerSpec, Repair, RunIdentity, Sink, SinkLedger
from holdfast.positions import Positions
from holdfast.quarantine.dead_letters import read_letters
from holdfast.reconcile.comparison import ContentComparison
from holdfast.reconcile.digests import Wanted
from holdfast.reconcile.report import Differences, Reconciled, differences, left_out
from holdfast.reconcile.stand_ins import (
    check_comparable,
    followed,
    in_place,
    known_by,
    stand_in_of_digests,
)
from holdfast.shards.naming import sources_place
from holdfast.starts.in_doubt import coordinator_alone
from holdfast.starts.shadows.shadow import Shadow
from holdfast.store.paths import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RowsExpected = Callable[[Wanted], AbstractContextManager[Content]]
"""Computes the expected rows of some buckets."""

EXAMPLES = 3
"""How many rows of each kind a report shows."""


def shadow_directory(checkpoint: Path, sink: str) -> Path:
    """Return where the expected content of a sink is computed, unless the user says where."""
    return checkpoint.with_name(f"{checkpoint.name}-shadow") / sink


def start_shadow(checkpoint: Path) -> Path:
    """Return where a start computes what its sinks should hold, and a start after a crash goes on."""
    return checkpoint.with_name(f"{checkpoint.name}-compared")


def replica_shadow(checkpoint: Path) -> Path:
    """Return where a replica with this checkpoint keeps its shadow."""
    return checkpoint / "shadow"


@dataclass(frozen=True)
class Reconciling:
    """A sink, and what it should hold.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    sink : SinkNode
        One of its sinks.
    checkpoint : Path
        The pipeline's own; it may be lost.
    shadow_directory : Path
        Where the expected content is computed.
    settings : Settings
        Of the shadow's run, and for retries.
    tell : callable
        Called with what is done now.
    examples : int
        How many rows of each kind a report shows.
    session : SparkSession, optional
        Use this session's context.
    rest : callable
        Called when there is nothing to compute for the next while: memory may be given back.
    together : sequence of SinkNode
        The sinks whose expected content is computed in one run; none: this one alone.
    digests_only : bool
        Whether the expected content is kept as digests: then rows of the buckets that differ are computed once more.
    """

    pipeline: Graph
    sink: SinkNode
    checkpoint: Path
    shadow_directory: Path
    settings: Settings
    tell: Callable[[str], None] = lambda text: None
    examples: int = EXAMPLES
    session: SparkSession | None = None
    rest: Callable[[], None] = lambda: None
    together: Sequence[SinkNode] = ()
    digests_only: bool = False
    _asked_s: float = field(default_factory=lambda: time.monotonic(), init=False, repr=False, compare=False)

    @property
    def duration_s(self) -> float:
        """How long it has taken so far: what the sink should hold is computed in that time, too."""
        return time.monotonic() - self._asked_s

    def look(self) -> Reconciled:
        """Compare; change nothing.

        Raises
        ------
        InvalidPipeline
            If the sink cannot be compared, holds nothing of this pipeline, or what it should hold cannot be computed.
        """
        with self._connected() as (sink, shadow):
            return self._compared(sink, shadow)[0]

    def look_at(self, sink: Sink, positions: Positions) -> Reconciled:
        """Compare a sink, as it is, with what it should hold at some positions before; change nothing.

        Parameters
        ----------
        sink : Sink
            Connected.
        positions : Positions
            Up to where.
        """
        return self._compared(sink, self.shadow_up_to(self.ledger().explanations, positions), positions)[0]

    def repair_at(self, sink: Sink, positions: Positions) -> Reconciled:
        """Make a sink what it should be at the positions that its ledger says, in a pipeline that is taken over.

        Parameters
        ----------
        sink, positions
            As for :meth:`look_at`.
        """
        found, repair = self._compared(sink, self.shadow_up_to(self.ledger().explanations, positions), positions)
        return self._repaired(sink, found, repair)

    def prepare(self) -> None:
        """Compute what the sink should hold now, and compare nothing: less is left to be done in a takeover."""
        ledger = self.ledger()
        self.shadow_up_to(ledger.explanations, ledger.held.positions)

    def mend(self, sink: Sink) -> Reconciled:
        """Compare a sink of a pipeline that is taken over, and repair it.

        Parameters
        ----------
        sink : Sink
            Opened.  Whoever has opened it since may have published: the expected content goes where its view is.
        """
        ledger = self.ledger()
        found, repair = self._compared(sink, self.shadow_up_to(ledger.explanations, ledger.held.positions))
        return self._repaired(sink, found, repair)

    def repair(self) -> Reconciled:
        """Compare, and give the sink what it lacks and take away what it has too many, in one transaction.

        Raises
        ------
        InvalidPipeline
            As :meth:`look`.
        Fenced
            If another run takes the pipeline over meanwhile.
        """
        with self._connected() as (asked, shadow):
            found, _ = self._compared(asked, shadow)  # outside of the takeover: the shadow is nearly there afterwards
            if found.is_equal:
                return replace(found, repaired_count=0)
        with self.taken_over(shadow) as sink:
            return self.mend(sink)

    def shadow_up_to(self, explanations: Iterable[Explanation], positions: Positions) -> Shadow:
        """Return the expected content, computed up to some positions.

        Parameters
        ----------
        explanations : iterable of Explanation
            What the positions mean.
        positions : Positions
            Up to where.

        Raises
        ------
        InvalidPipeline
            If it cannot be computed.
        """
        self.check_computable()
        shadow = self._chosen_shadow()
        shadow.check_nobody_runs()
        self.tell(f"computing what the sink should hold, in {shadow.directory}")
        self._go(shadow, explanations, positions)
        return shadow

    def _go(self, shadow: Shadow, explanations: Iterable[Explanation], positions: Positions) -> None:
        shadow.learn(agreed({self.sink.name: explanations}))
        if self.checkpoint.is_dir():
            shadow.leave_out(open_store(str(self.checkpoint)))
        of_all = sources_place(self.checkpoint, self.pipeline.name)
        if self.pipeline.shard_by is not None and of_all.is_dir():
            shadow.hold_as(open_store(str(of_all)))
        shadow.go_to(positions)

    def check_computable(self) -> None:
        """Refuse a sink of which nobody can compute what it should hold: by the graph, and how the pipeline began.

        Raises
        ------
        InvalidPipeline
            Naming the reason.
        """
        check_comparable(self.sink, self.pipeline.name)
        self.check_backfills()
        self._began_at()  # raises where that is no place in its sources

    def check_backfills(self) -> None:
        """Refuse a sink to which a backfill has added rows: the pipeline's own run does not give them.

        Raises
        ------
        InvalidPipeline
            Naming the backfill.
        """
        of_all = sources_place(self.checkpoint, self.pipeline.name)
        if of_all.is_dir():
            check_none_adds(open_store(str(of_all)), self.pipeline.name, [self.sink.name], "computed from its sources")

    @property
    def is_passed(self) -> bool:
        """Whether what was computed before is beyond the sink: for it everything would be computed anew."""
        return self._chosen_shadow().is_beyond(self.ledger().held.positions)

    def _chosen_shadow(self) -> Shadow:
        shadow = self._shadow(followed(self.pipeline))  # that of a replica has them all
        return shadow if shadow.is_what_was_kept else self._shadow(self.together or [self.sink])

    def _shadow(self, sinks: Sequence[SinkNode]) -> Shadow:
        return self._shadow_in(self.shadow_directory, sinks, in_place(digests_only=self.digests_only))

    def _shadow_in(
        self, directory: Path, sinks: Sequence[SinkNode], stand_in: Callable[[SinkNode, str], SinkNode]
    ) -> Shadow:
        return Shadow(
            self.pipeline,
            sinks,
            directory,
            self.settings,
            at_us=self._began_at(),
            session=self.session,
            stand_in=stand_in,
        )

    @property
    def expected_from(self) -> str:
        """What the expected content is computed from, for people."""
        kept = self._shadow(followed(self.pipeline)).is_what_was_kept
        return f"{'the shadow of a replica' if kept else 'the sources'}, in {self.shadow_directory}"

    def refused(self) -> list[pa.Table]:
        """Return the rows of decided epochs that the sink has refused: it need not hold them."""
        letters = read_letters(open_store(str(self.checkpoint))) if self.checkpoint.is_dir() else ()
        mine = [each for each in letters if each.is_rejected and each.source == self.sink.name]
        return [each.table for each in mine if not each.is_published]

    def forget(self) -> None:
        """Remove the expected content."""
        shutil.rmtree(self.shadow_directory, ignore_errors=True)
        with suppress(OSError):  # of other sinks there may be one, which is in use
            self.shadow_directory.parent.rmdir()

    # --- inside -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _connected(self) -> Iterator[tuple[Sink, Shadow]]:
        """Yield the sink, not opened, and its shadow where the sink was a moment ago."""
        check_comparable(self.sink, self.pipeline.name)
        ledger = self.ledger()
        shadow = self.shadow_up_to(ledger.explanations, ledger.held.positions)
        sink = self.sink.spec.connect(self.sink.name, self.pipeline.name, shadow.schema(self.sink.name))
        try:
            yield sink, shadow
        finally:
            sink.close()

    @contextmanager
    def taken_over(self, shadow: Shadow) -> Iterator[Sink]:
        """Yield the sink, of a pipeline that nobody else writes; by its checkpoint, or by the sink alone."""
        name = self.sink.name
        self.tell("taking the pipeline over")
        store = open_store(str(self.checkpoint))
        if store.get("identity.json") is not None:
            with coordinator_alone(self.pipeline, store, self.settings) as (coordinator, sinks):
                coordinator.open()
                yield sinks[name]
            return
        sink = self.sink.spec.connect(name, self.pipeline.name, shadow.schema(name))
        try:
            sink.open(RunIdentity(self.pipeline.name, self.ledger().held.generation + 1))
            yield sink
        finally:
            sink.close()

    def _repaired(self, sink: Sink, found: Reconciled, repair: Repair | None) -> Reconciled:
        if repair is None:
            return replace(found, repaired_count=0)
        return self.apply(found, lambda: cast("Comparable", sink).repair(repair))

    def apply(self, found: Reconciled, change: Callable[[], int | None]) -> Reconciled:
        """Apply a repair; return what was found, with what was changed.

        Raises
        ------
        Unavailable
            If the sink has changed since it was compared.
        """
        self.tell("repairing")
        count = change()
        if count is None:
            raise Unavailable(
                f"sink {self.sink.name!r} was not repaired: it has changed since it was compared.",
                why="another run has published, or another repair was faster.",
                do="do it again.",
                pipeline=self.pipeline.name,
                participant=self.sink.name,
            )
        return replace(found, repaired_count=count, duration_s=self.duration_s)

    def _compared(self, sink: Sink, shadow: Shadow, at: Positions | None = None) -> tuple[Reconciled, Repair | None]:
        assert offers(sink, Comparable)
        with sink.content() as actual:
            if at is None:
                self.follow(shadow, actual.held.positions)
            with shadow.content(self.sink.name) as expected:
                rows = partial(self.rows_expected, positions=actual.held.positions)
                return self.compare(expected, actual, rows, self.refused())

    def compare(
        self, expected: Content, actual: Content, rows: RowsExpected, refused: Sequence[pa.Table]
    ) -> tuple[Reconciled, Repair | None]:
        """Compare a view of the sink with what it should hold.

        Parameters
        ----------
        expected, actual : Content
            The two.
        rows : callable
            Where the expected side has digests alone: computes the rows of some buckets of it.
        refused : sequence of pyarrow.Table
            Rows that the sink has refused.
        """
        columns = self._known_by(actual)
        compared = ContentComparison(expected, actual, by=columns)
        self.rest()
        self.tell("asking both sides for digests")
        counts = compared.row_counts
        if not compared.is_equal:
            self.tell(f"comparing the rows of {len(compared.differing)} buckets")
        with ExitStack() as computing:
            if self.digests_only and not compared.is_equal:
                wanted = Wanted(compared.digests[0].bits, tuple(compared.differing.tolist()))
                compared.fetch_from(computing.enter_context(rows(wanted)))
            found = differences(compared, columns, refused, key=actual.key)
        report = self._report(compared, found, actual, counts)
        if report.is_equal:
            return report, None
        return report, Repair(actual.held, found.removed(actual.key), found.missing, compared.losses)

    @contextmanager
    def rows_expected(self, wanted: Wanted, positions: Positions) -> Iterator[Content]:
        """Compute the expected rows of some buckets, and let them be fetched in the block."""
        directory = self.shadow_directory / "rows"
        shadow = self._shadow_in(directory, [self.sink], partial(stand_in_of_digests, wanted=wanted))
        self.tell(f"computing the rows of these buckets, in {directory}")
        try:
            self._go(shadow, self.ledger().explanations, positions)
            with shadow.content(self.sink.name) as rows:
                yield rows
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def follow(self, shadow: Shadow, positions: Positions) -> None:
        """Let the shadow go where the view of the sink is: the pipeline may have published meanwhile."""
        shadow.learn(agreed({self.sink.name: self.ledger().explanations}))
        shadow.go_to(positions)

    def _report(
        self,
        compared: ContentComparison,
        found: Differences,
        actual: Content,
        counts: tuple[int, int],
    ) -> Reconciled:
        paired = len(found.same)
        return Reconciled(
            sink=self.sink.name,
            epoch=actual.held.epoch,
            positions=actual.held.positions,
            expected_count=counts[0],
            actual_count=counts[1],
            missing_count=found.missing.num_rows - paired,
            extra_count=found.extra.num_rows - paired,
            changed_count=paired,
            refused_count=found.refused_count,
            fetched_count=found.fetched_count,
            examples=tuple(found.examples(self.examples)),
            left_out=left_out(compared),
            expected_from=self.expected_from,
            duration_s=self.duration_s,
        )

    def _known_by(self, content: Content) -> Sequence[str]:
        """Return the columns by which a row is the same row with other values."""
        return [name for name in known_by(self.sink, content.key) if name in content.schema.names]

    def ledger(self) -> SinkLedger:
        """Return what the sink says it holds."""
        ledger = ledger_of(self.sink, self.pipeline.name)
        if ledger is None:
            raise InvalidPipeline(
                f"sink {self.sink.name!r} holds nothing of pipeline {self.pipeline.name!r}.",
                why="its ledger is not there, or says nothing: up to where it is to be compared nobody knows.",
                do="start the pipeline: it gives an empty sink everything; where the sink was lost, holdfast reconcile "
                "--rebuild fills it again.",
                pipeline=self.pipeline.name,
                participant=self.sink.name,
            )
        return ledger

    def _began_at(self) -> int | None:
        """Return the time at which the pipeline began; None for the beginning of its sources."""
        noted = noted_beginning(open_store(str(self.checkpoint))) if self.checkpoint.is_dir() else None
        if noted is None:
            return None
        given, header = noted
        if header.seed or header.from_us is None:
            raise self._not_recomputable(f"the pipeline began with {given}.")
        return header.from_us

    def _not_recomputable(self, why: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"what sink {self.sink.name!r} should hold cannot be computed from the sources of pipeline "
            f"{self.pipeline.name!r}.",
            why=why,
            do="compare a sink that this does not concern; nobody can repeat it from the sources alone.",
            pipeline=self.pipeline.name,
            participant=self.sink.name,
        )


def ledger_of(sink: SinkNode, pipeline: str) -> SinkLedger | None:
    """Return what a sink says it holds; None where that is nothing."""
    found = cast("LedgerSpec", sink.spec).ledger(sink.name, pipeline)
    return None if found is None or not found.held.epoch else found
