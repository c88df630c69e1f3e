"""What grows, and how large it is: kept beside the manifest, from the indexes of the journal's files.  No I/O.

It can be computed again from these at any time, so nothing here need be durable.  Segments are rows of columns: with
ten thousand of them a round costs what Arrow and numpy take for it, and Python what is due.

Columns that change between runs while segments grow: what is taken, and what the file of such a segment has.

A column may be added, left out, or widened.  The file of a segment has the columns of the run that seals it, and behind
them those that only earlier rows have; what a row lacks is null.  Files sealed before keep theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.segments.entries import JournalFile, SealedSegment
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.places import PartitionRows
from holdfast.connectors.segments.policies import Grown, Policy, Segment, may_seal, reason_of
from holdfast.errors import InvalidPipeline
from holdfast.types.partition import partition_name
from holdfast.types.schema import unite_schemas

RATIO = 0.5
"""Bytes in a Parquet file for each byte in the journal, as long as no file has been written."""

SHORT = 0.75
"""A file that was to be of the target's size and is smaller than this share of it is not kept: the segment grows on."""

UNUSED_MIN = 1000
"""So many places of sealed segments are kept: most partitions soon grow again."""

_COLUMNS = np.dtype(
    [
        ("rows", np.int64),
        ("row_bytes", np.float64),
        ("ratio", np.float64),
        ("epoch", np.int64),
        ("at_us", np.int64),
        ("version", np.int64),
    ]
)


@dataclass(frozen=True)
class Due:
    """A segment to be sealed, and why."""

    segment: Segment
    reason: str


