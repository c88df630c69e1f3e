"""What the positions of a sink in an object store mean: objects that have some neighbouring explanations each.

They are copies of what log entries say, which one writer creates and no run that was replaced: so whoever copies, the
same number says the same.  An object is named by its first and last number; neighbours are merged, so there are a few
hundred objects at most.  How many explanations there are says the last entry, and never a listing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.connectors.files.objects.place import each
from holdfast.errors import HoldfastError, Unavailable
from holdfast.ports import Explanation
from holdfast.store.increments import MERGED_AT_A_TIME
from holdfast.store.objects.store import ObjectStore

log = logging.getLogger("holdfast.connectors.files")

_NAME = re.compile(r"(.+)/(\d{12})-(\d{12})")


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


class ObjectExplanations:
    """The explanations that one sink keeps.

    Parameters
    ----------
    objects : ObjectStore
        Below its address, nothing but these.
    node : str
        ``sink 'name'``, for errors.
    """

    def __init__(self, objects: ObjectStore, node: str) -> None:
        self._objects = objects
        self._node = node
        self._runs: dict[str, list[_Run]] | None = None

    def keep(self, explanations: Sequence[Explanation]) -> None:
        """Copy what a log entry says; again is safe."""
        if not explanations:
            return
        if self._runs is None:
            self._runs = _dense(self._objects.keys(""))
        new: dict[str, list[Explanation]] = {}
        for one in explanations:
            new.setdefault(one.source, []).append(one)
        for source, several in new.items():
            run = _Run(source, several[0].number, several[-1].number)
            self._objects.put(run.key, "\n".join(one.text for one in several).encode())
            runs = self._runs.setdefault(source, [])
            if not runs or runs[-1].last < run.first:
                runs.append(run)
        try:
            for runs in self._runs.values():
                self._merge(runs)
        except (HoldfastError, _MergedElsewhere) as error:
            log.info("%s: explanations of positions are merged later: %s", self._node, error)
            self._runs = None

    def _merge(self, runs: list[_Run]) -> None:
        """Make one object of the last hundred, where they are of one level."""
        while len(last := runs[-MERGED_AT_A_TIME:]) == MERGED_AT_A_TIME and len({run.level for run in last}) == 1:
            merged = _Run(last[0].source, last[0].first, last[-1].last)
            texts = [text for several in each(self._texts, last) for text in several]
            if len(texts) != merged.last - merged.first + 1:
                raise _MergedElsewhere(f"not all of {merged.key} is there")
            self._objects.put(merged.key, "\n".join(texts).encode())
            self._objects.delete_several([run.key for run in last])
            runs[-MERGED_AT_A_TIME:] = [merged]

    def all(self, explained: Mapping[str, int], newest: Sequence[Explanation]) -> list[Explanation]:
        """Return everything that is kept.

        Parameters
        ----------
        explained : mapping of str to int
            Source -> how many, as the last log entry says.
        newest : sequence of Explanation
            What that entry says, which may not be copied yet.

        Raises
        ------
        Unavailable
            If some are not found: the listing lags, or somebody merges.
        """
        runs = [run for of in _dense(self._objects.keys("")).values() for run in of]
        texts: dict[str, dict[int, str]] = {}
        for run, several in zip(runs, each(self._texts, runs), strict=True):
            texts.setdefault(run.source, {}).update(enumerate(several, run.first))
        for one in newest:
            texts.setdefault(one.source, {})[one.number] = one.text
        found: list[Explanation] = []
        for source, count in sorted(explained.items()):
            there = texts.get(source, {})
            if lost := [number for number in range(1, count + 1) if number not in there]:
                raise Unavailable(
                    f"{self._node}: explanation {lost[0]} of {count} of source {source!r} is not found.",
                    why=f"the listing of {self._objects.address} lags, or objects were removed there.",
                    do="it is retried.  If it stays so, bring the objects back from a copy: without them, what the "
                    "sink's positions mean is known to the checkpoint alone.",
                    participant=self._node,
                )
            found += [Explanation(source, number, there[number]) for number in range(1, count + 1)]
        return found

    def _texts(self, run: _Run) -> list[str]:
        data = self._objects.get(run.key)
        return [] if data is None else data.decode().split("\n")


class _MergedElsewhere(Exception):
    """Objects are gone, or not listed yet: another run has merged them, or removed them."""


def _dense(keys: Iterable[str]) -> dict[str, list[_Run]]:
    """Return for each source the objects that have all numbers from 1 on, without those that others contain.

    Two may overlap, where each was merged by another run.
    """
    found: dict[str, list[_Run]] = {}
    parts = (match.groups() for key in keys if (match := _NAME.fullmatch(key)))
    runs = sorted((_Run(source, int(first), int(last)) for source, first, last in parts), key=_widest_first)
    for run in runs:
        before = found.get(run.source, [])
        reached = before[-1].last if before else 0
        if run.first <= reached + 1 and run.last > reached:
            found.setdefault(run.source, []).append(run)
    return found


def _widest_first(run: _Run) -> tuple[str, int, int]:
    return run.source, run.first, -run.last
