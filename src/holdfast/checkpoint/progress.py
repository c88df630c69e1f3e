"""Progress records: where epochs ended and at what batch time, for a replay of the epochs after a snapshot.

Ends of epochs are gathered and written several at a time, as one object::

    progress/<first epoch>-<last epoch>-<generation>    {"ends": [{"start": ..., "epoch": ..., "positions": ...}, ...]}

Those that are not written yet travel with each epoch, in the same transaction, to the sinks (:func:`to_text`): whatever
a sink holds, its own end and all before it are in a record or in that sink.

An end says where its epoch *started* too: a chain is followed by positions, because numbers have gaps where a
directory was lost, and the same rows may have been replayed under new numbers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from holdfast.checkpoint.manifest import EpochEnd
from holdfast.errors import invariant
from holdfast.ports import Clock, Held, Store
from holdfast.positions import Positions
from holdfast.store import sealed

log = logging.getLogger("holdfast.checkpoint")

PREFIX = "progress/"

GATHERED = 50
"""Most ends that are gathered before they are written: so many does an epoch take along to the sinks."""

RECENT = 1000
"""Ends that are kept one by one, however old the others are."""

COARSE_US = 60_000_000
"""Of older ones, one is kept for each such time: so many fit into a day."""


@dataclass(frozen=True)
class EpochSpan:
    """One epoch: from where to where."""

    start: Positions
    ended: EpochEnd


def write(store: Store, steps: Sequence[EpochSpan], generation: int) -> str:
    """Write the ends of epochs, in the order of their numbers, as one object; return its key."""
    first, last = steps[0].ended.epoch, steps[-1].ended.epoch
    numbers = [step.ended.epoch for step in steps]
    invariant(numbers == sorted(numbers), f"a progress record is to hold the ends of the epochs {numbers}.", epoch=last)
    ends = [{"start": step.start, **step.ended.to_json()} for step in steps]
    key = f"{PREFIX}{first:012d}-{last:012d}-{generation:08d}"
    store.put(key, sealed.dump({"ends": ends}))
    return key


def add(store: Store, steps: Iterable[EpochSpan], generation: int) -> None:
    """Write the ends of epochs that no record tells yet, as one object; nothing where all are told."""
    lacking = {step.ended.epoch: step for step in steps}
    for path in store.keys(PREFIX) if lacking else ():
        numbers = _numbers(path)
        if numbers and any(numbers[0] <= epoch <= numbers[1] for epoch in lacking):
            for step in _readable(store, path):
                lacking.pop(step.ended.epoch, None)
    if lacking:
        write(store, [lacking[epoch] for epoch in sorted(lacking)], generation)


def read(store: Store) -> Iterator[EpochSpan]:
    """Yield the ends of all epochs that were recorded, in the order of their numbers.

    A record that cannot be read is skipped: what it held is not known.
    """
    for path in sorted(store.keys(PREFIX), key=_numbers):
        yield from _readable(store, path)


def to_text(steps: Sequence[EpochSpan]) -> str:
    """Return ends of epochs that follow each other as sinks keep them; of positions only what has changed.

    What has gone, a segment or a source, is null.

    Examples
    --------
    >>> def at(number):
    ...     return {"a": {"log": number, "@ended": 1}}
    >>> to_text([EpochSpan(at(number), EpochEnd(number, number, at(number + 1), 70)) for number in (3, 4)])
    '{"start":{"a":{"log":3,"@ended":1}},"ends":[[3,3,70,null,{"a":{"log":4}}],[4,4,70,null,{"a":{"log":5}}]]}'
    """
    ends, at = [], steps[0].start
    for step in steps:
        ended = step.ended
        invariant(
            step.start == at,
            f"epoch {ended.epoch} does not begin where the one before it has ended.",
            why="sinks are told where epochs end, and each begins where the one before it has ended.",
            epoch=ended.epoch,
        )
        ends.append([ended.epoch, ended.step_epoch, ended.batch_us, ended.pts, _moved(at, ended.positions)])
        at = ended.positions
    return json.dumps({"start": steps[0].start, "ends": ends}, separators=(",", ":"), ensure_ascii=False)


def from_text(text: str) -> Iterator[EpochSpan]:
    """Yield what :func:`to_text` was given; nothing where that cannot be read."""
    try:
        said = json.loads(text) if text else {"start": {}, "ends": []}
        at = {source: dict(of) for source, of in said["start"].items()}
        for epoch, step_epoch, batch_us, pts, moved in said["ends"]:
            of_sources = {
                source: None if of is None else _put_over(at.get(source, {}), of) for source, of in moved.items()
            }
            before, at = at, _put_over(at, of_sources)
            yield EpochSpan(before, EpochEnd(epoch, step_epoch, at, batch_us, pts))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("what a sink says of recent epochs cannot be read (%s)", error)


def _moved(start: Positions, end: Positions) -> dict[str, Any]:
    """Return what is to be put over a start to get an end; None for what has gone."""
    moved: dict[str, Any] = dict.fromkeys(sorted(start.keys() - end.keys()))
    for source, of in end.items():
        before = start.get(source)
        if of != before:
            changed = {segment: at for segment, at in of.items() if before is None or before.get(segment) != at}
            moved[source] = {**dict.fromkeys(sorted((before or {}).keys() - of.keys())), **changed}
    return moved


def _put_over(start: Mapping[str, Any], moved: Mapping[str, Any]) -> dict[str, Any]:
    return {key: of for key, of in {**start, **moved}.items() if of is not None}


def told_by(held: Iterable[Held]) -> list[EpochSpan]:
    """Return the ends of epochs that sinks tell."""
    return [step for each in held for step in from_text(each.recent_ends)]


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


class History:
    """The ends of epochs of a pipeline without state, kept for a time: a rewind can go back to them.

    With state, the checkpointer keeps the ends since the oldest snapshot; nothing older could be restored.

    Parameters
    ----------
    store : Store
        The checkpoint.
    generation : int
        Of the run.
    clock : Clock
        Tells which ends are too old.
    keep_us : int
        How long an end is kept, microseconds.
    check_fenced : callable
        Raises ``Fenced`` if another run has taken over: it may have withdrawn what is to be written.

    Notes
    -----
    One durable write for 50 epochs, in the thread of the epochs.  Every thousand, what is older is joined: all ends of
    a minute become one span, from where the first began to where the last ended, so that they still follow each other.
    1. the joined record; 2. the records that it replaces go.  Dead in between, both say the same.
    """

    def __init__(
        self, store: Store, generation: int, clock: Clock, keep_us: int, check_fenced: Callable[[], None]
    ) -> None:
        self._store = store
        self._generation = generation
        self._clock = clock
        self._keep_us = keep_us
        self._check_fenced = check_fenced
        self._gathered: list[EpochSpan] = []  # replaced, never changed
        self._since_tidied = RECENT  # what earlier runs have left is tidied by the first write

    def note(self, start: Positions, ended: EpochEnd) -> None:
        """Record the end of an epoch.  May be repeated: the last epoch is, after a failure."""
        before = [step for step in self._gathered if step.ended.epoch < ended.epoch]
        self._gathered = [*before, EpochSpan(start, ended)]
        if len(self._gathered) < GATHERED:
            return
        self._check_fenced()
        write(self._store, self._gathered, self._generation)
        self._since_tidied += len(self._gathered)
        self._gathered = []
        if self._since_tidied >= RECENT:
            self._since_tidied = 0
            self._tidy()

    def unrecorded(self) -> Sequence[EpochSpan]:
        """Return the ends that were noted and are in no record yet."""
        return self._gathered

    def _tidy(self) -> None:
        records: dict[str, list[EpochSpan]] = {}
        for path in sorted((path for path in self._store.keys(PREFIX) if _numbers(path)), key=_numbers):
            try:
                records[path] = list(_steps(self._store.get(path)))
            except (ValueError, KeyError, TypeError):
                continue  # logged where it is read
        recent, old = 0, dict(records)
        for path in reversed(records):
            if recent < RECENT:
                recent += len(old.pop(path))
        since = self._clock.now_us() - self._keep_us
        known = _followed(step for steps in old.values() for step in steps)
        kept = [step for step in known if step.ended.batch_us >= since]
        joined = coarse(kept)
        written = write(self._store, joined, self._generation) if joined and joined != kept else ""
        # The last one first: those that a death leaves begin where the joined record begins.
        for path, steps in reversed(old.items()):
            is_gone = all(step.ended.batch_us < since for step in steps)
            if path != written and (written or is_gone):
                self._store.delete(path)


def _followed(steps: Iterable[EpochSpan]) -> list[EpochSpan]:
    """Return spans in their order, without those that lie within a joined one: somebody died before they were gone."""
    waiting = sorted(steps, key=lambda step: step.ended.epoch)
    found: list[EpochSpan] = []
    while waiting:
        by_start = {_text(step.start): step for step in waiting}
        step = by_start.get(_text(waiting[0].start))
        while step is not None:
            found.append(step)
            del by_start[_text(step.start)]
            step = by_start.get(_text(step.ended.positions))
        waiting = [step for step in waiting if step.ended.epoch > found[-1].ended.epoch]
    return found


def coarse(steps: Iterable[EpochSpan]) -> list[EpochSpan]:
    """Return spans with all that follow each other within a minute joined.

    Examples
    --------
    >>> def step(start, end, at_s):
    ...     return EpochSpan({"a": {"log": start}}, EpochEnd(end, end, {"a": {"log": end}}, at_s * 1_000_000))
    >>> [(s.start["a"]["log"], s.ended.epoch) for s in coarse([step(0, 1, 0), step(1, 2, 59), step(2, 3, 60)])]
    [(0, 2), (2, 3)]
    >>> [s.ended.epoch for s in coarse([step(0, 1, 0), step(7, 8, 1)])]
    [1, 8]
    """
    joined: list[EpochSpan] = []
    for _, minute in groupby(steps, key=lambda step: step.ended.batch_us // COARSE_US):
        first = len(joined)
        for step in minute:
            if len(joined) > first and joined[-1].ended.positions == step.start:
                joined[-1] = EpochSpan(joined[-1].start, step.ended)
            else:
                joined.append(step)
    return joined


def _numbers(path: str) -> tuple[int, ...]:
    """Return first epoch, last epoch and generation, by which records are in order; nothing for other keys."""
    numbers = path.removeprefix(PREFIX).split("-")
    return tuple(map(int, numbers)) if len(numbers) == 3 and all(map(str.isdigit, numbers)) else ()


def _readable(store: Store, path: str) -> list[EpochSpan]:
    try:
        return list(_steps(store.get(path)))
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s in the checkpoint cannot be read (%s): how its epochs ended is not known", path, error)
        return []


def _steps(data: bytes | None) -> Iterator[EpochSpan]:
    for end in sealed.load(data or b"")["ends"]:
        yield EpochSpan(end["start"], EpochEnd(**{name: of for name, of in end.items() if name != "start"}))


def _text(positions: Positions) -> str:
    return json.dumps(positions, sort_keys=True)
