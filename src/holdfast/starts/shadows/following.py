"""A shadow that follows a pipeline while another process runs it: what a replica keeps, and begins with (design/0028).

A thread asks the sinks where they stand, tells the shadow what that means, and adds it to the shadow's targets.  Of
several sinks the one that is furthest behind counts: a snapshot that is ahead of a sink would be of no use.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from holdfast.checkpoint.explained import agreed
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.graph.graph import Graph
from holdfast.graph.trigger import every
from holdfast.ports import Held, LedgerSpec, SinkLedger
from holdfast.reconcile.stand_ins import followed, in_place
from holdfast.spark.run import Run
from holdfast.starts.shadows.shadow import Shadow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("holdfast.replica")

POLL_S = 0.25
"""How often sinks are asked where they stand; less often where the answer takes long."""

REST = 10
"""How many times as long as an answer took nobody is asked again."""

SIZED_EVERY_S = 30.0
"""How often its size is looked at."""

NOT_KEPT = ("spark", "ledger", "sinks", "targets", "generations", "fences")
"""What a shadow's checkpoint has that is no beginning for the pipeline itself: its epochs are others."""


@dataclass(frozen=True)
class ShadowLag:
    """How far a shadow is behind the sinks.

    Parameters
    ----------
    epoch : int
        The epoch of the sinks that it goes to; 0 before the first answer.
    is_level : bool
        Whether it is there.
    behind_us : int
        Since when it is not, microseconds; 0 where it is.
    asked_us : int
        When the sinks answered last, microseconds of Unix time; 0: they have not.
    size_bytes : int
        What it has on the disk: rows and state.
    """

    epoch: int = 0
    is_level: bool = False
    behind_us: int = 0
    asked_us: int = 0
    size_bytes: int = 0


class Following:
    """The state and the content that a pipeline's sinks imply, kept by another process than the one that writes them.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    directory : Path
        Of the shadow alone.
    settings : Settings
        Of its run.
    session : SparkSession, optional
        Use this session's context.
    digests_only : bool
        Whether of rows it keeps digests.
    """

    def __init__(
        self,
        pipeline: Graph,
        directory: Path,
        settings: Settings,
        *,
        session: SparkSession | None = None,
        digests_only: bool = False,
    ) -> None:
        if pipeline.shard_by is not None:
            raise InvalidPipeline(
                f"the state of pipeline {pipeline.name!r} cannot be computed beside it: it has "
                f"shard_by={pipeline.shard_by!r}.",
                why="which segment has the rows of a key is recorded in the checkpoint of the main, and a replica that "
                "reads in larger steps could decide otherwise.",
                do="start the replica with the main's checkpoint, where both machines see it.",
                pipeline=pipeline.name,
            )
        self._asked = followed(pipeline)
        self._pipeline = pipeline
        stand_in = in_place(digests_only=digests_only)
        self._shadow = Shadow(pipeline, self._asked, directory, settings, session=session, stand_in=stand_in)
        self._run: Run | None = None
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()
        self._lag = ShadowLag()
        self._sized_s = 0.0
        self.error: HoldfastError | None = None
        """Why it follows no more; None while it does."""

    def start(self) -> None:
        """Begin; the shadow runs once there is something that it goes to."""
        self._look()
        self._begin()
        self._thread = threading.Thread(target=self._follow, name="holdfast-following", daemon=True)
        self._thread.start()

    @property
    def lag(self) -> ShadowLag:
        """How far it is behind."""
        return self._lag

    def stop(self) -> None:
        """End at the end of an epoch; its state is kept as a snapshot."""
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join()
        if self._run is not None:
            self._run.stop()

    def become_checkpoint(self) -> Path:
        """Make a checkpoint of the pipeline itself of what is there: snapshots, and what positions mean.

        Returns
        -------
        Path
            Its directory.  A start with it finds the sinks, takes them over, and goes on where they are.
        """
        directory = self._shadow.checkpoint
        for name in NOT_KEPT:
            path = directory / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return directory

    def copy_checkpoint(self) -> Path:
        """Make the same of a copy: what the sinks should hold stays, and can go on to where each of them is."""
        directory = self._shadow.directory / "beginning"
        shutil.rmtree(directory, ignore_errors=True)  # a crash has left a part of it
        self._shadow.checkpoint.mkdir(parents=True, exist_ok=True)  # not there where the sinks have held nothing yet
        top = str(self._shadow.checkpoint)
        shutil.copytree(top, directory, ignore=lambda at, names: NOT_KEPT if at == top else ())
        return directory

    # --- inside -----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        took_s = 0.0
        while not self._is_ending.wait(max(POLL_S, REST * took_s)):
            began_s = time.monotonic()
            try:
                self._look()
                self._begin()
                if self._run is not None and not self._run.is_active:
                    self._run.wait()
            except HoldfastError as error:
                if not isinstance(error, Unavailable | InDoubt):
                    self.error = error
                    return
                log.info("the sinks do not say where they are: %s", error.what)
            took_s = time.monotonic() - began_s

    def _begin(self) -> None:
        """Run the shadow where the sinks hold something: before, a sink may not be there that is to be asked."""
        if self._run is None and self._lag.epoch:
            self._run = self._shadow.begin(every("0 s"))

    def _look(self) -> None:
        """Ask the sinks, and let the shadow go where they all are."""
        ledgers = {
            node.name: cast("LedgerSpec", node.spec).ledger(node.name, self._pipeline.name) for node in self._asked
        }
        known: Mapping[str, SinkLedger] = {name: each for name, each in ledgers.items() if each is not None}
        now_us = time.time_ns() // 1000
        if len(known) < len(ledgers) or any(each.held.is_empty for each in known.values()):
            self._lag = ShadowLag(asked_us=now_us, is_level=True, size_bytes=self._size_bytes())
            return
        held: Held = min((each.held for each in known.values()), key=lambda held: held.epoch)
        if held.epoch != self._lag.epoch:
            self._shadow.learn(agreed({name: each.explanations for name, each in known.items()}))
            self._shadow.add(held.positions)
        is_level = self._shadow.is_at(held.positions)
        since_us = self._lag.asked_us if self._lag.is_level else now_us - self._lag.behind_us
        behind_us = 0 if is_level else now_us - since_us
        self._lag = ShadowLag(held.epoch, is_level, behind_us, now_us, self._size_bytes())

    def _size_bytes(self) -> int:
        """Return what is on the disk; looked at now and then, as there may be many files."""
        now_s = time.monotonic()
        if self._sized_s and now_s - self._sized_s < SIZED_EVERY_S:
            return self._lag.size_bytes
        self._sized_s = now_s
        return size_of(self._shadow.directory)


def size_of(directory: Path) -> int:
    """Return the bytes of the files below a directory in which others work."""
    size = 0
    for above, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # removed meanwhile
                size += os.lstat(os.path.join(above, name)).st_size
    return size
