"""Whether segments may move between shards that write byte streams: a stream stays in the branch where it began.

Each shard writes a branch of its own.  To readers a stream of one branch is a segment, with positions; one that went on
in another branch would be another segment to them, and the order between the two is nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.errors import InvalidPipeline
from holdfast.shards.naming import shard_name

Moves = Mapping[str, tuple[int, int]]
"""Unit of segments -> from which shard to which, as :func:`holdfast.shards.assignment.moves` returns it."""


def moved_streams(
    streams: Mapping[int, Collection[str]], moves: Moves, unit_of: Mapping[str, str] | None = None
) -> list[tuple[str, int]]:
    """Return the streams that would go on in the branch of another shard, each with the shard that wrote it.

    Parameters
    ----------
    streams : mapping of int to collection of str
        Shard -> the streams of its branch.
    moves : mapping of str to (int, int)
        The units that move.
    unit_of : mapping of str to str, optional
        Stream -> unit whose rows it has, where that is known: ``shard_by`` names the column of streams.  Of a stream
        that is not in it, and without it, any unit of its shard may have rows for it.

    Examples
    --------
    >>> streams, moves = {0: ["a", "b"], 1: ["c"]}, {"in:a": (0, 2)}
    >>> moved_streams(streams, moves), moved_streams(streams, moves, {"a": "in:a", "b": "in:b"})
    ([('a', 0), ('b', 0)], [('a', 0)])
    """
    leaving: dict[int, set[str]] = {}
    for unit, (shard, _) in moves.items():
        leaving.setdefault(shard, set()).add(unit)
    known = unit_of or {}
    return [
        (stream, shard)
        for shard in sorted(leaving.keys() & streams.keys())
        for stream in sorted(streams[shard])
        if stream not in known or known[stream] in leaving[shard]
    ]


def check_moves(
    name: str, spec: ByteStreamSinkSpec, pipeline: str, moves: Moves, unit_of: Mapping[str, str] | None = None
) -> None:
    """See that no stream would go on in another branch.  Changes nothing.

    Parameters
    ----------
    name, spec
        The sink.
    pipeline : str
        Without the number of a shard.
    moves, unit_of
        As of :func:`moved_streams`.

    Raises
    ------
    InvalidPipeline
        Naming a stream that would.
    """
    shards = {shard for shard, _ in moves.values()}
    found = moved_streams({each: spec.streams(name, shard_name(pipeline, each)) for each in shards}, moves, unit_of)
    if not found:
        return
    stream, shard = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    is_known = unit_of is not None and stream in unit_of
    raise InvalidPipeline(
        f"sink {name!r}: stream {stream!r} of shard {shard} would go on in another shard{more}.",
        why="each shard writes a branch of its own, and for readers a stream of another branch is another segment"
        + ("." if is_known else "; that none of the rows that move are of it is not known."),
        do="keep the number of shards; or give the sink another name=: its streams begin there, and readers read both.",
        pipeline=pipeline,
        participant=name,
    )
