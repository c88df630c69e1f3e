"""The layout that a start uses: the newest one, with what has come since dealt to shards; or the first.

Invariants: a segment that a shard has begun stays with it; before another shard may read what nobody has begun, all
shards are taken over, and none has been taken over since when that counts (:meth:`Moving.note`): no run of before
begins it meanwhile.

Durable writes: the takeovers, then the layout.  A crash between them leaves shards that are taken over; the next start
deals again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from holdfast.controller.found_shards import shards_with_rows
from holdfast.controller.graph import ShardGraphs, dealt
from holdfast.controller.moving import Moving
from holdfast.errors import Diverged, InvalidPipeline, Unavailable
from holdfast.ports import Store
from holdfast.shards.layout import ShardLayout, newest_layout, record_layout

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
    moving : callable
        Connects the shards, none of which runs.
    """

    graphs: ShardGraphs
    store: Store
    moving: Callable[[], AbstractContextManager[Moving]]

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
        if self._dealt(known).assignment.shards == known.assignment.shards:
            return known
        try:
            with self.moving() as moving:
                return moving.note(moving.settle() or known, self._dealt)
        except (Unavailable, Diverged, InvalidPipeline) as error:  # a run can mend that; until then nothing is dealt
            log.warning("new segments are read by shard %d until the next start: %s", known.assignment.rest, error.what)
            return newest_layout(self.store) or known

    def _dealt(self, layout: ShardLayout) -> ShardLayout:
        return dealt(layout, self.graphs.all_units(layout))

    def _check_has_not_begun(self) -> None:
        """Refuse a first layout where rows have been read: by one run, or by shards whose checkpoint is lost."""
        name = self.graphs.pipeline.name
        if shards_with_rows(self.graphs.pipeline):
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
