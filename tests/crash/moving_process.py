"""What a process does that gives a pipeline another number of shards, and dies at one of its durable writes.

Places to die are before and after each write of the checkpoint, and each named point within a sink's publish.
"""

from __future__ import annotations

import multiprocessing
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
from holdfast.controller.layouts.rearranging import Rearranging
from holdfast.graph.nodes import Stream
from holdfast.pipeline import Pipeline
from holdfast.store.local import LocalStore


def pipeline_in(directory: Path) -> Pipeline:
    """Return files that lead to a table and to a store of segments."""
    rides = hf.read.files(str(directory / "in"), schema="id BIGINT", name="rides")
    table = rides | hf.write.sqlite(str(directory / "rides.db"), table="rows", name="table")
    store = rides | hf.write.segments(str(directory / "store"), seal=[rows(4)], name="store")
    return hf.Pipeline("rides", table, store)


def keyed_pipeline(directory: Path, sources: Path) -> Pipeline:
    """Return files of rides and fixes, in tables by way of operators that keep state by device."""

    def read(name: str) -> Stream:
        return hf.read.files(str(sources / name), schema="device STRING, t BIGINT, v BIGINT", timestamp="t", name=name)

    rides, fixes = read("rides"), read("fixes")
    counts = rides | hf.accumulate(by="device", n=hf.count(), total=hf.sum("v"), name="count")
    windows = rides | hf.aggregate(by="device", window=hf.tumbling(10), total=hf.sum("v"), n=hf.count(), name="window")
    once = rides | hf.distinct(by=["device", "v"], horizon=30, name="distinct")
    pairs = hf.join(rides, fixes, on="device", within=(-2, 2), disorder=5, name="join")
    tables = {"counts": counts, "windows": windows, "once": once, "pairs": pairs}
    database = str(directory / "out.db")
    sinks = [stream | hf.write.sqlite(database, table=name, name=name) for name, stream in tables.items()]
    return hf.Pipeline("rides", *sinks, shard_by="device")


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


def move(directory: str, shard_count: int, wanted: int, reached: Synchronized[int], is_keyed: bool) -> None:
    """Move, and say how many places were reached; die at one of them, if it is not 0."""
    places = Places(wanted)
    for name in ("put", "put_if_absent", "delete"):
        places.around(name)
    faults.install(lambda point, epoch: places.reach())
    place = Path(directory)
    pipeline = keyed_pipeline(place, place / "in") if is_keyed else pipeline_in(place)
    Rearranging(pipeline, place / "checkpoint", Settings()).change(shard_count)
    reached.value = places.reached


FORKS = multiprocessing.get_context("forkserver")
"""Processes that need not import everything anew: there are hundreds in a night."""
FORKS.set_forkserver_preload([__name__])


def moved_by_process(directory: Path, shard_count: int, place: int = 0, *, is_keyed: bool = False) -> int | None:
    """Return how many places a process reached that was to move; None: it was killed."""
    reached = FORKS.Value("i", 0)
    process = FORKS.Process(target=move, args=(str(directory), shard_count, place, reached, is_keyed))
    process.start()
    process.join(timeout=120)
    assert process.exitcode in (0, -signal.SIGKILL), "it printed why"
    return reached.value if process.exitcode == 0 else None
