"""The epochs that a Spark directory has still to evaluate again, and to which graph they belong.

A directory that begins at a snapshot, or at the beginning of its sources, first replays epochs that sinks hold already.
A graph that changes before that is through finds some of them left:

- of a *backfill* they belong to the graph that is started next: a sink that gets everything gets what the current
  graph computes;
- after a snapshot that was restored they belong to the old graph: it has published them, and its state is what their
  rows were computed with.  Spark's directory was damaged or lost; or a rewind was interrupted before it had brought the
  state to its target.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import Corrupt
from holdfast.ports import Held
from holdfast.positions import covers_all
from holdfast.resume.directory_header import FILE_NAME, DirectoryHeader, read_origin
from holdfast.resume.graph_diff import Replay
from holdfast.resume.spark_log import logged, read_offsets


def left_to_replay(checkpoint: Path, below: str, graph: str) -> Replay | None:
    """Return what a directory has still to replay; None when nothing.  Asks no sink.

    Parameters
    ----------
    checkpoint : Path
        Where the checkpoint lies.
    below : str
        Spark's directory below it.
    graph : str
        Fingerprint of the state of the graph that is to go on.
    """
    header = read_origin(checkpoint / below / FILE_NAME)
    left = header.replay_count - 1 - last_finished(checkpoint / below, {}, header)
    if left <= 0:
        return None
    return Replay(left, is_of_old_graph=header.graph != graph and not is_backfill(header))


def is_backfill(header: DirectoryHeader) -> bool:
    """Tell whether a directory fills a sink from the beginning, also one that an older version has begun."""
    return bool(header.backfilled) or (header.kept == () and not header.seed and header.replay_count > 0)


def last_finished(spark: Path, held: Mapping[str, Held], header: DirectoryHeader) -> int:
    """Return the last batch that Spark's commit log has, or that a sink was given; -1 when there is none.

    Parameters
    ----------
    spark : Path
        Spark's directory.
    held : mapping of str to Held
        What each sink holds.
    header : DirectoryHeader
        The record of the directory.

    Notes
    -----
    Of a batch that is replayed, sinks cover the end before it runs.  A sink that is being filled, and has received it,
    has an epoch of this directory; for the others only Spark's log shows it.
    """
    for batch_id in reversed(logged(spark, "offsets")):
        is_committed = (spark / "commits" / str(batch_id)).exists()
        try:
            positions = read_offsets(spark, batch_id).positions
        except Corrupt:
            if is_committed:
                raise
            continue  # torn when the run died: nothing of it was evaluated
        holders = [each for each in held.values() if covers_all(each.positions, positions)]
        is_new = batch_id >= header.replay_count
        if is_committed or any(is_new or each.epoch >= header.base + batch_id for each in holders):
            return batch_id
    return -1
