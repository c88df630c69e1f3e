"""Progress records: where epochs ended and at what batch time, for a replay of the epochs after a snapshot.

Ends of epochs are gathered and written several at a time, as one object::

    progress/<first epoch>-<last epoch>-<generation>    {"ends": [{"start": ..., "epoch": ..., "positions": ...}, ...]}

An end says where its epoch *started* too: a chain is followed by positions, because numbers have gaps where a
directory was lost, and the same rows may have been replayed under new numbers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from holdfast.checkpoint.manifest import EpochEnd
from holdfast.errors import invariant
from holdfast.ports import Store
from holdfast.positions import Positions
from holdfast.store import checked_json

log = logging.getLogger("holdfast.checkpoint")

PREFIX = "progress/"


@dataclass(frozen=True)
class EpochSpan:
    """One epoch: from where to where."""

    start: Positions
    ended: EpochEnd


def write(store: Store, steps: list[EpochSpan], generation: int) -> str:
    """Write the ends of epochs, in the order of their numbers, as one object; return its key."""
    first, last = steps[0].ended.epoch, steps[-1].ended.epoch
    numbers = [step.ended.epoch for step in steps]
    invariant(numbers == sorted(numbers), f"a progress record is to hold the ends of the epochs {numbers}.", epoch=last)
    ends = [{"start": step.start, **step.ended.to_json()} for step in steps]
    key = f"{PREFIX}{first:012d}-{last:012d}-{generation:08d}"
    store.put(key, checked_json.dump({"ends": ends}))
    return key


def read(store: Store) -> Iterator[EpochSpan]:
    """Yield the ends of all epochs that were recorded, in the order of their numbers.

    A record that cannot be read is skipped: what it held is replayed in one epoch.
    """
    for path in sorted(store.keys(PREFIX), key=_numbers):
        try:
            found = list(_steps(store.get(path)))
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s in the checkpoint cannot be read (%s): its epochs are replayed as one", path, error)
            continue
        yield from found


def chain(steps: Iterable[EpochSpan], start: Positions) -> Iterator[EpochEnd]:
    """Yield the ends of the epochs that follow each other from some positions.

    Of two that begin alike the later one counts: it is the replay of the other, or what was planned instead of it.

    Examples
    --------
    >>> def step(start, end, epoch):
    ...     return EpochSpan({"a": {"log": start}}, EpochEnd(epoch, epoch, {"a": {"log": end}}, 0))
    >>> known = [step(0, 2, 1), step(2, 3, 2), step(3, 9, 3), step(2, 4, 7)]
    >>> [ended.epoch for ended in chain(known, {"a": {"log": 0}})]
    [1, 7]
    """
    by_start = {_text(step.start): step for step in sorted(steps, key=lambda step: step.ended.epoch)}
    at: Positions = start
    while (step := by_start.pop(_text(at), None)) is not None:
        yield step.ended
        at = step.ended.positions


def keep_only(store: Store, stays: Callable[[EpochEnd], bool]) -> None:
    """Remove the ends of epochs that do not count any more.  Of a record with others, what stays is written first."""
    for path in store.keys(PREFIX):
        try:
            found = list(_steps(store.get(path)))
        except (ValueError, KeyError, TypeError):
            continue  # logged where it is read
        left = [step for step in found if stays(step.ended)]
        if len(left) == len(found):
            continue
        if not left or write(store, left, int(path.rpartition("-")[2])) != path:
            store.delete(path)


def prune(store: Store, before_epoch: int) -> None:
    """Remove the records of epochs up to a snapshot."""
    for path in store.keys(PREFIX):
        numbers = _numbers(path)
        if len(numbers) == 3 and numbers[1] <= before_epoch:
            store.delete(path)


def _numbers(path: str) -> tuple[int, ...]:
    """Return first epoch, last epoch and generation, by which records are in order; nothing for other keys."""
    numbers = path.removeprefix(PREFIX).split("-")
    return tuple(map(int, numbers)) if len(numbers) == 3 and all(map(str.isdigit, numbers)) else ()


def _steps(data: bytes | None) -> Iterator[EpochSpan]:
    for end in checked_json.load(data or b"")["ends"]:
        yield EpochSpan(end["start"], EpochEnd(**{name: of for name, of in end.items() if name != "start"}))


def _text(positions: Positions) -> str:
    return json.dumps(positions, sort_keys=True)
