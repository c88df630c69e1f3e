"""All interfaces of Holdfast: what a source, a sink, a writer, a stateful operator, a store and a clock do.

The coordinator knows sinks only by :class:`Sink`; fakes and real systems pass the same contract tests.
Specs (:class:`SourceSpec`, :class:`SinkSpec`, :class:`StatefulSpec`) are frozen, picklable values declared in the
graph; they open nothing until a run starts.  The values that cross them are those of :mod:`holdfast.values`,
and are imported from here; those of a step are with it in :mod:`holdfast.state.step`.

What one of them *may* do is a protocol of its own, declared ``@optional(Sink)``, and is asked in one way:
``offers(sink, Rewindable)`` (:mod:`holdfast.capabilities`).
"""

from __future__ import annotations

from holdfast.ports.environment import Clock, Store
from holdfast.ports.lease import Lease, LeasedSpec, LeasePlace, SeenLease
from holdfast.ports.operators import ClockDriven, SelectiveSpec, StatefulSpec
from holdfast.ports.sinks import (
    Bindable,
    Comparable,
    Content,
    Early,
    Evolving,
    ExaminedSpec,
    Expiring,
    Explaining,
    Idempotent,
    Inspectable,
    LedgerSpec,
    LineageSpec,
    OverlappingSpec,
    Rejecting,
    ResettableSpec,
    Rewindable,
    RewindableSpec,
    SharedTable,
    Sink,
    SinkSpec,
    Transactional,
    Volatile,
    Writer,
    WriterFactory,
)
from holdfast.ports.sources import (
    Backlogged,
    Bounded,
    Confidential,
    Divisible,
    Exhaustible,
    ExplainedSpec,
    FollowedSpec,
    Follower,
    Guaranteeing,
    MeasuredSpec,
    NarrowedSpec,
    PartitionedSpec,
    PreparedSpec,
    RecordedStartSpec,
    SampledSpec,
    SeekableSpec,
    Source,
    SourceSpec,
)

# isort: off
from holdfast.values import (
    HASH_COLUMN, NO_LOSSES, PLACE_COLUMN, REJECT_COLUMN, REJECT_SCHEMA, REJECT_TYPE, RESCUE_COLUMN, Carried,
    EpochRecord, Explanation, Guarantee, Held, Loss, Losses, OpenTransaction, Outcome, Part, Publication,
    PublishedEpoch, Refused, Repair, Reset, RunIdentity, SegmentLag, SideRows, SinkLedger, SourceDrift, Span, Staged,
    Task, WaitingReaders, Withdrawal,
)  # fmt: skip
# isort: on

__all__ = [
    "HASH_COLUMN", "NO_LOSSES", "PLACE_COLUMN", "REJECT_COLUMN", "REJECT_SCHEMA", "REJECT_TYPE", "RESCUE_COLUMN",
    "Backlogged", "Bindable", "Bounded", "Carried", "Clock", "ClockDriven", "Comparable", "Confidential", "Content",
    "Divisible", "Early",
    "EpochRecord", "Evolving", "ExaminedSpec", "Exhaustible", "Expiring", "ExplainedSpec", "Explaining",
    "Explanation", "FollowedSpec", "Follower", "Guarantee", "Guaranteeing", "Held", "Idempotent", "Inspectable",
    "Lease", "LeasePlace", "LeasedSpec", "LedgerSpec", "LineageSpec", "Loss", "Losses", "MeasuredSpec",
    "NarrowedSpec", "OpenTransaction", "Outcome", "OverlappingSpec", "Part", "PartitionedSpec", "PreparedSpec",
    "Publication",
    "PublishedEpoch", "RecordedStartSpec", "Refused", "Rejecting", "Repair", "Reset", "ResettableSpec", "Rewindable",
    "RewindableSpec", "RunIdentity", "SampledSpec", "SeekableSpec", "SeenLease", "SegmentLag", "SelectiveSpec",
    "SharedTable", "SideRows", "Sink", "SinkLedger", "SinkSpec", "Source", "SourceDrift", "SourceSpec", "Span",
    "Staged", "StatefulSpec", "Store", "Task",
    "Transactional", "Volatile", "WaitingReaders", "Withdrawal", "Writer", "WriterFactory",
]  # fmt: skip