class Growth:
    """Sizes of the growing segments of one sink.

    Each partition has a place, and keeps it when its segment is sealed; then it has no rows.

    Attributes
    ----------
    pieces_left : dict of str to int
        Journal file -> partitions of it that are not sealed; at none it is not needed any more.
    """

    def __init__(self) -> None:
        self.pieces_left: dict[str, int] = {}
        self._names: pa.StringArray = pa.array([], pa.string())
        self._places: dict[str, int] = {}
        self._of = np.zeros(0, _COLUMNS)
        self._ratio = RATIO
        self._ratios: dict[str, float] = {}

    def add(self, file: JournalFile, partitions: PartitionRows, holdings: Holdings) -> None:
        """Count a file's rows to the segments that are not sealed in a state which has the file."""
        partitions = partitions.without([p for p, epoch in holdings.sealed_through.items() if epoch >= file.epoch])
        places = self._places_of(partitions.partitions)
        self.pieces_left[file.name] = len(np.unique(places))
        for place in places[self._of["rows"][places] == 0]:
            began = holdings.growing[self._names[place].as_py()]
            self._of["epoch"][place], self._of["at_us"][place] = began.epoch, began.at_us
            self._of["version"][place] = file.version
        np.add.at(self._of["rows"], places, partitions.rows)
        np.add.at(self._of["row_bytes"], places, partitions.rows * (file.row_bytes / max(1, file.row_count)))

    def free(self, pieces: Mapping[str, int]) -> tuple[str, ...]:
        """Return the files of which nothing is left once these numbers of pieces are sealed."""
        return tuple(name for name, left in self.pieces_left.items() if left <= pieces.get(name, 0))

    def sealed(self, partitions: Collection[str], pieces: Mapping[str, int]) -> None:
        """Take sealed segments off: their sizes, and their pieces of each file."""
        for partition in partitions:
            place = self._places[partition]
            self._of["rows"][place] = self._of["row_bytes"][place] = 0
        for name, count in pieces.items():
            self.pieces_left[name] -= count
        self.pieces_left = {name: left for name, left in self.pieces_left.items() if left > 0}
        is_used = self._of["rows"] > 0
        if len(is_used) - np.count_nonzero(is_used) > max(UNUSED_MIN, len(is_used) // 2):
            self._of = self._of[is_used]
            self._names = self._names.filter(pa.array(is_used))
            self._places = {name: place for place, name in enumerate(self._names.to_pylist())}

    def learn(self, segment: SealedSegment) -> None:
        """Learn from a file what Parquet makes of the rows of a partition."""
        if segment.row_bytes:
            ratio = segment.size_bytes / segment.row_bytes
            self._ratios[segment.partition] = ratio
            self._ratio = (self._ratio + ratio) / 2
            if segment.partition in self._places:
                self._of["ratio"][self._places[segment.partition]] = ratio

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
        grows = np.flatnonzero(self._of["rows"])  # of others nothing is known yet of what came since they were sealed
        of, names = self._of[grows], self._names.take(pa.array(grows))
        order = pc.sort_indices(
            pa.table({"epoch": np.ascontiguousarray(of["epoch"]), "name": names}),
            sort_keys=[("epoch", "ascending"), ("name", "ascending")],
        )
        of, names = of[order.to_numpy()], names.take(order)
        ratios = np.where(np.isnan(of["ratio"]), self._ratio, of["ratio"])
        is_flushed = pc.is_in(names, names if flushed is None else pa.array(flushed, pa.string()))
        grown = Grown(
            rows=of["rows"],
            bytes=np.rint(of["row_bytes"] * ratios).astype(np.int64),
            older_bytes=np.rint(np.cumsum(of["row_bytes"]) - of["row_bytes"]).astype(np.int64),
            began_us=of["at_us"],
            is_flushed=is_flushed.to_numpy(zero_copy_only=False),
            now_us=now_us,
            target_bytes=target_bytes,
            journal_bytes=holdings.journal_bytes(),
            is_closing=is_closing,
        )
        found = []
        # A file has one version of the columns: what grows on is to be of the present one alone.
        is_old = of["version"] < len(holdings.changes)
        for place in np.flatnonzero(may_seal(policies, grown) | is_old).tolist():
            segment = self._segment(names[place].as_py(), of[place], grown, place, holdings)
            reason = "schema change" if is_old[place] else reason_of(policies, segment)
            if reason:
                found.append(Due(segment, reason))
        return found

    def _segment(self, partition: str, of: Any, grown: Grown, place: int, holdings: Holdings) -> Segment:
        last, epoch = holdings.last, int(of["epoch"])
        return Segment(
            partition,
            int(of["rows"]),
            int(grown.bytes[place]),
            round(float(of["row_bytes"])),
            epoch,
            last.epoch,
            holdings.starts[epoch],
            last.positions,
            int(of["at_us"]),
            grown.now_us,
            grown.target_bytes,
            grown.journal_bytes,
            int(grown.older_bytes[place]),
            bool(grown.is_flushed[place]),
            grown.is_closing,
        )

    def _places_of(self, names: pa.StringArray) -> np.ndarray[Any, Any]:
        """Return the places of partitions; those that have none get one."""
        found = pc.index_in(names, self._names)
        if not found.null_count:
            return np.asarray(found)
        new = names.filter(pc.is_null(found)).unique().to_pylist()
        self._places |= {name: place for place, name in enumerate(new, len(self._names))}
        rows = np.zeros(len(new), _COLUMNS)
        rows["ratio"] = [self._ratios.get(name, np.nan) for name in new]
        self._of = np.concatenate([self._of, rows])
        self._names = pa.concat_arrays([self._names, pa.array(new, pa.string())])
        return np.asarray(pc.index_in(names, self._names))


def check_change(
    sink: str, before: pa.Schema, after: pa.Schema, partition_by: Sequence[str], partitions: Iterable[str]
) -> None:
    """Raise :class:`InvalidPipeline` if rows that grow, and new ones, cannot be in one file or in one layout."""
    wanted = [partition_name(column, None).partition("=")[0] for column in partition_by]
    for partition in partitions:
        found = [part.partition("=")[0] for part in partition.split("/")] if partition else []
        if found != wanted:
            raise InvalidPipeline(
                f"Sink {sink!r} is partitioned by {', '.join(wanted) or 'nothing'}, and its directory by "
                f"{', '.join(found) or 'nothing'}.",
                why=f"a reader treats all files of a directory as one table; {partition or 'the directory'} has rows.",
                do="write to another directory.",
                participant=sink,
            )
    for field in after:
        place = before.get_field_index(field.name)
        if place < 0:
            continue
        old = before.field(place)
        try:
            unite_schemas([pa.schema([old]), pa.schema([field])])
        except pa.ArrowException as error:
            raise InvalidPipeline(
                f"Column {field.name!r} of sink {sink!r} is {field.type}, and was {old.type}.",
                why="rows of both types cannot be in one file; types may be widened, and columns added or left out.",
                do="write to another directory, or cast or rename the column before the sink.",
                participant=sink,
            ) from error
