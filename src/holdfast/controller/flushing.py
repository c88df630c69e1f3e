"""``holdfast flush``: asks sinks that let rows wait to make them visible now: segments, and sinks with a pace."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from holdfast.commit.paced import ask_to_commit
from holdfast.connectors.segments.control import flush
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.controller.layouts.found_shards import ask_shards
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.ports import Store
from holdfast.shards.naming import shard_name


def runs_to_flush(pipeline: Graph, stores: Sequence[Store] | None) -> list[tuple[str, Store | None]]:
    """Return the runs that are asked, by the names that their ledgers have: the pipeline's, or that of each shard.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    stores : sequence of Store, optional
        The checkpoints of its shards, or its own: without them, stores of segments tell which shards there are.
    """
    if stores is not None:
        return [(shard_name(pipeline.name, shard), store) for shard, store in enumerate(stores)]
    asked = {sink.name: sink.spec for sink in pipeline.sinks if isinstance(sink.spec, SegmentsSinkSpec)}
    count = len(ask_shards(asked, pipeline.name))
    return [(shard_name(pipeline.name, shard), None) for shard in range(max(1, count))]


def flush_sinks(
    pipeline: Graph, names: Collection[str], partitions: Sequence[str] | None, store: Store | None = None
) -> list[str]:
    """Ask sinks to seal what grows, or to commit what waits for them; return their names.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    names : collection of str
        Which; empty: all that can.
    partitions : sequence of str, optional
        Of segments, only these.
    store : Store, optional
        The checkpoint: where sinks with a pace are asked.

    Raises
    ------
    InvalidPipeline
        If a name is not that of a sink that can be flushed, or there is none; if one is to commit, and it was not said
        which checkpoint the run has.
    """
    segments = {sink.name: sink.spec for sink in pipeline.sinks if isinstance(sink.spec, SegmentsSinkSpec)}
    paced = [sink.name for sink in pipeline.sinks if sink.pace is not None]
    able = [sink.name for sink in pipeline.sinks if sink.name in segments or sink.name in paced]
    unknown = [name for name in names if name not in able]
    if unknown or not able:
        raise InvalidPipeline(
            f"Pipeline {pipeline.name!r} has no sink {unknown[0]!r} that can be flushed."
            if unknown
            else f"Pipeline {pipeline.name!r} has no sink that can be flushed.",
            why=f"those of hf.write.segments can be, and with commit_every: {', '.join(able) or 'there is none'}.",
            do="name one of these." if able else "nothing: its other sinks hold every epoch as it comes.",
        )
    chosen = [name for name in able if name in names or not names]
    to_commit = [name for name in chosen if name in paced]
    if to_commit and store is None:
        raise InvalidPipeline(
            f"It is not known where sink {to_commit[0]!r} of pipeline {pipeline.name!r} can be asked.",
            why="a sink with commit_every is asked in the checkpoint of its run.",
            do="say which: holdfast flush TARGET --checkpoint DIR; or name the other sinks alone.",
        )
    if to_commit and store is not None:
        ask_to_commit(store, to_commit)
    for name in chosen:
        if name in segments:
            flush(os.path.abspath(segments[name].path), partitions, pipeline=pipeline.name, sink=name)
    return chosen
