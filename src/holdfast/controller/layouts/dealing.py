"""The layout that a start uses: the newest one, with what has come since dealt to shards.

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

from holdfast.controller.layouts.graph import ShardGraphs, dealt
from holdfast.controller.layouts.moving import Moving
from holdfast.errors import Diverged, InvalidPipeline, Unavailable, invariant
from holdfast.ports import Store
from holdfast.shards.layout import ShardLayout, newest_layout

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

    def layout(self) -> ShardLayout:
        """Return the layout that is used, recorded: with segments that have come.

        Those that were begun stay, the others are dealt.

        Raises
        ------
        Unavailable
            If a source does not answer.
        """
        known = newest_layout(self.store)
        invariant(known is not None, "a start in shards has no layout.", pipeline=self.graphs.pipeline.name)
        assert known is not None
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
