"""What grows, and how large it is: kept beside the manifest, from the indexes of the journal's files.  No I/O.

It can be computed again from these at any time, so nothing here need be durable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.sinks.segments.entries import JournalFile, SealedSegment
from holdfast.sinks.segments.holdings import Holdings
from holdfast.sinks.segments.rules.policies import Policy, Segment, reason_of

RATIO = 0.5
"""Bytes in a Parquet file for each byte in the journal, as long as no file has been written."""

SHORT = 0.75
"""A file that was to be of the target's size and is smaller than this share of it is not kept: the segment grows on."""


@dataclass
class _Size:
    rows: int = 0
    row_bytes: float = 0.0


@dataclass(frozen=True)
class Due:
    """A segment to be sealed, and why."""

    segment: Segment
    reason: str


@dataclass
class Growth:
    """Sizes of the growing segments of one sink.

    Parameters
    ----------
    pieces_left : dict of str to int
        Journal file -> partitions of it that are not sealed; at none it is not needed any more.
    """

    pieces_left: dict[str, int] = field(default_factory=dict)
    _sizes: dict[str, _Size] = field(default_factory=dict)
    _ratio: float = RATIO
    _ratios: dict[str, float] = field(default_factory=dict)

    def add(self, file: JournalFile, partitions: Mapping[str, int], sealed_through: Mapping[str, int]) -> None:
        """Count a file's rows to the segments that are not sealed."""
        each_bytes = file.row_bytes / max(1, file.row_count)
        left = 0
        for partition, rows in partitions.items():
            if sealed_through and sealed_through.get(partition, 0) >= file.epoch:
                continue
            left += 1
            size = self._sizes.get(partition)
            if size is None:
                size = self._sizes[partition] = _Size()
            size.rows += rows
            size.row_bytes += rows * each_bytes
        self.pieces_left[file.name] = left

    def free(self, pieces: Mapping[str, int]) -> tuple[str, ...]:
        """Return the files of which nothing is left once these numbers of pieces are sealed."""
        return tuple(name for name, count in pieces.items() if self.pieces_left[name] <= count)

    def sealed(self, partitions: Collection[str], pieces: Mapping[str, int]) -> None:
        """Take sealed segments off: their sizes, and their pieces of each file."""
        for partition in partitions:
            self._sizes.pop(partition, None)
        for name, count in pieces.items():
            self.pieces_left[name] -= count
            if self.pieces_left[name] <= 0:
                del self.pieces_left[name]

    def learn(self, segment: SealedSegment) -> None:
        """Learn from a file what Parquet makes of the rows of a partition."""
        if segment.row_bytes:
            ratio = segment.size_bytes / segment.row_bytes
            self._ratios[segment.partition] = ratio
            self._ratio = (self._ratio + ratio) / 2

    def due(
        self,
        holdings: Holdings,
        policies: Sequence[Policy],
        *,
        target_bytes: int,
        now_us: int,
        flushed: Collection[str] | None = (),
        is_closing: bool = False,
    ) -> list[Due]:
        """Return the segments to seal, those that began first before others.

        Parameters
        ----------
        flushed : collection of str, optional
            Partitions that somebody asked for; None: all.
        """
        journal_bytes = holdings.journal_bytes()
        ordered = sorted(holdings.growing.items(), key=lambda each: (each[1].epoch, each[0]))
        older, found = 0.0, []
        for partition, began in ordered:
            size = self._sizes.get(partition)
            if size is None:  # nothing is known yet of what came since it was sealed
                continue
            segment = Segment(
                partition,
                size.rows,
                round(size.row_bytes * self._ratios.get(partition, self._ratio)),
                round(size.row_bytes),
                began.epoch,
                holdings.last.epoch,
                holdings.starts[began.epoch],
                holdings.last.positions,
                began.at_us,
                now_us,
                target_bytes,
                journal_bytes,
                round(older),
                flushed is None or partition in flushed,
                is_closing,
            )
            older += size.row_bytes
            reason = reason_of(policies, segment)
            if reason:
                found.append(Due(segment, reason))
        return found
