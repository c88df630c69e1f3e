"""The floor: the positions from which rows may still have to be replayed, for sources that drop what is published.

Where periodic snapshots are made, the checkpointer moves it when older ones are gone: nothing is dropped before.
Where none are, everything that is published is dropped, except what named checkpoints need: a floor of theirs alone.
Both are read by the planning processes of sources, and so is what sinks with a pace of their own hold, where there are
such sinks (:mod:`holdfast.commit.paced`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.ports import Store
from holdfast.positions import Positions, SourcePositions, least
from holdfast.store import sealed

KEY = "snapshots/floor.json"
NAMED_KEY = "named/floor.json"
EVERY_PIPELINE = "*"
"""Stands for all pipelines in the floor of named checkpoints, where it is unknown of which they are."""


def write_floor(store: Store, positions: Positions) -> None:
    """Move the floor: nothing before these positions is replayed any more."""
    store.put(KEY, sealed.dump(positions))


def lower_floor(store: Store, positions: Positions) -> None:
    """Lower the floor to where reading restarts, if it is above that; it moves up with the snapshots."""
    data = store.get(KEY)
    if data is None:
        return
    try:
        floor: Positions = sealed.load(data)
    except ValueError:
        return  # what cannot be read holds everything
    lower = least(floor, positions)
    if lower != floor:
        write_floor(store, lower)


def read_floor(path: Path) -> Positions:
    """Return the floor; empty when there is none yet, or it cannot be read: then everything stays."""
    try:
        found: Positions = sealed.load(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def write_named_floor(store: Store, of_pipelines: Mapping[str, Positions]) -> None:
    """Move the floor of named checkpoints, which may be of several pipelines; it is removed where there are none."""
    if of_pipelines:
        store.put(NAMED_KEY, sealed.dump(of_pipelines))
    else:
        store.delete(NAMED_KEY)


def read_named_floor(path: Path, pipeline: str, source: str) -> SourcePositions | None:
    """Return from where names of a pipeline need the rows of a source; empty: they need none; None: they need all.

    All of them also where it cannot be read.
    """
    try:
        floors: dict[str, Positions] = sealed.load(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    floor = floors.get(pipeline, floors.get(EVERY_PIPELINE))
    return {} if floor is None else floor.get(source)


def held_by_all(end: Mapping[str, int], held: Mapping[str, int | str]) -> dict[str, int]:
    """Return how much of what is committed the sinks with a pace of their own hold, too.

    A segment that they hold nothing of, or of which it is not known, is left out: all of it stays.

    Examples
    --------
    >>> held_by_all({"log": 7, "other": 3, "new": 1}, {"log": 5, "other": 9})
    {'log': 5, 'other': 3}
    """
    known = {segment: at for segment, at in held.items() if isinstance(at, int)}
    return {segment: min(at, known[segment]) for segment, at in end.items() if segment in known}
