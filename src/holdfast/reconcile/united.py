"""Contents of all shards as one: what a table holds that several of them write, and what it should hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.ports import Comparable, Content, Held, SharedTable, Sink
from holdfast.positions import Position
from holdfast.reconcile.report import Reconciled
from holdfast.types.canonical import Digests
from holdfast.values import NO_LOSSES, Losses


class UnitedContent:
    """The rows of several contents; see :class:`holdfast.ports.Content`.

    Parameters
    ----------
    parts : sequence of Content
        At least one, all with the same columns and the same key.
    """

    def __init__(self, parts: Sequence[Content]) -> None:
        self._parts = tuple(parts)
        self.held = Held()
        """Of nobody: each part has its own."""
        self.schema = parts[0].schema
        self.key = parts[0].key
        self.losses: Losses = frozenset().union(*(part.losses for part in parts))

    def row_count(self) -> int:
        """Add them up."""
        return sum(part.row_count() for part in self._parts)

    def digests(self, bits: int, losses: Losses = NO_LOSSES, by: Collection[str] = ()) -> Digests:
        """Add those of the parts up, of as many buckets as all of them know."""
        found = [part.digests(bits, losses | self.losses, by) for part in self._parts]
        known = min(each.bits for each in found)
        total = Digests.empty(known)
        for each in (digests.coarser(known) for digests in found):
            total.counts[:] += each.counts
            total.sums[:] += each.sums
        return total

    def rows(
        self, bits: int, buckets: Collection[int], losses: Losses = NO_LOSSES, by: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield those of one part after those of another."""
        for part in self._parts:
            yield from part.rows(bits, buckets, losses | self.losses, by)


@contextmanager
def view_of(sink: Sink, pipeline: str) -> Iterator[tuple[Content, Mapping[str, Held]]]:
    """Open a view of what a sink holds, of all shards where they share its table; with what each ledger says.

    Parameters
    ----------
    sink : Sink
        Comparable.
    pipeline : str
        Whose it is, or which shard's.
    """
    if offers(sink, SharedTable):
        with sink.content_of_shards() as found:
            yield found
        return
    assert offers(sink, Comparable)
    with sink.content() as content:
        yield content, {pipeline: content.held}


def add_up(reports: Sequence[Reconciled]) -> Reconciled:
    """Return what comparisons of the shards of one sink have found, as one; at least one of them.

    Its epoch is the highest: shards count their own.
    """
    first = reports[0]
    positions: dict[str, dict[str, Position]] = {}
    for report in reports:
        for source, of in report.positions.items():
            positions.setdefault(source, {}).update(of)
    repaired = [report.repaired_count for report in reports if report.repaired_count is not None]
    return replace(
        first,
        epoch=max(report.epoch for report in reports),
        positions=positions,
        expected_count=sum(report.expected_count for report in reports),
        actual_count=sum(report.actual_count for report in reports),
        missing_count=sum(report.missing_count for report in reports),
        extra_count=sum(report.extra_count for report in reports),
        changed_count=sum(report.changed_count for report in reports),
        refused_count=sum(report.refused_count for report in reports),
        fetched_count=sum(report.fetched_count for report in reports),
        examples=tuple(example for report in reports for example in report.examples),
        left_out=tuple(sorted({each for report in reports for each in report.left_out})),
        duration_s=max(report.duration_s for report in reports),
        repaired_count=sum(repaired) if repaired else None,
        shard_count=sum(report.shard_count for report in reports),
    )
