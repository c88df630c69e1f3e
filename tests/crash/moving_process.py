"""What a process does that gives a pipeline another number of shards, and dies at one of its durable writes.

Places to die are before and after each write of the checkpoint, and each named point within a sink's publish.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.connectors.segments.policies import rows
from holdfast.controller.rearranging import Rearranging
from holdfast.pipeline import Pipeline
from holdfast.store.local import LocalStore


def pipeline_in(directory: Path) -> Pipeline:
    """Return files that lead to a table and to a store of segments."""
    rides = hf.read.files(str(directory / "in"), schema="id BIGINT", name="rides")
    table = rides | hf.write.sqlite(str(directory / "rides.db"), table="rows", name="table")
    store = rides | hf.write.segments(str(directory / "store"), seal=[rows(4)], name="store")
    return hf.Pipeline("rides", table, store)


class Places:
    """Counts places, and dies at one."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.reached = 0

    def reach(self) -> None:
        self.reached += 1
        if self.reached == self.wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str) -> None:
        """Make each call of a method of local stores two places."""
        plain: Callable[..., Any] = getattr(LocalStore, name)

        def call(*arguments: Any) -> Any:
            self.reach()
            found = plain(*arguments)
            self.reach()
            return found

        setattr(LocalStore, name, call)


def move(directory: str, shard_count: int, wanted: int, reached: Synchronized[int]) -> None:
    """Move, and say how many places were reached; die at one of them, if it is not 0."""
    places = Places(wanted)
    for name in ("put", "put_if_absent", "delete"):
        places.around(name)
    faults.install(lambda point, epoch: places.reach())
    Rearranging(pipeline_in(Path(directory)), Path(directory) / "checkpoint", Settings()).change(shard_count)
    reached.value = places.reached
