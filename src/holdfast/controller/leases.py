"""Leases of shards: who runs all of a pipeline, and who runs one of its shards, wait for each other (design/0048, 8).

A lease for the whole, by the pipeline's name, and one for each shard that runs alone, by the name with its number, also
for shard 0.  Who takes one looks at the others before and after: of two that do so at once at most one goes on, as each
has written before it looks.  Liveness alone, as with any lease: what protects the sinks are their fences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.controller.layouts.found_shards import ask_shards
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.ports import LeasePlace
from holdfast.replica.keeper import lease_of
from holdfast.replica.tenure import NOTE, Watch
from holdfast.shards.layout import newest_layout
from holdfast.store.paths import open_store


@dataclass(frozen=True)
class LeaseScope:
    """What one command runs of a pipeline, and so which lease it keeps.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.
    directory : Path
        Its checkpoint.
    shard : int, optional
        The one shard that runs; None: the pipeline, or all of its shards.
    """

    pipeline: Graph
    directory: Path
    shard: int | None = None

    @property
    def note(self) -> str:
        """Key, in the checkpoint, of the last term whose holder ran on it."""
        return NOTE if self.shard is None else f"shards/leases/{self.shard}.json"

    @property
    def shard_count(self) -> int:
        """How many shards the checkpoint has; 0 where none."""
        layout = newest_layout(open_store(str(self.directory)))
        return 0 if layout is None else layout.shard_count

    def place(self) -> LeasePlace:
        """Return where the lease is kept."""
        return lease_of(self.pipeline, None if self.shard is None else self._name(self.shard))

    def rivals(self) -> Sequence[Watch]:
        """Return watches on the leases of those that run what this one runs, under another lease."""
        if self.shard is not None:
            return [Watch(lease_of(self.pipeline))]
        return [Watch(lease_of(self.pipeline, self._name(shard))) for shard in range(self.shard_count)]

    def runs_shards(self, wanted: int | None) -> bool:
        """Return whether shards are run, by what is known here.

        Parameters
        ----------
        wanted : int, optional
            How many the command asks for.
        """
        return self.shard is not None or (wanted or 1) > 1 or self.shard_count > 0

    def has_shards_in_sinks(self) -> bool:
        """Return whether sinks hold what several shards have written."""
        sinks = {node.name: node.spec for node in self.pipeline.sinks}
        return len(ask_shards(sinks, self.pipeline.name)) > 1

    def _name(self, shard: int) -> str:
        return f"{self.pipeline.name}-{shard}"

    def other_checkpoint(self) -> InvalidPipeline:
        """Return why a pipeline in shards is not followed from another checkpoint than its main's."""
        return InvalidPipeline(
            f"{self.directory} is not the checkpoint that the main of pipeline {self.pipeline.name!r} ran with.",
            why="the pipeline has shards, and which shard reads what, and where each is, is recorded there.",
            do="give the replica the main's checkpoint (--checkpoint), where both machines see it.",
            pipeline=self.pipeline.name,
        )
