"""Where a new Spark directory takes its state from, and what has to be replayed after it.

The newest snapshot whose files are whole, and which every sink covers, is taken.  The epochs that came after it, as
far as a sink holds them, are replayed with the numbers, the ends and the batch times that they had: a look-up sees the
same version of its table, and a step that depends on batch time decides as it did.  Progress records tell them, and the
sinks those of which there is no record yet.  Where a part is known by neither, it is replayed as one epoch up to the
positions of each sink, with the number and the time of the epoch that the sink holds last: what falls due later is not
muted.  Whether state may depend on that, the caller decides.

A new directory also replays for sinks that have lost what the one before had published.  Its epochs end where they had
ended, as far as that is known: an upsert sink then takes the same steps, a step that looks at the clock decides as it
did, and no epoch is larger than it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.directory_header import FILE_NAME, LEFT, read_origin
from holdfast.checkpoint.manifest import EpochEnd, Manifest, SnapshotKey
from holdfast.checkpoint.progress import EpochSpan, chain
from holdfast.checkpoint.snapshot import read_manifest, snapshot_keys, verify
from holdfast.checkpoint.spark_log import last_logged, logged, read_offsets
from holdfast.errors import Corrupt
from holdfast.ports import Held, Store
from holdfast.positions import Positions, ascending, covers_all
from holdfast.store import sealed

log = logging.getLogger("holdfast.checkpoint")


@dataclass(frozen=True)
class Restoration:
    """The beginning of a directory whose state comes from a snapshot.

    Parameters
    ----------
    manifest : Manifest
        The snapshot.
    replayed : tuple of EpochEnd
        Epochs after it whose ends are known, in order.
    stops : tuple of Positions
        What sinks hold beyond those, in order: replayed as one epoch each, at the time of the replay.
    refused : tuple of (SnapshotKey, str)
        Newer snapshots that could not be used, with the reason.
    joined_count : int
        How many of the last in ``replayed`` are several epochs in one, as far as a sink stands: how they ended is not
        known.
    """

    manifest: Manifest
    replayed: tuple[EpochEnd, ...]
    stops: tuple[Positions, ...]
    refused: tuple[tuple[SnapshotKey, str], ...] = ()
    joined_count: int = 0

    @property
    def seek(self) -> tuple[Positions, ...]:
        """Where reading begins, and where the first epochs end."""
        return (self.manifest.ended.positions, *(ended.positions for ended in self.replayed), *self.stops)

    @property
    def is_exact(self) -> bool:
        """Whether it is known how each epoch ended that is evaluated again."""
        return not (self.joined_count or self.stops)


def restoration(
    store: Store,
    pipeline: str,
    held: Sequence[Held],
    steps: Iterable[EpochSpan],
    at: Positions | None = None,
    *,
    until: Positions | None = None,
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
        All epochs whose ends are known, what sinks tell included.
    at : Positions, optional
        The snapshot must be of exactly these positions, and of the graph.
    until : Positions, optional
        Snapshots beyond these are left aside: state of an earlier time is wanted.
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
            if until is not None and not covers_all(until, positions):
                continue
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
    start, steps = manifest.ended.positions, list(steps)
    replayed = replayed_from(manifest.ended, steps, [*(each.positions for each in held), reached])
    cuts = [start, *(ended.positions for ended in replayed)]
    beyond = [each.positions for each in held if not any(_same(each.positions, cut) for cut in cuts)]
    if any(covers_all(cuts[-1], positions) for positions in beyond):
        # A sink stands between two ends that were recorded: they are not those of the epochs that it holds.
        log.warning("the progress records do not fit the sinks: how the epochs after the snapshot ended is not known")
        replayed, cuts = [], [start]
        beyond = [each.positions for each in held if not _same(each.positions, start)]
    joined, stops = _join(ascending(beyond) or [], steps, (replayed or [manifest.ended])[-1])
    replayed += joined
    return Restoration(manifest, tuple(replayed), tuple(stops), refused, len(joined))


def _join(
    stops: Sequence[Positions], steps: Sequence[EpochSpan], before: EpochEnd
) -> tuple[list[EpochEnd], Sequence[Positions]]:
    """Return the epochs up to where sinks stand, as far as their numbers and times are known, and the other positions.

    Numbers ascend, as steps must see them; those of sinks that were written with another checkpoint may not, and then
    the present is as good as any time.
    """
    found: list[EpochEnd] = []
    for place, stop in enumerate(stops):
        there = [step.ended for step in steps if _same(step.ended.positions, stop)]
        if not there or there[-1].step_epoch <= before.step_epoch:
            return found, stops[place:]
        before = there[-1]
        found.append(before)
    return found, ()


def replayed_from(began: EpochEnd, steps: Iterable[EpochSpan], published: Sequence[Positions]) -> list[EpochEnd]:
    """Return the epochs that follow the end of one, as far as they are known and were published.

    Their numbers ascend, as steps must see them: those that sinks tell lie below those of state that was rebuilt.
    """
    found = [began]
    for ended in chain(steps, began.positions):
        is_published = any(covers_all(positions, ended.positions) for positions in published)
        if not is_published or ended.step_epoch <= found[-1].step_epoch:
            break
        found.append(ended)
    return found[1:]


def _same(one: Positions, other: Positions) -> bool:
    return covers_all(one, other) and covers_all(other, one)


def all_steps(directory: Path) -> list[EpochSpan]:
    """Return the ends of the epochs that are left in the offset logs of all directories.

    What an older one had planned and not finished, the next one has planned anew, under the same numbers.
    """
    numbers = sorted(int(path.name) for path in (directory / "spark").glob("[0-9]*") if path.name.isdigit())
    found: dict[int, EpochSpan] = {}
    for number in numbers:
        steps = steps_of(directory, f"spark/{number}")
        if steps:
            found = {epoch: step for epoch, step in found.items() if epoch < steps[0].ended.epoch}
        found.update((step.ended.epoch, step) for step in steps)
    return [found[epoch] for epoch in sorted(found)]


def steps_of(directory: Path, previous: str) -> list[EpochSpan]:
    """Return the ends of the epochs that are left in the offset log of a directory."""
    spark = directory / previous
    try:
        header = read_origin(spark / FILE_NAME)
    except Corrupt:
        return []
    steps: list[EpochSpan] = []
    before = (-1, header.start)
    for number in logged(spark, "offsets"):
        try:
            found = read_offsets(spark, number)
        except Corrupt:
            break
        if before[0] == number - 1:
            step_epoch, batch_us = header.step_time(number, found.batch_us)
            steps.append(EpochSpan(before[1], EpochEnd(header.base + number, step_epoch, found.positions, batch_us)))
        before = (number, found.positions)
    return steps


def planned_in(spark: Path) -> int:
    """Return the last epoch that was ever planned in a directory: its number is not used again."""
    return read_origin(spark / FILE_NAME).base + last_logged(spark, "offsets")


def left_at(store: Store, below: str) -> Positions | None:
    """Return up to where a directory had published that is left; None where it is not left.

    Where the note cannot be read, nothing is known of that: what follows is cut and timed anew.
    """
    data = store.get(f"{below}/{LEFT}") if below else None
    if data is None:
        return None
    try:
        reached: Positions = sealed.load(data)["reached"]
    except (ValueError, KeyError, TypeError):
        return {}
    return reached


def epochs_between(stops: Sequence[Positions], steps: Iterable[EpochSpan]) -> list[EpochEnd] | None:
    """Return the epochs from the first to the last of the places where sinks stand; None where not all are known.

    Examples
    --------
    >>> def at(number):
    ...     return {"a": {"log": number}}
    >>> known = [EpochSpan(at(i), EpochEnd(i, i, at(i + 1), 0)) for i in (1, 2, 3)]
    >>> [ended.positions["a"]["log"] for ended in epochs_between([at(1), at(3)], known)]
    [2, 3]
    >>> epochs_between([at(0), at(3)], known)
    """
    found = replayed_from(_before(stops[0]), steps, stops[-1:])
    cuts = [stops[0], *(ended.positions for ended in found)]
    return found if all(_is_among(stop, cuts) for stop in stops) else None


def from_the_start(
    spark: Path, graph: str, held: Sequence[Held], steps: Iterable[EpochSpan], reached: Positions
) -> tuple[Positions, list[EpochEnd]] | None:
    """Return where a directory began without state, and every epoch since; None where that does not lead to each sink.

    State is the same when all of it is computed again, by the same graph, from the same epochs at the same times.

    Parameters
    ----------
    spark : Path
        The directory.
    graph : str
        Fingerprint of the state of the graph of now.
    held : sequence of Held
        What the sinks hold.
    steps : iterable of EpochSpan
        All epochs whose ends are known.
    reached : Positions
        Up to where the directory had published.
    """
    try:
        header = read_origin(spark / FILE_NAME)
    except Corrupt:
        return None
    if header.seed or header.graph != graph:
        return None
    ends = replayed_from(_before(header.start), steps, [reached, *(each.positions for each in held)])
    cuts = [header.start, *(ended.positions for ended in ends)]
    return (header.start, ends) if all(_is_among(each.positions, cuts) for each in held) else None


def _before(positions: Positions) -> EpochEnd:
    """Return an end that comes before all epochs."""
    return EpochEnd(0, 0, positions, 0)


def _is_among(positions: Positions, several: Iterable[Positions]) -> bool:
    return any(covers_all(one, positions) and covers_all(positions, one) for one in several)
