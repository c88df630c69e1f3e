"""Pipelines whose checkpoint is in an object store, for a process of their own: its JVM gets the store's variables.

What is called here runs there (:class:`RunsElsewhere`): the session of all other tests was created without them, and
processes of Spark note in the store where sources begin.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import faults
from holdfast.errors import HoldfastError
from holdfast.store import object_store
from tests.spark.running import arrive, die_at, eventually, parquet_rows, sqlite_rows

ROWS_EACH = 20


@dataclass(frozen=True)
class Place:
    """One pipeline: where its files are, and its checkpoint.

    Parameters
    ----------
    work : Path
        Of input and sinks; the scratch is in ``scratch`` there.
    address : str
        Of the checkpoint.
    kind : str
        ``one`` sink, ``two`` sinks, two behind ``state``, or a ``paced`` one.
    """

    work: Path
    address: str
    kind: str = "two"

    @property
    def scratch(self) -> Path:
        """Directory below which the scratch is."""
        return self.work / "scratch"

    def arrive(self, first: int, last: int) -> None:
        """Put files into the input."""
        for number in range(first, last):
            rows = [{"id": number * ROWS_EACH + i, "k": i % 3} for i in range(ROWS_EACH)]
            os.utime(arrive(self.work / "in", f"{number:04}.json", rows), (number, number))

    def check(self, files: int) -> None:
        """Look into the sinks: every row of so many files is there once."""
        ids = list(range(files * ROWS_EACH))
        if self.kind != "state":
            assert sqlite_rows(self.work / "out.db") == ids
            assert self.kind != "two" or parquet_rows(self.work / "out") == ids
            return
        count: dict[int, int] = {}
        wanted = []
        for number in ids:
            key = number % ROWS_EACH % 3
            count[key] = count.get(key, 0) + 1
            wanted.append((number, key, count[key]))
        assert sqlite_rows(self.work / "out.db", "SELECT id, k, n FROM rows") == wanted
        assert parquet_rows(self.work / "out", "id") == ids

    def lose_scratch(self) -> None:
        """As a new machine is without."""
        shutil.rmtree(self.scratch)


def _pipeline(place: Place) -> hf.Pipeline:
    rows = hf.read.files(
        place.work / "in", format="json", schema="id BIGINT, k INT", max_files_per_epoch=1, name="rows"
    )
    if place.kind == "state":
        rows = rows | hf.accumulate(by="k", n=hf.count(), name="counted")
    pace = {"commit_every": "1 h"} if place.kind == "paced" else {}
    sinks = [rows | hf.write.sqlite(place.work / "out.db", table="rows", name="table", **pace)]
    if place.kind in ("two", "state"):
        sinks.append(rows | hf.write.files(place.work / "out", name="files"))
    return hf.Pipeline("kept", *sinks)


@contextmanager
def _placed(place: Place, variables: Mapping[str, str]) -> Iterator[None]:
    os.environ.update({"HOLDFAST_SPARK_CHECKPOINT": str(place.scratch), **variables})
    try:
        yield
    finally:
        faults.install(None)
        for name in variables:
            del os.environ[name]


def run(place: Place, die: tuple[str, int] | None = None, **variables: str) -> str:
    """Run to the end of the input, or die at a point; return what was said at death."""
    with _placed(place, variables):
        if die is not None:
            die_at(*die)
        try:
            _pipeline(place).run(checkpoint=place.address, trigger=hf.available_now(), master="local[2]")
        except (HoldfastError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return ""


def run_for(place: Place, warm: int, epochs: int, idle_s: float, **variables: str) -> dict[str, Any]:
    """Run and feed a file for each epoch; return how many epochs and when, and when it was left without input."""
    with _placed(place, variables):
        started = _pipeline(place).start(checkpoint=place.address, trigger=hf.every("0 s"), master="local[2]")

        def feed(first: int, last: int) -> tuple[float, float, int]:
            began, before = time.monotonic(), started.status().epoch
            for number in range(first, last):
                place.arrive(number, number + 1)
                eventually(lambda number=number: _read(started) > number * ROWS_EACH or started.wait(timeout_s=0))
            return began, time.monotonic(), started.status().epoch - before

        try:
            feed(0, warm)
            busy = feed(warm, warm + epochs)
            began = time.monotonic()
            time.sleep(idle_s)
            return {"busy": busy, "idle": (began, time.monotonic())}
        finally:
            started.stop()
            started.wait()


def _read(started: Any) -> int:
    return sum(source.rows for source in started.status().sources)


def _begin(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    hasty = partial(object_store.Perseverance, first_s=0.01, cap_s=0.1)
    object_store.Perseverance = hasty  # noqa: B010: as often as ever, and without long waits


class RunsElsewhere:
    """A process that runs pipelines with one JVM, in a given environment."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (dict(variables),))

    def __call__(self, call: Callable[..., Any], *arguments: Any, **variables: str) -> Any:
        """Call a function of this module there; return what it returns."""
        return self._pool.submit(call, *arguments, **variables).result(timeout=300)

    def close(self) -> None:
        """End the process, and with it the JVM."""
        self._pool.shutdown()
