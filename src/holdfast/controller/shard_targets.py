"""What a command is carried out for: a pipeline, or each of its shards; and its backfills, where it is for all."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.backfills import noted_backfills
from holdfast.controller.layouts.found_shards import known_layout
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.shards.naming import backfill_checkpoint, backfill_name, shard_checkpoint, shard_name
from holdfast.store.paths import open_store, viewed_directory


@dataclass(frozen=True)
class ShardTarget:
    """A pipeline, or a shard of one, for a command.

    Parameters
    ----------
    graph : Graph
        Under the name that its ledgers have.
    checkpoint : str
        Its own.
    shard : int, optional
        Its number; None where the pipeline has none.
    backfill : str
        The name of the backfill that it is; empty: none.
    """

    graph: Graph
    checkpoint: str
    shard: int | None = None
    backfill: str = ""

    @property
    def prefix(self) -> str:
        """What lines about it begin with."""
        if self.backfill:
            return f"backfill {self.backfill}  "
        return "" if self.shard is None else f"shard {self.shard}  "

    @property
    def is_first(self) -> bool:
        """Whether it is the pipeline itself, or its shard 0: targets that all of them share are said with it."""
        return not self.shard and not self.backfill


def targets_of(pipeline: Graph, checkpoint: str, *, with_former: bool = False) -> list[ShardTarget]:
    """Return what a command is carried out for: the pipeline, or each of its shards, as checkpoint or sinks know them.

    Parameters
    ----------
    pipeline : Graph
        As the user built it.
    checkpoint : str
        The pipeline's own, as the command was given it; need not exist.
    with_former : bool
        Whether shards are wanted that were given up, too: nothing of theirs is read, their ledgers are there.
    """
    directory = viewed_directory(checkpoint)
    layout = known_layout(pipeline, directory)
    if layout is None:
        return [ShardTarget(pipeline, checkpoint)]
    graphs = ShardGraphs(pipeline, directory)
    found = [graphs.of(layout, shard) for shard in range(layout.shard_count)]
    former = range(layout.shard_count, layout.highest_count if with_former else layout.shard_count)
    found += [pipeline.with_sources(shard_name(pipeline.name, shard), {}) for shard in former]
    return [ShardTarget(graph, shard_checkpoint(checkpoint, shard), shard) for shard, graph in enumerate(found)]


def backfills_of(pipeline: Graph, checkpoint: str) -> list[ShardTarget]:
    """Return the backfills that a checkpoint knows, there or not, each under the name that its ledgers have.

    Parameters
    ----------
    pipeline, checkpoint
        As for :func:`targets_of`.
    """
    directory = viewed_directory(checkpoint)
    notes = noted_backfills(open_store(str(directory))) if directory.is_dir() else ()
    return [
        ShardTarget(
            pipeline.with_sources(backfill_name(pipeline.name, note.name), {}),
            backfill_checkpoint(checkpoint, note.name),
            backfill=note.name,
        )
        for note in notes
    ]


def chosen_of(targets: list[ShardTarget], shard: int | None, *, is_one: bool = False) -> list[ShardTarget]:
    """Return the targets that a command names.

    Parameters
    ----------
    targets : list of ShardTarget
        All of them.
    shard : int, optional
        The number of one; None: all.
    is_one : bool
        Whether it must be one: an epoch is named, and each shard counts its own.

    Raises
    ------
    InvalidPipeline
        If there is no such shard, or none is named where there are several.
    """
    if shard is None and (len(targets) == 1 or not is_one):
        return targets
    there = [each.shard for each in targets if each.shard is not None]
    if shard not in there:
        raise InvalidPipeline(
            f"it is not known which shard is meant{'' if shard is None else f' by --shard {shard}'}.",
            why=f"its shards are {', '.join(map(str, there))}, and each counts its own epochs."
            if there
            else "the pipeline has no shards.",
            do="name one of them: --shard K." if there else "leave --shard out.",
            pipeline=targets[0].graph.name,
        )
    return [each for each in targets if each.shard == shard]
