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
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner

import holdfast as hf
from holdfast import faults
from holdfast.cli.app import app
from holdfast.errors import HoldfastError
from holdfast.store.objects import store as object_store
from holdfast.store.objects.errors import RequestLimits
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
        ``one`` sink, ``two`` sinks, two behind ``state``, a ``paced`` one, or one behind a function that ``refuses`` a
        row, unless ``HOLDFAST_TEST_MENDED`` is set.
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
            arrive(self.work / "in", f"{number:04}.json", rows, at=number)

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


REFUSED = 2 * ROWS_EACH + 1


def _refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    if REFUSED in batch.column("id").to_pylist():
        raise ValueError(f"{REFUSED} is refused")
    return batch


def pipeline_of(place: Place) -> hf.Pipeline:
    """Return the pipeline of a place."""
    rows = hf.read.files(
        place.work / "in", format="json", schema="id BIGINT, k INT", max_files_per_epoch=1, name="rows"
    )
    if place.kind == "state":
        rows = rows | hf.accumulate(by="k", n=hf.count(), name="counted")
    if place.kind == "refuses" and "HOLDFAST_TEST_MENDED" not in os.environ:
        rows = rows | hf.map_batches(_refuse, "id BIGINT, k INT", name="checked")
    elif place.kind == "refuses":
        rows = rows | hf.map_batches(lambda batch: batch, "id BIGINT, k INT", name="checked")
    pace: dict[str, Any] = {"commit_every": "1 h"} if place.kind == "paced" else {}
    sinks = [
        rows
        | hf.write.sqlite(place.work / "out.db", table="rows", name="table", rewindable=place.kind == "state", **pace)
    ]
    if place.kind in ("two", "state"):
        sinks.append(rows | hf.write.files(place.work / "out", name="files"))
    return hf.Pipeline("kept", *sinks)


@contextmanager
def placed(scratch: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """Let scratches be there, and variables be set, for what is done here."""
    before = dict(os.environ)
    os.environ.update({"HOLDFAST_SPARK_CHECKPOINT": str(scratch), **variables})
    try:
        yield
    finally:
        faults.install(None)
        os.environ.clear()
        os.environ.update(before)


def run(place: Place, die: tuple[str, int] | None = None, **variables: str) -> str:
    """Run to the end of the input, or die at a point; return what was said at death."""
    with placed(place.scratch, variables):
        if die is not None:
            die_at(*die)
        try:
            pipeline_of(place).run(checkpoint=place.address, trigger=hf.available_now(), master="local[2]")
        except (HoldfastError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return ""


def run_for(place: Place, warm: int, epochs: int, idle_s: float, **variables: str) -> dict[str, Any]:
    """Run and feed a file for each epoch; return how many epochs and when, and when it was left without input."""
    with placed(place.scratch, variables):
        started = pipeline_of(place).start(checkpoint=place.address, trigger=hf.every("0 s"), master="local[2]")

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


def command(place: Place, *words: str, **variables: str) -> tuple[int, str]:
    """Give a command of ``holdfast`` for a place; return its exit code and what it said."""
    program = place.work / "program.py"
    program.write_text(
        "from pathlib import Path\n"
        "from tests.spark.object_store_runs import Place, pipeline_of\n"
        f"pipeline = pipeline_of(Place(Path({str(place.work)!r}), {place.address!r}, {place.kind!r}))\n"
    )
    target = {"TARGET": f"{program}:pipeline"}
    with placed(place.scratch, variables):
        done = CliRunner().invoke(app, [*(target.get(word, word) for word in words), "--checkpoint", place.address])
    return done.exit_code, done.output


def run_until_asked(place: Place, ask: tuple[str, ...]) -> list[int]:
    """Run a sink that waits for an hour, and a command while it does; return how many rows it held before and after."""
    place.arrive(0, 2)
    with placed(place.scratch, {}):
        started = pipeline_of(place).start(checkpoint=place.address, trigger=hf.every("0 s"), master="local[2]")
    try:
        eventually(lambda: _read(started) == 2 * ROWS_EACH)
        held = [len(sqlite_rows(place.work / "out.db"))]
        code, said = command(place, *ask, HOLDFAST_SPARK_CHECKPOINT=str(place.work / "another machine"))
        assert code == 0, said
        eventually(lambda: len(sqlite_rows(place.work / "out.db")) > held[0])
        return [*held, len(sqlite_rows(place.work / "out.db"))]
    finally:
        started.stop()
        started.wait()


def _read(started: Any) -> int:
    return sum(source.rows for source in started.status().sources)


def _begin(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    often = RequestLimits()  # as often as ever, and without long waits
    unanswered, answered = (replace(each, first_s=0.01, cap_s=0.1) for each in (often.unanswered, often.answered))
    vars(object_store)["RequestLimits"] = partial(RequestLimits, unanswered, answered)


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
