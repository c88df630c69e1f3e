"""Sinks that are behind catch up: what they lack is replayed, or the start is refused.

What a sink holds is compared with Spark's log at every start, before the first epoch, whether new rows arrive or
not (:mod:`holdfast.resume.behind`).  Where every source can still deliver the range, Spark's directory is *left*
(``left.json`` in it, one durable write) and the start begins anew, as after the loss of that directory: reading begins
at the lowest position of the sinks, and each sink gets what it lacks (:mod:`holdfast.spark.resume.perform`).  After a
crash before the new directory has its header, the next start finds the record, and the sinks as they are then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.commit.takeover import Expired
from holdfast.errors import Diverged
from holdfast.ports import Held, Store
from holdfast.positions import Positions, lacking
from holdfast.resume.behind import Behind, behind, ranges_text, reached, unreadable
from holdfast.resume.decide import StateSource
from holdfast.resume.directory_header import LEFT
from holdfast.resume.spark_log import CONTROLS, plain
from holdfast.spark.resume.beginning import Beginning
from holdfast.store import sealed

log = logging.getLogger("holdfast.checkpoint")


_CHANGED = "the graph has changed as well, and only the old graph can replay what it published."


class DirectoryIsLeft(Exception):
    """Spark's directory is not used again: the start begins anew."""


def lagging(beginning: Beginning, held: Mapping[str, Held]) -> tuple[Behind, ...]:
    """Return the sinks that lack what was published in them, as far as Spark's directory can tell.

    Parameters
    ----------
    beginning : Beginning
        Spark's directory.
    held : mapping of str to Held
        What each sink with a ledger holds.
    """
    return behind(_spark(beginning), held)


def leave(beginning: Beginning, found: Sequence[Behind], replay: tuple[Positions, Positions]) -> DirectoryIsLeft:
    """Leave Spark's directory; return the exception that makes the start begin anew.

    Parameters
    ----------
    beginning : Beginning
        Spark's directory, and the sources.
    found : sequence of Behind
        The sinks that lack something.
    replay : (Positions, Positions)
        As of :func:`replay_of`.
    """
    beginning.check_fenced()  # it may already be the directory of a run that took over meanwhile
    for each in found:
        log.warning("%s", each)
    start, ends = replay
    _note_left(beginning.store, beginning.below, found, ends)
    log.warning("what is missing is read again, from %s on, and given to the sinks that lack it", _show(start))
    return DirectoryIsLeft()


def _spark(beginning: Beginning) -> Path:
    return beginning.directory / (beginning.previous if beginning.spark.is_changed else beginning.below)


def replay_of(beginning: Beginning, found: Sequence[Behind], held: Mapping[str, Held]) -> tuple[Positions, Positions]:
    """Return the start and the end of the range that is read again for sinks that lack something.

    Raises
    ------
    Diverged
        If that cannot be.
    """
    if beginning.spark.is_changed:
        raise _refusal(
            beginning,
            found,
            _CHANGED,
            "start the old graph with this sink once: it replays what is missing; then the changed one. Or give the "
            "sink another name: it is a new one then.",
        )
    ends = reached(found)
    start, why = _range_read_again(beginning, found, held, ends)
    if why:
        raise _refusal(beginning, found, why, "")
    return start, ends


def why_not_replayed(beginning: Beginning, found: Sequence[Behind], held: Mapping[str, Held]) -> str:
    """Say why what sinks lack cannot be read again; empty where it can.  Parameters as those of :func:`replay_of`."""
    if beginning.spark.is_changed:
        return f"{_CHANGED} Start the old graph once, then the changed one."
    return _range_read_again(beginning, found, held, reached(found))[1]


def cannot_give_again(beginning: Beginning, expired: Expired, why: str) -> Diverged:
    """Return the error of a decision that can neither be carried out nor be revoked."""
    lacks = ranges_text(lacking(expired.after, expired.until))
    return Diverged(
        f"{expired}, and it cannot be read again: {expired.row_count} rows, {lacks}.",
        why=f"somebody removed what was staged: a prepared transaction, a staging table, staged files. {why}",
        do="bring back what was staged, or what the source needs to give its rows again, and start: the rest is done "
        "by itself; or restore the checkpoint and all sinks from the same moment; or start over with a new checkpoint "
        "and empty targets.",
        pipeline=beginning.pipeline,
        participant=expired.sink,
        epoch=expired.epochs[0],
    )


def _range_read_again(
    beginning: Beginning, found: Sequence[Behind], held: Mapping[str, Held], ends: Positions
) -> tuple[Positions, str]:
    """Return where reading begins again, and why that cannot be; empty where it can."""
    start, why = _read_again_from(replace(beginning, previous=beginning.below), held, ends)
    if why:
        return start, why
    return start, " ".join(unreadable(found, start, beginning.sources, beginning.workspace, beginning.store))


def _read_again_from(beginning: Beginning, held: Mapping[str, Held], reached: Positions) -> tuple[Positions, str]:
    """Return where reading would begin if the directory before were left, and why that cannot be.

    ``reached``: the positions up to which that directory had published.
    """
    anew = beginning.anew([each for each in held.values() if not each.is_empty], reached)
    if anew is None:
        return {}, "The sinks hold positions that cannot be put in an order."
    if anew.state is StateSource.UNSURE:
        return {}, anew.why_unsure()
    if anew.snapshot is not None:
        why = beginning.other_graph(anew.snapshot)
        return anew.snapshot.manifest.ended.positions, f"{why[0].upper()}{why[1:]}" if why else ""
    if anew.every_epoch is not None:
        return anew.every_epoch[0], ""
    if anew.state is StateSource.NONE:
        return anew.stops[0], ""
    if anew.state is StateSource.SOURCES:
        return {}, ""
    names = ", ".join(beginning.state_schemas)
    more = "".join(f" {each}." for each in anew.passed_over)
    return {}, f"No snapshot has the state of {names} before that, and not every epoch since the start is known.{more}"


def _note_left(store: Store, below: str, found: Sequence[Behind], reached: Positions) -> None:
    """Record that a directory is not used again, why, and up to where it had published."""
    why = "; ".join(map(str, found))
    store.put(f"{below}/{LEFT}", sealed.dump({"why": why, "reached": reached}))


def _show(positions: Positions) -> str:
    """Return positions as people read them."""
    parts = [
        f"{name!r} {', '.join(f'{segment}={at}' for segment, at in plain(of)[0].items()) or 'its beginning'}"
        for name, of in positions.items()
        if name != CONTROLS
    ]
    return "; ".join(parts) or "the beginning"


def _refusal(beginning: Beginning, found: Sequence[Behind], why: str, do: str) -> Diverged:
    first = min(found, key=lambda each: each.held.epoch)
    sinks = " and ".join(repr(each.sink) for each in found)
    return Diverged(
        f"sink {first.sink!r} has lost what was published after epoch {first.held.epoch}, up to epoch "
        f"{first.published}.",
        why=f"the sink failed over to a copy that lagged, was restored from a backup, or replaced. {why}",
        do=do
        or f"restore sink {sinks} to a state that holds epoch {first.published}; or bring back what the source needs "
        "to give its rows again, and start: the rest is done by itself; or restore the checkpoint and all sinks from "
        "the same moment; or start over with a new checkpoint and empty targets.",
        pipeline=beginning.pipeline,
        participant=first.sink,
        epoch=first.published,
    )
