"""The epochs that Spark's directories still tell of, and those that a new directory replays of them.

A new directory replays for sinks that have lost what the one before had published.  Its epochs end where they had
ended, as far as that is known: an upsert sink then takes the same steps, a step that looks at the clock decides as it
did, and no epoch is larger than it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.checkpoint.manifest import EpochEnd
from holdfast.checkpoint.progress import EpochSpan
from holdfast.errors import Corrupt
from holdfast.ports import Held, Store
from holdfast.positions import Positions, covers_all
from holdfast.resume.directory_header import FILE_NAME, LEFT, read_origin
from holdfast.resume.restore import replayed_from
from holdfast.resume.spark_log import last_logged, logged, read_offsets
from holdfast.store import sealed


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
