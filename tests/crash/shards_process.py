"""Drivers of one pipeline in shards, from files to a table and other sinks, in which single shards fail.

``CRASH_LIFE=... python -m tests.crash.shards_process``, with a :class:`Life`; the command line takes this file for a
target, too.  The driver prints ``begun``, or why its start was refused.  One shard fails at named points by chance, and
again and again at the one that ``WORK/down`` names, while that file is there.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.connectors.segments.policies import rows
from holdfast.errors import HoldfastError, Unavailable
from holdfast.graph.nodes import SinkNode
from holdfast.shards.naming import shard_name
from tests.spark.running import sqlite_rows

SHARDS = 4
DOWN = 2
LIFE = "CRASH_LIFE"
POINTS = (
    *("before-stage", "after-stage", "after-decide", "before-publish", "publish-begun", "publish-uncommitted"),
    *("after-publish", "before-forget", "after-forget", "recovery-resolved"),
)


@dataclass(frozen=True)
class Life:
    """What a driver is started with.

    Parameters
    ----------
    work : str
        The directory of input, checkpoint and sinks.
    bootstrap : str
        Of a Kafka cluster, where a sink needs one.
    sinks : sequence of str
        ``table`` (SQLite), ``store`` (segments), ``topic`` (Kafka), ``files``.
    seed : int
        Of failures.
    failing : int
        The shard that fails.
    shards : int
        How many shards.
    version : int
        Of the graph: as it was first, with a filter, with another column.
    count : int
        The driver ends by itself when the table has so many rows; 0: never.
    """

    work: str
    bootstrap: str = ""
    sinks: tuple[str, ...] = ("table", "store")
    seed: int = 0
    failing: int = DOWN
    shards: int = SHARDS
    version: int = 0
    count: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """What tells a process of it."""
        return {LIFE: json.dumps(asdict(self))}


def pipeline_of(life: Life) -> hf.Pipeline:
    """Return the pipeline."""
    work = Path(life.work)
    numbers = hf.read.files(str(work / "in"), schema="id BIGINT", max_files_per_epoch=2, name="numbers")
    if life.version == 1:
        numbers = numbers | hf.filter("id >= 0", name="some")
    if life.version == 2:
        numbers = numbers | hf.select("id", "id % 7 as weekday", name="days")
    is_rewindable = "files" in life.sinks

    def sink(kind: str) -> SinkNode:
        if kind == "table":
            spec = hf.write.sqlite(str(work / "table.db"), table="rows", rewindable=is_rewindable, name=kind)
        elif kind == "store":
            spec = hf.write.segments(str(work / "store"), seal=[rows(20)], name=kind)
        elif kind == "files":
            spec = hf.write.files(str(work / "files"), name=kind)
        else:
            spec = hf.write.kafka(life.bootstrap, "rows", name=kind)
        is_narrow = kind == "files" and life.version == 2  # a directory has the same columns for ever
        made = (numbers | hf.select("id", name=f"{kind}_ids") if is_narrow else numbers) | spec
        if kind == "table" and "topic" in life.sinks:
            made = replace(made, spec=Refusing(made.spec, str(work / "down"), shard_name("numbers", life.failing)))
        return made

    return hf.Pipeline("numbers", *map(sink, life.sinks))


@dataclass(frozen=True)
class Refusing:
    """A table that answers one shard nothing when it is to publish, while ``WORK/down`` says ``table``."""

    spec: Any
    down: str
    shard: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.spec, name)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Any:
        """Connect the real sink."""
        sink = self.spec.connect(name, pipeline, schema)
        if pipeline == self.shard:
            publish, down = sink.publish, Path(self.down)

            def refuse(*arguments: Any) -> None:
                if down.exists() and down.read_text() == "table":
                    (down.parent / "failed").touch()
                    raise Unavailable("the table does not answer.", why="it is away.", do="wait.")
                publish(*arguments)

            sink.publish = refuse
        return sink


def fail(life: Life) -> faults.Hook:
    """Return what lets a shard fail: the thread that reaches a point is one of that shard alone."""
    chance, down = random.Random(life.seed), Path(life.work) / "down"

    def hook(point: str, epoch: int) -> None:
        if down.exists():
            if point in down.read_text().split():
                (down.parent / "failed").touch()
                raise Unavailable(f"{point}:{epoch}", why="it is away.", do="wait.")
        elif point in POINTS and chance.random() < 0.03:
            raise RuntimeError(f"{point}:{epoch}")

    return hook


FAILED_AT_END = 7
"""Exit code of a driver that was told to stop at the moment at which a failure was given to it."""

FAILED = "failed while it starts"
"""What a driver says of a failure that is given to it before it has begun all shards; then it ends."""


def main(life: Life) -> None:
    """Run until the table has so many rows."""
    faults.install(fail(life), shard=life.failing)
    settings = Settings(
        retry_attempts=2,
        retry_first="50 ms",
        retry_cap="50 ms",
        restart_first="50 ms",
        restart_cap="200 ms",
        max_restarts=1_000_000,
    )
    try:
        run = pipeline_of(life).start(
            checkpoint=Path(life.work) / "checkpoint",
            trigger=hf.every("20 ms"),
            shards=life.shards,
            master="local[2]",
            settings=settings,
        )
    except HoldfastError as error:
        say(f"refused: {type(error).__name__}: {error.what} {error.why}")
        return
    except RuntimeError as error:  # of our own: the shard fails while its segments are given to others
        say(f"{FAILED} at {error}")
        os._exit(1)
    say("begun")
    waiting = threading.Event()
    while not life.count or len(sqlite_rows(Path(life.work) / "table.db")) < life.count:
        if run.wait(0):
            return
        waiting.wait(0.05)
    faults.install(None)
    run.stop()
    try:
        run.wait()
    except HoldfastError as error:
        if "RuntimeError" not in f"{error.what} {error.why}":
            raise
        os._exit(FAILED_AT_END)


def say(line: str) -> None:
    """Tell whoever has started this."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if LIFE in os.environ:
    _asked = json.loads(os.environ[LIFE])
    _life = Life(**{**_asked, "sinks": tuple(_asked["sinks"])})
    pipeline = pipeline_of(_life)

if __name__ == "__main__":
    main(_life)
    os._exit(0)
