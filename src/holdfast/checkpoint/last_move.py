"""What a start has to know of segments that moved between shards: no sink goes behind that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint.directory_header import FILE_NAME, read_origin
from holdfast.errors import Corrupt, Diverged, invariant
from holdfast.ports import Held
from holdfast.positions import Positions, covers_all
from holdfast.shards.layout import ShardLayout, newest_layout
from holdfast.shards.naming import shard_of, sources_place
from holdfast.store.paths import open_store


@dataclass(frozen=True)
class LastMove:
    """What a layout did to a shard.

    Parameters
    ----------
    layout : int
        The layout under which the shard goes on; 0: none.
    moved : int
        Epoch of its last hand-over; 0: there was none.
    stood : Positions
        Where that was none, and its segments may have changed: where its sinks stood.
    """

    layout: int = 0
    moved: int = 0
    stood: Positions = field(default_factory=dict)

    @classmethod
    def under(cls, layout: ShardLayout, shard: int) -> LastMove:
        """Return what a layout says of a shard."""
        invariant(layout.number > 0, "a layout that is not recorded moves nothing.")
        move = layout.moves.get(shard)
        if move is None:
            return cls(layout.number)
        if move.receives is None and move.gives is None:
            return cls(layout.number, stood=move.positions)
        return cls(layout.number, move.end[0])


def last_move(directories: Iterable[Path], checkpoint: Path, pipeline: str) -> LastMove:
    """Return what the last layout did to a shard; nothing, of a pipeline without any.

    Parameters
    ----------
    directories : iterable of Path
        Spark's directory, and the one before: the first that has its record says it.  Where they are lost, the layout
        does that holds.
    checkpoint : Path
        Of the shard.
    pipeline : str
        The shard's name.
    """
    for path in directories:
        with suppress(Corrupt):
            header = read_origin(path / FILE_NAME)
            return LastMove(header.layout, header.moved, header.stood)
    layout = newest_layout(open_store(str(sources_place(checkpoint, pipeline))))
    return LastMove() if layout is None else LastMove.under(layout, shard_of(pipeline)[1])


def check_none_is_before(last: LastMove, held: Mapping[str, Held], remembering: Collection[str], pipeline: str) -> None:
    """Refuse a sink that was restored to a time before segments moved: others have what it would be given again.

    Parameters
    ----------
    last : LastMove
        What the last layout did to the shard.
    held : mapping of str to Held
        What each sink holds, with everything resolved.
    remembering : collection of str
        Those that know what another process published.
    pipeline : str
        The shard's name.

    Raises
    ------
    Diverged
        Naming the sink.
    """
    for name in sorted(remembering):
        of = held[name]
        stood = {source: at for source, at in last.stood.items() if source in of.positions}
        if not of.is_empty and (of.epoch < last.moved or not covers_all(of.positions, stood)):
            raise Diverged(
                f"sink {name!r} holds epoch {of.epoch}, and segments have moved between shards since.",
                why="it was restored to a time when other shards had these segments: what it lacks would be read by "
                "another shard than the one that gave it the rest.",
                do="restore it to a newer state; or restore the checkpoint and all sinks to one moment.",
                pipeline=pipeline,
                participant=name,
                epoch=of.epoch,
            )
