"""The runs among which a row is traced: that of a pipeline, or those of its shards (design/0048, 8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.controller.layouts.found_shards import ask_shards, recovered_parts
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.graph.graph import Graph
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_checkpoint, shard_name
from holdfast.store.paths import open_store


@dataclass(frozen=True)
class TracedRuns:
    """The runs that write a pipeline's sinks: one, or one for each shard.

    Parameters
    ----------
    names : tuple of str
        In the sinks' ledgers, by the numbers of the shards; also of those that were given up.
    checkpoints : tuple of Path
        Of each, where they are asked.
    is_moved : bool
        Whether segments may have moved between shards: then the first epoch of a segment in a ledger need not have
        read it.
    """

    names: tuple[str, ...]
    checkpoints: tuple[Path, ...] = ()
    is_moved: bool = False

    def shard(self, name: str) -> int | None:
        """Return the number of a shard; None where there is one run."""
        return self.names.index(name) if len(self.names) > 1 else None


def traced_shards(pipeline: Graph, checkpoint: Path | None) -> tuple[Graph, TracedRuns | None]:
    """Return what is traced of a pipeline that has shards: its graph, with a position for each segment, and their runs.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    checkpoint : Path, optional
        The pipeline's own directory: without it, the sinks are asked.

    Returns
    -------
    (Graph, TracedRuns or None)
        The graph as it is, and None, where it has no shards.
    """
    layout = None if checkpoint is None else newest_layout(open_store(str(checkpoint)))
    if checkpoint is not None and layout is not None:
        graphs, shards = ShardGraphs(pipeline, checkpoint), range(layout.highest_count)
        names = tuple(shard_name(pipeline.name, shard) for shard in shards)
        places = tuple(Path(shard_checkpoint(str(checkpoint), shard)) for shard in shards)
        return graphs.in_parts(layout.parts), TracedRuns(names, places, is_moved=bool(layout.assignment.former))
    said = ask_shards({node.name: node.spec for node in pipeline.sinks}, pipeline.name) if checkpoint is None else []
    if len(said) < 2:
        return pipeline, None
    names = tuple(shard_name(pipeline.name, shard) for shard in range(len(said)))
    graphs = ShardGraphs(pipeline, Path())
    return graphs.in_parts(recovered_parts(graphs.divisible_sources, said)), TracedRuns(names, is_moved=True)
