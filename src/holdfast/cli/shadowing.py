"""The state of a replica whose checkpoint is not the main's: kept by a shadow, which becomes the checkpoint.

Where sinks are compared it stays beside it, as what they should hold, until they have been.

Order, with the lease taken: 1. the shadow is stopped, which leaves a snapshot; 2. what is in the checkpoint is set
aside; 3. what is a beginning for the pipeline is moved from the shadow's checkpoint into it.  A crash before 3 leaves
the shadow, which goes on; in 3, snapshots or the meaning of positions in part: they are computed again.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.targets import FILE_NAME
from holdfast.config import Settings
from holdfast.display.tables import size_text
from holdfast.graph.graph import Graph

if TYPE_CHECKING:
    pass

log = logging.getLogger("holdfast.replica")

NAME = "shadow"
"""Directory in the replica's checkpoint."""
_POLL_S = 0.05


class Shadowing:
    """A shadow beside a checkpoint, which it becomes.

    Parameters
    ----------
    pipeline : Graph
        What is run.
    directory : Path
        The replica's checkpoint.
    options : mapping of str to Any
        The arguments of the start.
    """

    def __init__(self, pipeline: Graph, directory: Path, options: Mapping[str, Any]) -> None:
        settings = options.get("settings") or Settings()
        if master := options.get("master"):
            settings = Settings(**{**settings.model_dump(), "master": master})
        from holdfast.starts.shadows.following import Following

        self._place = directory / NAME
        if not (self._place / "checkpoint" / FILE_NAME).exists():  # a crash has left it on its way into the checkpoint
            shutil.rmtree(self._place, ignore_errors=True)
        self._directory = directory
        keeps_digests = bool(options.get("digests_only"))
        self._following = Following(pipeline, self._place, settings, digests_only=keeps_digests)
        log.info("the state of pipeline %r is computed beside the main", pipeline.name)
        self._following.start()

    def check(self) -> None:
        """Raise why it follows no more."""
        if self._following.error is not None:
            raise self._following.error

    @property
    def lag(self) -> dict[str, Any]:
        """How far it is behind the sinks."""
        return dict(vars(self._following.lag))

    @property
    def lag_text(self) -> str:
        """How far it is behind the sinks, for people."""
        lag = self._following.lag
        if not lag.epoch:
            return "the sinks hold nothing yet"
        at = f"at epoch {lag.epoch}" if lag.is_level else f"{lag.behind_us / 1e6:.1f} s behind epoch {lag.epoch}"
        return f"{at}, {size_text(lag.size_bytes)}"

    def reach(self, is_asked_to_stop: Callable[[], bool]) -> None:
        """Wait until it holds what the sinks hold, which nobody writes."""
        while not self._following.lag.is_level and not is_asked_to_stop():
            self.check()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End it; a later one goes on where it was."""
        self._following.stop()

    def become_checkpoint(self, set_aside: Callable[[], object], *, is_compared: bool) -> None:
        """Make it the replica's checkpoint, once it is stopped.

        Parameters
        ----------
        set_aside : callable
            Moves what is there out of the way.
        is_compared : bool
            Whether the sinks will be compared with what it has kept: then a copy becomes the checkpoint.
        """
        made = self._following.copy_checkpoint() if is_compared else self._following.become_checkpoint()
        set_aside()
        for path in made.glob("[!.]*"):
            os.replace(path, self._directory / path.name)
        shutil.rmtree(made if is_compared else self._place, ignore_errors=True)
