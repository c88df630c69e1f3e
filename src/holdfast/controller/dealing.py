"""The layout that a start uses: the newest one, with what has come since dealt to shards; or the first.

Invariants: a segment that a shard has begun stays with it; before another shard may read what nobody has begun, the
shard that reads whatever appears is taken over, so that no run of before begins it meanwhile.

Durable writes: the takeover of that shard, then the layout.  A crash between them leaves a shard that is taken
over; the next start deals again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.capabilities import offers
from holdfast.checkpoint.directory_header import FILE_NAME, newest_directory, read_origin
from holdfast.checkpoint.spark_log import newest_positions
from holdfast.controller.graph import ShardGraphs, dealt
from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.ports import LedgerSpec, Store
from holdfast.positions import Position, Positions, SourcePositions
from holdfast.shards.assignment import keep
from holdfast.shards.layout import ShardLayout, newest_layout, record_layout
from holdfast.shards.naming import shard_checkpoint, shard_name
from holdfast.store.paths import open_store

log = logging.getLogger("holdfast.run")


@dataclass(frozen=True)
class Dealing:
    """What the layout of a start is found by.

    Parameters
    ----------
    graphs : ShardGraphs
        Of the pipeline.
    store : Store
        Its checkpoint.
    take_over : callable
        Takes a shard over without a run, given the layout and its number.
    """

    graphs: ShardGraphs
    store: Store
    take_over: Callable[[ShardLayout, int], object]

    def layout(self, shard_count: int, by: str) -> ShardLayout:
        """Return the layout that is used, recorded.

        Parameters
        ----------
        shard_count : int
            How many shards there are to be where there is no layout yet.
        by : str
            What shards keep state apart by.

        Raises
        ------
        InvalidPipeline
            If rows have been read, and it is not known by which shard.
        Unavailable
            If a source does not answer, or another process has recorded a layout meanwhile.
        """
        known = newest_layout(self.store)
        if known is None:
            self._check_has_not_begun()
            return self._record(self.graphs.first(shard_count, by))
        return self._with_new_segments(known)

    def _with_new_segments(self, known: ShardLayout) -> ShardLayout:
        """Return the layout with segments that have come: those that were begun stay, the others are dealt."""
        rest, units = known.assignment.rest, self.graphs.all_units(known)
        if dealt(self._with_begun(known, rest, units), units) == known:
            return known
        try:
            self.take_over(known, rest)
        except Unavailable as error:
            log.warning("new segments are read by shard %d until the next start: %s", rest, error.what)
            return known
        return self._record(dealt(self._with_begun(known, rest, units), units))  # with what it began until then

    def _with_begun(self, layout: ShardLayout, shard: int, units: Mapping[str, Mapping[str, str]]) -> ShardLayout:
        """Return the layout with what the shard has begun that reads whatever appears."""
        begun = [
            units[source][segment]
            for source, positions in self._positions_of(shard).items()
            for segment in positions
            if segment in units.get(source, ())  # and no mark, or position of before the source was divided
        ]
        return replace(layout, assignment=keep(layout.assignment, begun, shard))

    def _positions_of(self, shard: int) -> Mapping[str, SourcePositions]:
        """Return the positions of a shard: as it has planned, or where Spark's log is lost, as its sinks hold."""
        directory = Path(shard_checkpoint(str(self.graphs.checkpoint), shard))
        spark = directory / "spark" / str(newest_directory(open_store(str(directory))))
        try:
            several = [newest_positions(spark), *read_origin(spark / FILE_NAME).seek]
        except Corrupt:  # there is none, or it cannot be read
            several = self._ledgers(shard_name(self.graphs.pipeline.name, shard))
        found: dict[str, dict[str, Position]] = {}
        for positions in several:
            for source, of in positions.items():
                found.setdefault(source, {}).update(of)
        return found

    def _ledgers(self, name: str) -> list[Positions]:
        """Return the positions that sinks hold of a shard, of those that can be asked without their columns."""
        found = []
        for node in self.graphs.pipeline.sinks:
            ledger = node.spec.ledger(node.name, name) if offers(node.spec, LedgerSpec) else None
            if ledger is not None and not ledger.held.is_empty:
                found.append(ledger.held.positions)
        return found

    def _check_has_not_begun(self) -> None:
        """Refuse a first layout where rows have been read: by one run, or by shards whose checkpoint is lost."""
        name = self.graphs.pipeline.name
        if self._ledgers(name) or self._ledgers(shard_name(name, 1)):
            raise InvalidPipeline(
                f"sinks of pipeline {name!r} hold rows, and its checkpoint does not say which shard has read them.",
                why="a segment that is read by another shard than before would be read again from its beginning.",
                do="restore the checkpoint; or begin anew, with another name and new sinks.",
                pipeline=name,
            )

    def _record(self, layout: ShardLayout) -> ShardLayout:
        found = record_layout(self.store, layout)
        if found is None:
            raise Unavailable(
                f"another process has changed the layout of pipeline {self.graphs.pipeline.name!r} just now.",
                why="it is starting the same pipeline.",
                do="stop one of the two, and start again.",
                pipeline=self.graphs.pipeline.name,
            )
        return found
