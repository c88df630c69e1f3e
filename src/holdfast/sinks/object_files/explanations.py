"""What the positions of a sink in an object store mean: objects that have some neighbouring explanations each.

They are durable before the log entry of the epoch that needs them first.  An object is named by its first and last
number, and what a number says never changes; neighbours are merged, so there are a few hundred objects at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.ports import Explanation, Publication
from holdfast.sinks.explained import differing, lacking, needed
from holdfast.sinks.object_files.parallel import each
from holdfast.store.increments import MERGED_AT_A_TIME
from holdfast.store.objects.store import ObjectStore

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

    def held(self) -> dict[str, int]:
        """Return source -> highest number, as it is there."""
        self._runs = _dense(self._objects.keys(""))
        return {source: runs[-1].last for source, runs in self._runs.items()}

    def take(self, publications: Sequence[Publication]) -> None:
        """Keep what these epochs explain and the sink lacks.

        Raises
        ------
        Diverged
            If something else is kept under one of these numbers.
        """
        if not needed(publications):
            return
        if self._runs is None:
            self.held()
        runs = self._runs or {}
        held = {source: of[-1].last for source, of in runs.items()}
        new: dict[str, list[Explanation]] = {}
        for one in lacking(publications, held, self._node):
            new.setdefault(one.source, []).append(one)
        for source, several in new.items():
            run = _Run(source, several[0].number, several[-1].number)
            self._keep(run, [one.text for one in several])
            runs.setdefault(source, []).append(run)
            self._merge(runs[source])
        self._runs = runs

    def _keep(self, run: _Run, texts: list[str]) -> None:
        if self._objects.put_if_absent(run.key, "\n".join(texts).encode()):
            return
        there = self._texts(run)  # of this run, before it failed; or of another one that has taken over
        for number, (ours, theirs) in enumerate(zip(texts, there, strict=False), run.first):
            if ours != theirs:
                raise differing(run.source, number, (self._node, theirs), ("this run", ours))

    def _merge(self, runs: list[_Run]) -> None:
        """Make one object of the last hundred, where they are of one level."""
        while len(last := runs[-MERGED_AT_A_TIME:]) == MERGED_AT_A_TIME and len({run.level for run in last}) == 1:
            merged = _Run(last[0].source, last[0].first, last[-1].last)
            texts = [text for several in each(self._texts, last) for text in several]
            self._objects.put_if_absent(merged.key, "\n".join(texts).encode())
            self._objects.delete_several([run.key for run in last])
            runs[-MERGED_AT_A_TIME:] = [merged]

    def all(self) -> list[Explanation]:
        """Return everything that is kept."""
        runs = [run for of in _dense(self._objects.keys("")).values() for run in of]
        found: list[Explanation] = []
        for run, texts in zip(runs, each(self._texts, runs), strict=True):
            found += [Explanation(run.source, number, text) for number, text in enumerate(texts, run.first)]
        return found

    def _texts(self, run: _Run) -> list[str]:
        data = self._objects.get(run.key)
        return [] if data is None else data.decode().split("\n")


def _dense(keys: Iterable[str]) -> dict[str, list[_Run]]:
    """Return for each source the objects that have all numbers from 1 on, without those that others contain."""
    found: dict[str, list[_Run]] = {}
    parts = (match.groups() for key in keys if (match := _NAME.fullmatch(key)))
    runs = sorted((_Run(source, int(first), int(last)) for source, first, last in parts), key=_widest_first)
    for run in runs:
        before = found.get(run.source, [])
        reached = before[-1].last if before else 0
        if run.first == reached + 1:
            found.setdefault(run.source, []).append(run)
    return found


def _widest_first(run: _Run) -> tuple[str, int, int]:
    return run.source, run.first, -run.last
