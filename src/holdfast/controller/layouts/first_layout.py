"""The first layout of a checkpoint: of a pipeline that begins, or of one whose checkpoint is lost.

Invariants.  Every sink knows every shard of a layout before it is recorded, so before a shard plans an epoch: where the
checkpoint is lost, shards are looked for up to the first that no sink knows.  Sinks that hold rows say which shard has
which segment; they are asked when all runs of before are fenced.  What positions mean is restored from the sinks of all
shards before one of them reads: those of one know the logs of sources up to its own last epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from holdfast.checkpoint import explained
from holdfast.controller.layouts.found_shards import ask_shards, has_begun, recovered_layout
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.layouts.moving import Ledgers, Moving
from holdfast.ports import Held, Sink
from holdfast.positions import Positions
from holdfast.shards.layout import ShardLayout

log = logging.getLogger("holdfast.run")


@dataclass(frozen=True)
class FirstLayout:
    """What the first layout of a checkpoint is found by.

    Parameters
    ----------
    graphs : ShardGraphs
        Of the pipeline.
    moving : callable
        Given the columns of the sinks, connects the shards, none of which runs.
    columns : callable
        Returns the columns of the sinks, as a start compiles them.
    """

    graphs: ShardGraphs
    moving: Callable[[Mapping[str, pa.Schema]], AbstractContextManager[Moving]]
    columns: Callable[[], Mapping[str, pa.Schema]]

    def record(self, shard_count: int, by: str, begins_with: ShardLayout | None = None) -> ShardLayout:
        """Take over all shards that there are or are to be, and record the layout; return the one that holds.

        Parameters
        ----------
        shard_count : int
            How many shards there are to be, where sinks hold nothing; else there are as many as hold something.
        by : str
            What shards keep state apart by.
        begins_with : ShardLayout, optional
            The layout where sinks hold nothing; None: one of so many shards.

        Raises
        ------
        HoldfastError
            As :meth:`~holdfast.controller.layouts.moving.Moving.first`.
        """
        pipeline = self.graphs.pipeline
        sinks = {node.name: node.spec for node in pipeline.sinks}
        with self.moving(self.columns()) as moving:
            return moving.first(
                partial(ask_shards, sinks, pipeline.name),
                lambda said: self._layout(moving, said, begins_with or self.graphs.first(shard_count, by)),
            )

    def restore(self, layout: ShardLayout, refresh: Callable[[], object]) -> None:
        """Restore what positions mean, where that was lost, and the layout was not: of an object store (section 16).

        Parameters
        ----------
        layout : ShardLayout
            The one that holds.
        refresh : callable
            Empties what is old; called when no shard runs: all are taken over, shard 0 first.

        Raises
        ------
        HoldfastError
            Whatever taking a shard over raises; and ``Diverged``, if two sinks disagree.
        """
        with self.moving({}) as moving:  # the columns of its sinks are noted in each checkpoint
            moving.take(sorted({*range(layout.shard_count), *layout.moves}))
            refresh()
            self._restore(moving)

    def open(self, shards: Sequence[int]) -> None:
        """Take over shards that have not begun."""
        with self.moving(self.columns()) as moving:
            moving.take(shards)

    def _layout(
        self, moving: Moving, said: Sequence[Ledgers], first: ShardLayout
    ) -> tuple[ShardLayout, Mapping[int, Positions]]:
        if not has_begun(said):
            return first, {}
        self._restore(moving)
        layout, hand_overs = recovered_layout(self.graphs, said, first.by, first.shard_count)
        log.warning(
            "the checkpoint of pipeline %r knows no shards: which of the %d that its sinks know reads what is taken "
            "from them",
            self.graphs.pipeline.name,
            layout.shard_count,
        )
        if first.by:
            log.warning("which segment has a key is not known any more: the first one in which it is read has it")
        return layout, hand_overs

    def _restore(self, moving: Moving) -> None:
        """Restore what positions mean from the sinks of all shards."""
        sinks, held = dict[str, Sink](), dict[str, Held]()
        for shard in moving.shards.values():
            sinks |= {f"{shard.name}/{sink.name}": sink for sink in shard.sinks}
            held |= {f"{shard.name}/{name}": of for name, of in shard.answers.items()}
        restore = partial(explained.restore, self.graphs.pipeline.sources, self.graphs.checkpoint, sinks, held)
        coordinator = moving.shards[0].coordinator
        coordinator.retry(partial(restore, has_begun=False), doing="restore what positions mean")
