"""What a sink holds compared with what the run believes: nothing is published to a sink that went back, or lost rows.

Every sink asks this under its own lock, before it changes anything: a later epoch would move its ledger past the gap
and hide it permanently (design/0002).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from holdfast.errors import Diverged, invariant
from holdfast.ports import Held, Publication
from holdfast.positions import Positions


def went_back(
    what: str, *, participant: str, epoch: int, pipeline: str = "", generation: int | None = None
) -> Diverged:
    """Return the error of a sink that holds less than it said: the next start replays what it lacks."""
    error = Diverged(
        what,
        why="it went back during the run: a failover to a lagging standby, a restored backup, or a replaced file.",
        do="start the pipeline again: what is missing in the sink is produced again, if the sources can still deliver "
        "it.",
        pipeline=pipeline,
        participant=participant,
        epoch=epoch,
        generation=generation,
    )
    error.is_mended_by_start = True
    return error


def rows_gone(
    node: str, name: str, why: str, *, pipeline: str = "", participant: str = "", epoch: int | None = None
) -> Diverged:
    """Return the error of an epoch whose staged rows the sink no longer has: nothing of it was published.

    The next start produces an epoch that is not decided again.  It asks about one that is decided, and revokes it, or
    says why it cannot (design/0002, "Expiry").
    """
    error = Diverged(
        f"{node}: the rows staged as {name!r} are gone, or not what was staged.",
        why=why,
        do="start the pipeline again: nothing of the epoch was published here, and it is read again, if the sources "
        "can still deliver it. See to it that nobody removes what is staged.",
        pipeline=pipeline,
        participant=participant or node,
        epoch=epoch,
    )
    error.is_mended_by_start = True
    return error


def unpublished(
    node: str, pipeline: str, publications: Sequence[Publication], held: Held, expected: Held
) -> list[Publication]:
    """Return the epochs that a sink still lacks.

    Parameters
    ----------
    node : str
        ``sink 'name'``, for errors.
    pipeline : str
        Its pipeline.
    publications : sequence of Publication
        What it must publish, ascending.
    held : Held
        What its own ledger says, read under its lock.  The generation is ignored.
    expected : Held
        What it last reported: when it was opened, or by publishing.

    Raises
    ------
    Diverged
        If it holds less than it is believed to, or something else under the same number.  Ahead it may be: a COMMIT
        whose reply was lost was kept.
    """
    ends = {expected.epoch: expected.positions} | {each.record.epoch: each.record.positions for each in publications}
    is_behind = held.epoch < expected.epoch
    if is_behind or not _is_same(held.positions, ends.get(held.epoch, held.positions)):
        other = "" if is_behind else ", up to other positions"
        raise went_back(
            f"{node} holds epoch {held.epoch}, and this run had published epoch {max(expected.epoch, held.epoch)} "
            f"there{other}.",
            pipeline=pipeline,
            participant=node,
            epoch=publications[0].record.epoch,
        )
    new = [publication for publication in publications if publication.record.epoch > held.epoch]
    epochs = [held.epoch, *(publication.record.epoch for publication in new)]
    invariant(
        all(one < next_ for one, next_ in pairwise(epochs)),
        f"{node} is to publish {epochs[1:]} after epoch {held.epoch}.",
        why="the epoch that a sink holds only grows.",
        pipeline=pipeline,
        participant=node,
        epoch=epochs[-1],
    )
    return new


def is_moved(held: Held, seen: Held) -> bool:
    """Return whether a ledger is no longer as it was seen: another run took it, or something was published."""
    return (held.epoch, held.generation) != (seen.epoch, seen.generation) or not _is_same(
        held.positions, seen.positions
    )


def are_moved(held: Mapping[str, Held], seen: Mapping[str, Held]) -> bool:
    """Return whether a ledger of several shards is no longer as it was seen, or other shards hold something."""
    return held.keys() != seen.keys() or any(is_moved(each, seen[name]) for name, each in held.items())


def _is_same(one: Positions, other: Positions) -> bool:
    return {source: dict(segments) for source, segments in one.items()} == {
        source: dict(segments) for source, segments in other.items()
    }
