"""What the positions of a sink with a log mean: objects that have some neighbouring explanations each.

They are copies of what log entries say, which one writer creates and no run that was replaced: so whoever copies, the
same number says the same.  An object is named by its first and last number; neighbours are merged, so there are a few
hundred objects at most.  How many explanations there are says the last entry, and never a listing.  What else is there,
as a run left it that was replaced and wrote before its entry, in an earlier version, gives way to the copies.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from holdfast.connectors.kit.explained import differing
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.ports import Explanation, Held
from holdfast.store.increments import MERGED_AT_A_TIME

log = logging.getLogger("holdfast.connectors")

_NAME = re.compile(r"(.+)/(\d{12})-(\d{12})")
_READS_AT_ONCE = 8
_READ_ATTEMPTS = 5
"""Objects are merged, and removed, while they are listed and read."""


class Objects(Protocol):
    """Where the copies of one sink are, and nothing else: in a directory, or below an address in an object store."""

    @property
    def address(self) -> str:
        """The place, for errors."""

    def get(self, key: str) -> bytes | None:
        """Return an object, or None when absent."""

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object, whole and durable."""

    def keys(self, prefix: str) -> list[str]:
        """List the keys that start with a prefix; what others write and remove meanwhile may lack, and be there."""

    def delete_several(self, keys: Sequence[str]) -> None:
        """Remove objects; absent is fine."""


@dataclass(frozen=True, order=True)
class _Run:
    """An object: numbers from ``first`` to ``last`` of a source."""

    source: str
    first: int
    last: int

    @property
    def key(self) -> str:
        return f"{self.source}/{self.first:012}-{self.last:012}"

    @property
    def level(self) -> int:
        """How often neighbours were merged into it, about."""
        span, level = self.last - self.first + 1, 0
        while span >= MERGED_AT_A_TIME:
            span, level = span // MERGED_AT_A_TIME, level + 1
        return level

    def contains(self, other: _Run) -> bool:
        """Return whether it has all numbers of another one, and more."""
        return self != other and self.first <= other.first and other.last <= self.last


