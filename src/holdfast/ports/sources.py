"""What a source does, and what it or its declaration may do besides."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from holdfast.capabilities import optional
from holdfast.limits import ReadLimit
from holdfast.ports.sinks import SinkSpec
from holdfast.positions import SegmentSet, SourcePositions
from holdfast.values import Explanation, Guarantee, SegmentLag, SourceDrift, Span


class Source(Protocol):
    """Where rows come from.  Lives in the process that plans epochs, on the driver's machine; executors ``read``.

    Everything it needs after a crash is durable before it returns a position: the same ``(start, end)`` yields the
    same rows, always.
    """

    def initial(self) -> SourcePositions:
        """Positions before the first row."""

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """End positions of the next epoch from ``start``: what is there now, limited by ``max_rows_per_epoch`` and
        ``max_files_per_epoch``; equal to ``start`` when nothing is.  With ``bounded`` only what was there when
        :meth:`freeze` was called.  With ``limit`` no more than that either, but always the smallest part that an epoch
        can take.  Durable when it returns.
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


@optional(Source)
class Exhaustible(Protocol):
    """What a source may offer beyond :class:`Source`, if its declaration is :class:`Bounded`: to know its end."""

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return whether nothing follows these positions."""


@optional(Source)
class Backlogged(Protocol):
    """What a source may offer beyond :class:`Source`, where positions do not show it: whether it is behind."""

    def has_more(self, positions: SourcePositions) -> bool:
        """Return whether there is something after these positions that an epoch could have taken."""


@optional(SourceSpec)
class Bounded(Protocol):
    """What a source's declaration may say beyond :class:`SourceSpec`; without it a source never ends."""

    bounded: bool
    """Whether it ends."""


@optional(SourceSpec)
class Guaranteeing(Protocol):
    """What a source's declaration may say beyond :class:`SourceSpec`; without it a source is exactly-once."""

    guarantee: Guarantee
    """What it promises for each row."""


@optional(SourceSpec)
class SeekableSpec(Protocol):
    """What a source's declaration may offer beyond :class:`SourceSpec`: to begin at a time."""

    def from_time(self, at_us: int) -> SourceSpec:
        """Return the declaration of the same source that begins at its random access point at or before a time:
        microseconds of Unix time, or ticks.  Rows before it may come; none at or after it may be missing.
        """


@optional(SourceSpec)
class NarrowedSpec(Protocol):
    """What a source's declaration may offer beyond :class:`SourceSpec`: to read fewer columns."""

    def narrowed(self, columns: Collection[str]) -> SourceSpec:
        """Return the declaration of the same source whose rows are asked only for these columns.

        Its schema is the same; the other columns may hold nulls where they may be null.  Positions, and which rows
        there are, do not depend on it.
        """


@optional(SourceSpec)
class ExplainedSpec(Protocol):
    """What a source's declaration offers beyond :class:`SourceSpec` where its positions mean nothing by themselves."""

    def explanations(self, name: str, workspace: str, after: int) -> Sequence[Explanation]:
        """Return what is durable of their meaning, above a number, in order.  Creates and changes nothing."""

    def restore(self, name: str, workspace: str, explanations: Sequence[Explanation]) -> None:
        """Make these durable where they are not; raise Diverged where a number says something else."""


@optional(SourceSpec)
class RecordedStartSpec(Protocol):
    """What a declaration may offer beyond :class:`SourceSpec`, if reading need not begin with the first row there is:
    to know where it began.
    """

    def recorded_start(self, name: str, workspace: str) -> SourcePositions | None:
        """Return where it began, as recorded; empty for the very first row, None where nobody knows.

        Asked where everything is to be read again: what is there now may begin elsewhere.  Creates and changes nothing.
        """


@optional(SourceSpec)
class MeasuredSpec(Protocol):
    """What a source's declaration may offer beyond :class:`SourceSpec`: to tell how far positions are behind."""

    def lags(self, name: str, positions: SourcePositions) -> Sequence[SegmentLag]:
        """Return how far each segment is, also those without a position.  Asks the system; changes nothing."""


@optional(SourceSpec)
class SampledSpec(Protocol):
    """What a source's declaration may offer beyond :class:`SourceSpec`: to look at its newest rows before a start."""

    def drift(self, name: str) -> SourceDrift | None:
        """Return what a sample of them has otherwise than its schema; None where there is nothing to compare.

        Bounded in rows and in time.  Asks the system; creates and changes nothing.

        Raises
        ------
        HoldfastError
            If there is no sample.
        """


class Follower(Protocol):
    """Who is told how far the sinks of a run are, of one source."""

    def tell(self, held: SourcePositions) -> None:
        """Take the positions before which every sink holds all rows; after a rewind they are lower than before.

        Returns at once: whoever publishes calls it.  May leave out all but the newest.  Must not raise.
        """

    def close(self) -> None:
        """Pass the newest on, in bounded time.  Must not raise."""


@optional(SourceSpec)
class FollowedSpec(Protocol):
    """What a source's declaration may offer beyond :class:`SourceSpec`: to let others watch how far sinks are."""

    def follower(self, name: str) -> Follower | None:
        """Return who is told during a run; None where nobody wants to know."""


@optional(SourceSpec)
class PartitionedSpec(Protocol):
    """What a declaration says whose source reads partitions side by side: there is no order between their rows."""

    @property
    def partitions(self) -> str:
        """What users call them, in the plural; empty where there are none."""


@optional(SourceSpec)
class Divisible(Protocol):
    """What a source's declaration may offer beyond :class:`SourceSpec`: to be read in parts, each of some segments.

    The parts of a source share its name and its workspace, in which everything is put only where it is absent: what one
    of them records holds for all.  So a position means the same to each part and to the whole, and the positions of a
    part are those of the whole for its segments.  A segment without a position is read from where the source begins in
    it.
    """

    parts: int
    """How many segments it is divided into by hash; 0 where its segments are those of its system, and may come."""

    def in_parts(self, parts: int) -> SourceSpec:
        """Return the declaration of the same source with a position for each segment that can be read alone.

        Parameters
        ----------
        parts : int
            How many, where they are by hash; else of no effect.  May not change once rows were read.
        """

    def segments(self, name: str, workspace: str) -> Collection[str]:
        """Return the segments that there are now.  Asks the system; creates and changes nothing.

        Raises
        ------
        Unavailable
            If it does not answer.
        """

    def of_segments(self, segments: SegmentSet) -> SourceSpec:
        """Return the declaration of the part that reads these.  Arguments and fingerprint are those of the whole."""

    def group_of(self, segment: str) -> str:
        """Return what a segment shares with those of other sources that have rows of the same keys."""


@optional(SourceSpec, SinkSpec)
class PreparedSpec(Protocol):
    """What the declaration of a source or a sink may do besides: begin what takes time on this machine."""

    def prepare(self) -> None:
        """Begin it and return at once; called on the driver while the JVM comes up, if at all.

        What is wrong is said by what needs it: errors raised here are not.
        """


@optional(SourceSpec, SinkSpec)
class Confidential(Protocol):
    """What the declaration of a source or a sink may say besides: that executors are sent a secret."""

    sends_secret: bool
    """Whether one travels to them, in a task or in Spark's plan."""
