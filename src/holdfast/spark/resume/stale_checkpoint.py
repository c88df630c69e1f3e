"""A checkpoint that is older than its sinks: their positions are beyond those that it has for its sources.

The meaning of a position is durable in the checkpoint (or the feed) before the source returns it, so no crash leads
here: the checkpoint was restored from a copy.  A file log would continue from there with other files under the same
positions, and a sink knows only these numbers: rows would be skipped as if the sink held them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from holdfast.errors import Diverged
from holdfast.graph.nodes import Node
from holdfast.ports import Held, SourceSpec
from holdfast.positions import Positions
from holdfast.resume.directory_header import FILE_NAME
from holdfast.resume.spark_log import newest_positions
from holdfast.spark.resume.beginning import Beginning


def check_reached(beginning: Beginning, held: Mapping[str, Held]) -> None:
    """Refuse to begin or go on with a checkpoint that is older than a sink.  Changes nothing.

    Parameters
    ----------
    beginning : Beginning
        Spark's directory, and the sources.
    held : mapping of str to Held
        What each sink holds.

    Raises
    ------
    Diverged
        If a sink holds positions of a source that the source has not reached.
    """
    directory = beginning.directory
    if not beginning.spark.is_changed and not (directory / beginning.below / FILE_NAME).exists():
        return  # Spark's directory is lost: beginning a new one checks whether sources can be read from there
    logged = {**newest_positions(directory / beginning.previous), **newest_positions(directory / beginning.below)}
    for node in beginning.sources:
        reached = cast("SourceSpec", node.spec).reached(node.name, beginning.workspace(node.name))
        for segment, known in reached.items():
            if _at(logged, node, segment) > int(known):
                continue  # the source's own files were lost, and Spark's log was not: planning reports it
            for sink in sorted(held):
                at = _at(held[sink].positions, node, segment)
                if at > int(known):
                    raise _older(beginning, node.name, int(known), sink, held[sink], at)


def _at(positions: Positions, node: Node, segment: str) -> int:
    return int(positions.get(node.name, {}).get(segment, 0))


def _older(beginning: Beginning, source: str, known: int, sink: str, held: Held, at: int) -> Diverged:
    return Diverged(
        f"sink {sink!r} holds source {source!r} up to position {at}, and checkpoint {beginning.directory} knows of "
        f"{known}.",
        why="the checkpoint is older than the sink: it was restored from a copy. What it would read next may be other "
        "rows than those that the sink holds under these positions.",
        do="start with the newer checkpoint, which the sink was written with; or bring the sink to the moment of this "
        "copy: restore it too; or, if it can withdraw rows, holdfast rewind --to the last epoch of the copy.",
        pipeline=beginning.pipeline,
        participant=sink,
        epoch=held.epoch,
    )
