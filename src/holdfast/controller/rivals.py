"""Other controllers: before one starts a shard again, it looks whether another process has taken any shard over.

A shard that fails, and waits, learns from nobody that its controller has been replaced.  Its takeover would be the
newest: it would fence the shard of the controller that goes on, and stop that one with all its shards.  Changes
nothing.  What is taken over between the look and the takeover is found by the fences, as ever.  Of a checkpoint in an
object store it also looks whether the scratch still serves the shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.commit.owner import noted_owner
from holdfast.errors import Fenced
from holdfast.ports import Store
from holdfast.store.scratch import ScratchedStore


@dataclass
class Rivals:
    """Whoever takes shards over beside this process, from now on.

    Parameters
    ----------
    pipeline : str
        The user's name.
    stores : sequence of Store
        The checkpoints of the shards, by their numbers.
    """

    pipeline: str
    stores: Sequence[Store]
    _generations: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._generations = [noted_owner(store).generation for store in self.stores]

    def check(self) -> None:
        """Raise where there is one.

        Raises
        ------
        Fenced
            Naming the shard that it has taken over.
        """
        of_pipeline = self.stores[0]
        if isinstance(of_pipeline, ScratchedStore):
            of_pipeline.check_serves()
        for shard, store in enumerate(self.stores):
            owner = noted_owner(store)
            if owner.generation > self._generations[shard] and not owner.is_this_process:
                raise Fenced(
                    f"shard {shard} of pipeline {self.pipeline!r} was taken over by process {owner.pid} of host "
                    f"{owner.host!r}.",
                    why="another controller, or a run of that shard alone, was started on the same checkpoint.",
                    do="nothing, if that was meant; else stop the other one and start this one again.",
                    pipeline=self.pipeline,
                    generation=owner.generation,
                )
