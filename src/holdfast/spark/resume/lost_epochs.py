"""What a new Spark directory replays for sinks that have lost what the directory before had published.

Epochs end where they had ended, as far as that is known: an upsert sink then takes the same steps, a step that looks at
the clock decides as it did, and no epoch is larger than it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.checkpoint.manifest import EpochEnd
from holdfast.checkpoint.progress import EpochSpan, chain
from holdfast.errors import Corrupt
from holdfast.ports import Held, Store
from holdfast.positions import Positions, covers_all
from holdfast.resume.directory_header import FILE_NAME, read_origin
from holdfast.resume.restore import replayed_from
from holdfast.resume.spark_log import last_logged
from holdfast.spark.resume.directory import LEFT
from holdfast.store import checked_json


def left_at(store: Store, below: str) -> Positions | None:
    """Return up to where a directory had published that is left; None where it is not left.

    Where the note cannot be read, nothing is known of that: what follows is cut and timed anew.
    """
    data = store.get(f"{below}/{LEFT}") if below else None
    if data is None:
        return None
    try:
        reached: Positions = checked_json.load(data)["reached"]
    except (ValueError, KeyError, TypeError):
        return {}
    return reached


def planned_in(spark: Path) -> int:
    """Return the last epoch that was ever planned in a directory: its number is not used again."""
    return read_origin(spark / FILE_NAME).base + last_logged(spark, "offsets")


def filled(stops: Sequence[Positions], steps: Iterable[EpochSpan]) -> tuple[Positions, ...]:
    """Return where sinks stand with the ends of epochs between, if those that are known lead through all of them.

    Examples
    --------
    >>> def at(number):
    ...     return {"a": {"log": number}}
    >>> known = [EpochSpan(at(i), EpochEnd(i, i, at(i + 1), 0)) for i in (1, 2, 3)]
    >>> [stop["a"]["log"] for stop in filled([at(1), at(3)], known)]
    [1, 2, 3]
    >>> [stop["a"]["log"] for stop in filled([at(0), at(3)], known)]
    [0, 3]
    """
    found = [stops[0]]
    for ended in chain(steps, stops[0]):
        if not covers_all(stops[-1], ended.positions):
            break
        found.append(ended.positions)
    return tuple(found) if all(_is_among(stop, found) for stop in stops) else tuple(stops)


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
        origin = read_origin(spark / FILE_NAME)
    except Corrupt:
        return None
    if origin.seed or origin.graph != graph:
        return None
    ends = replayed_from(origin.start, steps, [reached, *(each.positions for each in held)])
    cuts = [origin.start, *(ended.positions for ended in ends)]
    return (origin.start, ends) if all(_is_among(each.positions, cuts) for each in held) else None


def _is_among(positions: Positions, several: Iterable[Positions]) -> bool:
    return any(covers_all(one, positions) and covers_all(positions, one) for one in several)
