"""The parts of a named checkpoint of all shards: of shards that run, and of those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.directory_header import FILE_NAME, newest_directory, read_origin
from holdfast.checkpoint.spark_log import last_logged
from holdfast.clock import SystemClock
from holdfast.commit.owner import noted_owner
from holdfast.config import Settings
from holdfast.controller.kept_shard import ShardRun
from holdfast.controller.named import ShardNames
from holdfast.errors import InvalidPipeline
from holdfast.ports import Store
from holdfast.shards.layout import ShardLayout
from holdfast.shards.named import NamedShards
from holdfast.shards.naming import shard_checkpoint, shard_name
from holdfast.starts.inputs import above_all
from holdfast.starts.named_checkpoint import create
from holdfast.store.paths import open_store


@dataclass(frozen=True)
class ShardParts:
    """The shards of a pipeline, whose states are to be kept under one name.

    Parameters
    ----------
    pipeline : str
        The user's name.
    directory : Path
        Its checkpoint.
    layout : ShardLayout
        Under which they run, or ran last.
    settings : Settings
        For a session, where state has to be read.
    """

    pipeline: str
    directory: Path
    layout: ShardLayout
    settings: Settings

    def of_stopped(self, name: str) -> NamedShards:
        """Make a checkpoint of all shards, none of which runs: of the last epoch that each has finished.

        Raises
        ------
        InvalidPipeline
            If the name is taken, or is none, or segments were moving between shards when a start ended.
        HoldfastError
            As :meth:`holdfast.controller.named.ShardNames.make` and
            :func:`holdfast.starts.named_checkpoint.create`.
        """
        self._check_moved()
        return self.names.make(name, self.layout, lambda shard: self._of_stopped(name, shard))

    def of_running(self, name: str, runs: Sequence[ShardRun]) -> int:
        """Make a checkpoint of all shards, each of which runs; return the highest epoch of its parts.

        Each part is of the last epoch that its shard has finished.

        Parameters
        ----------
        name : str
            The name.
        runs : sequence of ShardRun
            Of the shards, by their numbers.

        Raises
        ------
        HoldfastError
            As :meth:`of_stopped`, and whatever a run raises.
        """

        def put_part(shard: int) -> bool:
            # A shard that has read nothing since it was started stands where its last run ended.
            run = runs[shard]
            return bool(run.checkpoint_now() and run.checkpoint_now(name)) or self._of_stopped(name, shard)

        self.names.make(name, self.layout, put_part)
        return max(part.ended.epoch for part in self.names.manifests(name).values())

    @property
    def names(self) -> ShardNames:
        """The named checkpoints of the pipeline."""
        return ShardNames(self.pipeline, shard_stores(self.directory, self.layout))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _of_stopped(self, name: str, shard: int) -> bool:
        place = self._place(shard)
        store = open_store(str(place))
        if _has_read_nothing(store, place):
            return False
        create(
            store,
            place,
            name,
            pipeline=shard_name(self.pipeline, shard),
            generation=noted_owner(store).generation,
            settings=self.settings,
            clock=SystemClock(),
        )
        return True

    def _check_moved(self) -> None:
        """Refuse shards of which some have moved to the layout that holds, and some have not."""
        for shard in self.layout.moves:
            place = self._place(shard)
            number = newest_directory(open_store(str(place)))
            if not number or read_origin(place / f"spark/{number}" / FILE_NAME).layout < self.layout.number:
                raise InvalidPipeline(
                    f"segments of pipeline {self.pipeline!r} were moving between its shards when a start ended.",
                    why="some shards have moved and some have not: together they would be no state of the pipeline.",
                    do="start all shards once: that comes first then. Then make the checkpoint.",
                    pipeline=self.pipeline,
                )

    def _place(self, shard: int) -> Path:
        return Path(shard_checkpoint(str(self.directory), shard))


def shard_stores(directory: Path, layout: ShardLayout) -> list[Store]:
    """Return the checkpoints of all shards, by their numbers, also of those that were given up.

    Parameters
    ----------
    directory : Path
        The checkpoint of the pipeline.
    layout : ShardLayout
        The newest.
    """
    return [open_store(shard_checkpoint(str(directory), shard)) for shard in range(layout.highest_count)]


def _has_read_nothing(store: Store, place: Path) -> bool:
    """Return whether a shard has not finished an epoch ever, and begins at the beginning of its segments."""
    number = newest_directory(store)
    if not number:
        return not above_all(store, 0)
    spark = place / f"spark/{number}"
    return not read_origin(spark / FILE_NAME).seek and last_logged(spark, "commits") < 0
