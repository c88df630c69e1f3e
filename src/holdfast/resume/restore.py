"""Where a new Spark directory takes its state from, and what has to be replayed after it.

The newest snapshot whose files are whole, and which every sink covers, is taken.  The epochs that came after it, as
far as a sink holds them, are replayed with the ends and the batch times that they had: a step that depends on
batch time decides as it did.  What has no record is replayed as one epoch up to the positions of each sink, with the
number and the time of the epoch that the sink holds last, where it tells them: what falls due later is not muted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.checkpoint.manifest import EpochEnd, Manifest, SnapshotKey
from holdfast.checkpoint.progress import EpochSpan, chain
from holdfast.checkpoint.snapshot import read_manifest, snapshot_keys, verify
from holdfast.errors import Corrupt, invariant
from holdfast.ports import Held, Store
from holdfast.positions import Positions, ascending, covers_all

log = logging.getLogger("holdfast.checkpoint")


@dataclass(frozen=True)
class Restoration:
    """The beginning of a directory whose state comes from a snapshot.

    Parameters
    ----------
    manifest : Manifest
        The snapshot.
    replayed : tuple of EpochEnd
        Epochs after it whose ends are known, in order; behind them those up to the sinks that tell their time.
    stops : tuple of Positions
        What sinks hold beyond those, in order: replayed as one epoch each, at the time of the replay.
    refused : tuple of (SnapshotKey, str)
        Newer snapshots that could not be used, with the reason.
    told_count : int
        How many of the last in ``replayed`` end where sinks stand, and have the times that these tell.
    """

    manifest: Manifest
    replayed: tuple[EpochEnd, ...]
    stops: tuple[Positions, ...]
    refused: tuple[tuple[SnapshotKey, str], ...] = ()
    told_count: int = 0

    @property
    def seek(self) -> tuple[Positions, ...]:
        """Where reading begins, and where the first epochs end."""
        return (self.manifest.ended.positions, *(ended.positions for ended in self.replayed), *self.stops)


def restoration(
    store: Store,
    pipeline: str,
    held: Sequence[Held],
    steps: Iterable[EpochSpan],
    at: Positions | None = None,
    *,
    graph: str = "",
    reached: Positions | None = None,
    passed_over: Callable[[str], None] = lambda why: None,
) -> Restoration | None:
    """Return where state can be taken from; None when there is no good snapshot.

    Parameters
    ----------
    store : Store
        The checkpoint.
    pipeline : str
        Its pipeline.
    held : sequence of Held
        What the sinks hold that hold anything.
    steps : iterable of EpochSpan
        All epochs whose ends are known.
    at : Positions, optional
        The snapshot must be of exactly these positions, and of the graph.
    graph : str
        Fingerprint of a graph's state: of several snapshots of one epoch the one of this graph is taken.
    reached : Positions, optional
        What was published in sinks that have lost it since: it is replayed as it was, too.
    passed_over : callable, optional
        Called for each snapshot that cannot be used, with the reason.
    """
    refused: list[tuple[SnapshotKey, str]] = []

    def refuse(key: SnapshotKey, why: str) -> None:
        log.warning("snapshot of epoch %d is passed over: %s", key.epoch, why)
        refused.append((key, why))
        passed_over(f"snapshot of epoch {key.epoch}: {why}")

    known = list(steps)
    chosen: Manifest | None = None
    for key in reversed(snapshot_keys(store)):
        if chosen is not None and chosen.ended.epoch != key.epoch:
            break
        try:
            manifest = read_manifest(store, key)
            positions = manifest.ended.positions
            if at is not None and not (_same(positions, at) and manifest.graph == graph):
                continue  # not what was asked for, and no fault of it
            if chosen is not None and manifest.graph != graph:
                continue
            verify(store, manifest)  # last: it reads all of the state
        except Corrupt as error:
            refuse(key, error.message)
            continue
        if manifest.pipeline != pipeline:
            refuse(manifest.key, f"it is of pipeline {manifest.pipeline!r}")
        elif not all(covers_all(each.positions, positions) for each in held):
            refuse(
                manifest.key, "it lies beyond what a sink holds: the run that made it was fenced, or a sink restored"
            )
        else:
            chosen = manifest
            if manifest.graph == graph:
                break  # else there may be one of this graph: a start that died had made this for the graph to come
    return None if chosen is None else _planned(chosen, held, known, reached or {}, tuple(refused))


def _planned(
    manifest: Manifest,
    held: Sequence[Held],
    steps: Iterable[EpochSpan],
    reached: Positions,
    refused: tuple[tuple[SnapshotKey, str], ...],
) -> Restoration:
    start = manifest.ended.positions
    replayed = replayed_from(start, steps, [*(each.positions for each in held), reached])
    cuts = [start, *(ended.positions for ended in replayed)]
    beyond = [each.positions for each in held if not any(_same(each.positions, cut) for cut in cuts)]
    if any(covers_all(cuts[-1], positions) for positions in beyond):
        # A sink stands between two ends that were recorded: they are not those of the epochs that it holds.
        log.warning("the progress records do not fit the sinks: what follows the snapshot is replayed as one epoch")
        replayed, cuts = [], [start]
        beyond = [each.positions for each in held if not _same(each.positions, start)]
    timed, stops = _timed(ascending(beyond) or [], held, (replayed or [manifest.ended])[-1])
    replayed += timed
    epochs = [manifest.ended.step_epoch, *(ended.step_epoch for ended in replayed)]
    invariant(
        all(one < next_ for one, next_ in pairwise(epochs)),
        f"after the snapshot of epoch {manifest.ended.epoch} the epochs {epochs[1:]} are to be replayed.",
        why="steps see each epoch once, in ascending order.",
        pipeline=manifest.pipeline,
        epoch=manifest.ended.epoch,
    )
    return Restoration(manifest, tuple(replayed), tuple(stops), refused, len(timed))


def _timed(
    stops: Sequence[Positions], held: Sequence[Held], before: EpochEnd
) -> tuple[list[EpochEnd], Sequence[Positions]]:
    """Return the epochs that end where sinks stand, as far as these tell their times, and the other positions.

    Of two sinks at one position the lower number counts.  Numbers ascend, as steps must see them; those of sinks that
    were written with another checkpoint may not, and then the present is as good as any time.
    """
    found: list[EpochEnd] = []
    for place, stop in enumerate(stops):
        there = [each for each in held if each.step_time is not None and _same(each.positions, stop)]
        first = min(there, key=lambda each: each.step_time or (0, 0), default=None)
        if first is None or first.step_time is None or first.step_time[0] <= before.step_epoch:
            return found, stops[place:]
        step_epoch, batch_us = first.step_time
        before = EpochEnd(first.epoch, step_epoch, stop, batch_us, first.pts)
        found.append(before)
    return found, ()


def replayed_from(start: Positions, steps: Iterable[EpochSpan], published: Sequence[Positions]) -> list[EpochEnd]:
    """Return the ends of the epochs that follow some positions, as far as they are known and were published."""
    found: list[EpochEnd] = []
    for ended in chain(steps, start):
        if not any(covers_all(positions, ended.positions) for positions in published):
            break
        found.append(ended)
    return found


def _same(one: Positions, other: Positions) -> bool:
    return covers_all(one, other) and covers_all(other, one)