class KeptExplanations:
    """The explanations that one sink keeps.

    Parameters
    ----------
    objects : Objects
        Where they are.
    node : str
        ``sink 'name'``, for errors.
    may_lag : bool
        Whether a listing can lack what is there: then what is not found is asked for again, else it is gone.
    """

    def __init__(self, objects: Objects, node: str, *, may_lag: bool = False) -> None:
        self._objects = objects
        self._node = node
        self._may_lag = may_lag
        self._there: dict[str, set[_Run]] = {}
        """What was listed, and put since; empty: to be listed."""
        self._copied: Sequence[Explanation] = ()
        self._untold: dict[str, int] | None = None

    def keep(self, explanations: Sequence[Explanation], *, is_new: bool = False) -> None:
        """Copy what a log entry says; again is safe.

        Parameters
        ----------
        explanations : sequence of Explanation
            Of the last entry.
        is_new : bool
            Whether the entry has just been appended: what it says counts, and can be copied before the next one.

        Raises
        ------
        Unavailable
            If they cannot be written, and the entry is not new.
        Diverged
            If a merged object says something else.
        """
        if not explanations or explanations == self._copied:
            return
        try:
            self._copy(explanations)
        except Unavailable as error:
            if not is_new:
                raise
            log.info("%s: what positions mean is copied later: %s", self._node, error.what)

    def _copy(self, explanations: Sequence[Explanation]) -> None:
        self._there = self._there or _runs_in(self._objects)
        new: dict[str, list[Explanation]] = {}
        for one in explanations:
            new.setdefault(one.source, []).append(one)
        for source, several in new.items():
            self._put(several, self._there.setdefault(source, set()))
        self._copied = explanations
        try:
            for source, several in new.items():
                self._merge(self._there[source], several[-1].number)
        except (HoldfastError, _MergedElsewhere) as error:
            log.warning("%s: explanations of positions are merged later: %s", self._node, error)
            self._there = {}

    def _put(self, several: Sequence[Explanation], there: set[_Run]) -> None:
        run = _Run(several[0].source, several[0].number, several[-1].number)
        merged = [each for each in _dense(there) if each.contains(run)]
        if not merged:
            self._objects.put(run.key, "\n".join(one.text for one in several).encode())
            there.add(run)
            return
        copies = self._texts(merged)  # none where another run has merged them meanwhile
        for one in several:
            if (copy := copies.get(one.number, one.text)) != one.text:
                raise differing(one.source, one.number, (self._node, copy), ("its log", one.text))

    def _merge(self, there: set[_Run], last: int) -> None:
        """Make one object of each hundred neighbours of one level, as far as is copied; remove what it contains."""
        while neighbours := _neighbours(run for run in _dense(there) if run.last <= last):
            merged = _Run(neighbours[0].source, neighbours[0].first, neighbours[-1].last)
            texts = self._texts(neighbours)
            if len(texts) != merged.last - merged.first + 1:
                raise _MergedElsewhere(f"not all of {merged.key} is there")
            self._objects.put(merged.key, "\n".join(texts.values()).encode())
            there.add(merged)
            contained = {run for run in there if merged.contains(run)}
            self._objects.delete_several(sorted(run.key for run in contained))
            there -= contained

    def forget(self) -> None:
        """Remove what is there although the log holds nothing: in directories 09f82eec copied before its entry.

        In object stores no version did: nothing is listed there.
        """
        if not self._may_lag:
            self._objects.delete_several(sorted(run.key for runs in _runs_in(self._objects).values() for run in runs))
            self._there, self._untold = {}, None

    def count(self, held: Held) -> Mapping[str, int]:
        """Return source -> how many are kept: as the log says, or as are here of a source that it does not name.

        Entries in directories that version 09f82eec wrote say nothing of it: what lay beside the log counted.

        Parameters
        ----------
        held : Held
            What the last log entry says.  Where that holds nothing, nothing is explained.
        """
        told = held.explained or {}
        if self._untold is None:  # once: from then on our own entries name what they explain
            there = {source: _dense(runs) for source, runs in _runs_in(self._objects).items() if source not in told}
            self._untold = {source: runs[-1].last for source, runs in there.items() if runs}
        return self._untold | dict(told) if held.epoch or held.stops else told

    def all(self, explained: Mapping[str, int], newest: Sequence[Explanation]) -> list[Explanation]:
        """Return everything that is kept.

        Parameters
        ----------
        explained : mapping of str to int
            Source -> how many, as the last log entry says, or :meth:`count`.
        newest : sequence of Explanation
            What that entry says, which may not be copied yet.

        Raises
        ------
        Unavailable
            If some are not found where a listing may lag.
        Corrupt
            If some are gone.
        """
        wanted = [(source, number) for source, count in sorted(explained.items()) for number in range(1, count + 1)]
        for _ in range(_READ_ATTEMPTS):
            there = _runs_in(self._objects)
            copies = {source: self._texts(_dense(there.get(source, ()))) for source in explained}
            found = {(source, number): text for source, texts in copies.items() for number, text in texts.items()}
            found |= {(one.source, one.number): one.text for one in newest}
            lost = [each for each in wanted if each not in found]
            if not lost:
                return [Explanation(source, number, found[source, number]) for source, number in wanted]
        source, number = lost[0]
        if not self._may_lag:
            raise Corrupt(
                f"{self._node}: explanation {number} of {explained[source]} of source {source!r} is missing in "
                f"{self._objects.address}.",
                why="the sink's log says that it was there: it was removed, or the disk lost it.",
                do="restore the directory from a copy; without it, what the sink's positions mean is known to the "
                "checkpoint alone.",
                participant=self._node,
            )
        raise Unavailable(
            f"{self._node}: explanation {number} of {explained[source]} of source {source!r} is not found.",
            why=f"objects were removed from {self._objects.address}, or its listing lags.",
            do="it is retried.  If it stays so, bring the objects back from a copy: without them, what the "
            "sink's positions mean is known to the checkpoint alone.",
            participant=self._node,
        )

    def _texts(self, runs: Collection[_Run]) -> dict[int, str]:
        """Return number -> text, ascending; of two objects that overlap the later one counts."""
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            found = zip(runs, pool.map(self._objects.get, [run.key for run in runs]), strict=True)
            several = [(run, data.decode().split("\n")) for run, data in found if data is not None]
        return {number: text for run, texts in several for number, text in enumerate(texts, run.first)}


class _MergedElsewhere(Exception):
    """Objects are gone, or not listed yet: another run has merged them, or removed them."""


def _runs_in(objects: Objects) -> dict[str, set[_Run]]:
    """Return source -> its objects."""
    found: dict[str, set[_Run]] = {}
    for source, first, last in (match.groups() for key in objects.keys("") if (match := _NAME.fullmatch(key))):
        found.setdefault(source, set()).add(_Run(source, int(first), int(last)))
    return found


def _neighbours(runs: Iterable[_Run]) -> list[_Run]:
    """Return the first hundred that follow each other and are of one level; nothing where there are none."""
    found: list[_Run] = []
    for run in runs:
        if found and found[-1].level != run.level:
            found = []
        found.append(run)
        if len(found) == MERGED_AT_A_TIME:
            return found
    return []


def _dense(runs: Iterable[_Run]) -> list[_Run]:
    """Return the objects of a source that have all numbers from 1 on, without those that others contain.

    Two may overlap, where each was merged by another run.
    """
    found: list[_Run] = []
    for run in sorted(runs, key=lambda run: (run.first, -run.last)):
        reached = found[-1].last if found else 0
        if run.first <= reached + 1 and run.last > reached:
            found.append(run)
    return found
